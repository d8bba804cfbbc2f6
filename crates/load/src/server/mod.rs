//! The server under test: its process, its resource usage and its metrics.
//!
//! ```text
//!   command.rs         splits 'kvorum serve --data {data}' into words; sets a flag for a sweep
//!   process.rs         the process: start, wait until it listens, stop; never outlives its owner
//!   data.rs            the directory behind {data}, fresh for each start
//!   snapshot.rs        CPU, memory, disk of a process and its descendants: /proc
//!   owner.rs           finds the process that listens on an address
//!   ask.rs             a single GET
//!   server_metrics.rs  the server's metrics: the Prometheus text format
//!   idle.rs            wait until the server has no background work
//! ```

mod ask;
mod command;
mod data;
mod idle;
mod owner;
mod process;
mod server_metrics;
mod snapshot;

pub use ask::Endpoint;
pub(crate) use ask::{AskError, ask};
pub use command::ServerCommand;
pub use data::{Data, DroppedFiles};
pub use idle::{Idle, wait_until_idle};
pub use owner::listens;
pub use process::ServerProcess;
pub use server_metrics::{Metrics, fetch};
pub use snapshot::{Busiest, ServerSnapshot, Usage};

/// The reason why a server could not be started or observed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is invalid.
    #[error("--server {line:?}: {why}")]
    Command {
        /// The command line, as given.
        line: String,
        /// The error, and how to correct it.
        why: &'static str,
    },
    /// Another process listens on the address.
    #[error(
        "something listens on {address} already, so a server started there would not be the one \
         that is measured: stop it, or leave out --server to measure it"
    )]
    Taken {
        /// The address in use.
        address: std::net::SocketAddr,
    },
    /// The command could not be run.
    #[error("can't start `{line}`: {cause}")]
    Start {
        /// The command line.
        line: String,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The server was started but did not begin to serve.
    #[error("`{line}` does not serve on {address}: {how}; it said:\n{said}")]
    Silent {
        /// The command line.
        line: String,
        /// The expected address.
        address: std::net::SocketAddr,
        /// Failure of the start: the server ended, or took too long.
        how: String,
        /// The last lines of the server's output.
        said: String,
    },
    /// A data directory could not be created.
    #[error("no fresh data directory in {parent}: {cause}")]
    Data {
        /// The parent directory.
        parent: String,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The server's metrics could not be read.
    #[error("can't read {url}: {cause}")]
    Metrics {
        /// The requested URL.
        url: String,
        /// The cause of the failure.
        cause: String,
    },
    /// The user interrupted the program.
    #[error("interrupted")]
    Interrupted,
}
