//! A server as a process of its own: started, waited for, stopped, and never left behind.
//!
//! ```text
//!  start ── nobody listens there yet? ── spawn ── connects? ──▶ serving ── TERM ── KILL ──▶ gone
//!                │ else: refused           │ ended, or too late:   │ drop, ctrl-C, error: the same
//!                                          ▼ its last lines        ▼ our own death: the kernel
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

use super::{Command, Data, Error};
use crate::interrupt::{Care, Owned};

/// How long a server may take to listen: opening a large store is part of it.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a server may take to stop after SIGTERM: what is in flight, and a last sync.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Between two looks at a server that starts or stops.
const LOOK: Duration = Duration::from_millis(10);

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// How long its last lines may take to be read once it ended: what it started may still hold its
/// output open.
const SAID_LIMIT: Duration = Duration::from_secs(2);

/// Lines of its output that are kept to say why it failed.
const LINES: usize = 12;

/// Longest line of its output that is kept, in bytes.
const LINE: u64 = 4 << 10;

/// Runs a program that is killed when the thread that started it is gone: part of util-linux.
const LEASH: &str = "/usr/bin/setpriv";

/// A running server, stopped when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    ended: Option<ExitStatus>,
    addresses: Vec<SocketAddr>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// What reads its output.
    readers: Vec<JoinHandle<()>>,
    data: Option<Data>,
    _care: Option<Care>,
}

impl Server {
    /// Starts `command` and waits until it takes connections on all `addresses`. It gets `data`, or
    /// if its command line asks for data, a fresh directory in `fresh_in`.
    pub fn start(
        command: &Command,
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
        let _care = group.map(|group| Care::of(Owned::Group(group)));
        let mut server = Self { child, ended: None, addresses, said, readers, data, _care };
        server.wait_until_it_serves(&line, stop)?;
        Ok(server)
    }

    fn wait_until_it_serves(&mut self, line: &str, stop: &AtomicBool) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        for at in 0..self.addresses.len() {
            let address = self.addresses[at];
            while !connects(address) {
                let ended = self.ended();
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                if ended.is_some() || Instant::now() > deadline {
                    let how = ended.unwrap_or_else(|| format!("not within {START_LIMIT:?}"));
                    let said = self.last_lines();
                    return Err(Error::Silent { line: line.to_owned(), address, how, said });
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its data are, if they are made for it.
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.map(|status| match (status.code(), status.signal()) {
            (Some(code), _) => format!("it ended with exit code {code}"),
            (None, Some(signal)) => format!("signal {signal} ended it"),
            (None, None) => "it ended".to_owned(),
        })
    }

    /// What it said last, to stdout and stderr; of one that ended, all of that was read.
    pub fn last_lines(&self) -> String {
        let deadline = Instant::now() + SAID_LIMIT;
        let read = || self.readers.iter().all(JoinHandle::is_finished);
        while self.ended.is_some() && !read() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let lines = self.said.lock();
        if lines.is_empty() {
            return "(nothing)".to_owned();
        }
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Stops it; its data.
    pub fn stop(mut self) -> Option<Data> {
        self.end();
        self.data.take()
    }

    /// Asks it to stop, and when it does not, kills it; with all that it started.
    fn end(&mut self) {
        let Some(group) = Pid::from_raw(self.child.id() as i32) else { return };
        if self.ended().is_none() {
            let _ = kill_process_group(group, Signal::TERM);
            let deadline = Instant::now() + STOP_LIMIT;
            while self.ended().is_none() && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        }
        // Also what it left in its group when it was gone itself.
        let _ = kill_process_group(group, Signal::KILL);
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// In a process group of its own: a terminal's ctrl-C is for us, and it is stopped as we please.
fn spawn(words: &[String]) -> std::io::Result<Child> {
    let leash = [LEASH, "--pdeathsig", "KILL", "--"].map(str::to_owned);
    let leashed = Path::new(LEASH).is_file();
    let words = if leashed { [&leash, words].concat() } else { words.to_vec() };
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

/// Reads to the end, so that the server never waits for us, and keeps the last lines.
fn keep_lines(
    from: impl Read + Send + 'static,
    said: &Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.by_ref().take(LINE).read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let mut lines = said.lock();
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(text);
            line.clear();
        }
    })
}
