//! Limits on the resources that client requests use.

use std::time::Duration;

use crate::counters::memory_budget::Budget;
use crate::node::connection_slots::ConnectionSlots;
use crate::settings::units::Ttl;

/// The node's limits and budgets for client requests.
pub(crate) struct Limits {
    /// Budget for long values received from clients, in bytes.
    pub(crate) bodies: Budget,
    /// Budget for the beginnings of uploads of unknown length, in bytes, a part of `bodies`. The
    /// rest of `bodies` suffices for at least one of these uploads to complete.
    pub(crate) beginnings: Budget,
    /// Budget for the dashboard's event streams, in streams.
    pub(crate) streams: Budget,
    /// Budget for requests for the whole cluster's status, in concurrent requests.
    pub(crate) status_collections: Budget,
    /// Connection slots of the node.
    pub(crate) connection_slots: ConnectionSlots,
    /// Maximum length of a value, in bytes.
    pub(crate) max_value: usize,
    /// Maximum time to live of a value.
    pub(crate) max_ttl: Ttl,
    /// Maximum duration of a request.
    pub(crate) deadline: Duration,
}
