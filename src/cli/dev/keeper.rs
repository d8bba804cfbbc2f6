//! Keeps one node running: starts it, passes on what it logs, says when its state changes, starts
//! it again when somebody killed it, stops it in the end.

use std::cell::RefCell;
use std::future::pending;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::console::Console;
use super::plan::{self, Plan};
use crate::runtime::serve::{LISTENS, WAITS};
use crate::settings::secret::CLUSTER;
use crate::transport;

/// How long a node that was killed stays down: long enough to see what the others do without it.
pub(super) const PAUSE: Duration = Duration::from_secs(3);

/// How long a node may take to stop: its own ten seconds for what is in flight, and a sync.
const STOPPING: Duration = Duration::from_secs(30);

/// How often a node is asked whether it is well, and how long it may take to say so.
const PROBE: Duration = Duration::from_secs(1);

/// How what `/readyz` says begins if the node has left the cluster.
const REMOVED: &[u8] = b"\r\n\r\nremoved: ";

/// Longest line of a log that is passed on whole, in bytes.
const LINE: u64 = 64 << 10;

/// How the keeping of a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was told to stop.
    Stopped,
    /// The node ends before it serves. Starting it again would not help.
    GaveUp,
    /// The cluster has removed the node: it serves nothing any more.
    Removed,
}

/// Keeps one node.
pub(super) struct Keeper {
    /// The node's number, from 1 on.
    pub(super) number: u16,
    /// How it is started.
    pub(super) plan: Rc<RefCell<Plan>>,
    /// Path of this program, which the node runs too.
    pub(super) program: PathBuf,
    /// Where its lines go.
    pub(super) console: Rc<Console>,
    /// Whether it is to stop.
    pub(super) stopping: watch::Receiver<bool>,
    /// Where the keeper reports that the node serves, and by which process.
    pub(super) serves: mpsc::Sender<(u16, u32)>,
}

/// How a life of the process ended.
enum End {
    /// By itself, or by somebody's hand.
    Exited(ExitStatus),
    /// As it was told.
    Stopped,
    /// For it is no member of the cluster any more.
    Removed,
}

impl Keeper {
    /// Until it is told to stop, or the node can't be started, or has left the cluster.
    pub(super) async fn run(mut self) -> (u16, Ended) {
        let ended = self.keep().await;
        (self.number, ended)
    }

    async fn keep(&mut self) -> Ended {
        loop {
            let mut child = match self.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let program = self.program.display();
                    return self.give_up(&format!("cannot start {program}: {error}"));
                }
            };
            let (served, end) = self.live(&mut child).await;
            match end {
                Ok(End::Stopped) => {
                    self.say("stopped");
                    return Ended::Stopped;
                }
                Ok(End::Removed) => {
                    self.say("stopped: the cluster has removed it");
                    return Ended::Removed;
                }
                Ok(End::Exited(status)) if !served => {
                    return self.give_up(&format!("exited during startup: {}", how(status)));
                }
                Ok(End::Exited(status)) => {
                    self.say(&format!("down: {}; restarting in {} s", how(status), PAUSE.as_secs()))
                }
                Err(error) => return self.give_up(&format!("lost: {error}")),
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = reported(&mut self.stopping) => return Ended::Stopped,
            }
        }
    }

    fn name(&self) -> String {
        plan::name(self.number)
    }

    fn address(&self) -> SocketAddr {
        self.plan.borrow().address(self.number)
    }

    fn has_tls(&self) -> bool {
        self.plan.borrow().certs().is_some()
    }

    fn say(&self, state: &str) {
        self.console.state(self.number, &self.name(), state);
    }

    fn give_up(&self, why: &str) -> Ended {
        self.say(why);
        Ended::GaveUp
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        let plan = self.plan.borrow();
        command.args(plan.words(self.number)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(secret) = plan.secret() {
            command.env(CLUSTER.variable, secret);
        }
        // A terminal's ctrl-C is for us; the nodes are told in our way. A life that ends by a panic
        // of ours takes them along.
        command.process_group(0).kill_on_drop(true).spawn()
    }

    /// One life of the process: whether it ever served, and how it ended.
    async fn live(&mut self, child: &mut Child) -> (bool, std::io::Result<End>) {
        let pid = child.id().unwrap_or_default();
        let log = {
            let log = child.stderr.take();
            let (console, number, name) = (Rc::clone(&self.console), self.number, self.name());
            tokio::task::spawn_local(pass_on(log, move |line| console.logged(number, &name, line)))
        };
        let mut out = child.stdout.take().map(BufReader::new);
        let mut stopping = self.stopping.clone();
        let ended_early = tokio::select! {
            status = child.wait() => Some(status.map(End::Exited)),
            () = reported(&mut stopping) => Some(stop(child, pid).await),
            () = greeted(&mut out, || self.say("asks for a place in the cluster")) => None,
        };
        let served = ended_early.is_none();
        let end = if let Some(end) = ended_early {
            end
        } else {
            let url = self.plan.borrow().url(self.number);
            self.say(&format!("up: pid {pid}, {url}"));
            // Nobody listens any more when all are being stopped.
            let _ = self.serves.send((self.number, pid)).await;
            tokio::select! {
                status = child.wait() => status.map(End::Exited),
                () = reported(&mut stopping) => stop(child, pid).await,
                () = drained(&mut out) => unreachable!("it never ends"),
                () = self.watch_health() => stop(child, pid).await.map(|_| End::Removed),
            }
        };
        // What it said last may still be in the pipe.
        let _ = timeout(PROBE, log).await;
        (served, end)
    }

    /// Says when the node does not answer any more, and when it does again. Ends when it has left
    /// the cluster.
    async fn watch_health(&self) {
        let mut was = Health::Ready;
        let mut silent = false;
        loop {
            sleep(PROBE).await;
            let asked = timeout(PROBE, ready(self.address(), self.has_tls())).await;
            let now = asked.unwrap_or(Ok(Health::Silent)).unwrap_or(Health::Silent);
            // Once may be a busy machine.
            let twice = std::mem::replace(&mut silent, now == Health::Silent);
            if now == was || now == Health::Silent && !twice {
                continue;
            }
            self.say(match now {
                Health::Ready => "answers again",
                Health::NotReady => "not ready: see its log, and /readyz",
                Health::Silent => "does not answer",
                Health::Removed => return,
            });
            was = now;
        }
    }
}

/// What a running process says to `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Ready,
    NotReady,
    Silent,
    Removed,
}

async fn ready(address: SocketAddr, tls: bool) -> std::io::Result<Health> {
    let stream = TcpStream::connect(address).await?;
    // Whose certificate it is is no matter here: it is the child's port.
    let mut stream = match tls {
        true => transport::connect(stream, &address.ip().to_string()).await?,
        false => stream.into(),
    };
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(LINE).read_to_end(&mut answer).await?;
    let body = answer.windows(REMOVED.len()).any(|bytes| bytes == REMOVED);
    Ok(match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Health::Ready,
        false if body => Health::Removed,
        false => Health::NotReady,
    })
}

/// Until everything is to be stopped.
async fn reported(stopping: &mut watch::Receiver<bool>) {
    // The sender goes only after it has told.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// SIGTERM, and SIGKILL to what does not heed it.
async fn stop(child: &mut Child, pid: u32) -> std::io::Result<End> {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // One that has just ended by itself needs none.
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(STOPPING, child.wait()).await.is_err() {
        child.kill().await?;
    }
    Ok(End::Stopped)
}

/// Until the node says that it listens; before, it may say that it asks for a place.
async fn greeted(out: &mut Option<impl AsyncBufRead + Unpin>, asks: impl Fn()) {
    if let Some(out) = out {
        let mut lines = out.take(LINE).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains(LISTENS) {
                return;
            }
            if line.contains(WAITS) {
                asks();
            }
        }
    }
    pending().await
}

/// Takes what the node writes to stdout, which is for those who run it alone: a full pipe must not
/// hold it up. Never ends.
async fn drained(out: &mut Option<impl AsyncRead + Unpin>) {
    if let Some(out) = out {
        let _ = tokio::io::copy(out, &mut tokio::io::sink()).await;
    }
    pending().await
}

/// Hands on line after line.
async fn pass_on(from: Option<impl AsyncRead + Unpin>, line: impl Fn(&str)) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while let Ok(1..) = (&mut from).take(LINE).read_until(b'\n', &mut bytes).await {
        line(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
}

/// How a process ended, for people.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "stopped on request".to_owned(),
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(9)) => "killed (SIGKILL)".to_owned(),
        (None, Some(signal)) => format!("terminated by signal {signal}"),
        (None, None) => status.to_string(),
    }
}
