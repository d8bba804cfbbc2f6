//! A node as a child process, on a free port, with a data directory of its own.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use kit::faults::clock;
use kit::node::without_settings;
use kit::raw::Client;
use tempfile::TempDir;

/// Time limit of any wait before a test fails, far longer than waits take on a busy machine.
pub(crate) const PATIENCE: Duration = kit::raw::PATIENCE;

/// `--deadline` of a node whose test names none. On a busy machine a replica may answer later than
/// the node's own default of 1 s.
pub(crate) const DEADLINE: &str = "4s";

/// Returns a command for the binary with a clean environment.
pub(crate) fn kvorum() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvorum"));
    without_settings(&mut command);
    command
}

/// Returns a command for the binary with this wall clock, in libfaketime's words (`+3600s`); `None`
/// = that library is not installed.
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

/// Runs a command to its end; returns its output.
pub(crate) fn run(args: &[&str]) -> Output {
    kvorum().args(args).stdin(Stdio::null()).output().unwrap()
}

/// A running node with a data directory of its own, killed when dropped.
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

    /// Starts `command serve` on `data`, and reads the address that it prints.
    pub(crate) fn start_with(command: Command, data: TempDir, args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", command, data, args)
    }

    /// Starts `command serve` on `data`, listening at `listen`.
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

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.node.signal(signal).unwrap();
    }

    /// Returns the data directory.
    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.data.path().join("data")
    }

    /// Stops the node by SIGTERM, as an operator does; returns its data directory.
    pub(crate) fn stop(mut self) -> TempDir {
        self.signal(rustix::process::Signal::TERM);
        let data = std::mem::replace(&mut self.data, tempfile::tempdir().unwrap());
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        data
    }

    /// Stops the node by SIGTERM, as an operator does; returns its log.
    pub(crate) fn stop_for_its_log(self) -> String {
        self.signal(rustix::process::Signal::TERM);
        self.wait().1
    }

    /// Kills the node; returns its data directory.
    pub(crate) fn kill(mut self) -> TempDir {
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Takes the node's stderr, for the test to read or to close.
    pub(crate) fn take_stderr(&mut self) -> ChildStderr {
        self.node.take_stderr().unwrap()
    }

    /// Waits until the process ends without a signal from this test; returns its exit status and
    /// its log, which is empty if the test took stderr.
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

/// Pauses between two requests of a client that runs until it is stopped. Without pauses the client
/// would keep a CPU busy.
pub(crate) fn between_turns() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Waits until `done` returns true.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
