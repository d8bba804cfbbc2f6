//! Row 36 of docs/results/reliability.md: attempts to pose as a node of the cluster: random bytes,
//! replays of recorded conversations between two nodes, and a whole process with another secret or
//! another list of nodes. All attempts must be refused, and the cluster must continue to serve.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::Client;
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers};
use parking_lot::Mutex;

use crate::Setup;

const NODES: usize = 3;

/// The node that is attacked.
const VICTIM: usize = 1;

/// The node that is started as an impostor.
const IMPOSTOR: usize = 2;

/// The request that turns a connection into one between nodes.
const UPGRADE: &str = "GET /v0/peer HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
     Upgrade: kvorum-peer/1\r\n\r\n";

/// Timeout for the end of an attack: one second for the handshake, and a margin for a busy machine.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit on the recorded bytes of one connection, far above the length of a handshake.
const RECORDED: usize = 64 << 10;

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `rounds` attacks of each kind.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &["--sync", "interval"])?;
    for node in 0..NODES {
        give_secret(&mut cluster, node);
    }
    // The first node connects to the victim through a recorder. Nodes may have different addresses
    // for the same node.
    let victim = cluster.addresses()[VICTIM];
    let recorder = Recorder::start(victim)?;
    for word in &mut cluster.launches[0].args {
        *word = word.replace(&victim.to_string(), &recorder.address.to_string());
    }
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let ledger = Arc::new(Ledger::default());
    let work =
        WriterParams { clients: 4, patience: Duration::from_secs(5), ..WriterParams::default() };
    let writers = Writers::start_on(cluster.addresses(), &ledger, work, setup.seed)?;
    let recordings = recorder.recordings();
    if recordings.is_empty() {
        return Err(Failure::Environment(
            "no connection between two nodes was recorded".to_owned(),
        ));
    }
    let mut random = Random::new(setup.seed);
    for round in 0..setup.rounds as usize {
        let replay = &recordings[round % recordings.len()];
        check_refusal(victim, replay, "a conversation that was played again")?;
        let mut changed = replay.clone();
        for _ in 0..1 + random.below(4) {
            // The HTTP head is not changed, because it is public.
            let head = replay.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(0) + 4;
            let place = head + random.below((changed.len() - head) as u64) as usize;
            changed[place] ^= 1 << random.below(8);
        }
        check_refusal(victim, &changed, "a conversation with changed bytes")?;
        let noise: Vec<u8> = (0..random.below(3000)).map(|_| random.number() as u8).collect();
        check_refusal(victim, &[UPGRADE.as_bytes(), &noise].concat(), "noise")?;
    }
    writers.stop()?;
    let impostors = impostors(&mut cluster, &ledger)?;
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    cluster.check(&ledger)?;
    Ok(format!(
        "{} conversations of strangers ({} played again from {} recorded, as many with changed \
         bytes, as many of noise): all refused; {impostors}; 0 lost, C over {} keys",
        3 * setup.rounds,
        setup.rounds,
        recordings.len(),
        agreed.keys
    ))
}

fn give_secret(cluster: &mut Cluster, node: usize) {
    let home = cluster.dir().join(format!("n{}", node + 1)).join("secret");
    let flag = ["--cluster-secret-file".to_owned(), home.display().to_string()];
    cluster.launches[node].args.extend(flag);
}

/// Sends `words` to a node, which must close the connection without serving it. Before that, the
/// node may only answer the upgrade, send its own HELLO, and send the reason for the refusal.
fn check_refusal(address: SocketAddr, words: &[u8], what: &str) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ATTACK_TIMEOUT))?;
    // Sending fails if the node closes the connection before it has received all bytes.
    let _ = stream.write_all(words);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(Failure::Broken(format!(
            "{what} is listened to for {:?}: {error}; it was told {} bytes",
            begun.elapsed(),
            said.len()
        ))),
    }
}

/// Starts the third node with another secret, and then with another list of nodes. The cluster must
/// refuse the node, and both sides must log the reason.
fn impostors(cluster: &mut Cluster, ledger: &Arc<Ledger>) -> Result<String, Failure> {
    let right = cluster.launches[IMPOSTOR].clone();
    let secret = cluster.dir().join(format!("n{}", IMPOSTOR + 1)).join("secret");
    let shared = fs::read(&secret)?;
    cluster.stop(IMPOSTOR)?;
    fs::write(&secret, "another secret, of whoever wants to be in\n")?;
    expect_kept_out(cluster, ledger, "another secret")?;
    fs::write(&secret, shared)?;
    let data = right.data.with_file_name("another");
    cluster.launches[IMPOSTOR].data = data;
    for word in &mut cluster.launches[IMPOSTOR].args {
        if word.contains("http://") {
            word.push_str(",n4=http://127.0.0.1:1");
        }
    }
    expect_kept_out(cluster, ledger, "another list")?;
    cluster.launches[IMPOSTOR] = right;
    cluster.start_node(IMPOSTOR)?;
    cluster.wait_until_ready()?;
    Ok("a process with another secret and one with another list were kept out".to_owned())
}

fn expect_kept_out(cluster: &mut Cluster, ledger: &Arc<Ledger>, what: &str) -> Result<(), Failure> {
    cluster.start_node(IMPOSTOR)?;
    let sound = cluster.others(IMPOSTOR);
    let work =
        WriterParams { clients: 4, patience: Duration::from_secs(5), ..WriterParams::default() };
    let writers = Writers::start_on(&sound, ledger, work, 7)?;
    let served = writers
        .wait(ATTACK_TIMEOUT, |statuses| statuses.get(&201).is_some_and(|written| *written > 100));
    writers.stop()?;
    if !served {
        return Err(Failure::Broken(format!("with {what} at one node the others do not serve")));
    }
    let mut client = Client::connect(cluster.addresses()[IMPOSTOR])?;
    let answer = client.request("GET", "/v0/entity?id=ks-1&ack=2&from=3", b"")?;
    if answer.status < 500 {
        let status = answer.status;
        return Err(Failure::Broken(format!("a node with {what} answers {status} to 2 of 3")));
    }
    for node in [0, IMPOSTOR] {
        let log = String::from_utf8_lossy(&fs::read(&cluster.launches[node].log)?).into_owned();
        let complains = |line: &str| line.contains("peer") && line.contains("ERROR");
        if !log.lines().any(complains) {
            let node = node + 1;
            return Err(Failure::Broken(format!("node {node} does not complain of {what}")));
        }
    }
    cluster.stop(IMPOSTOR)
}

/// A proxy between two nodes that records the bytes of the connecting node.
struct Recorder {
    address: SocketAddr,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    fn start(to: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let kept: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let keep = Arc::clone(&kept);
        // The thread ends with the process. No node connects to the proxy after the nodes have
        // stopped.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let keep = Arc::clone(&keep);
                thread::spawn(move || pass_on(stream, to, &keep));
            }
        });
        Ok(Self { address, kept })
    }

    fn recordings(&self) -> Vec<Vec<u8>> {
        let kept = self.kept.lock();
        kept.iter().filter(|recording| recording.len() > UPGRADE.len()).cloned().collect()
    }
}

fn pass_on(from: TcpStream, to: SocketAddr, keep: &Mutex<Vec<Vec<u8>>>) {
    let Ok(to) = TcpStream::connect(to) else { return };
    let (Ok(mut back_from), Ok(mut back_to)) = (to.try_clone(), from.try_clone()) else { return };
    thread::spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(Shutdown::Both);
    });
    let place = {
        let mut kept = keep.lock();
        kept.push(Vec::new());
        kept.len() - 1
    };
    let (mut from, mut to) = (from, to);
    let mut bytes = [0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let mut kept = keep.lock();
        if kept[place].len() < RECORDED {
            kept[place].extend_from_slice(&bytes[..len]);
        }
        drop(kept);
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
