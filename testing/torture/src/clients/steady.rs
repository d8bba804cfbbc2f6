//! The row `steady` of docs/results/reliability.md: clients that read slowly but steadily must get
//! their whole answer, for ranges and for large values, in HTTP/1.1 and 1.0. The node must
//! disconnect clients that stop reading in time, and these clients must be able to notice that
//! their answer is incomplete.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::target;
use kit::node::Node;

use crate::Setup;

/// Length in bytes of each value in the range, and number of values. All values together are
/// several times as long as the kernel's buffers at both ends of the connection.
const ITEM: usize = 1 << 20;
const ITEMS: usize = 24;

/// Length of the large value in bytes.
const LARGE: usize = 8 << 20;

/// Kinds of requests: the name, the head of the request, and the length of the answer's body in
/// bytes, without the framing of chunks.
const KINDS: [(&str, &str, usize); 3] = [
    ("range", "GET /v0/entities?start=item HTTP/1.1\r\nHost: localhost\r\n", ITEMS * (ITEM + 7)),
    ("range in 1.0", "GET /v0/entities?start=item HTTP/1.0\r\n", ITEMS * (ITEM + 7)),
    ("value", "GET /v0/entity?id=a-large HTTP/1.1\r\nHost: localhost\r\n", LARGE),
];

/// Time in which the node must disconnect the last client that stopped reading; the documentation
/// promises 15 s.
const REAPED_WITHIN: Duration = Duration::from_secs(15);

/// Margin for a busy machine, and for the last check of the connections.
const MARGIN: Duration = Duration::from_secs(5);

/// Bytes that a client reads before it stops reading.
const READ_BEFORE_STOP: usize = 64 << 10;

/// Interval between two reads of a slow client.
const STEP: Duration = Duration::from_millis(100);

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs readers of each kind at each rate, and one reader of each kind that stops.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    // The large values of four clients may be in memory at once, and values get 1/32 of `--memory`.
    let args = ["--sync", "interval", "--memory", "2GiB", "--max-value", "8MiB"];
    let node = setup.launch(dir.path(), dir.path(), &args).start()?;
    fill(&node)?;
    let paces: &[usize] = setup.size(&[30_000, 60_000, 100_000], &[60_000]);
    let lasts = setup.size(Duration::from_secs(60), Duration::from_secs(25));
    let reaped = || node.metric("kvorum_connections_timed_out");
    let before = reaped()?.unwrap_or_default();
    let slowest = thread::scope(|scope| {
        let address = node.address;
        let mut steady = Vec::new();
        for pace in paces {
            for kind in KINDS {
                steady.push(scope.spawn(move || read_steadily(address, kind, *pace, lasts)));
            }
        }
        let stopped: Vec<_> =
            KINDS.iter().map(|kind| scope.spawn(move || stop_reading(address, *kind))).collect();
        let mut slowest = Duration::ZERO;
        for thread in stopped {
            let took = thread.join().map_err(|_| panic_failure())??;
            slowest = slowest.max(took);
        }
        for thread in steady {
            thread.join().map_err(|_| panic_failure())??;
        }
        Ok::<_, Failure>(slowest)
    })?;
    let given_up = reaped()?.unwrap_or_default() - before;
    if given_up as usize != KINDS.len() {
        return Err(Failure::Broken(format!("{given_up} connections were given up")));
    }
    Ok(format!(
        "{} readers of {} to {} KB/s for {} s: all served whole; {} that stopped: reset after at \
         most {:.1} s",
        paces.len() * KINDS.len(),
        paces[0] / 1000,
        paces[paces.len() - 1] / 1000,
        lasts.as_secs(),
        KINDS.len(),
        slowest.as_secs_f64()
    ))
}

fn panic_failure() -> Failure {
    Failure::Environment("a client panicked".to_owned())
}

fn fill(node: &Node) -> Result<(), Failure> {
    let mut client = node.client()?;
    let items = (0..ITEMS).map(|item| (format!("item{item:02}"), ITEM));
    for (key, length) in items.chain([("a-large".to_owned(), LARGE)]) {
        let status = client.request("PUT", &target(&key), &vec![b'v'; length])?.status;
        if status != 201 {
            return Err(Failure::Broken(format!("a large value was answered {status}")));
        }
    }
    Ok(())
}

fn ask(address: SocketAddr, head: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
    Ok(stream)
}

/// Reads at the rate `pace` for the time `lasts`, then the rest at once. The whole answer must
/// arrive.
fn read_steadily(
    address: SocketAddr,
    (name, head, length): (&str, &str, usize),
    pace: usize,
    lasts: Duration,
) -> Result<(), Failure> {
    let mut stream = ask(address, head)?;
    let mut read = 0;
    let mut piece = vec![0; pace * STEP.as_millis() as usize / 1000];
    let broken = |read: usize, why: String| {
        let at = format!("a reader of {} KB/s, {name}", pace / 1000);
        Failure::Broken(format!("{at}: {read} of {length} bytes, then {why}"))
    };
    let begun = Instant::now();
    let mut due = begun;
    while begun.elapsed() < lasts {
        due += STEP;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        match stream.read(&mut piece) {
            Ok(0) => return Err(broken(read, "the end".to_owned())),
            Ok(some) => read += some,
            Err(error) => return Err(broken(read, error.to_string())),
        }
    }
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    read += rest.len();
    match ended {
        // The count includes the head of the answer and the framing of chunks, beside the body.
        Ok(_) if (length..length + 1024).contains(&read) => Ok(()),
        Ok(_) => Err(broken(read, "the end".to_owned())),
        Err(error) => Err(broken(read, error.to_string())),
    }
}

/// Reads a little and stops. Returns the time until the node reset the connection. Only a reset
/// shows in every case that the answer is incomplete: in HTTP/1.0 the normal end of the connection
/// marks the end of a range.
fn stop_reading(
    address: SocketAddr,
    (name, head, _): (&str, &str, usize),
) -> Result<Duration, Failure> {
    let mut stream = ask(address, head)?;
    let begun = Instant::now();
    stream.read_exact(&mut vec![0; READ_BEFORE_STOP])?;
    loop {
        match stream.take_error()?.map(|error| error.kind()) {
            Some(ErrorKind::ConnectionReset) => return Ok(begun.elapsed()),
            None if begun.elapsed() < REAPED_WITHIN + MARGIN => thread::sleep(STEP),
            seen => {
                let after = begun.elapsed();
                let why = format!("{name}: a client that stopped sees {seen:?} after {after:?}");
                return Err(Failure::Broken(why));
            }
        }
    }
}
