//! Repair rounds on request: `/admin/repair`, and its JSON. The rounds themselves are in
//! `protocol::repair`.

pub(crate) mod routes;
pub(crate) mod status;
