//! The procedures in `docs/operate/cluster.md` for members that join and leave. Runs their commands
//! exactly as printed, on three nodes and on the nodes that the commands start, while a client
//! sends requests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kit::ports;
use kit::raw::Client;

use crate::cluster::key;
use crate::process::{Node, kvorum, pause_between_requests, wait_until};

/// Number of keys that are written before a procedure, and read after it.
pub(super) const KEYS: usize = 200;

/// Timeout of a command, for `timeout`.
const LIMIT: &str = "60s";

const SECRET: &str = "a secret that is long enough";

/// The nodes of the procedures, in the order of their machines.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Returns the lines of the code block that the comment `story: name` marks in the documentation.
pub(super) fn story(name: &str) -> Vec<&'static str> {
    let manual = match name {
        "tour" => include_str!("../../../docs/guide/tour.md"),
        _ => include_str!("../../../docs/operate/cluster.md"),
    };
    let (_, marked) = manual.split_once(&format!("<!-- story: {name} -->")).unwrap();
    let (_, block) = marked.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.lines().collect()
}

/// The machines of a procedure, with addresses on loopback.
struct Machines {
    at: Vec<SocketAddr>,
    nodes: Vec<Option<Node>>,
    /// The id that the last plan printed.
    plan: String,
}

impl Machines {
    /// Starts the first `count` machines as a cluster.
    fn start(count: usize) -> Self {
        let at = ports::addresses(NAMES.len() as u16);
        let mut machines = Self { at, nodes: NAMES.map(|_| None).into(), plan: String::new() };
        let first = NAMES.iter().zip(&machines.at).take(count);
        let list: Vec<_> = first.map(|(name, at)| format!("{name}=http://{at}")).collect();
        let list = list.join(",");
        for machine in 0..count {
            let args = ["--log", "warn", "--cluster", &list];
            let at = machines.at[machine].to_string();
            let data = tempfile::tempdir().unwrap();
            machines.nodes[machine] = Some(Node::start_at(&at, command(), data, &args));
        }
        machines
    }

    fn client(&self, machine: usize) -> Client {
        Client::connect(self.at[machine])
    }

    /// Replaces the addresses in a line of the documentation by addresses of this machine, and
    /// `PLAN` by the id of the last plan.
    fn here(&self, line: &str) -> String {
        let replaced = |line: String, (number, at): (usize, &SocketAddr)| {
            line.replace(&format!("10.0.0.{}:8080", number + 1), &at.to_string())
        };
        let line = self.at.iter().enumerate().fold(line.to_owned(), replaced);
        line.replace("PLAN", &self.plan)
    }

    /// Starts the node of a `kvorum serve --join` line. The returned thread ends once the node is a
    /// member.
    fn joins(&mut self, line: &str) -> thread::JoinHandle<(usize, Node)> {
        let line = self.here(line);
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let of = |flag: &str| {
            let at = words.iter().position(|word| word == flag).unwrap();
            words[at + 1].clone()
        };
        let machine = NAMES.iter().position(|name| *name == of("--name")).unwrap();
        assert_eq!(of("--data"), "/var/lib/kvorum", "{line}");
        let listen = of("--listen");
        let mut args: Vec<String> = Vec::new();
        for flag in ["--join", "--name", "--zone"] {
            if words.iter().any(|word| word == flag) {
                args.extend([flag.to_owned(), of(flag)]);
            }
        }
        args.extend(["--log".to_owned(), "warn".to_owned()]);
        let data = tempfile::tempdir().unwrap();
        thread::spawn(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            (machine, Node::start_at(&listen, command(), data, &args))
        })
    }

    /// Runs a command, which must succeed; returns its stdout.
    fn run(&mut self, line: &str) -> String {
        let line = self.here(line);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_kvorum"));
        let directory = program.parent().unwrap_or(Path::new("")).display();
        let path = format!("{directory}:{}", std::env::var("PATH").unwrap());
        let mut bash = Command::new("timeout");
        bash.args([LIMIT, "bash", "-c", &line]).env("PATH", path);
        bash.env("KVORUM_URL", format!("http://{}", self.at[0]));
        let output = bash.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "$ {line}\n{told}{error}");
        let id = told.lines().find_map(|line| line.strip_prefix("plan "));
        if let Some(id) = id {
            id.split(' ').next().unwrap().clone_into(&mut self.plan);
        }
        told
    }
}

fn command() -> Command {
    let mut command = kvorum();
    command.env("KVORUM_CLUSTER_SECRET", SECRET);
    command
}

/// Runs the commands of a procedure. Asserts that no request failed, no key is lost, and the
/// members listed in the end are `members`. `lost` is a machine that is killed before.
fn play(name: &str, lost: Option<usize>, members: &[&str]) {
    if Command::new("timeout").arg("--version").output().is_err() {
        eprintln!("skipped: there is no timeout");
        return;
    }
    let mut machines = Machines::start(3);
    let mut client = machines.client(0);
    for number in 0..KEYS {
        wait_until("a write", || client.put(&key(number), b"value").status == 201);
    }
    if let Some(lost) = lost {
        machines.nodes[lost].take().unwrap().kill();
        wait_until("the others do without it", || client.put(&key(0), b"value").status == 201);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = machines.client(0);
        scope.spawn(|| goes_on(client, &stop));
        let _stops = Stops(&stop);
        let mut joining = Vec::new();
        for line in story(name) {
            match line.strip_suffix(" &") {
                Some(serve) => joining.push(machines.joins(serve)),
                None if line.starts_with("kvorum cluster plan --add") => {
                    // Repeats the plan until the joining node has asked to join, because the
                    // commands here follow each other faster than a person types.
                    let asking = format!("until {line}; do sleep 0.1; done 2>/dev/null");
                    machines.run(&asking);
                }
                None => {
                    let told = machines.run(line);
                    assert!(!line.contains("apply") || told.starts_with("done: epoch"), "{told}");
                }
            }
            if line.contains("apply") {
                for joined in joining.drain(..) {
                    let (machine, node) = joined.join().unwrap();
                    machines.nodes[machine] = Some(node);
                }
            }
        }
    });
    for (machine, name) in NAMES.iter().enumerate().filter(|(_, name)| members.contains(name)) {
        let mut client = machines.client(machine);
        for number in 0..KEYS {
            let got = client.get(&key(number));
            assert_eq!((got.status, got.body()), (200, b"value".to_vec()), "{number} of {name}");
        }
    }
    let status = machines.run("kvorum cluster status || true");
    let listed = |name: &&&str| status.lines().any(|line| line.starts_with(&format!("{name} ")));
    let found: Vec<&str> = NAMES.iter().filter(listed).copied().collect();
    assert_eq!(found, members, "{status}");
    assert!(status.contains("settled"), "{status}");
}

/// Stops the clients that watch the flag: sets the flag when dropped.
pub(super) struct Stops<'a>(pub(super) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes and reads until `stop` is true. No request may fail.
pub(super) fn goes_on(mut client: Client, stop: &AtomicBool) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let entity = key(number % KEYS);
        let put = client.put(&entity, b"value");
        assert_eq!(put.status, 201, "{}", String::from_utf8_lossy(&put.body()));
        let got = client.get(&entity);
        assert_eq!(got.status, 200, "{}", String::from_utf8_lossy(&got.body()));
        pause_between_requests();
    }
}

#[test]
fn grow() {
    play("grow", None, &["a", "b", "c", "d"]);
}

#[test]
fn shrink() {
    play("shrink", None, &["a", "c", "d"]);
}

#[test]
fn replace_a_machine() {
    play("replace", None, &["a", "c", "d"]);
}

#[test]
fn lose_a_machine() {
    play("lose c", Some(2), &["a", "b", "d"]);
}

#[test]
fn move_to_another_zone() {
    play("zone", None, &["a", "d", "e"]);
}

#[test]
fn change_replicas() {
    play("replicas", None, &["a", "b", "c"]);
}
