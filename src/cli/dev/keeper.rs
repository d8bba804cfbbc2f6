//! Supervision of one node's process: starts the process, prints its log, reports changes of its
//! state, restarts it after it was killed, and stops it when `kvorum dev` ends.

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
use super::plan::{self, DevPlan};
use crate::runtime::serve::{LISTENS, WAITS};
use crate::settings::secret::CLUSTER;
use crate::transport;

/// Pause before a killed node is restarted: long enough to watch the other nodes without it.
pub(super) const PAUSE: Duration = Duration::from_secs(3);

/// Timeout of a node's stop. The node itself takes up to ten seconds for requests in flight, and
/// then the time of a sync.
const STOPPING: Duration = Duration::from_secs(30);

/// Interval of health probes, and the timeout of each probe.
const PROBE: Duration = Duration::from_secs(1);

/// Beginning of the body of `/readyz` if the node was removed from the cluster.
const REMOVED: &[u8] = b"\r\n\r\nremoved: ";

/// Limit on the bytes of a log line: longer lines are split.
const LINE: u64 = 64 << 10;

/// Reason why a node's supervision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SupervisionEnd {
    /// The node was told to stop.
    Stopped,
    /// The node can't be started, or its process exits before the node serves. A restart would fail
    /// in the same way.
    GaveUp,
    /// The cluster has removed the node, so the node serves no more requests.
    Removed,
}

/// Supervises one node.
pub(super) struct Keeper {
    /// The node's number, from 1 on.
    pub(super) number: u16,
    /// The plan with the node's command line.
    pub(super) plan: Rc<RefCell<DevPlan>>,
    /// Path of this program, which the node runs too.
    pub(super) program: PathBuf,
    /// Output of the node's lines.
    pub(super) console: Rc<Console>,
    /// Becomes true when the node is to stop.
    pub(super) stopping: watch::Receiver<bool>,
    /// Reports the node's number and the process ID, whenever a process of the node begins to
    /// serve.
    pub(super) serves: mpsc::Sender<(u16, u32)>,
}

/// End of a run of the process.
enum ProcessEnd {
    /// The process exited by itself or was killed.
    Exited(ExitStatus),
    /// The process was told to stop.
    Stopped,
    /// The process was stopped because the cluster has removed the node.
    Removed,
}

impl Keeper {
    /// Supervises the node until it is told to stop, can't be started, or was removed from the
    /// cluster. Returns the node's number and the reason.
    pub(super) async fn run(mut self) -> (u16, SupervisionEnd) {
        let ended = self.keep().await;
        (self.number, ended)
    }

    async fn keep(&mut self) -> SupervisionEnd {
        loop {
            let mut child = match self.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let program = self.program.display();
                    return self.give_up(&format!("cannot start {program}: {error}"));
                }
            };
            let (served, end) = self.supervise_process(&mut child).await;
            match end {
                Ok(ProcessEnd::Stopped) => {
                    self.say("stopped");
                    return SupervisionEnd::Stopped;
                }
                Ok(ProcessEnd::Removed) => {
                    self.say("stopped: the cluster has removed it");
                    return SupervisionEnd::Removed;
                }
                Ok(ProcessEnd::Exited(status)) if !served => {
                    return self.give_up(&format!("exited during startup: {}", exit_text(status)));
                }
                Ok(ProcessEnd::Exited(status)) => self.say(&format!(
                    "down: {}; restarting in {} s",
                    exit_text(status),
                    PAUSE.as_secs()
                )),
                Err(error) => return self.give_up(&format!("lost: {error}")),
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = await_stop(&mut self.stopping) => return SupervisionEnd::Stopped,
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

    fn give_up(&self, why: &str) -> SupervisionEnd {
        self.say(why);
        SupervisionEnd::GaveUp
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        let plan = self.plan.borrow();
        command.args(plan.command_line(self.number)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        for variable in plan::IGNORED {
            command.env_remove(variable);
        }
        if let Some(secret) = plan.secret() {
            command.env(CLUSTER.variable, secret);
        }
        // The terminal sends SIGINT to its foreground process group. The node has a process group
        // of its own, so that only `kvorum dev` handles ctrl-C and stops the nodes. `kill_on_drop`
        // kills the node if this task is dropped.
        command.process_group(0).kill_on_drop(true).spawn()
    }

    /// Supervises one run of the process. Returns true if the process ever served, and how the run
    /// ended.
    async fn supervise_process(
        &mut self,
        child: &mut Child,
    ) -> (bool, std::io::Result<ProcessEnd>) {
        let pid = child.id().unwrap_or_default();
        let log = {
            let log = child.stderr.take();
            let (console, number, name) = (Rc::clone(&self.console), self.number, self.name());
            tokio::task::spawn_local(forward_lines(log, move |line| {
                console.print_log_line(number, &name, line)
            }))
        };
        let mut out = child.stdout.take().map(BufReader::new);
        let mut stopping = self.stopping.clone();
        let ended_early = tokio::select! {
            status = child.wait() => Some(status.map(ProcessEnd::Exited)),
            () = await_stop(&mut stopping) => Some(stop(child, pid).await),
            () = await_greeting(&mut out, || self.say("asks for a place in the cluster")) => None,
        };
        let served = ended_early.is_none();
        let end = if let Some(end) = ended_early {
            end
        } else {
            let url = self.plan.borrow().url(self.number);
            self.say(&format!("up: pid {pid}, {url}"));
            // The receiver is dropped while all nodes are being stopped.
            let _ = self.serves.send((self.number, pid)).await;
            tokio::select! {
                status = child.wait() => status.map(ProcessEnd::Exited),
                () = await_stop(&mut stopping) => stop(child, pid).await,
                () = discard_output(&mut out) => unreachable!("it never ends"),
                () = self.watch_health() => stop(child, pid).await.map(|_| ProcessEnd::Removed),
            }
        };
        // The last log lines may still be in the pipe.
        let _ = timeout(PROBE, log).await;
        (served, end)
    }

    /// Prints when the node stops answering, and when it answers again. Returns after the cluster
    /// has removed the node.
    async fn watch_health(&self) {
        let mut was = Health::Ready;
        let mut unreported_state = false;
        loop {
            sleep(PROBE).await;
            let asked = timeout(PROBE, ready(self.address(), self.has_tls())).await;
            let now = asked.unwrap_or(Ok(Health::Silent)).unwrap_or(Health::Silent);
            // A single probe may fail because the machine is busy.
            let twice = std::mem::replace(&mut unreported_state, now == Health::Silent);
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

/// Health of a running process, from `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Ready,
    NotReady,
    Silent,
    Removed,
}

async fn ready(address: SocketAddr, tls: bool) -> std::io::Result<Health> {
    let stream = TcpStream::connect(address).await?;
    // The certificate need not be checked, because only the child process listens on the port.
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

/// Waits until the node is told to stop.
async fn await_stop(stopping: &mut watch::Receiver<bool>) {
    // The sender is dropped only after it has sent `true`.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Sends SIGTERM, and SIGKILL if the process does not exit within [`STOPPING`].
async fn stop(child: &mut Child, pid: u32) -> std::io::Result<ProcessEnd> {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // Sending fails if the process has just exited by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(STOPPING, child.wait()).await.is_err() {
        child.kill().await?;
    }
    Ok(ProcessEnd::Stopped)
}

/// Waits until the node prints that it listens. Calls `asks` whenever the node prints that it asks
/// to join.
async fn await_greeting(out: &mut Option<impl AsyncBufRead + Unpin>, asks: impl Fn()) {
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

/// Discards the node's further output to stdout, so that a full pipe does not block the node. Never
/// returns.
async fn discard_output(out: &mut Option<impl AsyncRead + Unpin>) {
    if let Some(out) = out {
        let _ = tokio::io::copy(out, &mut tokio::io::sink()).await;
    }
    pending().await
}

/// Calls `line` with each line of the output.
async fn forward_lines(from: Option<impl AsyncRead + Unpin>, line: impl Fn(&str)) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while let Ok(1..) = (&mut from).take(LINE).read_until(b'\n', &mut bytes).await {
        line(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
}

/// Describes how a process ended, for the user.
fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "stopped on request".to_owned(),
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(9)) => "killed (SIGKILL)".to_owned(),
        (None, Some(signal)) => format!("terminated by signal {signal}"),
        (None, None) => status.to_string(),
    }
}
