//! Row 13 of docs/results/reliability.md, second part: hundreds of clients request large stored
//! values, and do not read the answers. The process must stay within `--memory` plus 64 MiB, for
//! each size of `--memory`, as a single node and as one of three nodes. Clients that read their
//! answers must be served.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::node::{Launch, Node};

use crate::Setup;

/// Sizes of `--memory`, in MiB.
const SIZES: [u64; 3] = [64, 128, 512];

/// Memory that the process may use beyond `--memory`, in bytes.
const OUTSIDE: u64 = 64 << 20;

/// Lengths of the values in bytes, and settings with which a node stores the longest value.
const LENGTHS: [usize; 6] = [100 << 10, 300 << 10, 700 << 10, 1 << 20, 3 << 20, 8 << 20];
const STORED_WITH: [&str; 4] = ["--memory", "512MiB", "--max-value", "8MiB"];

/// Number of values of each length.
const EACH: usize = 4;

/// Length in bytes of the values that good clients request. The smallest `--memory` has room for a
/// value of this length.
const GOOD: usize = 700 << 10;

/// Timeout for a bad client to connect, and for each of its sends.
const IMPATIENCE: Duration = Duration::from_millis(200);

/// Results for one size of `--memory`.
#[derive(Debug, Clone, Copy, Default)]
struct SiegeFigures {
    peak: u64,
    served: u64,
    refused: u64,
}

/// Runs each size with one node, and then with three nodes.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let sizes = if setup.quick { &SIZES[..1] } else { &SIZES[..] };
    let mut lines = Vec::new();
    let alone = tempfile::tempdir()?;
    let launch = setup.launch(alone.path(), alone.path(), &STORED_WITH);
    let node = launch.start()?;
    fill(node.address, "")?;
    stop(node)?;
    for size in sizes {
        let seen = one(setup, &launch, *size)?;
        lines.push(line(&format!("{size} MiB alone"), seen));
    }
    let mut cluster = Cluster::start(&setup.binary, 3, None, &STORED_WITH)?;
    fill(cluster.addresses()[0], "&ack=3&from=3")?;
    for size in sizes {
        let seen = three(setup, &mut cluster, *size)?;
        lines.push(line(&format!("{size} MiB each of three"), seen));
    }
    Ok(lines.join("; "))
}

fn line(what: &str, seen: SiegeFigures) -> String {
    format!(
        "{what}: peak RSS {} MiB, good clients got {} values and {} times 503",
        seen.peak >> 20,
        seen.served,
        seen.refused
    )
}

/// Returns the value of a key, with `length` bytes.
fn value(length: usize, number: usize) -> Vec<u8> {
    // The bytes are incompressible, so that the value uses its full length on the disk.
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed((length * EACH + number) as u64).fill(&mut bytes);
    bytes
}

fn key(length: usize, number: usize) -> String {
    format!("v{}-{number}", length >> 10)
}

fn fill(address: SocketAddr, votes: &str) -> Result<(), Failure> {
    let mut client = Client::connect(address)?;
    for length in LENGTHS {
        for number in 0..EACH {
            let place = target(&key(length, number)) + votes;
            let status = loop {
                match client.request("PUT", &place, &value(length, number))?.status {
                    503 | 504 => thread::sleep(Duration::from_millis(20)),
                    status => break status,
                }
            };
            if status != 201 {
                return Err(Failure::Broken(format!("PUT of {length} bytes answers {status}")));
            }
        }
    }
    Ok(())
}

fn stop(node: Node) -> Result<(), Failure> {
    let status = node.stop()?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Broken(format!("after SIGTERM the node ended with {status}")))
}

fn one(setup: &Setup, launch: &Launch, size: u64) -> Result<SiegeFigures, Failure> {
    let node = launch.with(&["--memory", &format!("{size}MiB")]).start()?;
    let mut seen = run_unread_clients(setup, &[node.address], "")?;
    seen.peak = within(&node, size)?;
    stop(node)?;
    Ok(seen)
}

fn three(setup: &Setup, cluster: &mut Cluster, size: u64) -> Result<SiegeFigures, Failure> {
    let args = |launch: &Launch| {
        let list = launch.args.iter().position(|arg| arg == "--cluster").unwrap_or(0);
        [&launch.args[list..list + 2], &["--memory".to_owned(), format!("{size}MiB")]].concat()
    };
    for node in 0..3 {
        cluster.stop(node)?;
        cluster.launches[node].args = args(&cluster.launches[node]);
        cluster.start_node(node)?;
    }
    cluster.wait_until_ready()?;
    let mut seen = run_unread_clients(setup, cluster.addresses(), "&ack=2&from=3")?;
    for node in 0..3 {
        seen.peak = seen.peak.max(within(cluster.node(node)?, size)?);
    }
    Ok(seen)
}

/// Checks that the process never used more than its limit. Returns its peak in bytes.
fn within(node: &Node, size: u64) -> Result<u64, Failure> {
    let (_, most) = node.resident()?;
    if most > (size << 20) + OUTSIDE {
        let took = most >> 20;
        return Err(Failure::Broken(format!(
            "with --memory {size}MiB the process took {took} MiB"
        )));
    }
    Ok(most)
}

/// Runs hundreds of clients that do not read their answers, and one client per node that does.
fn run_unread_clients(
    setup: &Setup,
    nodes: &[SocketAddr],
    votes: &'static str,
) -> Result<SiegeFigures, Failure> {
    let crowd = setup.size(300, 60);
    let lasts = setup.size(Duration::from_secs(12), Duration::from_secs(4));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let good: Vec<_> = nodes
            .iter()
            .map(|node| {
                let over = &over;
                scope.spawn(move || run_good_client(*node, votes, over))
            })
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < lasts {
            let mut held = Vec::new();
            for n in 0..crowd {
                let node = nodes[n % nodes.len()];
                // A client that can't connect is skipped.
                if let Ok(mut client) = Client::connect_within(node, IMPATIENCE) {
                    let key = key(LENGTHS[n % LENGTHS.len()], n / LENGTHS.len() % EACH);
                    let _ = client.send("GET", &(target(&key) + votes), b"");
                    held.push(client);
                }
            }
            thread::sleep(lasts / 3);
        }
        over.store(true, Ordering::Relaxed);
        let mut seen = SiegeFigures::default();
        for client in good {
            let ended = client.join();
            let (served, refused) =
                ended.map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
            seen.served += served;
            seen.refused += refused;
        }
        if seen.served == 0 {
            return Err(Failure::Broken("whoever reads was not served once".to_owned()));
        }
        Ok(seen)
    })
}

/// Repeatedly requests a value and reads the answer, until `over`. Returns the number of received
/// values, and of refusals.
fn run_good_client(
    node: SocketAddr,
    votes: &str,
    over: &AtomicBool,
) -> Result<(u64, u64), Failure> {
    let (mut served, mut refused) = (0, 0);
    let mut client = Client::connect(node)?;
    for number in (0..EACH).cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let answer = client.request("GET", &(target(&key(GOOD, number)) + votes), b"")?;
        match answer.status {
            200 if answer.body == value(GOOD, number) => served += 1,
            200 => return Err(Failure::Broken("a large value came back wrong".to_owned())),
            503 => {
                refused += 1;
                thread::sleep(Duration::from_millis(50));
            }
            status => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(Failure::Broken(format!("GET answers {status}: {body}")));
            }
        }
    }
    Ok((served, refused))
}
