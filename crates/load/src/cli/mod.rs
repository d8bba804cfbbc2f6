//! The command `load`, as wrk2's users know it.
//!
//! ```text
//!  words ─▶ args.rs ─▶ check.rs ─▶ load.rs ─▶ reported.rs: figures
//!    └ mend.rs: what was meant      ├ sinks.rs: logs, second by second
//!                                   ├ progress.rs: a live line
//!                                   ├ servers.rs: what they tell, and what they take
//!                                   └ profile.rs: recordings of them
//! ```

mod args;
mod check;
mod error;
mod load;
mod mend;
pub(crate) mod profile;
mod progress;
pub(crate) mod reported;
pub(crate) mod servers;
mod sinks;
mod units;

pub use args::{Arrival, LoadArgs, ProfileEvent, RequestArgs, TargetMode, TlsArgs};
pub use check::Asked;
pub use error::Error;
pub use load::{Ended, Failed, load};
pub use mend::mend;
pub use units::{Count, Rate, Time, UnitError};
