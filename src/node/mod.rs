//! What all threads of a node share.

pub(crate) mod access;
pub(crate) mod clock;
pub(crate) mod comparison;
pub(crate) mod coordinate;
pub(crate) mod gate;
pub(crate) mod joiners;
pub(crate) mod life_file;
pub(crate) mod limits;
pub(crate) mod places;
pub(crate) mod plans;
pub(crate) mod quotas;
pub(crate) mod reads;
pub(crate) mod requests;
pub(crate) mod store;
pub(crate) mod task;
pub(crate) mod way_out;
pub(crate) mod writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cluster::NodeId;
use cluster::layout::VoterId;
use node::identity::Identity;
use node::{Pages, TaskEvent};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::counters::budget::Budget;
use crate::counters::history::History;
use crate::counters::{Accepting, Counters};
use crate::node::access::Access;
use crate::node::clock::NodeClock;
use crate::node::comparison::Comparison;
use crate::node::joiners::Joiners;
use crate::node::limits::Limits;
use crate::node::plans::Plans;
use crate::node::quotas::Quotas;
use crate::node::reads::ReadPool;
use crate::peers::Facts;
use crate::settings::config::Config;
use crate::transport::Tls;

/// A running node.
pub(crate) struct Node {
    /// When it began to recover.
    pub(crate) started: Instant,
    /// The engine's store.
    pub(crate) db: Arc<lsm::Db>,
    /// What the protocol's machines of all loops share.
    pub(crate) shared: Arc<cluster::Shared>,
    /// Where clients and other nodes reach it: `http://HOST:PORT` or `https://…`.
    pub(crate) own_url: String,
    /// Who this node is, and which peers it has seen.
    pub(crate) identity: Arc<Identity>,
    /// What all loops know of the other nodes.
    pub(crate) facts: Arc<Facts>,
    /// Events for the node task.
    pub(crate) task: mpsc::Sender<TaskEvent>,
    /// The other end, until the first loop takes it.
    pub(crate) task_events: Mutex<Option<mpsc::Receiver<TaskEvent>>>,
    /// Versions for writes.
    pub(crate) clock: NodeClock,
    /// Whether its wall clock has been compared with the other nodes'.
    pub(crate) comparison: Comparison,
    /// Reads that wait for the disk.
    pub(crate) reads: ReadPool,
    /// How the node was configured.
    pub(crate) config: Config,
    /// Long values for clients.
    pub(crate) answers: Budget,
    /// Long values read for other nodes.
    pub(crate) lent: Budget,
    /// Reads pages for ranges, within bounded memory.
    pub(crate) pages: Arc<Pages>,
    /// One set of counters a loop.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// What there may be at once of what clients cause.
    pub(crate) limits: Limits,
    /// Who may ask for what.
    pub(crate) access: Access,
    /// How much clients may store.
    pub(crate) quotas: Quotas,
    /// Its last 15 minutes, a sample a second.
    pub(crate) history: History,
    /// What the acceptor counts.
    pub(crate) accepting: Accepting,
    /// Set once, when the node begins to stop.
    pub(crate) stopping: AtomicBool,
    /// Whether its directory must not be used any more.
    pub(crate) outdated: Outdated,
    /// Plans of the cluster's layout.
    pub(crate) plans: Plans,
    /// Who asks for a place in the cluster.
    pub(crate) joiners: Joiners,
    /// What its nodes know each other by, if anything.
    pub(crate) secrets: Arc<cluster::handshake::Secrets>,
    /// Its certificates; `None` = it serves in clear.
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Whether the directory is an older copy, which the node finds out while it runs.
#[derive(Debug, Default)]
pub(crate) struct Outdated {
    is: AtomicBool,
    found: Notify,
}

impl Outdated {
    /// Notes that the directory is an older copy.
    pub(crate) fn note(&self) {
        self.is.store(true, Ordering::Relaxed);
        self.found.notify_one();
    }

    /// Ends once it is known to be.
    pub(crate) async fn notified(&self) {
        self.found.notified().await;
    }
}

impl Node {
    /// Whether its directory is an older copy.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.is.load(Ordering::Relaxed)
    }

    /// Its name, which is its identity.
    pub(crate) fn name(&self) -> &str {
        &self.shared.own_name
    }

    /// Where clients and other nodes reach it.
    pub(crate) fn url(&self) -> &str {
        &self.own_url
    }

    /// Where a node is: see [`Facts::url`].
    pub(crate) fn url_of(&self, node: NodeId) -> String {
        if node == self.shared.own { self.own_url.clone() } else { self.facts.url(node) }
    }

    /// Which voter a node is that is up, or that asks to join.
    pub(crate) fn voter_of(&self, name: &str) -> Option<VoterId> {
        let Some(node) = self.shared.view().named(name) else {
            return self.joiners.voter_of(name);
        };
        if node == self.shared.own {
            return self.shared.membership.layouts.voter().id;
        }
        self.facts.voter_of(node)
    }

    /// Whether the node is about to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
