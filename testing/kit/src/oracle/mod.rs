//! Oracles, which decide whether the answers of nodes are allowed.
//!
//! ```text
//!  ledger    every write with its outcome, kept outside the nodes: nothing is lost or invented
//!  reads     all values of a node, by range and by key, against the ledger
//!  audit     reads of every key at several nodes, with wrong answers counted by kind
//!  register  histories of contended keys: each must be linearizable
//! ```

pub mod audit;
pub mod ledger;
pub mod reads;
pub mod register;
