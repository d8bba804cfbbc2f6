//! The operators' interface to the cluster's layout: the layout in force, plans of changes, and the
//! progress of a change.
//!
//! ```text
//!  routes     `/admin/layout` and the paths below it
//!  status     the JSON of the layout in force and of plans
//!  plans      the plans that this node has made, in memory
//!  warnings   warnings to consider before a plan is applied
//! ```

pub(crate) mod plans;
pub(crate) mod routes;
pub(crate) mod status;
pub(crate) mod warnings;
