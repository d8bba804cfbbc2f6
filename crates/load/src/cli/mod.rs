//! The command `load`, as wrk2's users know it.
//!
//! ```text
//!  words ─▶ args.rs ─▶ check.rs ─▶ run.rs ─▶ figures
//!    └ mend.rs: what was meant      ├ progress.rs: a live line
//!                                   └ profile.rs: recordings on the servers
//! ```

mod args;
mod check;
mod mend;
mod units;

pub use args::{Arrival, LoadArgs, ProfileEvent, RequestArgs, TargetMode};
pub use check::Asked;
pub use mend::mend;
pub use units::{Count, Rate, Time};
