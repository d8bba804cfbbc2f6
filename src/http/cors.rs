//! CORS headers for pages of `--allow-origin`: permission to send requests and to read answers.
//! Without that setting the node sends no such header, and browsers withhold answers from all pages
//! except the node's own.
//!
//! ```text
//!  OPTIONS with Origin and Access-Control-Request-Method ─▶ 204, on every existing path
//!  any other request with an allowed Origin ─▶ its usual answer, which the page may read
//! ```
//!
//! A browser sends preflights without a token. The answer contains only permissions.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

use super::origin::OwnNames;
use super::routes::Route;

/// Headers that a page may send.
const ALLOWED: &str = "authorization, content-type, idempotency-key, if-match, if-none-match";

/// Headers of answers that a page may read.
const EXPOSED: &str = "allow, etag, kvorum-expires, kvorum-fence, kvorum-receipt, link, \
    retry-after, www-authenticate";

/// Seconds for which a browser may cache the answer to a preflight. No browser caches longer than
/// two hours.
const MAX_AGE: &str = "7200";

/// The parts of a request that CORS depends on.
pub(super) struct PageOrigin {
    /// Origin of the page, if the origin is permitted; `None` = the node's own page, or not a page.
    origin: Option<HeaderValue>,
    /// True if answers depend on the origin, which the header `Vary` tells to caches.
    varies: bool,
    /// Permitted methods if the request is a preflight, otherwise `None`.
    asks: Option<&'static str>,
}

impl PageOrigin {
    /// Determines the origin of the page that sent a request.
    pub(super) fn of(names: &OwnNames, head: &Parts, route: Option<Route>) -> Self {
        let origin = names.page(&head.headers);
        let asks = origin.is_some()
            && head.method == Method::OPTIONS
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let asks = route.filter(|_| asks).map(|route| route.allowed);
        Self { origin, varies: names.has_pages(), asks }
    }

    /// True if the request is a preflight, which needs no token.
    pub(super) fn asks(&self) -> bool {
        self.asks.is_some()
    }

    /// True if the request is from a page of another, permitted origin.
    pub(super) fn has_other_origin(&self) -> bool {
        self.origin.is_some()
    }

    /// Adds the headers with the page's permissions.
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
