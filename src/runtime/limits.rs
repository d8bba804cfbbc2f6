//! System limits of this process: open files, and the size of files.
#![allow(unsafe_code, reason = "how a signal is handled has no safe form")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::runtime::error::ServeError;
use crate::settings::config::Config;
use crate::settings::memory::RESERVE_SLOTS;

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail like a write to a full disk. By
/// default the kernel would end the process by SIGXFSZ, without a message. (The standard library
/// ignores SIGPIPE for the same reason.) Child processes inherit the setting.
pub(crate) fn file_size_is_an_error() {
    // SAFETY: an ignored signal runs no code of this program. The call fails only for unknown
    // signals.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises the soft limit of open files to the hard limit, because connections and tables are files.
/// Returns the limit in force; `None` = unlimited.
pub(crate) fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
        return limit.current;
    }
    raised.current
}

/// File descriptors of a node without connections, except those of its loops: streams, the
/// directory with its lock, log and a table, the acceptor, signals (18), and some for later
/// additions.
const FILES_AT_REST: u64 = 22;

/// File descriptors of an event loop.
const FILES_OF_A_LOOP: u64 = 4;

/// File descriptors of an event loop for each other node: one connection in each direction.
const FILES_OF_A_LINK: u64 = 2;

/// File descriptors without which a node can't serve clients: for a table being written, the next
/// log segment, the replacement of the manifest, a connection being accepted, two clients, a probe
/// of `/healthz`, and one spare.
const FILES_TO_SERVE: u64 = 8;

/// Returns the number of file descriptors of an idle node. The number omits connections to nodes
/// that have joined, because these nodes are recorded in the data directory, which is not open yet.
fn files_at_rest(config: &Config) -> u64 {
    let (loops, others) = (config.loops as u64, config.members.nodes() as u64 - 1);
    FILES_AT_REST + loops * (FILES_OF_A_LOOP + FILES_OF_A_LINK * others)
}

/// Refuses a limit under which a node can't start or serve. Some parts of a node don't report a
/// lack of descriptors clearly.
pub(crate) fn refuse_too_few_files(config: &Config, limit: Option<u64>) -> Result<(), ServeError> {
    let needed = files_at_rest(config) + FILES_TO_SERVE;
    let (loops, others) = (config.loops, config.members.nodes() - 1);
    match limit.filter(|limit| *limit < needed) {
        Some(limit) => Err(ServeError::FewFiles { limit, loops, others, needed }),
        None => Ok(()),
    }
}

/// Limits connections to half of the descriptors, and at most to those that the node does not need
/// itself. The store needs the other half for its tables and its log. Without them it could serve
/// no connection.
pub(super) fn leave_files_to_the_store(config: &mut Config, limit: Option<u64>) {
    let at_rest = files_at_rest(config);
    let left = |limit: u64| (limit / 2).min(limit.saturating_sub(at_rest)).max(2) as usize;
    let most = limit.map_or(usize::MAX, left);
    config.reserve_slots = RESERVE_SLOTS.min(most / 4).max(1);
    let most = most - config.reserve_slots;
    if most < config.connections {
        let (wanted, limit) = (config.connections, limit.unwrap_or(u64::MAX));
        tracing::warn!(
            wanted,
            most,
            limit,
            "allowing fewer connections: the limit of open files \
            is low"
        );
        config.connections = most;
    }
}
