//! The stories of `docs/operate/cluster.md` about members that join and leave. Runs their commands
//! as written, on three nodes and on those that the commands start, while a client sends requests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kit::ports;
use kit::raw::Client;

use crate::cluster::key;
use crate::process::{Node, between_turns, kvorum, wait_until};

/// Number of keys that are written before a story, and read after each of its commands.
pub(super) const KEYS: usize = 200;

/// Time limit of a command, for `timeout`.
const LIMIT: &str = "60s";

const SECRET: &str = "a secret that is long enough";

/// The nodes in the stories, in the order of their machines.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Returns the lines of the block that a comment in the documents marks with `name`.
pub(super) fn story(name: &str) -> Vec<&'static str> {
    let manual = match name {
        "tour" => include_str!("../../../docs/guide/tour.md"),
        _ => include_str!("../../../docs/operate/cluster.md"),
    };
    let (_, marked) = manual.split_once(&format!("<!-- story: {name} -->")).unwrap();
    let (_, block) = marked.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.lines().collect()
}

/// The machines of a story, with addresses on loopback.
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

    /// Replaces the addresses in a line of a story by those of this machine, and `PLAN` by the last
    /// plan's id.
    fn here(&self, line: &str) -> String {
        let replaced = |line: String, (number, at): (usize, &SocketAddr)| {
            line.replace(&format!("10.0.0.{}:8080", number + 1), &at.to_string())
        };
        let line = self.at.iter().enumerate().fold(line.to_owned(), replaced);
        line.replace("PLAN", &self.plan)
    }

    /// Starts the node of a `kvorum serve --join` line; returns a thread that ends once the node is
    /// a member.
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

    /// Runs a command; returns its output.
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

/// Plays a story. Asserts that no request failed, no key is lost, and the nodes that are up in the
/// end are the `members`.
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
                    // Repeats the plan until the joining node has asked: people type more slowly
                    // than this.
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

/// Sets the flag when dropped, which stops the clients that watch it.
pub(super) struct Stops<'a>(pub(super) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes and reads until `stop` is set; no request may fail.
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
        between_turns();
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
