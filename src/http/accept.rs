//! The `Accept` header: the form of an answer that a client prefers (RFC 9110, 12.5.1).

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// Returns the client's weight for the media type `kind`, 0 to 1000. The most specific media range
/// that covers the type decides; without such a range the weight is 0. Without `Accept` every type
/// has weight 1000.
pub(super) fn quality(headers: &HeaderMap, kind: &str) -> u16 {
    if !headers.contains_key(ACCEPT) {
        return FULL_WEIGHT;
    }
    let lists = headers.get_all(ACCEPT).iter().filter_map(|list| list.to_str().ok());
    let ranges = lists.flat_map(|list| list.split(','));
    let fitting = ranges.filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let specific = covers(parts.next()?, kind)?;
        let mut given = parts.filter_map(|part| part.strip_prefix("q="));
        Some((specific, given.next().map_or(FULL_WEIGHT, parse_weight)))
    });
    fitting.max().map_or(0, |(_, quality)| quality)
}

const FULL_WEIGHT: u16 = 1000;

/// Returns the specificity of `range`: 2 for the type itself, 1 for `main/*`, 0 for `*/*`. `None`
/// if the range does not cover the type.
fn covers(range: &str, kind: &str) -> Option<u8> {
    let main = |kind: &str| kind.split('/').next().map(str::to_ascii_lowercase);
    if range.eq_ignore_ascii_case(kind) {
        Some(2)
    } else if range == "*/*" {
        Some(0)
    } else {
        (range.ends_with("/*") && main(range) == main(kind)).then_some(1)
    }
}

/// Parses a weight from 0 to 1 into a number from 0 to 1000. A malformed weight counts as 0.
fn parse_weight(weight: &str) -> u16 {
    let weight: f32 = weight.parse().unwrap_or(0.0);
    (weight.clamp(0.0, 1.0) * f32::from(FULL_WEIGHT)).round() as u16
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn of(accept: &str, kind: &str) -> u16 {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        quality(&headers, kind)
    }

    #[test]
    fn the_most_specific_range_decides() {
        assert_eq!(quality(&HeaderMap::new(), "text/plain"), 1000);
        for (accept, wanted) in [
            ("text/plain", 1000),
            ("TEXT/Plain; version=0.0.4 ;q=0.25", 250),
            ("text/*;q=0.3, */*;q=0.1", 300),
            ("*/*;q=0.125", 125),
            ("*/*, text/plain;q=0", 0),
            ("text/html", 0),
            ("text/plain;q=much", 0),
            ("text/plain;q=7", 1000),
            ("application/*", 0),
            ("", 0),
        ] {
            assert_eq!(of(accept, "text/plain"), wanted, "{accept}");
        }
    }

    proptest! {
        #[test]
        fn any_accept_header_has_a_weight_of_at_most_1000(accept in "[ -~]{0,60}") {
            prop_assert!(of(&accept, "text/plain") <= FULL_WEIGHT);
        }
    }
}
