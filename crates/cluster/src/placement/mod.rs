//! Which nodes hold which keys: pure functions of the members.

pub(crate) mod topology;
pub(crate) mod view;
