//! `/`: the address that people and their tools try first. A browser is redirected to the
//! dashboard.

use hyper::header::{ALLOW, CACHE_CONTROL, HeaderName, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use super::caching::NO_STORE;
use super::routes::ROOT_METHODS;
use super::{Answer, accept};

const TEXT: &str = "kvorum, a key-value store over HTTP\n\n\
    a value        GET, PUT, DELETE /v0/entity?id=KEY\n\
    keys in order  GET /v0/entities?start=KEY\n\
    the dashboard  GET /ui\n\
    health         GET /healthz, /readyz, /metrics\n";

static TO_DASHBOARD: [(HeaderName, HeaderValue); 2] =
    [(LOCATION, HeaderValue::from_static("/ui")), (CACHE_CONTROL, NO_STORE)];

static METHODS: [(HeaderName, HeaderValue); 1] = [(ALLOW, HeaderValue::from_static(ROOT_METHODS))];

pub(super) fn answer(head: &Parts) -> Answer {
    if head.method == Method::OPTIONS {
        return Answer { headers: &METHODS, ..Answer::empty(StatusCode::NO_CONTENT) };
    }
    let wants = |kind| accept::quality(&head.headers, kind);
    // A program that accepts anything is not a browser.
    if wants("text/html") > wants("text/plain") {
        let status = StatusCode::TEMPORARY_REDIRECT;
        return Answer { headers: &TO_DASHBOARD, ..Answer::empty(status) };
    }
    Answer::text(StatusCode::OK, TEXT)
}
