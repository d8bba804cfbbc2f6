//! The command `load`, compatible with wrk2's command line.
//!
//! ```text
//!  words ─▶ args.rs ─▶ check/ ─▶ load.rs ─▶ run_record.rs: figures
//!    └ correction.rs: suggestions ├ sinks.rs: logs, second by second
//!                                 ├ progress.rs: a live line
//!                                 ├ servers.rs: servers' metrics and resource usage
//!                                 └ profile.rs: recordings of servers
//! ```

mod args;
mod check;
mod cli_error;
mod correction;
mod load;
pub(crate) mod profile;
mod progress;
pub(crate) mod run_record;
pub(crate) mod servers;
mod sinks;
mod units;

pub use args::{ArrivalArg, LoadArgs, ProfileEvent, RequestArgs, TargetModeArg, TlsArgs};
pub use check::CheckedArgs;
pub use cli_error::Error;
pub use correction::suggest_correction;
pub use load::{LoadEnd, LoadFailure, load};
pub use units::{Count, Rate, Time, UnitError};
