//! The dependencies of request handlers on their event loop and node.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::connection::ConnectionState;
use super::connection::streams::{MAX_WITHOUT_SLOT, Watches};
use super::etags::Etags;
use super::origin::OwnNames;
use super::params::Replication;
use crate::counters::Counters;
use crate::node::limits::Limits;
use crate::node::requests::Requests;
use crate::operations::reports::Reports;

/// The dependencies of a loop's requests.
pub(crate) struct Service {
    /// Access to the store and to the cluster.
    pub(crate) requests: Rc<Requests>,
    /// The node's reports about itself.
    pub(crate) reports: Reports,
    /// This loop's counters.
    pub(crate) counters: Arc<Counters>,
    /// Formatter of entity tags.
    pub(crate) etags: Etags,
    /// The node's names, and the permitted origins.
    pub(crate) names: Arc<OwnNames>,
    /// True once the node stops, so endless answers end.
    pub(crate) stopping: Rc<Cell<bool>>,
    /// The states of open HTTP/2 streams.
    pub(crate) streams: Watches,
    /// Number of open HTTP/2 streams without a slot.
    pub(crate) without_slot: Cell<usize>,
    /// Closes the client that has been idle for longest.
    pub(crate) close_idle_client: Box<dyn Fn()>,
}

impl Service {
    /// Returns the limits on client requests.
    pub(crate) fn limits(&self) -> &Limits {
        self.requests.limits()
    }

    /// True if a request without a client slot may stay. Half of the reserve is kept free for short
    /// requests.
    pub(crate) fn may_stay_without_slot(&self, watch: &ConnectionState) -> bool {
        if watch.is_stream() && !watch.is_reserve() {
            self.without_slot.get() <= MAX_WITHOUT_SLOT / 2
        } else {
            self.limits().connection_slots.reserve_is_half_free()
        }
    }

    /// Returns the cluster's numbers from which quorums follow.
    pub(crate) fn replication(&self) -> Replication {
        let (nodes, replicas) = self.requests.replication();
        Replication { nodes: nodes as u32, replicas: u32::from(replicas) }
    }
}
