//! Parses the preconditions of a request, `If-Match` and `If-None-Match` (RFC 9110, 13.1), and the
//! `Idempotency-Key`. A condition is never ignored. The leader of the key judges the condition of a
//! write (`protocol`'s `paxos/operation.rs`).

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use protocol::{Condition, Tag};

use super::etags;
use super::problem::Problem;
use crate::counters::RequestKind;

/// Returns the condition in the headers of a write. Malformed and unsupported headers are errors.
pub(super) fn of(headers: &HeaderMap, kind: RequestKind) -> Result<Condition, Problem> {
    match (headers.contains_key(IF_MATCH), headers.contains_key(IF_NONE_MATCH)) {
        (true, true) => {
            Err(malformed_condition("If-Match and If-None-Match together are not supported"))
        }
        (false, true) if kind == RequestKind::Delete => {
            Err(malformed_condition("If-None-Match makes no sense on DELETE; use If-Match"))
        }
        (false, true) => match parse_tags(headers, &IF_NONE_MATCH)? {
            Listed::Any => Ok(Condition::Absent),
            Listed::Tags(_) => {
                Err(malformed_condition("of If-None-Match only * is supported on a write"))
            }
        },
        (true, false) => match parse_tags(headers, &IF_MATCH)? {
            Listed::Any => Ok(Condition::Exists),
            // Weak tags, and tags that no node issues, match no value.
            Listed::Tags(tags) => Ok(Condition::OneOf(tags.into_iter().flatten().collect())),
        },
        (false, false) => Ok(Condition::Any),
    }
}

/// Maximum length of an idempotency key, in bytes.
const LONGEST_KEY: usize = 64;

/// Returns the id that a write of `key` gets from its `Idempotency-Key`; `None` without the header.
/// A malformed header is an error.
pub(super) fn id(headers: &HeaderMap, key: &[u8]) -> Result<Option<u64>, Problem> {
    let mut words = headers.get_all("idempotency-key").iter();
    let Some(word) = words.next() else { return Ok(None) };
    let length = word.as_bytes().len();
    if words.next().is_some() {
        return Err(malformed_condition("Idempotency-Key is given twice"));
    }
    if !(1..=LONGEST_KEY).contains(&length) {
        let detail = format!("Idempotency-Key has {length} bytes; allowed are 1 to {LONGEST_KEY}");
        return Err(malformed_condition(&detail));
    }
    Ok(Some(protocol::id_of_idempotency_key(key, word.as_bytes())))
}

/// True if `If-None-Match` lists `tag` (in quotes), or `*`. Weak tags match too (RFC 9110, 13.1.2).
pub(super) fn lists(headers: &HeaderMap, tag: &HeaderValue) -> Result<bool, Problem> {
    let (mut found, mut is_empty) = (false, headers.contains_key(IF_NONE_MATCH));
    for list in headers.get_all(IF_NONE_MATCH) {
        found |= any_tag(&IF_NONE_MATCH, list, |_, listed| {
            is_empty = false;
            listed == tag.as_bytes()
        })?;
    }
    if is_empty && !found {
        return Err(malformed_condition(&format!("{IF_NONE_MATCH} is empty")));
    }
    Ok(found)
}

/// Adds a note to a 412 if `If-Match` lists weak tags. Weak tags match no value, although without
/// `W/` a tag may be the current value's.
pub(super) fn explain_weak_tags(headers: &HeaderMap, problem: Problem) -> Problem {
    let is_weak = |list: &HeaderValue| any_tag(&IF_MATCH, list, |weak, _| weak).unwrap_or(false);
    let has_any = |list: &HeaderValue| list.as_bytes().trim_ascii() == b"*";
    let weak = headers.get_all(IF_MATCH).iter().any(|list| !has_any(list) && is_weak(list));
    if weak && problem.status() == StatusCode::PRECONDITION_FAILED {
        problem.with_weak_tags()
    } else {
        problem
    }
}

/// The parsed contents of `If-Match` or `If-None-Match`.
enum Listed {
    Any,
    /// The listed tags. `None` stands for a weak tag, or for a tag that no value of kvorum can
    /// have.
    Tags(Vec<Option<Tag>>),
}

fn parse_tags(headers: &HeaderMap, name: &HeaderName) -> Result<Listed, Problem> {
    let (mut any, mut tags) = (false, Vec::new());
    for list in headers.get_all(name) {
        any |= any_tag(name, list, |weak, tag| {
            tags.push(etags::parse(tag).filter(|_| !weak));
            false
        })?;
    }
    match (any, tags.is_empty()) {
        (true, true) => Ok(Listed::Any),
        (false, false) => Ok(Listed::Tags(tags)),
        (true, false) => Err(malformed_condition(&format!("{name}: either * or tags"))),
        (false, true) => Err(malformed_condition(&format!("{name} is empty"))),
    }
}

/// Calls `wanted` for each tag of a list, with true for a weak tag, and the tag with its quotes.
/// Returns true if `wanted` returned true for any tag, or if the list is `*`.
fn any_tag(
    name: &HeaderName,
    list: &HeaderValue,
    mut wanted: impl FnMut(bool, &[u8]) -> bool,
) -> Result<bool, Problem> {
    let list = list.as_bytes().trim_ascii();
    if list == b"*" {
        return Ok(true);
    }
    let (mut rest, mut found) = (skip_separators(list), false);
    while !rest.is_empty() {
        let (weak, tag, behind) = first_tag(rest).ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(list).chars().take(100).collect();
            malformed_condition(&format!(
                "{name}: {shown:?} is neither a list of quoted entity tags nor \"*\""
            ))
        })?;
        found |= wanted(weak, tag);
        rest = skip_separators(behind);
    }
    Ok(found)
}

/// Skips separators and empty elements, which are ignored (RFC 9110, 5.6.1.2).
fn skip_separators(list: &[u8]) -> &[u8] {
    let is_none = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let first = list.iter().position(|byte| !is_none(byte)).unwrap_or(list.len());
    &list[first..]
}

/// Splits a list into (true if the first tag is weak, the first tag with its quotes, the text after
/// its comma). `None` if the syntax is wrong.
fn first_tag(list: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    let strong = list.strip_prefix(b"W/").unwrap_or(list);
    let weak = strong.len() < list.len();
    let inner = strong.strip_prefix(b"\"")?;
    let end = inner.iter().position(|byte| *byte == b'"')?;
    let (tag, behind) = strong.split_at(end + 2);
    let behind = behind.trim_ascii_start();
    if behind.is_empty() {
        return Some((weak, tag, behind));
    }
    let more = behind.strip_prefix(b",")?.trim_ascii_start();
    Some((weak, tag, more))
}

fn malformed_condition(detail: &str) -> Problem {
    Problem::bad_request(detail.to_owned()).without_effect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use protocol::Version;

    use super::*;

    /// Generates lists of the syntax's parts, and any other bytes that a header can have.
    fn list() -> impl Strategy<Value = HeaderValue> {
        let part = prop_oneof![
            4 => proptest::sample::select(vec!["\"", ",", " ", "\t", "W/", "*", PLAIN_TEXT])
                .prop_map(|part| part.as_bytes().to_vec()),
            1 => vec(0x20_u8..0x7f, 0..4),
            1 => vec(0x80_u8..=0xff, 0..2),
        ];
        let bytes = vec(part, 0..8).prop_map(|parts| parts.concat());
        bytes.prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap())
    }

    proptest! {
        /// The parsers accept or refuse any contents without a panic. Several header lines mean the
        /// same as one line joined by commas.
        #[test]
        fn any_condition_headers_are_parsed_or_refused_without_a_panic(
            lines in vec(list(), 0..4), name in prop_oneof![Just(IF_MATCH), Just(IF_NONE_MATCH)],
        ) {
            let mut several = HeaderMap::new();
            for line in &lines {
                several.append(name.clone(), line.clone());
            }
            let is_star = lines.iter().any(|line| line.as_bytes().trim_ascii() == b"*");
            let bytes: Vec<_> = lines.iter().map(HeaderValue::as_bytes).collect();
            let joined = bytes.join(&b", "[..]);
            let one = HeaderMap::from_iter([(
                name.clone(),
                HeaderValue::from_bytes(&joined).unwrap(),
            )]);
            let tag = HeaderValue::from_static(PLAIN_TEXT);
            let outcomes = |headers: &HeaderMap| {
                let of = of(headers, RequestKind::Put).ok();
                (of, lists(headers, &tag).ok(), id(headers, b"k").ok())
            };
            let (one, several) = (outcomes(&one), outcomes(&several));
            // Joined lines may differ where a line is `*`, or where a tag continues in the next
            // line.
            if !lines.is_empty() && !is_star && several.0.is_some() {
                prop_assert_eq!(one, several);
            }
        }
    }

    fn headers(name: &HeaderName, lists: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for list in lists {
            headers.append(name.clone(), HeaderValue::from_str(list).unwrap());
        }
        headers
    }

    fn lists_tag(lists_: &[&str]) -> Option<bool> {
        lists(&headers(&IF_NONE_MATCH, lists_), &HeaderValue::from_static("\"k-1\"")).ok()
    }

    #[test]
    fn if_none_match_finds_a_tag_in_any_list_syntax() {
        for list in [
            &["\"k-1\""][..],
            &["W/\"k-1\""],
            &["\"a\", \"k-1\""],
            &["\"a\"\t,\"k-1\" , \"b\""],
            &["\"a\"", "\"k-1\""],
            &["*"],
            &["\"with, comma\",\"k-1\","],
            &[", \"a\",,\t, \"k-1\""],
        ] {
            assert_eq!(lists_tag(list), Some(true), "{list:?}");
        }
        for list in [&["\"a\""][..], &["\"k-11\""], &["\"x, k-1\""]] {
            assert_eq!(lists_tag(list), Some(false), "{list:?}");
        }
        for list in [
            &["k-1"][..],
            &[""],
            &[", ,"],
            &["\"k-1"],
            &["\"a\" \"k-1\""],
            &["'k-1'"],
            &["*, \"a\""],
        ] {
            assert_eq!(lists_tag(list), None, "{list:?}");
        }
    }

    #[test]
    fn an_idempotency_key_has_1_to_64_bytes() {
        let name = HeaderName::from_static("idempotency-key");
        let of = |words: &[&str]| id(&headers(&name, words), b"k").ok();
        assert_eq!(of(&[]), Some(None));
        assert!(of(&["x"]).unwrap().is_some() && of(&[&"x".repeat(64)]).unwrap().is_some());
        assert_ne!(of(&["x"]), of(&["y"]));
        for bad in [&[""][..], &[&"x".repeat(65)], &["x", "x"]] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    const PLAIN: Tag = Tag { version: Version { time: 1, origin: 2 }, last: None };
    const PLAIN_TEXT: &str = "\"0000000000000001-00000002\"";

    fn condition(name: &HeaderName, lists: &[&str], kind: RequestKind) -> Option<Condition> {
        of(&headers(name, lists), kind).ok()
    }

    #[test]
    fn condition_headers_of_writes_are_parsed_or_refused() {
        let (put, delete) = (RequestKind::Put, RequestKind::Delete);
        assert_eq!(condition(&IF_MATCH, &["*"], put), Some(Condition::Exists));
        assert_eq!(condition(&IF_NONE_MATCH, &["*"], put), Some(Condition::Absent));
        assert_eq!(condition(&IF_NONE_MATCH, &["*"], delete), None);
        assert_eq!(condition(&IF_NONE_MATCH, &[PLAIN_TEXT], put), None);
        let one = Some(Condition::OneOf(vec![PLAIN]));
        assert_eq!(condition(&IF_MATCH, &[PLAIN_TEXT], delete), one);
        assert_eq!(condition(&IF_MATCH, &["\"x\"", PLAIN_TEXT], put), one, "not ours");
        let none = Some(Condition::OneOf(Vec::new()));
        assert_eq!(condition(&IF_MATCH, &[&format!("W/{PLAIN_TEXT}")], put), none, "weak");
        for cut in ["", "*, \"a\"", "\"0000000000000001-00000002", "x", "\"a\" \"b\""] {
            assert_eq!(condition(&IF_MATCH, &[cut], put), None, "{cut:?}");
        }
        assert_eq!(condition(&IF_MATCH, &["*", PLAIN_TEXT], put), None);
        let many = [PLAIN_TEXT; 1000].join(", ");
        let tags = condition(&IF_MATCH, &[&many], put);
        assert_eq!(tags, Some(Condition::OneOf(vec![PLAIN; 1000])));
        let mut both = headers(&IF_MATCH, &["*"]);
        both.append(IF_NONE_MATCH, HeaderValue::from_static("*"));
        assert!(of(&both, put).is_err());
    }
}
