//! Headers shared by all answers of a kind, such as the rules for caches.
//!
//! | answer | `Cache-Control` | because |
//! |---|---|---|
//! | a value, and 304 | `private, no-cache` | a client may keep it, and revalidates by ETag |
//! | all other reads, 404 and errors | `no-store` | they have no ETag for a revalidation |
//! | files of the dashboard | `no-cache` | they change with a release |
//! | writes | none | caches keep no answer to PUT and DELETE, and to POST only if told to |
//!
//! With `private`, a cache that many clients share must not keep the value.
//!
//! Without the header a cache may estimate an answer's freshness lifetime (RFC 9111, 4.2.2). Some
//! caches do so for 404 too.

use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use super::problem;

/// Headers that are the same in each answer of a kind. Names and values are checked at compile
/// time, so that a request only copies them.
pub(super) type Headers = &'static [(HeaderName, HeaderValue)];

pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Only the owner of a value knows its type. A browser must not guess the type, because it could
/// run the value as a script.
pub(super) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

const REVALIDATED: HeaderValue = HeaderValue::from_static("private, no-cache");

/// Headers of a response with a value.
pub(super) static VALUE: [(HeaderName, HeaderValue); 3] = [
    (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
    (X_CONTENT_TYPE_OPTIONS, NOSNIFF),
    (CACHE_CONTROL, REVALIDATED),
];

/// Headers of a 304: the caching headers of a 200 (RFC 9110, 15.4.5).
pub(super) static UNCHANGED: [(HeaderName, HeaderValue); 1] = [(CACHE_CONTROL, REVALIDATED)];

/// Headers of a 404 that answers the read of a value.
pub(super) static ABSENT: [(HeaderName, HeaderValue); 2] =
    [(CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE)), (CACHE_CONTROL, NO_STORE)];

/// Headers of answers that may be outdated a moment later. Caches must not keep them.
pub(super) static FRESH: [(HeaderName, HeaderValue); 2] =
    [(CACHE_CONTROL, NO_STORE), (X_CONTENT_TYPE_OPTIONS, NOSNIFF)];
