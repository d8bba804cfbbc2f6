//! What is looked at before anything is done: whether a request's head can be understood in one way
//! only, whether it was meant for this node, and whether all that it makes its execution depend on
//! is known here. A condition is never ignored: who sends one counts on it.

use hyper::header::IF_NONE_MATCH;
use hyper::http::request::Parts;
use hyper::{Uri, Version};

use super::access;
use super::origin::{Names, Origin};
use super::problem::Problem;
use super::routes::{Handler, Route};
use crate::counters::RequestKind;
use crate::http::connection::{Security, Watch};

/// Refuses what must not be done. Otherwise, whether it puts a condition, which its route knows.
pub(super) fn admit(
    names: &Names,
    watch: &Watch,
    head: &Parts,
    route: Option<Route>,
    kind: RequestKind,
) -> Result<bool, Problem> {
    use RequestKind::{Add, Delete, Get, Put};

    if watch.security.get() == Security::Missing {
        return Err(Problem::in_clear());
    }
    let mut hosts = 0;
    let mut codings = 0;
    let mut is_conditional = false;
    let mut host: &[u8] = &[];
    let mut asked = Origin::default();
    let mut navigates = false;
    for (name, value) in &head.headers {
        match name.as_str() {
            "host" => {
                hosts += 1;
                host = value.as_bytes();
            }
            "transfer-encoding" => {
                codings += 1;
                if codings > 1 || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                    return Err(Problem::coding());
                }
            }
            "content-range" if kind == Put => return Err(partial()),
            "if-none-match" if matches!(kind, Get | Put | Delete) => {
                is_conditional = true;
            }
            "if-match" if matches!(kind, Put | Delete) => is_conditional = true,
            // The whole value is right whether it has changed or not.
            "if-range" if kind == Get => {}
            // The other one decides, RFC 9110, 13.1.3.
            "if-modified-since" if kind == Get && head.headers.contains_key(IF_NONE_MATCH) => {}
            "idempotency-key" if matches!(kind, Put | Delete | Add) => {
                is_conditional = true;
            }
            // It says nothing about a read of a value, which can be sent again as it is.
            "idempotency-key" if kind != Get => {
                let detail = "Idempotency-Key is not supported here; it can be given with PUT and \
                    DELETE of a value, and POST with add";
                return Err(Problem::bad_request(detail.to_owned()));
            }
            condition if condition.starts_with("if-") => return Err(conditional(condition, kind)),
            "origin" if asked.origin.is_some() => return Err(twice("Origin")),
            "origin" => asked.origin = Some(value.as_bytes()),
            "sec-fetch-site" if asked.site.is_some() => return Err(twice("Sec-Fetch-Site")),
            "sec-fetch-site" => asked.site = Some(value.as_bytes()),
            "sec-fetch-mode" => navigates = value.as_bytes() == b"navigate",
            _ => {}
        }
    }
    if watch.saw_fragment() {
        let detail = "the request target contains '#': encode it as %23";
        return Err(Problem::bad_request(detail.to_owned()));
    }
    let authority = authority_of(&head.uri);
    let least = match head.version {
        Version::HTTP_11 => 1,
        Version::HTTP_2 => usize::from(authority.is_none()),
        _ => 0,
    };
    if hosts > 1 || hosts < least {
        return Err(Problem::bad_request(format!("expected one Host header, got {hosts}")));
    }
    let differs = |authority: &[u8]| !authority.eq_ignore_ascii_case(host);
    if head.version == Version::HTTP_2 && hosts == 1 && authority.is_some_and(differs) {
        let detail = "Host and :authority differ: send one of them";
        return Err(Problem::bad_request(detail.to_owned()));
    }
    let is_page = |route: Route| matches!(route.handler, Handler::Asset(_));
    asked.followed = navigates && route.is_some_and(is_page);
    // HTTP/1.0 need not say whom it asks, and no browser speaks it.
    asked.authority = authority.or((hosts == 1).then_some(host));
    asked.near = watch.security.get() == Security::Plain && access::is_near(watch);
    names.admit(asked)?;
    Ok(is_conditional)
}

/// Whom a target in absolute form names, which counts more than `Host`, or `:authority`.
fn authority_of(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(|authority| authority.as_str().as_bytes())
}

fn twice(header: &str) -> Problem {
    Problem::bad_request(format!("expected one {header} header at most"))
}

fn partial() -> Problem {
    let detail = "Content-Range is not supported: send the whole value";
    Problem::bad_request(detail.to_owned()).undone()
}

fn conditional(header: &str, kind: RequestKind) -> Problem {
    let problem = Problem::bad_request(format!(
        "{header} is not supported here; conditions are If-None-Match on GET of a value, If-Match \
         on PUT and DELETE, and If-None-Match: * on PUT"
    ));
    if matches!(kind, RequestKind::Put | RequestKind::Delete | RequestKind::Add) {
        problem.undone()
    } else {
        problem
    }
}
