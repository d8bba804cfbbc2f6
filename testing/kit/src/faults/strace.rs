//! System calls of a running node that strace causes to fail, or delays.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;
use crate::node::Node;

/// Timeout for strace to attach to all threads.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A strace that is attached to a running process; drop detaches it.
#[derive(Debug)]
pub struct Strace(Child);

impl Strace {
    /// Injects a fault into the system call `call` of the node from now on. `what` is the fault in
    /// strace's syntax, as in `error=EIO:when=3` or `delay_exit=200000`. strace writes its messages
    /// to `log`.
    pub fn attach(node: &Node, call: &str, what: &str, log: &Path) -> Result<Self, Failure> {
        Self::attach_to(node.pid(), call, what, log)
    }

    /// Injects a fault into the process `pid`: see [`Strace::attach`].
    pub fn attach_to(pid: u32, call: &str, what: &str, log: &Path) -> Result<Self, Failure> {
        let child = Command::new("strace")
            .args(["-f", "-p", &pid.to_string(), "-e", &format!("trace={call}")])
            .args(["-e", &format!("inject={call}:{what}"), "-o"])
            .arg("/dev/null")
            .stdin(Stdio::null())
            .stderr(File::create(log)?)
            .spawn();
        let child = child.map_err(|error| Failure::Skipped(format!("strace: {error}")))?;
        let mut strace = Self(child);
        let begun = Instant::now();
        loop {
            let said = fs::read_to_string(log)?;
            if said.contains("attached") {
                return Ok(strace);
            }
            if begun.elapsed() > TIMEOUT || strace.0.try_wait()?.is_some() {
                return Err(Failure::Skipped(format!("strace: {}", said.trim())));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills strace after its node was killed. While strace delays a call of a dead process, no
    /// other signal ends it.
    pub fn kill(mut self) {
        let _ = self.0.kill();
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // SIGTERM makes strace detach before it exits.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}
