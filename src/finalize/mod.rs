//! The end of an upgrade, on request: every member's store is raised to the latest store format
//! that its program writes.
//!
//! ```text
//!  POST /admin/finalize ─▶ this node ─┬─ 1. /v0/status of all members: refused unless all can
//!                                     └─ 2. POST /admin/store-format to each member
//!                                             └─▶ its engine raises STORE, durably
//! ```
//!
//! Invariants:
//! * A refusal before step 2 changes no byte on any node.
//! * A node writes no store format before the format is durable in its `STORE`: `lsm::Engine`
//!   ensures that.
//! * The format belongs to a node's own disk. Nodes of both formats work together, so that a
//!   failure in step 2 leaves a cluster that serves, and the same request completes the rest.
//! * After step 2 at a node, only releases that know the format open the node's directory.

pub(crate) mod params;
pub(crate) mod routes;
pub(crate) mod status;
