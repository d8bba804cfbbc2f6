//! The files of the dashboard's page, embedded in the program.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

use crate::http::caching::{Headers, NOSNIFF};
use crate::http::{Answer, Body};

/// A cached file is revalidated at each use, because a new release may have another version.
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// The page may load and run only files of this node, and no other page may frame it.
static PAGE: [(HeaderName, HeaderValue); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'",
        ),
    ),
    (CACHE_CONTROL, NO_CACHE),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_CONTENT_TYPE_OPTIONS, NOSNIFF),
];

/// Headers of the frame that shows a recorded profile with inline scripts. The frame is a document
/// without an origin, which can neither load anything nor reach the page or the node.
static SANDBOX: [(HeaderName, HeaderValue); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "sandbox allow-scripts allow-downloads; default-src 'none'; \
             script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
             font-src data:; frame-ancestors 'self'",
        ),
    ),
    (CACHE_CONTROL, NO_CACHE),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_CONTENT_TYPE_OPTIONS, NOSNIFF),
];

/// One file of the dashboard.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Asset {
    path: &'static str,
    content_type: &'static str,
    headers: Headers,
    text: &'static str,
}

const fn page(path: &'static str, text: &'static str) -> Asset {
    Asset { path, content_type: "text/html; charset=utf-8", headers: &PAGE, text }
}

const fn script(path: &'static str, text: &'static str) -> Asset {
    Asset { path, content_type: "text/javascript; charset=utf-8", headers: &PAGE, text }
}

const fn style(path: &'static str, text: &'static str) -> Asset {
    Asset { path, content_type: "text/css; charset=utf-8", headers: &PAGE, text }
}

static ASSETS: &[Asset] = &[
    page("/ui", include_str!("index.html")),
    page("/ui/", include_str!("index.html")),
    Asset { headers: &SANDBOX, ..page("/ui/frame", include_str!("frame.html")) },
    style("/ui/style.css", include_str!("style.css")),
    style("/ui/panels.css", include_str!("panels.css")),
    style("/ui/forms.css", include_str!("forms.css")),
    Asset { content_type: "image/svg+xml", ..script("/ui/icon.svg", include_str!("icon.svg")) },
    script("/ui/app.js", include_str!("app.js")),
    script("/ui/stream.js", include_str!("stream.js")),
    script("/ui/history.js", include_str!("history.js")),
    script("/ui/latency.js", include_str!("latency.js")),
    script("/ui/format.js", include_str!("format.js")),
    script("/ui/plot.js", include_str!("plot.js")),
    script("/ui/lines.js", include_str!("lines.js")),
    script("/ui/heatmap.js", include_str!("heatmap.js")),
    script("/ui/bands.js", include_str!("bands.js")),
    script("/ui/panels.js", include_str!("panels.js")),
    script("/ui/cluster.js", include_str!("cluster.js")),
    script("/ui/lookup.js", include_str!("lookup.js")),
    script("/ui/members.js", include_str!("members.js")),
    script("/ui/plan.js", include_str!("plan.js")),
    script("/ui/session.js", include_str!("session.js")),
    script("/ui/profile.js", include_str!("profile.js")),
    script("/ui/repair.js", include_str!("repair.js")),
    script("/ui/controls.js", include_str!("controls.js")),
    script("/ui/confirm.js", include_str!("confirm.js")),
    script("/ui/outlook.js", include_str!("outlook.js")),
    script("/ui/tables.js", include_str!("tables.js")),
    script("/ui/terms.js", include_str!("terms.js")),
];

impl Asset {
    /// Returns the file at `path`; `None` if there is none.
    pub(in crate::http) fn at(path: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.path == path)
    }

    pub(in crate::http) fn path(&self) -> &'static str {
        self.path
    }

    pub(in crate::http) fn answer(&self) -> Answer {
        Answer {
            status: StatusCode::OK,
            tag: None,
            receipt: None,
            expiry_ms: 0,
            content_type: Some(self.content_type),
            extra_header: None,
            headers: self.headers,
            body: Body::Whole(Bytes::from_static(self.text.as_bytes()).into()),
        }
    }
}
