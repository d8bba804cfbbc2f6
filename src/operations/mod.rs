//! Information and administration for a node's operators: metrics, status, the log, changes.
//!
//! ```text
//!  metrics, status, snapshot, history, usage   the node's reports of itself, now and lately
//!  rounds, compact, layout, tokens, quotas     administration: requested work, changes, status
//!  joining, warnings                           nodes that ask to join; warnings about a plan
//!  output, stderr                              lines for people, written by a separate thread
//!  manual                                      tables of the docs, generated from the code
//! ```

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
