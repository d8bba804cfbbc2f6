//! `/ui`: the dashboard, a page without a framework, which is part of the program and loads nothing
//! from other sites.
//!
//! ```text
//!  browser ─▶ /ui, /ui/*.js, /ui/*.css ─▶ assets
//!          ─▶ /ui/events ─▶ events ─┬─▶ this node's snapshot, once a second
//!                                   └─▶ relay ─▶ /ui/events?local=true of each other node
//!          ─▶ /ui/key?id=K ─▶ key ──▶ one read of each replica, by the peer protocol
//! ```
//!
//! The page reaches the other nodes through this node. So the browser needs access to only one node
//! (for example through a tunnel), and the page needs no CORS rules. The page computes all rates
//! itself. Each node stores the samples of the last 15 minutes for pages that connect later
//! (`history`).

mod assets;
mod events;
mod key;
mod relay;

pub(super) use assets::Asset;
pub(crate) use events::MAX_STREAMS;
pub(super) use events::get as events;
pub(super) use key::get as key;
