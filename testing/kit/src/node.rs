//! The `kvorum` process under test: its launch, its end, and its metrics.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::Failure;
use crate::client::Client;
use crate::process::Process;

/// Timeout of a start or a stop; a longer one counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Part of the last line of a node's greeting.
const GREETING_ENDS: &str = "/v0/entities?start=";

/// Launch parameters of a node.
#[derive(Debug, Clone)]
pub struct Launch {
    /// A program with its arguments that runs the node, such as `prlimit`; may be empty.
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
    process: Process,
    /// Address of the running node.
    pub address: SocketAddr,
    /// The text that the node printed when it began to serve.
    pub greeting: String,
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

    /// Returns the parameters with `args` as the only arguments after `serve`.
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
        without_settings(&mut command);
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        Ok(command)
    }

    /// Starts a node without waiting until it serves.
    pub fn spawn(&self) -> Result<Child, Failure> {
        Ok(self.command()?.spawn()?)
    }

    /// Starts a node and waits until it serves. If the node refuses to start, the failure contains
    /// the log of this start.
    pub fn start(&self) -> Result<Node, Failure> {
        let logged = fs::metadata(&self.log).map_or(0, |log| log.len()) as usize;
        let failure = match Node::start(&mut self.command()?) {
            Err(Failure::Refused(why)) => why,
            started => return started,
        };
        // The log may be a pipe or a device, whose reading would never end.
        let is_file = fs::metadata(&self.log)?.is_file();
        let log = if is_file { fs::read(&self.log)? } else { Vec::new() };
        let said = String::from_utf8_lossy(log.get(logged..).unwrap_or_default()).into_owned();
        Err(Failure::Refused(format!("{failure}{}", said.trim())))
    }
}

/// Removes the variables of this process's environment that a node would read as settings.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVORUM_") {
            command.env_remove(name);
        }
    }
}

/// Parses the address in the greeting; `None` if the greeting has no address.
fn parse_address(greeting: &str) -> Option<SocketAddr> {
    let url = greeting.split_once(" listening on http")?.1;
    let address = url.split_once("://")?.1.split([',', ' ', '/']).next()?;
    address.parse().ok()
}

impl Node {
    /// Starts a node by a command that ends in `serve` and its arguments, and waits until the node
    /// serves. If the node exits instead, the failure contains its log, provided that stderr is a
    /// pipe.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut process = Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let stdout = process.take_stdout();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut greeting = String::new();
            // The thread reads to the end, because a full pipe would block the node.
            for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                let Ok(line) = line else { return };
                greeting = greeting + &line + "\n";
                if line.contains(GREETING_ENDS) {
                    let _ = sender.send(std::mem::take(&mut greeting));
                }
            }
        });
        let greeting = receiver.recv_timeout(TIMEOUT);
        let served = greeting.ok().and_then(|said| Some((parse_address(&said)?, said)));
        if let Some((address, greeting)) = served {
            return Ok(Self { process, address, greeting });
        }
        let ended = process.kill()?;
        let log = process.read_stderr()?;
        Err(Failure::Refused(format!("the node ended with {ended}: {log}")))
    }

    /// Returns the id of the node's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Connects to the node.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self.address)
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(self.process.signal(signal)?)
    }

    /// Kills the node by SIGKILL.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.process.kill()?;
        Ok(())
    }

    /// Stops the node by SIGTERM. Returns its exit status.
    pub fn stop(mut self) -> Result<ExitStatus, Failure> {
        self.signal(Signal::TERM)?;
        self.wait()
    }

    /// Waits up to 120 s until the node exits. Returns its exit status.
    pub fn wait(&mut self) -> Result<ExitStatus, Failure> {
        let hangs = || Failure::Broken(format!("the node does not end in {TIMEOUT:?}"));
        self.process.wait_within(TIMEOUT)?.ok_or_else(hangs)
    }

    /// Returns the node's stderr; `None` if it is not a pipe or was taken before.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.process.take_stderr()
    }

    /// Returns true if the node has exited by itself.
    pub fn has_ended(&mut self) -> Result<bool, Failure> {
        Ok(self.process.has_ended()?)
    }

    /// Returns the resident memory in bytes, current and peak.
    pub fn resident(&self) -> Result<(u64, u64), Failure> {
        Ok(self.process.resident()?)
    }

    /// Returns the CPU time that the node has used so far.
    pub fn cpu(&self) -> Result<Duration, Failure> {
        Ok(self.process.cpu()?)
    }

    /// Returns the number of open file descriptors.
    pub fn descriptors(&self) -> Result<usize, Failure> {
        Ok(self.process.descriptors()?)
    }

    /// Returns the value in the first line of `/metrics` that begins with `name`; `None` if there
    /// is no such line, or its value is not a number.
    pub fn metric(&self, name: &str) -> io::Result<Option<f64>> {
        let text = self.client()?.request("GET", "/metrics", b"")?.body;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| line.starts_with(name));
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()))
    }
}
