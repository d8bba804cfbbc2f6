//! Joining: a node with an empty directory asks the members of a cluster to admit it as a member.
//!
//! ```text
//!      joining node                               member
//!  ask ── message: JoinRequest, with proof ──▶ routes ─▶ answers ─▶ joiners: listed for plans
//!      ◀── message: JoinAnswer, with proof ───
//! ```
//!
//! A proof shows that its sender knows the cluster's secret. Clusters without a secret use no
//! proofs.

pub(crate) mod answers;
pub(crate) mod ask;
pub(crate) mod joiners;
pub(crate) mod message;
pub(crate) mod routes;
