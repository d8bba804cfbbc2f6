//! Finds the process that listens on an address of this machine, by `/proc/net/tcp` and then by the
//! open files of all processes.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The state (`st`) of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Returns the process that listens on `address`, if the process is on this machine and may be
/// observed. If several processes share the socket, returns the process with the lowest id, usually
/// their parent.
pub fn listens(address: SocketAddr) -> Option<u32> {
    if UdpSocket::bind((address.ip(), 0)).is_err() {
        return None;
    }
    let inodes: HashSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .flat_map(|file| listening_inodes(&fs::read_to_string(file).unwrap_or_default(), address))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let mut holders: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| holds(*pid, &inodes))
        .collect();
    holders.sort_unstable();
    holders.first().copied()
}

fn holds(pid: u32, inodes: &HashSet<String>) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .any(|link| link.to_str().is_some_and(|link| inodes.contains(link)))
}

/// Returns the inodes of the sockets that listen on `address`, or on the same port at all
/// addresses.
fn listening_inodes(table: &str, address: SocketAddr) -> Vec<u64> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (ip, port) = words.nth(1)?.split_once(':')?;
            let here = u16::from_str_radix(port, 16).ok()? == address.port();
            let ip = parse_ip(ip)?;
            let ours = ip == address.ip() || ip.is_unspecified();
            let state = words.nth(1)?;
            let inode = words.nth(5)?.parse().ok()?;
            (here && ours && state == LISTEN).then_some(inode)
        })
        .collect()
}

/// Parses an address in the kernel's format: words of 32 bits in the machine's byte order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let words: Option<Vec<u32>> = (0..hex.len())
        .step_by(8)
        .map(|at| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::listens;

    #[test]
    fn the_listening_process_is_found() {
        for ip in ["127.0.0.1", "0.0.0.0"] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let address = format!("127.0.0.1:{port}").parse().unwrap();
            assert_eq!(listens(address), Some(std::process::id()), "{ip}");
            drop(listener);
            assert_eq!(listens(address), None);
        }
        assert_eq!(listens("192.0.2.1:80".parse().unwrap()), None, "another machine");
    }
}
