//! The end of an upgrade, on request: every member raises its store to the latest format that the
//! asked node's program writes.
//!
//! ```text
//!  POST /admin/finalize ─▶ this node ─┬─ 1. /v0/status of all members: refused unless all can
//!                                     └─ 2. POST /admin/store-format to each member
//!                                             └─▶ its engine raises STORE, durably
//! ```
//!
//! Invariants:
//! * A refusal before step 2 changes no byte on any node.
//! * A node writes a store format only after the format is durable in its `STORE`. `lsm::Engine`
//!   ensures this.
//! * The format concerns only the node's own disk, and nodes of both formats work together. So
//!   after a failure in step 2 the cluster still serves, and a repetition of the request completes
//!   the rest.
//! * After step 2 at a node, only releases that know the format open the node's directory.

pub(crate) mod params;
pub(crate) mod routes;
pub(crate) mod status;
