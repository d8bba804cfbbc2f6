//! A node's settings. Flags, variables and a file are merged, and checked against each other.
//!
//! ```text
//!  list ─▶ declare: a flag, a KVORUM_* variable and a TOML key of each ─▶ read ─▶ config: checked
//!  members, secret   the members of the cluster; the secret by which nodes authenticate each other
//!  memory, machine   the division of --memory; the memory limit of the process
//! ```

pub(crate) mod config;
mod declare;
pub(crate) mod error;
pub(crate) mod list;
mod log;
pub(crate) mod log_format;
pub(crate) mod machine;
pub(crate) mod members;
pub(crate) mod memory;
pub(crate) mod read;
pub(crate) mod secret;
pub(crate) mod units;
pub(crate) mod values;
