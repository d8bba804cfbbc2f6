//! Threads: start and stop, the acceptor, the event loops.

pub(crate) mod accept;
pub(crate) mod allocator;
mod credentials;
mod damaged;
mod error;
pub(crate) mod event_loop;
mod join;
mod quotas;
pub(crate) mod serve;
mod set_aside;
