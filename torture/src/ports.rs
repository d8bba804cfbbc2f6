//! Ports on loopback for nodes that must be at the same address in all their lives.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those that the kernel gives out: neither a client nor a listener of another test is given
/// one while its node is down.
const PORTS: Range<u32> = 10_000..30_000;

/// How far processes that are started one after the other begin from each other.
const APART: u32 = 1_009;

/// The first of so many ports in a row that nobody listens on, and that this process has not taken
/// before, unless it has taken all.
pub fn free(count: u16) -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let room = PORTS.end - PORTS.start - u32::from(count);
    loop {
        let taken = TAKEN.fetch_add(u32::from(count), Ordering::Relaxed);
        let begin = process::id().wrapping_mul(APART).wrapping_add(taken) % room;
        let first = (PORTS.start + begin) as u16;
        if (first..first + count).all(|port| listen(port).is_ok()) {
            return first;
        }
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// Addresses with such ports.
pub fn addresses(count: u16) -> Vec<SocketAddr> {
    let first = free(count);
    (first..first + count).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect()
}
