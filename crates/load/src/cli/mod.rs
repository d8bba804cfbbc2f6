//! The command `load`, compatible with wrk2's command line.
//!
//! ```text
//!  words ─▶ args.rs ─▶ check/ ─▶ load.rs ─▶ reported.rs: figures
//!    └ mend.rs: suggestions       ├ sinks.rs: logs, second by second
//!                                 ├ progress.rs: a live line
//!                                 ├ servers.rs: servers' metrics and resource usage
//!                                 └ profile.rs: recordings of servers
//! ```

mod args;
mod check;
mod cli_error;
mod load;
mod mend;
pub(crate) mod profile;
mod progress;
pub(crate) mod reported;
pub(crate) mod servers;
mod sinks;
mod units;

pub use args::{ArrivalArg, LoadArgs, ProfileEvent, RequestArgs, TargetModeArg, TlsArgs};
pub use check::Asked;
pub use cli_error::Error;
pub use load::{Failed, LoadEnd, load};
pub use mend::mend;
pub use units::{Count, Rate, Time, UnitError};
