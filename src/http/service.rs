//! What requests are answered by: all that HTTP is handed of a loop.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::connection::Watch;
use super::connection::streams::{MOST_UNPLACED, Watches};
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
    /// What the node is called by those who may ask it, and whose pages may.
    pub(crate) names: Arc<Names>,
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

    /// Whether one without a client's place may stay for longer: half of the room is for those who
    /// come and go.
    pub(super) fn spare_are_few(&self, watch: &Watch) -> bool {
        if watch.is_stream() && !watch.is_guest() {
            self.unplaced.get() <= MOST_UNPLACED / 2
        } else {
            self.limits().places.guests_are_few()
        }
    }

    /// The cluster as quorums see it.
    pub(super) fn replication(&self) -> Replication {
        let (nodes, replicas) = self.requests.replication();
        Replication { nodes: nodes as u32, replicas: u32::from(replicas) }
    }
}
