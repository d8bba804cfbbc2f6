//! The fencing token of a conditional write as a header value: 16 hex digits.
//!
//! ```text
//!  Kvorum-Fence: 00064f1c2a7b8000
//! ```
//!
//! The fencing tokens of one key grow with each conditional write, in numeric and in text order.

use hyper::header::{HeaderName, HeaderValue};

/// Header with a fencing token.
pub(crate) const FENCE: HeaderName = HeaderName::from_static("kvorum-fence");

/// Returns the header with a fencing token; `None` for 0, which means that there is no token.
pub(super) fn header(fence: u64) -> Option<Box<(HeaderName, HeaderValue)>> {
    (fence != 0).then(|| {
        let text = format!("{fence:016x}");
        Box::new((FENCE, HeaderValue::try_from(text).expect("hex digits are a header value")))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_two_fences_are_in_the_order_of_their_text(one in 1u64.., other in 1u64..) {
            let text = |fence| header(fence).unwrap().1.to_str().unwrap().to_owned();
            prop_assert_eq!(text(one).cmp(&text(other)), one.cmp(&other));
            prop_assert_eq!(text(one).len(), 16);
        }
    }

    #[test]
    fn without_a_fence_there_is_no_header() {
        assert_eq!(header(0), None);
        assert_eq!(header(0x6_4f1c_2a7b_8000).unwrap().1, "00064f1c2a7b8000");
    }
}
