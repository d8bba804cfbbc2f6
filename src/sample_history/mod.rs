//! Samples of the node's counters over the last 15 minutes, for dashboards that connect later.
//!
//! ```text
//!  thread ── once a second ─▶ samples: takes a sample ─▶ ring: the last 15 minutes
//!  dashboard ◀─────────────── samples: JSON ◀─────────────┘
//! ```

pub(crate) mod ring;
pub(crate) mod samples;
pub(crate) mod thread;
