//! Information and administration for a node's operators: metrics, status, the log, changes of the
//! cluster.
//!
//! ```text
//!  metrics, status, snapshot, history, usage   the node's reports of itself, now and lately
//!  rounds, compact, layout, tokens, quotas     administration: requested work, changes, status
//!  joining, warnings                           nodes that ask to join; warnings about a plan
//!  output, stderr                              lines for people, written by a separate thread
//!  manual                                      tables of the docs, generated from the code
//! ```

pub(crate) mod access;
#[cfg(test)]
pub(crate) mod manual;
pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod reports;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod stderr;
pub(crate) mod usage;
pub(crate) mod words;
