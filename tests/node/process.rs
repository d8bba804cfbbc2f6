//! A node as a child process, on a free port, with its own data directory.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use kit::faults::clock;
use kit::node::without_settings;
use kit::raw::Client;
use tempfile::TempDir;

/// Timeout of each wait of a test, far longer than any wait on a busy machine.
pub(crate) const TIMEOUT: Duration = kit::raw::TIMEOUT;

/// `--deadline` of a node whose test sets none. On a busy machine a replica may answer later than
/// after the default deadline of 1 s.
pub(crate) const DEADLINE: &str = "4s";

/// Returns a command that runs the binary without `KVORUM_` variables of this process.
pub(crate) fn kvorum() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvorum"));
    without_settings(&mut command);
    command
}

/// Returns a command that runs the binary with this wall clock, in libfaketime's syntax (`+3600s`);
/// `None` if libfaketime is not installed.
pub(crate) fn kvorum_at(time: &str) -> Option<Command> {
    let Ok(library) = clock::library() else {
        eprintln!("skipped: libfaketime is needed");
        return None;
    };
    let mut command = kvorum();
    command.env("LD_PRELOAD", library).env("FAKETIME", time);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Some(command)
}

/// Runs a command until it exits; returns its output.
pub(crate) fn run(args: &[&str]) -> Output {
    kvorum().args(args).stdin(Stdio::null()).output().unwrap()
}

/// A running node with its own data directory, killed when dropped.
pub(crate) struct Node {
    node: kit::node::Node,
    pub(crate) greeting: String,
    pub(crate) address: SocketAddr,
    pub(crate) data: TempDir,
}

impl Node {
    pub(crate) fn start(args: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        Self::start_with(kvorum(), data, args)
    }

    /// Starts `command serve` with the directory `data`, on a free port, and waits until the node
    /// serves.
    pub(crate) fn start_with(command: Command, data: TempDir, args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", command, data, args)
    }

    /// Starts `command serve` with the directory `data`, listening at `listen`, and waits until the
    /// node serves.
    pub(crate) fn start_at(
        listen: &str,
        mut command: Command,
        data: TempDir,
        args: &[&str],
    ) -> Self {
        command.env("KVORUM_DEADLINE", DEADLINE);
        command.args(["serve", "--listen", listen, "--data"]).arg(data.path().join("data"));
        command.args(args).stderr(Stdio::piped());
        let node = kit::node::Node::start(&mut command).unwrap_or_else(|why| panic!("{why}"));
        Self { greeting: node.greeting.clone(), address: node.address, node, data }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.node.pid()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.node.signal(signal).unwrap();
    }

    /// Returns the data directory.
    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.data.path().join("data")
    }

    /// Stops the node with SIGTERM, as an operator does; returns its data directory.
    pub(crate) fn stop(mut self) -> TempDir {
        self.signal(rustix::process::Signal::TERM);
        let data = std::mem::replace(&mut self.data, tempfile::tempdir().unwrap());
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        data
    }

    /// Stops the node with SIGTERM, as an operator does; returns its log.
    pub(crate) fn stop_for_its_log(self) -> String {
        self.signal(rustix::process::Signal::TERM);
        self.wait().1
    }

    /// Kills the node; returns its data directory.
    pub(crate) fn kill(mut self) -> TempDir {
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Returns the node's stderr, which the test may read or close. Panics if it was taken before.
    pub(crate) fn take_stderr(&mut self) -> ChildStderr {
        self.node.take_stderr().unwrap()
    }

    /// Waits until the process exits, sending no signal; returns its exit status and its log, which
    /// is empty if the test has taken stderr.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.node.wait().unwrap();
        let mut log = String::new();
        if let Some(mut stderr) = self.node.take_stderr() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (status, log)
    }

    /// Returns the path of a file in `/proc` about the process.
    pub(crate) fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.node.pid())
    }

    /// Returns the number of file descriptors in use.
    pub(crate) fn open_files(&self) -> usize {
        self.node.descriptors().unwrap()
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.node.resident().unwrap().0
    }
}

/// Pauses between two requests of a client that runs until it is stopped. Without the pause the
/// client would keep a CPU busy.
pub(crate) fn pause_between_requests() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Waits until `done` returns true; panics with `what` after [`TIMEOUT`].
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TIMEOUT, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
