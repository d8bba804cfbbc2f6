//! Cluster membership: the layouts and the decisions that change them, and the check of this node's
//! data directory against the peers' records of it.
//!
//! ```text
//!  layout, layouts        members as of one epoch; the layout that this node has adopted
//!  proposals, stages      tasks that have the next layout decided and advance a transition
//!  identity, state        this node's membership state, from what peers know of its disk
//!  logs, directory        the log positions known of the peers and of this node
//!  known_disk, announcement, founding, cluster_id
//!                         a new disk is announced to the peers; the cluster id, assigned once
//! ```

pub(crate) mod announcement;
pub(crate) mod cluster_id;
pub(crate) mod disk_ids;
pub(crate) mod founding;
pub(crate) mod identity;
pub(crate) mod known_disk;
pub mod layout;
pub(crate) mod layouts;
pub(crate) mod logs;
pub(crate) mod proposals;
pub(crate) mod stages;
pub(crate) mod state;
pub(crate) mod transition_progress;
