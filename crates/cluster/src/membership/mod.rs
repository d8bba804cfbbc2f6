//! Who belongs to the cluster, and whether this node's directory is the one that the others know.
//!
//! ```text
//!  layout, layouts        the members as of one epoch, and which layout this node goes by
//!  proposals, stages      how the next layout is decided, and a transition goes on  (tasks)
//!  identity, state        this node's membership state, by what the others know of its disk
//!  logs, directory        how far the others' logs and this one's are known to reach
//!  known_disk, announcement, founding, cluster_id
//!                         a new disk is told to the others; the cluster's id, given once
//! ```

pub(crate) mod announcement;
pub(crate) mod cluster_id;
pub(crate) mod directory;
pub(crate) mod founding;
pub(crate) mod identity;
pub(crate) mod known_disk;
pub mod layout;
pub(crate) mod layouts;
pub(crate) mod logs;
pub(crate) mod moves;
pub(crate) mod proposals;
pub(crate) mod stages;
pub(crate) mod state;
