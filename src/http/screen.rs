//! Screening of a request's head, the first check. The head must be unambiguous, meant for this
//! node, and have only supported conditions. A condition is never ignored, because its sender
//! relies on it.

use hyper::header::IF_MATCH;
use hyper::http::request::Parts;
use hyper::{Method, Uri, Version};

use super::access;
use super::origin::{Origin, OwnNames};
use super::problem::Problem;
use super::routes::{Handler, Route};
use crate::counters::RequestKind;
use crate::http::connection::{ConnectionState, Security};

/// Maximum length in bytes of an authority that a connection remembers. A host name has up to 253
/// bytes.
const LONGEST_AUTHORITY: usize = 260;

/// Refuses a head that fails the checks. Otherwise returns true if the request is conditional: it
/// has a condition or an idempotency key.
pub(super) fn check_head(
    names: &OwnNames,
    watch: &ConnectionState,
    head: &Parts,
    route: Option<Route>,
    kind: RequestKind,
) -> Result<bool, Problem> {
    if watch.security.get() == Security::Missing {
        return Err(Problem::in_clear());
    }
    let ScreenedHeaders { hosts, host, is_conditional, navigates, has_length, mut request_origin } =
        ScreenedHeaders::of(head, kind)?;
    // In HTTP/1.1 a request without a length has no body (RFC 9112, 6.3). An older client may send
    // a body up to the end of the connection (RFC 1945, 7.2.2), which would be lost.
    if kind == RequestKind::Put && head.version == Version::HTTP_10 && !has_length {
        let detail = "by HTTP/1.0 a PUT needs Content-Length: the body would be taken for empty";
        return Err(Problem::bad_request(detail.to_owned()));
    }
    if watch.take_fragment_flag() {
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
    let is_page = |route: Route| matches!(route.handler, Handler::Asset(_)) || route.path == "/";
    request_origin.is_navigation = navigates && route.is_some_and(is_page);
    // `Host` is optional in HTTP/1.0, which browsers do not use.
    request_origin.authority = authority.or((hosts == 1).then_some(host));
    let in_clear = watch.security.get() == Security::Plain;
    request_origin.scheme = if in_clear { "http" } else { "https" };
    request_origin.is_local = in_clear && access::is_on_this_machine(watch);
    admit_origin(names, watch, request_origin)?;
    Ok(is_conditional)
}

/// Refuses requests meant for another node or sent by a foreign page. Most requests are not sent by
/// a page, and have the authority of the connection's previous request; such requests are admitted
/// without further checks.
fn admit_origin(
    names: &OwnNames,
    watch: &ConnectionState,
    request_origin: Origin<'_>,
) -> Result<(), Problem> {
    let authority = request_origin.authority.unwrap_or_default();
    let is_of_page = request_origin.origin.is_some() || request_origin.site.is_some();
    let known = &watch.connection().authority;
    if !is_of_page && !authority.is_empty() && **known.borrow() == *authority {
        return Ok(());
    }
    names.admit(request_origin)?;
    if !is_of_page && authority.len() <= LONGEST_AUTHORITY {
        *known.borrow_mut() = authority.into();
    }
    Ok(())
}

/// The parts of the headers on which the checks depend.
#[derive(Default)]
struct ScreenedHeaders<'a> {
    hosts: usize,
    host: &'a [u8],
    is_conditional: bool,
    navigates: bool,
    has_length: bool,
    request_origin: Origin<'a>,
}

impl<'a> ScreenedHeaders<'a> {
    /// Reads each header once. Duplicate and unsupported headers are errors.
    fn of(head: &'a Parts, kind: RequestKind) -> Result<Self, Problem> {
        use RequestKind::{Add, Delete, Get, Put};

        let mut seen = Self::default();
        let mut codings = 0;
        let mut is_authorized = false;
        let reads = matches!(head.method, Method::GET | Method::HEAD);
        for (name, value) in &head.headers {
            match name.as_str() {
                "host" => {
                    seen.hosts += 1;
                    seen.host = value.as_bytes();
                }
                "transfer-encoding" => {
                    codings += 1;
                    if codings > 1 || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                        return Err(Problem::unsupported_coding());
                    }
                }
                "content-length" => seen.has_length = true,
                "authorization" if is_authorized => return Err(duplicate_header("Authorization")),
                "authorization" => is_authorized = true,
                "content-range" if kind == Put => return Err(partial()),
                "content-encoding"
                    if kind == Put && !value.as_bytes().eq_ignore_ascii_case(b"identity") =>
                {
                    return Err(Problem::content_coding(value.as_bytes()));
                }
                "if-none-match" if matches!(kind, Get | Put | Delete) => {
                    seen.is_conditional = true;
                }
                "if-match" if matches!(kind, Put | Delete) => seen.is_conditional = true,
                // The whole value is a correct answer, changed or unchanged.
                "if-range" if kind == Get => {}
                // Values have no modification date, so both headers are to be ignored (RFC 9110,
                // 13.1.3 and 13.1.4). A write whose only condition is a date is still refused,
                // because its client relies on the condition against lost updates.
                "if-modified-since" => {}
                "if-unmodified-since" if reads || head.headers.contains_key(IF_MATCH) => {}
                "idempotency-key" if matches!(kind, Put | Delete | Add) => {
                    seen.is_conditional = true;
                }
                "idempotency-key" => {
                    let detail = "Idempotency-Key is not supported here, and would be ignored; it \
                        can be given with PUT and DELETE of a value, and POST with add";
                    return Err(Problem::bad_request(detail.to_owned()));
                }
                condition if condition.starts_with("if-") => {
                    return Err(unsupported_condition(condition));
                }
                "origin" if seen.request_origin.origin.is_some() => {
                    return Err(duplicate_header("Origin"));
                }
                "origin" => seen.request_origin.origin = Some(value.as_bytes()),
                "sec-fetch-site" if seen.request_origin.site.is_some() => {
                    return Err(duplicate_header("Sec-Fetch-Site"));
                }
                "sec-fetch-site" => seen.request_origin.site = Some(value.as_bytes()),
                "sec-fetch-mode" => seen.navigates = value.as_bytes() == b"navigate",
                _ => {}
            }
        }
        Ok(seen)
    }
}

/// Returns the authority of a target in absolute form, or `:authority`; `None` without either. The
/// authority takes precedence over `Host`.
fn authority_of(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(|authority| authority.as_str().as_bytes())
}

fn duplicate_header(header: &str) -> Problem {
    Problem::bad_request(format!("expected one {header} header at most"))
}

fn partial() -> Problem {
    let detail = "Content-Range is not supported: send the whole value";
    Problem::bad_request(detail.to_owned())
}

fn unsupported_condition(header: &str) -> Problem {
    Problem::bad_request(format!(
        "{header} is not supported here; conditions are If-None-Match on GET of a value, If-Match \
         on PUT and DELETE, and If-None-Match: * on PUT"
    ))
}
