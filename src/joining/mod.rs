//! Joining: a node with an empty directory asks the members of a cluster to become one of them.
//!
//! ```text
//!      joining node                               member
//!  ask ── message: JoinRequest, with proof ──▶ routes ─▶ answers ─▶ joiners: listed for plans
//!      ◀── message: JoinAnswer, with proof ───
//! ```
//!
//! A proof shows that its sender knows the cluster's secret. Without a secret there are no proofs.

pub(crate) mod answers;
pub(crate) mod ask;
pub(crate) mod joiners;
pub(crate) mod message;
pub(crate) mod routes;
