//! What there may be at once of what clients cause.

use std::time::Duration;

use crate::counters::budget::Budget;
use crate::node::places::Places;
use crate::settings::units::Ttl;

/// See the module.
pub(crate) struct Limits {
    /// Long values from clients, in bytes.
    pub(crate) bodies: Budget,
    /// Streams of snapshots that may be open.
    pub(crate) streams: Budget,
    /// Looks at the whole cluster that may be under way.
    pub(crate) looks: Budget,
    /// Places for connections.
    pub(crate) places: Places,
    /// Longest value, in bytes.
    pub(crate) max_value: usize,
    /// Longest time that a value may live.
    pub(crate) max_ttl: Ttl,
    /// How long a request may take.
    pub(crate) deadline: Duration,
}
