//! What pages of `--allow-origin` are told: that they may ask, and read the answer. Without that
//! setting nothing here is ever said, and browsers keep answers from all pages but the node's own.
//!
//! ```text
//!  OPTIONS, Origin, Access-Control-Request-Method ─▶ 204, of any path that there is
//!  any other request with such an Origin          ─▶ as without it, and its page may read that
//! ```
//!
//! A browser asks first without a token; only what it may ask is told then.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

use super::origin::Names;
use super::routes::Route;

/// Headers that a page may send.
const ALLOWED: &str = "authorization, content-type, idempotency-key, if-match, if-none-match";

/// Headers of answers that a page may read.
const EXPOSED: &str = "allow, etag, kvorum-expires, kvorum-fence, kvorum-receipt, link, \
    retry-after, www-authenticate";

/// Seconds for which a browser need not ask again. No browser goes beyond two hours.
const MAX_AGE: &str = "7200";

/// What there is to be told about an answer's page.
pub(super) struct Page {
    /// Its origin, if it is listed; `None` = it is the node's own, or there is none.
    origin: Option<HeaderValue>,
    /// Whether answers to some others differ.
    varies: bool,
    /// What it may do, if it asks for that.
    asks: Option<&'static str>,
}

impl Page {
    /// The page of a request.
    pub(super) fn of(names: &Names, head: &Parts, route: Option<Route>) -> Self {
        let origin = names.page(&head.headers);
        let asks = origin.is_some()
            && head.method == Method::OPTIONS
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let asks = route.filter(|_| asks).map(|route| route.allowed);
        Self { origin, varies: names.has_pages(), asks }
    }

    /// Whether it asks what it may do, which needs no token.
    pub(super) fn asks(&self) -> bool {
        self.asks.is_some()
    }

    /// Whether it is of another origin.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.origin.is_some()
    }

    /// Adds the headers that say what the page may do.
    pub(super) fn add_to(self, headers: &mut HeaderMap) {
        if self.varies {
            headers.append(VARY, HeaderValue::from(ORIGIN));
        }
        let Some(origin) = self.origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if let Some(methods) = self.asks {
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        } else {
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }
}
