//! The state that all threads of a node share, and the drivers of [`server`] and [`lsm`].
//!
//! ```text
//!  requests                  a loop's interface to the node, which uses:
//!    coordinate, task          the drivers of a loop's protocol instance, and of the node's task
//!    writes, reads             the batch of a loop iteration; reads that a loop must not wait for
//!    write_window              the limit on bytes of long writes
//!    connection_slots, limits  the limits on connections, and on resources of requests
//!  clock, clock_comparison   the node's clock; its comparison with other nodes' at startup
//!  store, life_file, advice  the engine; the directory's marker file; advice on disk errors
//! ```

pub(crate) mod advice;
pub(crate) mod clock;
pub(crate) mod clock_comparison;
pub(crate) mod connection_slots;
pub(crate) mod coordinate;
pub(crate) mod life_file;
pub(crate) mod limits;
pub(crate) mod reads;
pub(crate) mod requests;
pub(crate) mod store;
pub(crate) mod task;
pub(crate) mod write_window;
pub(crate) mod writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use protocol::NodeId;
use protocol::layout::VoterId;
use server::identity::Identity;
use server::{Pages, TaskEvent};
use tokio::sync::{Notify, mpsc};

use crate::counters::memory_budget::Budget;
use crate::counters::{Accepting, Counters};
use crate::joining::joiners::Joiners;
use crate::layout::plans::Plans;
use crate::node::clock::NodeClock;
use crate::node::clock_comparison::ClockComparison;
use crate::node::limits::Limits;
use crate::node::reads::ReadPool;
use crate::peers::PeerFacts;
use crate::quotas::counts::Quotas;
use crate::sample_history::ring::History;
use crate::settings::config::Config;
use crate::tokens::lookup::Access;
use crate::transport::Tls;

/// A running node.
pub(crate) struct Node {
    /// Time at which recovery began.
    pub(crate) started: Instant,
    /// The engine's store.
    pub(crate) db: Arc<lsm::Db>,
    /// State that the protocol instances of all loops share.
    pub(crate) shared: Arc<protocol::Shared>,
    /// The address that clients and other nodes use: `http://HOST:PORT` or `https://…`.
    pub(crate) own_url: String,
    /// This node's identity, and its record of the peers.
    pub(crate) identity: Arc<Identity>,
    /// State of the peer connections that all loops share.
    pub(crate) facts: Arc<PeerFacts>,
    /// Sender of events to the node task.
    pub(crate) task: mpsc::Sender<TaskEvent>,
    /// Receiver of events for the node task, until the first loop takes it.
    pub(crate) task_events: Mutex<Option<mpsc::Receiver<TaskEvent>>>,
    /// Issues versions for writes.
    pub(crate) clock: NodeClock,
    /// Comparison of the wall clock with the other nodes' clocks at startup.
    pub(crate) comparison: ClockComparison,
    /// Thread pool for reads that wait for the disk.
    pub(crate) reads: ReadPool,
    /// The node's configuration.
    pub(crate) config: Config,
    /// Memory budget for long values in answers to clients.
    pub(crate) answers: Budget,
    /// Memory budget for long values read for other nodes.
    pub(crate) lent: Budget,
    /// Reads pages for ranges, within bounded memory.
    pub(crate) pages: Arc<Pages>,
    /// Counters, one set for each loop.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// Limits on the resources that client requests use.
    pub(crate) limits: Limits,
    /// Tokens, and the access policy.
    pub(crate) access: Access,
    /// Storage quotas and their usage.
    pub(crate) quotas: Quotas,
    /// Samples of the last 15 minutes, one per second.
    pub(crate) history: History,
    /// Counters of accepted client connections and failed accepts.
    pub(crate) accepting: Accepting,
    /// Set once, at the beginning of the node's stop.
    pub(crate) stopping: AtomicBool,
    /// Set if the data directory turns out to be an older copy. The node must not use it any more.
    pub(crate) outdated: Outdated,
    /// Layout plans made by this node.
    pub(crate) plans: Plans,
    /// Nodes that ask to join the cluster.
    pub(crate) joiners: Joiners,
    /// The secrets with which nodes authenticate each other, if any.
    pub(crate) secrets: Arc<protocol::handshake::Secrets>,
    /// The node's TLS certificates; `None` = plaintext.
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Flag for a data directory that is an older copy. The node may detect this while it runs.
#[derive(Debug, Default)]
pub(crate) struct Outdated {
    is: AtomicBool,
    found: Notify,
}

impl Outdated {
    /// Records that the data directory is an older copy.
    pub(crate) fn note(&self) {
        self.is.store(true, Ordering::Relaxed);
        self.found.notify_one();
    }

    /// Waits until the directory is recorded as an older copy.
    pub(crate) async fn wait_until_noted(&self) {
        self.found.notified().await;
    }
}

impl Node {
    /// True if the data directory is an older copy.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.is.load(Ordering::Relaxed)
    }

    /// Returns the node's name, by which the cluster identifies the node.
    pub(crate) fn name(&self) -> &str {
        &self.shared.own_name
    }

    /// Returns the URL at which clients and other nodes reach this node.
    pub(crate) fn url(&self) -> &str {
        &self.own_url
    }

    /// Returns all other nodes of the cluster, including those that are joining or leaving.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let own = self.shared.own;
        let views = &self.shared.membership.views;
        views.with(|view| view.ids().filter(|node| *node != own).collect())
    }

    /// Returns a node's URL. For other nodes see [`PeerFacts::url`].
    pub(crate) fn url_of(&self, node: NodeId) -> String {
        if node == self.shared.own { self.own_url.clone() } else { self.facts.url(node) }
    }

    /// Returns the voter id of a node by name; `None` unless the node is up or asks to join.
    pub(crate) fn voter_of(&self, name: &str) -> Option<VoterId> {
        let Some(node) = self.shared.view().find_node(name) else {
            return self.joiners.voter_of(name);
        };
        if node == self.shared.own {
            return self.shared.membership.layouts.voter().id;
        }
        self.facts.voter_of(node)
    }

    /// True if the node is about to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
