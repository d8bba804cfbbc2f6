//! Tokens. A token permits its bearer some kinds of requests, up to a rate.
//!
//! ```text
//!  routes, params   `/admin/tokens`: lists, creates and revokes tokens
//!  status           the JSON of `/admin/tokens`; changes, which the metadata quorum decides
//!  lookup           the tokens of the layout in force by the hash of their text, with their rates
//! ```
//!
//! `http::access` admits a request by its token.

pub(crate) mod lookup;
pub(crate) mod params;
pub(crate) mod routes;
pub(crate) mod status;
