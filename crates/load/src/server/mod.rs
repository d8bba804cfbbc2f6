//! The server under test: started and stopped, looked at from outside, asked for its figures.
//!
//! ```text
//!  command.rs   'kvorum serve --data {data}' as words; a flag set for a sweep
//!  process.rs   the process: start, wait until it listens, stop, never leave it behind
//!  data.rs      the directory that {data} stands for, fresh for each start
//!  look.rs      CPU, memory, disk of a process and its children: /proc
//!  owner.rs     which process listens on an address
//!  ask.rs       one question to it
//!  metrics.rs   the metrics it reports: the Prometheus text format
//!  idle.rs      wait until it does nothing in the background
//! ```

mod ask;
mod command;
mod data;
mod idle;
mod look;
mod metrics;
mod owner;
mod process;

pub use ask::Endpoint;
pub(crate) use ask::{AskError, ask};
pub use command::Command;
pub use data::{Data, Dropped};
pub use idle::{Idle, wait_until_idle};
pub use look::{Busiest, Look, Usage};
pub use metrics::{Metrics, fetch};
pub use owner::listens;
pub use process::Server;

/// Why a server could not be started or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line makes no sense.
    #[error("--server {line:?}: {why}")]
    Command {
        /// The command line, as given.
        line: String,
        /// What is wrong, and how to mend it.
        why: &'static str,
    },
    /// Another process is there already.
    #[error(
        "something listens on {address} already, so a server started there would not be the one \
         that is measured: stop it, or leave out --server to measure it"
    )]
    Taken {
        /// The address that is taken.
        address: std::net::SocketAddr,
    },
    /// It could not be run.
    #[error("can't start `{line}`: {cause}")]
    Start {
        /// The command line.
        line: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// It ran, and then did not serve.
    #[error("`{line}` does not serve on {address}: {how}; it said:\n{said}")]
    Silent {
        /// The command line.
        line: String,
        /// Where it was expected.
        address: std::net::SocketAddr,
        /// It ended, or took too long.
        how: String,
        /// Its last lines.
        said: String,
    },
    /// No place for its data.
    #[error("no fresh data directory in {parent}: {cause}")]
    Data {
        /// Where one was to be made.
        parent: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Its figures could not be had.
    #[error("can't read {url}: {cause}")]
    Metrics {
        /// The URL that was asked.
        url: String,
        /// Why it can't be read.
        cause: String,
    },
    /// Somebody wants to end all this.
    #[error("interrupted")]
    Interrupted,
}
