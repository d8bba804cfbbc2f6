//! The process of a server under test: its start, its stop, and its removal whenever the load
//! generator ends.
//!
//! ```text
//!  start   fails if a process listens on the address already; otherwise spawns the server, and
//!          waits until the server accepts connections. If the server ends first, or takes too
//!          long, the error shows its last lines of output
//!  stop    SIGTERM, then SIGKILL; also on drop, on ctrl-C and after an error
//!  death   the kernel kills the server if this process dies
//! ```

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{Data, Error, ServerCommand};
use crate::interrupt::{CleanupGuard, CleanupTarget};

/// Time limit for a server to listen, which includes the opening of a large store.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for a server to stop after SIGTERM, which includes requests in flight and a last
/// sync.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Pause between two polls of a starting or stopping server.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Time limit of one attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Time limit for reading the last output of a server that ended. A child of the server may still
/// keep the output open.
const OUTPUT_LIMIT: Duration = Duration::from_secs(2);

/// Number of output lines kept for error messages.
const KEPT_LINES: usize = 12;

/// Longest kept output line, in bytes.
const MAX_LINE_LEN: u64 = 4 << 10;

/// Program of util-linux that runs a command. The kernel kills the command when the thread that
/// started it ends.
const SETPRIV: &str = "/usr/bin/setpriv";

/// A running server, stopped when dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    ended: Option<ExitStatus>,
    addresses: Vec<SocketAddr>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Threads that read the server's output.
    readers: Vec<JoinHandle<()>>,
    data: Option<Data>,
    _cleanup: Option<CleanupGuard>,
}

impl ServerProcess {
    /// Starts `command` and waits until the server accepts connections on all `addresses`. The
    /// server gets `data` or, if its command line has the placeholder, a fresh directory in
    /// `fresh_in`.
    pub fn start(
        command: &ServerCommand,
        data: Option<Data>,
        fresh_in: Option<&Path>,
        addresses: &[SocketAddr],
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        if let Some(taken) = addresses.iter().find(|address| connects(**address)) {
            return Err(Error::Taken { address: *taken });
        }
        let data = match data {
            None if command.has_data() => Some(Data::fresh(fresh_in)?),
            data => data,
        };
        let words = command.resolve(data.as_ref().map(Data::path).as_deref());
        let line = words.join(" ");
        let mut child =
            spawn(&words).map_err(|cause| Error::Start { line: line.clone(), cause })?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let out = child.stdout.take().map(|out| keep_lines(out, &said));
        let err = child.stderr.take().map(|err| keep_lines(err, &said));
        let readers = [out, err].into_iter().flatten().collect();
        let addresses = addresses.to_vec();
        let group = Pid::from_raw(child.id() as i32);
        let _cleanup = group.map(|group| CleanupGuard::of(CleanupTarget::Group(group)));
        let mut server = Self { child, ended: None, addresses, said, readers, data, _cleanup };
        server.wait_until_it_serves(&line, stop)?;
        Ok(server)
    }

    fn wait_until_it_serves(&mut self, line: &str, stop: &AtomicBool) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        for at in 0..self.addresses.len() {
            let address = self.addresses[at];
            while !connects(address) {
                let ended = self.describe_exit();
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                if ended.is_some() || Instant::now() > deadline {
                    let how = ended.unwrap_or_else(|| format!("not within {START_LIMIT:?}"));
                    let said = self.last_lines();
                    return Err(Error::Silent { line: line.to_owned(), address, how, said });
                }
                std::thread::sleep(POLL_PAUSE);
            }
        }
        Ok(())
    }

    /// Returns the id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the server's data directory, or `None` if its command line has no placeholder for
    /// one.
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Returns a description of the server's end, or `None` while the server runs.
    pub fn describe_exit(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.map(|status| match (status.code(), status.signal()) {
            (Some(code), _) => format!("it ended with exit code {code}"),
            (None, Some(signal)) => format!("signal {signal} ended it"),
            (None, None) => "it ended".to_owned(),
        })
    }

    /// Returns the last lines of stdout and stderr. If the server has ended, reads all of its
    /// output first.
    pub fn last_lines(&self) -> String {
        let deadline = Instant::now() + OUTPUT_LIMIT;
        let read = || self.readers.iter().all(JoinHandle::is_finished);
        while self.ended.is_some() && !read() && Instant::now() < deadline {
            std::thread::sleep(POLL_PAUSE);
        }
        let lines = self.said.lock();
        if lines.is_empty() {
            return "(nothing)".to_owned();
        }
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Stops the server and returns its data.
    pub fn stop(mut self) -> Option<Data> {
        self.end();
        self.data.take()
    }

    /// Sends SIGTERM to the server's process group, and SIGKILL after [`STOP_LIMIT`].
    fn end(&mut self) {
        let Some(group) = Pid::from_raw(self.child.id() as i32) else { return };
        if self.describe_exit().is_none() {
            let _ = kill_process_group(group, Signal::TERM);
            let deadline = Instant::now() + STOP_LIMIT;
            while self.describe_exit().is_none() && Instant::now() < deadline {
                std::thread::sleep(POLL_PAUSE);
            }
        }
        // This signal also kills processes that the server has left in its group.
        let _ = kill_process_group(group, Signal::KILL);
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the process in a group of its own. A terminal's Ctrl-C then reaches only the load
/// generator, which stops the server in order.
fn spawn(words: &[String]) -> std::io::Result<Child> {
    let setpriv_words = [SETPRIV, "--pdeathsig", "KILL", "--"].map(str::to_owned);
    let has_setpriv = Path::new(SETPRIV).is_file();
    let words = if has_setpriv { [&setpriv_words, words].concat() } else { words.to_vec() };
    std::process::Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

fn connects(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok()
}

/// Starts a thread that reads `from` to its end, so that the server never blocks on its output. The
/// thread keeps the last lines.
fn keep_lines(
    from: impl Read + Send + 'static,
    said: &Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.by_ref().take(MAX_LINE_LEN).read_until(b'\n', &mut line).is_ok_and(|len| len > 0)
        {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let mut lines = said.lock();
            if lines.len() == KEPT_LINES {
                lines.pop_front();
            }
            lines.push_back(text);
            line.clear();
        }
    })
}
