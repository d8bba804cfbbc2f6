//! What a node is asked to be: flags, variables and a file, put together and checked against each
//! other.

pub(crate) mod args;
pub(crate) mod config;
pub(crate) mod members;
pub(crate) mod memory;
pub(crate) mod secret;
pub(crate) mod units;
