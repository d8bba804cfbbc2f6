//! Detection of nodes that an earlier `kvorum dev` left running. After SIGKILL, `kvorum dev` can't
//! stop its nodes.
//!
//! ```text
//!  DIR/node-N/LOCK is locked ─▶ the process in /proc with that file open ─▶ its pid
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Name of the file that a running node locks in its data directory.
const LOCK: &str = "LOCK";

/// A node of an earlier `kvorum dev` that still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrphanedNode {
    pub(super) name: String,
    /// The ID of the node's process; `None` if its open files are not visible to this process.
    pub(super) pid: Option<u32>,
}

/// Returns the given nodes (name and data directory) that still run.
pub(super) fn still_running(nodes: impl Iterator<Item = (String, PathBuf)>) -> Vec<OrphanedNode> {
    let locked = nodes.map(|(name, data)| (name, data.join(LOCK)));
    let locked: Vec<_> = locked.filter(|(_, lock)| is_locked(lock)).collect();
    locked.into_iter().map(|(name, lock)| OrphanedNode { name, pid: holder(&lock) }).collect()
}

fn is_locked(lock: &Path) -> bool {
    // A lock file that can't be opened is reported by the node itself when it starts.
    let Ok(file) = File::options().write(true).open(lock) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

/// Returns the process that has a file open; `None` if no process whose open files are visible has
/// it.
fn holder(lock: &Path) -> Option<u32> {
    let lock = lock.canonicalize().ok()?;
    let has_it = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut files = files.filter_map(|file| fs::read_link(file.path()).ok());
        files.any(|file| file == lock)
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(has_it)
}

/// Lists the nodes with their processes, for the user.
pub(super) fn list_text(nodes: &[OrphanedNode]) -> String {
    let shown = |node: &OrphanedNode| match node.pid {
        Some(pid) => format!("{} (pid {pid})", node.name),
        None => format!("{} (of another user, or in another container)", node.name),
    };
    nodes.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Returns the command that stops the nodes, or a description if not all process IDs are known.
pub(super) fn stop_command(nodes: &[OrphanedNode]) -> String {
    let pids: Option<Vec<String>> =
        nodes.iter().map(|node| node.pid.map(|pid| pid.to_string())).collect();
    match pids {
        Some(pids) => format!("kill {}", pids.join(" ")),
        None => "kill, by who runs them".to_owned(),
    }
}
