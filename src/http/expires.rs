//! The expiry of a value as a header value: seconds since 1970 with three decimals, a decimal of
//! structured fields (RFC 9651):
//!
//! ```text
//!  Kvorum-Expires: 1767225600.123
//! ```
//!
//! The header is not `Expires`, which is an instruction to caches: until that time a cache may
//! answer from its contents, even after a later write (RFC 9111, 5.3).

use hyper::header::{HeaderName, HeaderValue};

/// Header with a value's expiry.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("kvorum-expires");

/// Formats an expiry, given in milliseconds since 1970.
pub(super) fn of(expiry_ms: u64) -> HeaderValue {
    let text = format!("{}.{:03}", expiry_ms / 1000, expiry_ms % 1000);
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).expect("digits are a header value")
}

/// Parses a header value of a node into milliseconds since 1970; `None` if the text is malformed.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let (seconds, millis) = text.split_once('.')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(millis) || millis.len() != 3 {
        return None;
    }
    seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(millis.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_expiry_is_read_back_and_other_texts_are_refused(
            millis in any::<u64>(), text in "[0-9]{0,21}\\.?[0-9]{0,4}|\\PC{0,30}",
        ) {
            prop_assert_eq!(parse(of(millis).to_str().unwrap()), Some(millis));
            if let Some(millis) = parse(&text) {
                let written = of(millis);
                prop_assert!(text.trim_start_matches('0').ends_with(
                    written.to_str().unwrap().trim_start_matches('0')
                ));
            }
        }
    }

    #[test]
    fn an_expiry_has_exactly_three_decimals() {
        for (millis, text) in [
            (1, "0.001"),
            (1_767_225_600_000, "1767225600.000"),
            (1_767_225_600_120, "1767225600.120"),
            (u64::MAX, "18446744073709551.615"),
        ] {
            assert_eq!(of(millis), text);
            assert_eq!(parse(text), Some(millis));
        }
        for bad in ["", ".", "1", "1.", "1.5", "1.0000", ".123", "-1.000", "1.-00", "@1", "1e3.000"]
            .into_iter()
            .chain(["18446744073709551.616", "99999999999999999999.000"])
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
