//! A measured server: a process of its own, which is suspended while others are measured.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kit::process::Process;
use rustix::process::Signal;

/// Time limit for a server to listen, which includes the opening of a large store.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for a server to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A running server, killed when dropped. A clean shutdown is unnecessary, because its data are
/// discarded.
pub struct Server {
    process: Process,
    /// Address that the server listens on.
    pub address: SocketAddr,
    /// Command line of the server, without the wrapper that ties the process to this program.
    pub argv: String,
    /// The command with the wrapper, its output directed to `log`.
    command: Command,
    log: PathBuf,
}

/// Returns a loopback address with a free port.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Formats a command line as a person would type it.
pub fn argv(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns the path of an installed program. The error names the Debian package to install.
pub fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{program} is not installed: apt-get install {package}"))
}

impl Server {
    /// Starts a server, and waits until it listens. The server's output goes to `log`. Returns an
    /// error if the server ends, or does not listen within a minute.
    ///
    /// The kernel kills the server when this program ends, even while the server is suspended, so
    /// that a Ctrl-C leaves nothing behind.
    pub fn start(command: Command, address: SocketAddr, log: &Path) -> Result<Self, String> {
        let line = argv(&command);
        let mut tied = Command::new("setpriv");
        tied.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
        let output = fs::File::create(log).map_err(|error| format!("{log:?}: {error}"))?;
        let errors = output.try_clone().map_err(|error| format!("{log:?}: {error}"))?;
        tied.stdin(Stdio::null()).stdout(output).stderr(errors);
        let process = Process::start(&mut tied).map_err(|error| format!("`{line}`: {error}"))?;
        let log = log.to_owned();
        let mut server = Self { process, address, argv: line, command: tied, log };
        server.wait_listening()?;
        Ok(server)
    }

    /// Shuts down the server (SIGTERM), starts the same command again, and waits until the server
    /// listens. Returns an error if the server does not end, or does not listen again.
    pub fn restart(&mut self) -> Result<(), String> {
        self.signal(Signal::TERM);
        let ended = self.process.wait_within(STOP_LIMIT);
        if !matches!(ended, Ok(Some(_))) {
            return Err(format!("`{}` did not end within {STOP_LIMIT:?}", self.argv));
        }
        let started = Process::start(&mut self.command);
        self.process = started.map_err(|error| format!("`{}`: {error}", self.argv))?;
        self.wait_listening()
    }

    fn wait_listening(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            let ended = self.process.has_ended().unwrap_or_default();
            if ended || Instant::now() > deadline {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let said = log.lines().next_back().unwrap_or("nothing").to_owned();
                let (line, address) = (&self.argv, self.address);
                return Err(format!("`{line}` did not listen on {address}; it said: {said}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the user and system time of the server's threads so far, in seconds.
    pub fn cpu(&self) -> f64 {
        self.process.cpu().unwrap_or_default().as_secs_f64()
    }

    /// Returns the number of bytes that the server has read with read calls so far, from the disk
    /// or the page cache. Memory-mapped and received bytes do not count.
    pub fn bytes_read(&self) -> u64 {
        self.process.bytes_read().unwrap_or_default()
    }

    /// Returns the number of bytes that the server has caused to be written to the disk so far.
    pub fn bytes_written(&self) -> u64 {
        self.process.bytes_written().unwrap_or_default()
    }

    /// Returns the greatest resident memory of the server so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.process.resident().unwrap_or_default().1
    }

    /// Suspends the process (SIGSTOP) while others are measured.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // The signal fails only if the process has ended, which makes the measurement fail too.
        let _ = self.process.signal(signal);
    }
}
