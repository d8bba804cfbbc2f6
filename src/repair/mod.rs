//! Repair rounds on request: `/admin/repair`, and the JSON of its answers. The rounds themselves
//! are in `protocol::repair`.

pub(crate) mod routes;
pub(crate) mod status;
