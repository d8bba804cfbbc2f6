//! Errors that end the process at its start or stop. The process prints such an error as its last
//! line.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use protocol::TopologyError;
use server::StartError;

use crate::node::advice::{Advice, limit_advice, port_advice};
use crate::node::store::DirectoryError;
use crate::runtime::set_aside::SetAsideError;
use crate::runtime::unusable::Unusable;
use crate::settings::error::ConfigError;
use crate::settings::secret::SecretError;
use crate::transport::TlsError;

/// Reason why [`serve`](crate::runtime::serve::run) ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("cannot set up logging: {0}")]
    Logging(#[source] io::Error),
    #[error("cannot listen on {address}: {source}{advice}", advice = port_advice(.source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot handle signals: {0}{advice}", advice = limit_advice(.0))]
    Signals(#[source] io::Error),
    #[error("cannot start a thread: {0}{advice}", advice = limit_advice(.0))]
    Thread(#[source] io::Error),
    #[error("cannot start a read thread: {0}{advice}", advice = limit_advice(.0))]
    ReadThread(#[source] io::Error),
    #[error("cannot start an event loop: {0}{advice}", advice = limit_advice(.0))]
    EventLoop(#[source] io::Error),
    #[error("cannot accept connections: {0}{advice}", advice = limit_advice(.0))]
    Accept(#[source] io::Error),
    #[error(
        "the limit of open files is {limit}, and a node with {loops} event loops and {others} \
         other nodes in its list needs {needed}, besides one for each further table and \
         connection: raise the limit (ulimit -n, LimitNOFILE=). Nothing was changed"
    )]
    FewFiles { limit: u64, loops: usize, others: usize, needed: u64 },
    #[error(transparent)]
    Clock(StartError),
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error(transparent)]
    Place(#[from] DirectoryError<StartError>),
    #[error(transparent)]
    Unreadable(#[from] DirectoryError<io::Error>),
    #[error(transparent)]
    Members(#[from] TopologyError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "node {name} of this cluster is at {url}, which other machines can reach, and this node \
         was given no cluster secret: pass the one that all nodes share as --cluster-secret-file"
    )]
    NoSecret { name: String, url: String },
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot ask other nodes: {0}{advice}", advice = limit_advice(.0))]
    Asking(#[source] io::Error),
    #[error(
        "--join {url} is this node's own URL, and it would wait for itself: name a node of the \
         cluster that it is to join, or leave --join out to begin a cluster of its own"
    )]
    JoinsItself { url: String },
    #[error("cannot join the cluster of {url}: {why}")]
    Refused { url: String, why: String },
    #[error(
        "{OUTDATED}. Nothing was deleted: what it held was moved to {}. Start the node again, and \
         it is rebuilt from the other nodes, one at a time if there are several such nodes. Remove \
         that directory once all are up: what no other node held is in there only",
        aside.display()
    )]
    Outdated { aside: PathBuf },
    #[error(
        "{OUTDATED}. What is in {} could not be moved aside: {source}{}: the node tries that \
         again, and is then rebuilt from the other nodes",
        data.display(),
        Advice::of(source, data)
    )]
    OutdatedStays { data: PathBuf, source: io::Error },
    #[error(transparent)]
    SetAside(#[from] DirectoryError<SetAsideError>),
    #[error("the store is still in use")]
    InUse,
    #[error("the store was not closed cleanly: {0}")]
    Close(#[source] lsm::Error),
}

impl ServeError {
    /// True if the settings, or files that they name, must be corrected. A restart with the same
    /// settings would fail with the same error.
    pub(crate) fn is_settings_error(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Members(_) | Self::Secret(_) | Self::Tls(_))
            || matches!(self, Self::NoSecret { .. } | Self::JoinsItself { .. })
    }
}

const OUTDATED: &str = "this data directory is an older copy: the other nodes have purged deleted \
    keys since that it may still hold";
