//! `/admin/repair`: repair rounds on request, and the JSON of the answers. `protocol::repair`
//! performs the rounds.

pub(crate) mod routes;
pub(crate) mod status;
