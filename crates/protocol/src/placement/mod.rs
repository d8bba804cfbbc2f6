//! Placement: the nodes that hold each key, a pure function of the members.

pub(crate) mod topology;
pub(crate) mod view;
