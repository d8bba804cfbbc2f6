//! The `kvorum` process under test.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;
use crate::client::Client;

/// Time after which a start or a stop counts as hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// Launch parameters of a node.
#[derive(Debug, Clone)]
pub struct Launch {
    /// A program with arguments that runs the node, as `prlimit` does. May be empty.
    pub wrapper: Vec<String>,
    /// The binary to run.
    pub binary: PathBuf,
    /// Address to listen on. With port 0, the system chooses a free port.
    pub listen: SocketAddr,
    /// The data directory.
    pub data: PathBuf,
    /// Path of the file that receives the node's log.
    pub log: PathBuf,
    /// Arguments after `serve`.
    pub args: Vec<String>,
}

/// A running node, killed when dropped.
#[derive(Debug)]
pub struct Node {
    child: Child,
    /// Address of the running node.
    pub address: SocketAddr,
}

impl Launch {
    /// Returns the launch parameters of a node with its data in `dir/data` and its log in
    /// `log_dir`.
    pub fn new(binary: &Path, dir: &Path, log_dir: &Path, args: &[&str]) -> Self {
        Self {
            wrapper: Vec::new(),
            binary: binary.to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data: dir.join("data"),
            log: log_dir.join("node.log"),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        }
    }

    /// Returns the parameters with other arguments.
    pub fn with(&self, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { args, ..self.clone() }
    }

    fn command(&self) -> Result<Command, Failure> {
        let mut words = self.wrapper.iter().map(PathBuf::from).collect::<Vec<_>>();
        words.push(self.binary.clone());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.args(["serve", "--listen", &self.listen.to_string(), "--data"]).arg(&self.data);
        command.args(&self.args);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVORUM_") {
                command.env_remove(name);
            }
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        Ok(command)
    }

    /// Starts a node without waiting until it serves.
    pub fn spawn(&self) -> Result<Child, Failure> {
        Ok(self.command()?.spawn()?)
    }

    /// Starts a node and waits until it serves.
    pub fn start(&self) -> Result<Node, Failure> {
        let logged = fs::metadata(&self.log).map_or(0, |log| log.len()) as usize;
        let mut child = self.spawn()?;
        let stdout = child.stdout.take();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            // Reads to the end, because a full pipe would block the node.
            for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                let Ok(line) = line else { return };
                if let Some(address) = parse_listen_line(&line) {
                    let _ = sender.send(address);
                }
            }
        });
        if let Ok(address) = receiver.recv_timeout(PATIENCE) {
            return Ok(Node { child, address });
        }
        let _ = child.kill();
        let ended = child.wait()?;
        // Reading a pipe or a device would never end.
        let is_file = fs::metadata(&self.log)?.is_file();
        let log = if is_file { fs::read(&self.log)? } else { Vec::new() };
        let said = String::from_utf8_lossy(log.get(logged..).unwrap_or_default()).into_owned();
        Err(Failure::Refused(format!("the node ended with {ended}: {}", said.trim())))
    }
}

/// Parses the address in the line that reports where the node listens.
fn parse_listen_line(line: &str) -> Option<SocketAddr> {
    let rest = line.split_once(" listening on http://")?.1;
    rest.split(',').next()?.parse().ok()
}

impl Node {
    /// Returns the id of the node's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Connects to the node.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self.address)
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(kill_process(Pid::from_child(&self.child), signal).map_err(io::Error::from)?)
    }

    /// Kills the node, as by `kill -9`.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops the node by SIGTERM. Returns its exit status.
    pub fn stop(mut self) -> Result<ExitStatus, Failure> {
        self.signal(Signal::TERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::Broken("the node does not end after SIGTERM".to_owned()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns true if the node has ended on its own.
    pub fn has_ended(&mut self) -> Result<bool, Failure> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Returns the resident memory in bytes, current and peak.
    pub fn resident(&self) -> Result<(u64, u64), Failure> {
        let status = self.proc("status")?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
        };
        let missing = || Failure::Environment("no memory figures in /proc".to_owned());
        Ok((field("VmRSS:").ok_or_else(missing)?, field("VmHWM:").ok_or_else(missing)?))
    }

    /// Returns the CPU time that the node has used so far.
    pub fn cpu(&self) -> Result<Duration, Failure> {
        let stat = self.proc("stat")?;
        // The fields after the name, which may contain anything: the state, 10 more fields, then
        // user and system time.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
        let second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis(Duration::from_secs(ticks).as_millis() as u64 / second))
    }

    /// Returns the number of open file descriptors.
    pub fn descriptors(&self) -> Result<usize, Failure> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Returns the value of the first line of `/metrics` that begins with `name`, or `None` without
    /// such a line.
    pub fn metric(&self, name: &str) -> io::Result<Option<f64>> {
        let text = self.client()?.request("GET", "/metrics", b"")?.body;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| line.starts_with(name));
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()))
    }

    fn proc(&self, file: &str) -> Result<String, Failure> {
        Ok(fs::read_to_string(Path::new("/proc").join(self.pid().to_string()).join(file))?)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
