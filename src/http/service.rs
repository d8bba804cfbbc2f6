//! What requests are answered by: all that HTTP is handed of a loop.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::connection::streams::Watches;
use super::etags::Etags;
use super::origin::Names;
use super::params::Replication;
use crate::counters::Counters;
use crate::node::limits::Limits;
use crate::node::requests::Requests;
use crate::operations::reports::Reports;

/// See the module.
pub(crate) struct Service {
    /// What may be asked of the cluster.
    pub(crate) requests: Rc<Requests>,
    /// What the node says of itself.
    pub(crate) reports: Reports,
    /// What this loop counts.
    pub(crate) counters: Arc<Counters>,
    /// Makes version tags.
    pub(crate) etags: Etags,
    /// What the node is called by those who may ask it; `None` = anything.
    pub(crate) names: Option<Arc<Names>>,
    /// Whether what never ends by itself is to end.
    pub(crate) stopping: Rc<Cell<bool>>,
    /// The requests under way over HTTP/2.
    pub(crate) streams: Watches,
    /// How many of them have no place.
    pub(crate) unplaced: Cell<usize>,
    /// Closes the client that has been idle for longest.
    pub(crate) close_idle_client: Box<dyn Fn()>,
}

impl Service {
    /// What there may be at once.
    pub(super) fn limits(&self) -> &Limits {
        self.requests.limits()
    }

    /// The cluster as quorums see it.
    pub(super) fn replication(&self) -> Replication {
        let (nodes, replicas) = self.requests.replication();
        Replication { nodes: nodes as u32, replicas: u32::from(replicas) }
    }
}
