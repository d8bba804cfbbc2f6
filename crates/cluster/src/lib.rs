//! kvorum's replication protocol, without any I/O: no sockets, files, threads or clocks. Whoever
//! embeds it brings the time and the bytes, so that a simulation can run the very same code.

mod clock;
mod quorum;

pub use clock::{BoundReached, Clock, Stamp, origin_of};
pub use quorum::{Quorum, Refusal, quorum};
