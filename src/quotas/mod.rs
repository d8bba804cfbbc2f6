//! Quotas: limits on the bytes stored under a prefix of keys.
//!
//! ```text
//!  routes, params   `/admin/quotas`, and the check of a write against the quotas
//!  status           the JSON of `/admin/quotas`; changes, which the metadata quorum decides
//!  counts           estimated bytes under each prefix, and which writes they refuse
//!  recount          the thread that walks the prefixes and corrects the estimates
//! ```

pub(crate) mod counts;
pub(crate) mod params;
pub(crate) mod recount;
pub(crate) mod routes;
pub(crate) mod status;
