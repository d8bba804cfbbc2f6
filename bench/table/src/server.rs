//! A measured server: a process of its own, which is stopped while others are measured.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a server to listen, which includes the opening of a large store.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Ticks of `/proc/PID/stat` per second, which are fixed for user space on Linux.
const TICKS: f64 = 100.0;

/// A running server.
pub struct Server {
    child: Child,
    /// Address that the server listens on.
    pub address: SocketAddr,
    /// Command line of the server, without the wrapper that ties the process to this program.
    pub argv: String,
}

/// Returns an address at which nothing listens now.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Formats a command line as a person would type it.
pub fn argv(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns the path of an installed program. The error tells how to install it.
pub fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{program} is not installed: apt-get install {package}"))
}

impl Server {
    /// Starts a server, and waits until it listens. The server's output goes to `log`.
    ///
    /// The kernel kills the server when this program ends, even while the server is stopped, so
    /// that a Ctrl-C leaves nothing behind.
    pub fn start(command: Command, address: SocketAddr, log: &Path) -> Result<Self, String> {
        let line = argv(&command);
        let output = fs::File::create(log).map_err(|error| format!("{log:?}: {error}"))?;
        let errors = output.try_clone().map_err(|error| format!("{log:?}: {error}"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("`{line}`: {error}"))?;
        let mut server = Self { child, address, argv: line };
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            let ended = server.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(log).unwrap_or_default();
                let said = log.lines().next_back().unwrap_or("nothing").to_owned();
                let line = &server.argv;
                return Err(format!("`{line}` did not listen on {address}; it said: {said}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the user and system time of the server's threads so far, in seconds.
    pub fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The name, in brackets, may contain anything. The 12th and 13th fields after it are utime
        // and stime.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
        ticks as f64 / TICKS
    }

    /// Returns the number of bytes that the server has read from files so far, from the disk or the
    /// page cache, without memory-mapped and received ones.
    pub fn bytes_read(&self) -> u64 {
        self.field("io", "rchar:")
    }

    /// Returns the number of bytes that the server has sent to the disk so far, or made dirty.
    pub fn bytes_written(&self) -> u64 {
        self.field("io", "write_bytes:")
    }

    /// Returns the greatest resident memory of the server so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.field("status", "VmHWM:") * 1024
    }

    fn field(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }

    /// Stops the process while others are measured.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            // The signal fails only if the server is gone, which the measurement itself will
            // report.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server's data are thrown away, so that the server need not stop in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
