//! Row 32 of docs/results/reliability.md: clients send requests in which bytes were changed,
//! removed, duplicated and inserted. In every case the node must send a valid HTTP answer or close
//! the connection, keep running, and serve all other clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::node::Node;
use kit::random::Random;

use crate::Setup;

/// Number of concurrent clients.
const CLIENTS: u64 = 4;

/// Timeout for the node to close the connection after a client has sent everything and has closed
/// its sending half. If the bytes look like the first part of a head, the node may take 12 s.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The requests that are mutated, each complete and valid.
const CORPUS: [&str; 7] = [
    "GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nvalue",
    "PUT /v0/entity?id=a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
     5;a\r\nvalue\r\n0\r\n\r\n",
    "DELETE /v0/entity?id=k&ack=1&from=1 HTTP/1.1\r\nHost: localhost\r\n\
     Connection: keep-alive\r\n\r\n",
    "GET /v0/entities?start=a&end=b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HEAD /v0/entity?id=%2e%2e HTTP/1.0\r\nExpect: 100-continue\r\n\r\n",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
];

/// The bytes that a mutation inserts.
const TOKENS: [&str; 14] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    ": ",
    "%",
    "%0",
    "+3",
    "0x5",
    "18446744073709551616",
    "chunked",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "\u{ff}",
];

/// Runs 300,000 cases per round; 20,000 in a test.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let mut node = setup.launch(dir.path(), dir.path(), &["--sync", "never"]).start()?;
    let cases = u64::from(setup.rounds) * setup.size(300_000, 20_000);
    let address = node.address;
    let answered = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| Random::new(setup.seed.wrapping_mul(CLIENTS).wrapping_add(n)))
            .map(|random| scope.spawn(move || fuzz(address, random, cases / CLIENTS)))
            .collect();
        let mut answered = 0;
        for client in clients {
            let ended = client.join();
            answered +=
                ended.map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok::<_, Failure>(answered)
    })?;
    check_still_serves(&mut node, &std::fs::read_to_string(dir.path().join("node.log"))?)?;
    Ok(format!("{cases} malformed conversations, {answered} answers, 0 panics"))
}

fn check_still_serves(node: &mut Node, log: &str) -> Result<(), Failure> {
    if node.has_ended()? || log.contains("panicked") {
        return Err(Failure::Broken(format!("the node panicked: {log}")));
    }
    let mut client = node.client()?;
    let put = client.request("PUT", "/v0/entity?id=after", b"v")?.status;
    let get = client.get("after")?;
    match (put, get.body.as_slice()) {
        (201, b"v") => Ok(()),
        _ => Err(Failure::Broken(format!("afterwards: PUT {put}, GET {}", get.status))),
    }
}

fn fuzz(address: SocketAddr, mut random: Random, cases: u64) -> Result<u64, Failure> {
    let mut answered = 0;
    for _ in 0..cases {
        let bytes = mutate_requests(&mut random);
        let answer = converse(address, &bytes)?;
        if !answer.is_empty() && !answer.starts_with(b"HTTP/1.") {
            let (sent, got) = (String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&answer));
            return Err(Failure::Broken(format!("{sent:?} is answered {got:?}")));
        }
        answered += answer.windows(9).filter(|at| at.starts_with(b"HTTP/1.")).count() as u64;
    }
    Ok(answered)
}

/// Sends the bytes, closes the sending half, and reads until the connection ends.
fn converse(address: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // Sending fails if the node has already closed the connection, but its answer can still be
    // read.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let sent = String::from_utf8_lossy(bytes);
            Err(Failure::Broken(format!("neither answered nor closed: {sent:?}")))
        }
        // An error is a reset: the node closed the connection while the client was sending.
        Ok(_) | Err(_) => Ok(answer),
    }
}

/// Returns one to three requests of the corpus, with one to four random changes.
fn mutate_requests(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(3) {
        bytes.extend_from_slice(CORPUS[random.below(CORPUS.len() as u64) as usize].as_bytes());
    }
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64) as usize;
        let len = (random.below(12) as usize).min(bytes.len() - at);
        match random.below(5) {
            0 => bytes[at] = random.number() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let doubled = bytes[at..at + len].to_vec();
                bytes.splice(at..at, doubled);
            }
            _ => {
                let token = TOKENS[random.below(TOKENS.len() as u64) as usize];
                bytes.splice(at..at, token.bytes());
            }
        }
    }
    bytes
}
