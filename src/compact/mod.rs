//! Compaction of the whole store on request: `/admin/compact`, and its JSON.

pub(crate) mod routes;
pub(crate) mod status;
