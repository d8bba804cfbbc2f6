//! Cluster membership: the layouts, the decisions that change them, and the check of this node's
//! data directory against the peers' records of it.
//!
//! ```text
//!  layout, adopted_layout     members as of one epoch; the layout that this node has adopted
//!  proposals, stages          drive the next layout to a decision; advance a transition
//!  transition_progress        how far each node has come in the transition
//!  disk_check, state          this node's membership state, from the peers' claims about its disk
//!  disk_ids, logs             ids of disk and process; the last known log positions of all nodes
//!  former_disks               claims about former disks, and whether a rebuild has settled them
//!  known_disk, announcement   announce a new disk of this node to the peers
//!  cluster_id, founding       the cluster id, assigned once
//! ```

pub(crate) mod adopted_layout;
pub(crate) mod announcement;
pub(crate) mod cluster_id;
pub(crate) mod disk_check;
pub(crate) mod disk_ids;
pub(crate) mod former_disks;
pub(crate) mod founding;
pub(crate) mod known_disk;
pub mod layout;
pub(crate) mod logs;
pub(crate) mod proposals;
pub(crate) mod stages;
pub(crate) mod state;
pub(crate) mod transition_progress;
