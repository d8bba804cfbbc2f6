//! Why a run did not take place, or did not come to its end.

use std::io;
use std::net::SocketAddr;

use crate::tls::Tls;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan can't be carried out.
    #[error("the load plan is wrong: {0}")]
    Plan(String),
    /// No connection at the start.
    #[error("can't open {connections} connections to {target}: {cause}; nothing was sent")]
    Connect {
        /// The server's address.
        target: SocketAddr,
        /// How many were asked for.
        connections: usize,
        /// What the first that failed said.
        cause: io::Error,
    },
    /// No TLS at the start.
    #[error("TLS with {target}: {why}; no request was answered")]
    Tls {
        /// The server's address.
        target: SocketAddr,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The process may not have so many sockets.
    #[error(
        "{needed} files would be open, and this process may have {limit}: use fewer connections, \
         or raise the hard limit (ulimit -Hn, LimitNOFILE); nothing was sent"
    )]
    Descriptors {
        /// How many would be open.
        needed: u64,
        /// `RLIMIT_NOFILE`, the hard one.
        limit: u64,
    },
    /// A script failed.
    #[error(transparent)]
    Script(#[from] crate::script::Error),
    /// The operating system refused something the generator needs.
    #[error("the load generator stopped, its figures are lost: {what}: {cause}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

impl Error {
    /// What ended TLS with `target`.
    pub(crate) fn tls(target: SocketAddr, tls: &Tls, cause: &io::Error) -> Self {
        Self::Tls { target, why: tls.why(cause) }
    }

    /// For `map_err` on a system call.
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |cause| Self::System { what, cause: cause.into() }
    }
}
