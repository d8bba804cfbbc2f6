//! Ports on loopback for nodes that must keep their address over restarts.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports below the kernel's ephemeral range, so that no client or listener of another test occupies
/// the port of a node that is down.
const PORTS: Range<u32> = 10_000..30_000;

/// Distance between the first ports of processes with consecutive IDs.
const PORT_STRIDE: u32 = 1_009;

/// Returns the first of `count` consecutive ports on which nothing listens. In one process, repeats
/// a port only after all others were returned.
pub fn free(count: u16) -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let room = PORTS.end - PORTS.start - u32::from(count);
    loop {
        let taken = TAKEN.fetch_add(u32::from(count), Ordering::Relaxed);
        let begin = process::id().wrapping_mul(PORT_STRIDE).wrapping_add(taken) % room;
        let first = (PORTS.start + begin) as u16;
        if (first..first + count).all(|port| listen(port).is_ok()) {
            return first;
        }
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// Returns `count` loopback addresses with ports on which nothing listens.
pub fn addresses(count: u16) -> Vec<SocketAddr> {
    let first = free(count);
    (first..first + count).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect()
}
