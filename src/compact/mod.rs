//! Compaction of the whole store on request: `/admin/compact`, and the JSON of its answers.

pub(crate) mod routes;
pub(crate) mod status;
