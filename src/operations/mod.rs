//! Information for operators of a node: metrics, status, the log.
//!
//! ```text
//!  metrics, status, snapshot, history, usage   what a node reports of itself, now and lately
//!  rounds, compact, layout, tokens, quotas     administration: reports, and what is asked for
//!  joining, warnings                           nodes that ask to join; warnings about a plan
//!  output, stderr                              lines for people, written by a thread of their own
//!  manual                                      tables of the docs that are made from the code
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
