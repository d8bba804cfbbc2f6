//! What is looked at before anything is done: whether a request's head can be understood in one way
//! only, whether it was meant for this node, and whether all that it makes its execution depend on
//! is known here. A condition is never ignored: who sends one counts on it.

use hyper::header::{HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{Uri, Version};

use super::Route;
use super::origin::{Names, Origin};
use super::problem::Problem;
use crate::counters::Kind;
use crate::http::connection::Watch;

/// Refuses what must not be done. Otherwise, whether it asks for a value only if that has changed.
pub(super) fn admit(
    names: Option<&Names>,
    watch: &Watch,
    head: &Parts,
    route: Option<Route>,
    kind: Kind,
) -> Result<bool, Problem> {
    let mut hosts = 0;
    let mut codings = 0;
    let mut unless_unchanged = false;
    let mut asked = Origin::default();
    let mut navigates = false;
    for (name, value) in &head.headers {
        match name.as_str() {
            "host" => {
                hosts += 1;
                asked.authority = value.as_bytes();
            }
            "transfer-encoding" => {
                codings += 1;
                if codings > 1 || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                    return Err(Problem::coding());
                }
            }
            "content-range" if kind == Kind::Put => return Err(partial()),
            "if-none-match" if kind == Kind::Get => unless_unchanged = true,
            // The whole value is right whether it has changed or not.
            "if-range" if kind == Kind::Get => {}
            // The other one decides, RFC 9110, 13.1.3.
            "if-modified-since"
                if kind == Kind::Get && head.headers.contains_key(IF_NONE_MATCH) => {}
            condition if condition.starts_with("if-") => return Err(conditional(condition, kind)),
            "origin" => asked.origin = Some(value.as_bytes()),
            "sec-fetch-site" => asked.site = Some(value.as_bytes()),
            "sec-fetch-mode" => navigates = value.as_bytes() == b"navigate",
            _ => {}
        }
    }
    if watch.saw_fragment() {
        let detail = "the request target contains '#': encode it as %23";
        return Err(Problem::bad_request(detail.to_owned()));
    }
    if hosts > 1 || hosts == 0 && head.version == Version::HTTP_11 {
        return Err(Problem::bad_request(format!("expected one Host header, got {hosts}")));
    }
    if let Some(names) = names {
        asked.followed = navigates && matches!(route, Some(Route::Ui(_)));
        // HTTP/1.0 need not say whom it asks, and no browser speaks it.
        if let Some(authority) = authority_of(&head.uri).or((hosts == 1).then_some(asked.authority))
        {
            names.admit(Origin { authority, ..asked })?;
        }
    }
    Ok(unless_unchanged)
}

/// Whom a target in absolute form names, which counts more than `Host`.
fn authority_of(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(|authority| authority.as_str().as_bytes())
}

fn partial() -> Problem {
    let detail = "Content-Range is not supported: send the whole value";
    Problem::bad_request(detail.to_owned()).undone()
}

fn conditional(header: &str, kind: Kind) -> Problem {
    let problem = Problem::bad_request(format!(
        "{header} is not supported; the only supported condition is If-None-Match on GET of a value"
    ));
    if matches!(kind, Kind::Put | Kind::Delete) { problem.undone() } else { problem }
}

/// Whether one of the tags that `If-None-Match` lists is `tag` (in quotes), or any will do.
pub(super) fn lists(headers: &HeaderMap, tag: &HeaderValue) -> Result<bool, Problem> {
    let mut found = false;
    for list in headers.get_all(IF_NONE_MATCH) {
        let list = list.as_bytes().trim_ascii();
        if list == b"*" {
            found = true;
            continue;
        }
        let mut rest = list;
        while !rest.is_empty() {
            let (listed, behind) = first_tag(rest).ok_or_else(|| {
                let shown = String::from_utf8_lossy(list);
                Problem::bad_request(format!(
                    "If-None-Match: {shown:?} is neither a list of quoted entity tags nor \"*\""
                ))
            })?;
            found |= listed == tag.as_bytes();
            rest = behind;
        }
    }
    Ok(found)
}

/// The first of a list's tags, in quotes, and what is behind it and its comma. That a tag is weak
/// makes no difference (RFC 9110, 13.1.2).
fn first_tag(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let list = list.strip_prefix(b"W/").unwrap_or(list);
    let inner = list.strip_prefix(b"\"")?;
    let end = inner.iter().position(|byte| *byte == b'"')?;
    let (tag, behind) = list.split_at(end + 2);
    let behind = behind.trim_ascii_start();
    if behind.is_empty() {
        return Some((tag, behind));
    }
    let more = behind.strip_prefix(b",")?.trim_ascii_start();
    Some((tag, more))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lists_: &[&'static str]) -> Option<bool> {
        let mut headers = HeaderMap::new();
        for list in lists_ {
            headers.append(IF_NONE_MATCH, HeaderValue::from_static(list));
        }
        lists(&headers, &HeaderValue::from_static("\"k-1\"")).ok()
    }

    #[test]
    fn a_tag_is_found_in_a_list() {
        for list in [
            &["\"k-1\""][..],
            &["W/\"k-1\""],
            &["\"a\", \"k-1\""],
            &["\"a\"\t,\"k-1\" , \"b\""],
            &["\"a\"", "\"k-1\""],
            &["*"],
            &["\"with, comma\",\"k-1\","],
        ] {
            assert_eq!(found(list), Some(true), "{list:?}");
        }
        for list in [&["\"a\""][..], &["\"k-11\""], &[""], &["\"x, k-1\""]] {
            assert_eq!(found(list), Some(false), "{list:?}");
        }
        for list in [&["k-1"][..], &["\"k-1"], &["\"a\" \"k-1\""], &["'k-1'"], &["*, \"a\""]] {
            assert_eq!(found(list), None, "{list:?}");
        }
    }
}
