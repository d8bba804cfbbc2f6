//! `/admin/compact`: compaction of the whole store on request, and the JSON of the answers.

pub(crate) mod routes;
pub(crate) mod status;
