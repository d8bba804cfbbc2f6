//! A node as a child process, on a free port, with a data directory of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::Client;

/// Time limit of any wait before a test fails, far longer than waits take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// `--deadline` of a node whose test names none. On a busy machine a replica may answer later than
/// the node's own default of 1 s.
pub(crate) const DEADLINE: &str = "4s";

/// Returns a command for the binary with a clean environment.
pub(crate) fn kvorum() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvorum"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVORUM_") {
            command.env_remove(name);
        }
    }
    command
}

/// Paths on Debian and Ubuntu of the library that fakes a process's time.
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Returns a command for the binary with this wall clock, in libfaketime's words (`+3600s`); `None`
/// = that library is not installed.
pub(crate) fn kvorum_at(time: &str) -> Option<Command> {
    let Some(library) = FAKETIME.iter().find(|library| Path::new(library).exists()) else {
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

/// A running node, killed when dropped.
pub(crate) struct Node {
    child: Child,
    stdout: BufReader<ChildStdout>,
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
        let mut child = command
            .args(["serve", "--listen", listen, "--data"])
            .arg(data.path().join("data"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("/v0/entities?start=") {
            if stdout.read_line(&mut greeting).unwrap() == 0 {
                let mut stderr = String::new();
                child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("the node did not start: {stderr}");
            }
        }
        let url = greeting.split("listening on http").nth(1).unwrap();
        let url = url.split_once("://").unwrap().1;
        let address = url.split([',', ' ', '/']).next().unwrap().parse().unwrap();
        Self { child, stdout, greeting, address, data }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
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
        self.child.stderr.take().unwrap()
    }

    /// Waits until the process ends without a signal from this test; returns its exit status and
    /// its log, which is empty if the test took stderr.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "the node does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (status, log)
    }

    /// Returns the path of a file in `/proc` about the process.
    pub(crate) fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.id())
    }

    /// Returns the number of file descriptors in use.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `done` returns true.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
