//! What all threads of a node share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::budget::Budget;
use crate::clock::NodeClock;
use crate::config::Config;
use crate::counters::{Accepting, Counters};
use crate::reads::ReadPool;

/// A running node.
pub(crate) struct Node {
    /// Its identity.
    pub(crate) name: String,
    /// Where clients and other nodes reach it.
    pub(crate) url: String,
    /// When it began to recover.
    pub(crate) started: Instant,
    /// The store.
    pub(crate) db: Arc<lsm::Db>,
    /// What the protocol's machines of all loops share.
    pub(crate) shared: Arc<cluster::Shared>,
    /// Stamps for writes.
    pub(crate) clock: NodeClock,
    /// Reads that wait for the disk.
    pub(crate) reads: ReadPool,
    /// How the node was configured.
    pub(crate) config: Config,
    /// Bytes of values on their way in and out that do not fit their connection's buffers.
    pub(crate) bodies: Budget,
    /// Bytes of pages that range reads hold.
    pub(crate) pages: Arc<Budget>,
    /// One set of counters a loop.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// What the acceptor counts.
    pub(crate) accepting: Accepting,
    /// Set once, when the node begins to stop.
    pub(crate) stopping: AtomicBool,
}

impl Node {
    /// Whether the node is about to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
