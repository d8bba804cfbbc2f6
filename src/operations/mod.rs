//! Information for operators of a node: metrics, status, the log.

pub(crate) mod access;
pub(crate) mod compact;
pub(crate) mod history;
pub(crate) mod joining;
pub(crate) mod layout;
#[cfg(test)]
pub(crate) mod manual;
pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod quotas;
pub(crate) mod reports;
pub(crate) mod rounds;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod stderr;
pub(crate) mod tokens;
pub(crate) mod usage;
mod warnings;
mod words;
