//! Errors that prevent a run or end it early.

use std::io;
use std::net::SocketAddr;

use crate::tls::Tls;

/// The reason why a run ended without figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan can't be carried out.
    #[error("the load plan is wrong: {0}")]
    Plan(String),
    /// No connection could be opened at the start.
    #[error("can't open {connections} connections to {target}: {cause}; nothing was sent")]
    Connect {
        /// The server's address.
        target: SocketAddr,
        /// Number of connections requested.
        connections: usize,
        /// Error of the first connection that failed.
        cause: io::Error,
    },
    /// The TLS handshake failed at the start.
    #[error("TLS with {target}: {why}; no request was answered")]
    Tls {
        /// The server's address.
        target: SocketAddr,
        /// The cause, and how to correct it.
        why: String,
    },
    /// The run needs more open files than the process may have.
    #[error(
        "{needed} files would be open, and this process may have {limit}: use fewer connections, \
         or raise the hard limit (ulimit -Hn, LimitNOFILE); nothing was sent"
    )]
    Descriptors {
        /// Files that the run would open.
        needed: u64,
        /// The hard limit, `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// A script failed.
    #[error(transparent)]
    Script(#[from] crate::script::Error),
    /// The operating system refused a call that the generator needs.
    #[error("the load generator stopped, its figures are lost: {what}: {cause}")]
    System {
        /// Name of the call.
        what: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl Error {
    /// Returns the error for a TLS failure with `target`.
    pub(crate) fn tls(target: SocketAddr, tls: &Tls, cause: &io::Error) -> Self {
        Self::Tls { target, why: tls.why(cause) }
    }

    /// Returns a function that converts the error of a system call, for `map_err`.
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |cause| Self::System { what, cause: cause.into() }
    }
}
