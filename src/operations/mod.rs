//! Information for a node's operators: metrics, status, the log. Each administrative feature has
//! its own folder beside this one (`quotas`, `tokens`, `layout` …).
//!
//! ```text
//!  metrics, status, snapshot, usage   the node's reports of itself
//!  reports                            functions that HTTP calls for these, and for the features
//!  access                             changes of tokens and quotas, by the metadata quorum
//!  output, stderr                     lines for people, written by a separate thread
//!  words                              enums of words in a node's JSON
//!  manual                             tables of the docs, generated from the code
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
