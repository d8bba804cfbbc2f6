//! Row 33 of docs/results/reliability.md: clients are slow on purpose, in four ways. The node must
//! serve other clients as before, and must disconnect the slow clients in time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::node::Node;

use crate::Setup;

/// Minimum goodput beside slow clients, in percent of the goodput without them. Without slow
/// clients, nearly all requests succeed in time unless the machine is busy.
const GOODPUT_PERCENT: u64 = 90;

/// Time in which the node must disconnect the last slow client; the documentation promises 15 s.
const REAPED_WITHIN: Duration = Duration::from_secs(15);

/// Margin for a busy machine, and for the last check of the connections.
const MARGIN: Duration = Duration::from_secs(3);

/// Number of good clients, and the interval between the requests of each.
const GOOD: u32 = 8;
const PERIOD: Duration = Duration::from_millis(10);

/// Length in bytes of every sixteenth value that the good clients write; the others are small.
const LARGE: usize = 300 << 10;

/// Maximum latency of an answer that counts as in time.
const IN_TIME: Duration = Duration::from_millis(500);

/// Pause between two pieces that a slow client sends.
const PAUSE: Duration = Duration::from_millis(500);

/// The first bytes that a slow client sends, and the piece that it repeats. A client with an empty
/// piece sends nothing more.
const KINDS: [(&str, &[u8]); 4] = [
    ("", b""),
    ("GET /v0/entity?id=large HTTP/1.1\r\nX: ", b"x"),
    ("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx", b"x"),
    (
        "GET /v0/entity?id=large HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v0/entity?id=large HTTP/1.1\r\n",
    ),
];

/// Runs slow clients of all kinds beside good clients.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let node = setup.launch(dir.path(), dir.path(), &["--sync", "interval"]).start()?;
    let value = vec![b'v'; 1 << 20];
    let status = node.client()?.request("PUT", &target("large"), &value)?.status;
    if status != 201 {
        return Err(Failure::Broken(format!("a large value was answered {status}")));
    }
    let each = setup.size(500, 60);
    let alone = goodput(&node, Duration::from_secs(3))?;
    let slow = connect(node.address, each)?;
    let (beside, gone) = thread::scope(|scope| {
        let trickling = scope.spawn(move || trickle(slow));
        let beside = goodput(&node, REAPED_WITHIN);
        let gone =
            trickling.join().map_err(|_| Failure::Environment("a client panicked".to_owned()));
        Ok::<_, Failure>((beside?, gone?))
    })?;
    let Some(gone) = gone else {
        return Err(Failure::Broken("some of the slow clients are never given up".to_owned()));
    };
    // The machine may have become busy since the first measurement. The second measurement then
    // shows that too.
    let alone = alone.min(goodput(&node, Duration::from_secs(3))?);
    if beside * 100 < GOODPUT_PERCENT * alone {
        return Err(Failure::Broken(format!("goodput {beside} % beside, {alone} % alone")));
    }
    Ok(format!(
        "{} slow connections: goodput {beside} % (alone {alone} %), the last one given up after \
         {:.1} s",
        4 * each,
        gone.as_secs_f64()
    ))
}

fn connect(address: SocketAddr, each: usize) -> Result<Vec<(TcpStream, &'static [u8])>, Failure> {
    let mut slow = Vec::new();
    for (start, piece) in KINDS {
        for _ in 0..each {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(start.as_bytes())?;
            stream.set_nonblocking(true)?;
            slow.push((stream, piece));
        }
    }
    Ok(slow)
}

/// Keeps sending slowly until the node has closed all connections. Returns the time of the last
/// close, or `None` if a connection stays open too long.
fn trickle(mut slow: Vec<(TcpStream, &'static [u8])>) -> Option<Duration> {
    let begun = Instant::now();
    // Sum of the delays of this thread. The node's delays may be as long.
    let mut late = Duration::ZERO;
    while !slow.is_empty() {
        if begun.elapsed() > REAPED_WITHIN + MARGIN + late {
            return None;
        }
        let asleep = Instant::now();
        thread::sleep(PAUSE);
        late += asleep.elapsed() - PAUSE;
        slow.retain_mut(|(stream, piece)| !is_over(stream, piece));
    }
    Some(begun.elapsed())
}

/// Sends the next piece. Returns true if the node has closed the connection. For clients that await
/// a large answer, only a failed write shows the close: a read would show it earlier, but such
/// clients are slow by not reading.
fn is_over(stream: &mut TcpStream, piece: &[u8]) -> bool {
    let blocked = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    if !piece.is_empty() && stream.write(piece).is_err_and(|error| !blocked(&error)) {
        return true;
    }
    let reads = !piece.starts_with(b"GET");
    reads && matches!(stream.read(&mut [0; 4096]), Ok(0))
}

/// Returns the percentage of the good clients' requests with a successful answer in time. Sends
/// requests for the time `lasts`.
fn goodput(node: &Node, lasts: Duration) -> Result<u64, Failure> {
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..GOOD)
            .map(|n| {
                scope.spawn({
                    let (asked, answered) = (&asked, &answered);
                    move || ask(node, n, lasts, asked, answered)
                })
            })
            .collect();
        for client in clients {
            client.join().map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok::<_, Failure>(())
    })?;
    Ok(answered.into_inner() * 100 / asked.into_inner().max(1))
}

fn ask(
    node: &Node,
    number: u32,
    lasts: Duration,
    asked: &AtomicU64,
    answered: &AtomicU64,
) -> Result<(), Failure> {
    let mut client = Client::connect(node.address)?;
    let target = target(&format!("good{number}"));
    let large = vec![b'l'; LARGE];
    let begun = Instant::now();
    for slot in 0.. {
        let due = PERIOD * slot;
        if due > lasts {
            return Ok(());
        }
        thread::sleep(due.saturating_sub(begun.elapsed()));
        asked.fetch_add(1, Ordering::Relaxed);
        let (method, body) = match slot % 32 {
            30 => ("PUT", &large[..]),
            n if n % 2 == 0 => ("PUT", &b"value"[..]),
            _ => ("GET", &b""[..]),
        };
        let answer = client.request(method, &target, body)?;
        let in_time = begun.elapsed().saturating_sub(due) < IN_TIME;
        answered.fetch_add(u64::from(in_time && answer.status < 300), Ordering::Relaxed);
    }
    Ok(())
}
