//! The process's threads: start and stop, the acceptor, the event loops.

pub(crate) mod accept;
pub(crate) mod allocator;
mod credentials;
pub(crate) mod error;
pub(crate) mod event_loop;
mod history;
mod join;
pub(crate) mod limits;
mod modes;
mod notify;
mod quotas;
pub(crate) mod serve;
mod set_aside;
mod unusable;
