//! Cursors, the values of `after=`. A cursor is the position at which a range continues, opaque to
//! clients.
//!
//! ```text
//!  base64url( version │ hash of the range │ hash of all other fields │ first remaining key )
//!  bytes:     1         4                   4                          the key's length
//! ```
//!
//! A cursor is a position between keys, so it stays valid if the last key of a page is deleted. The
//! hashes detect mistakes: a cursor of another range, or one that was cut or changed. The hashes
//! are not access control. The right to read the keys after the cursor is checked for the whole
//! range.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use xxhash_rust::xxh3::xxh3_64;

use crate::http::params::Bounds;

const VERSION: u8 = 1;

/// Bytes before the key.
const HEAD_LEN: usize = 1 + 4 + 4;

/// The reason why a text is not a cursor of the requested range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::http) enum CursorError {
    #[error(
        "after= is damaged: use the cursor exactly as \"next\" or the Link header of the page \
         before gives it, or leave it out to begin again"
    )]
    Damaged,
    #[error(
        "after= is the cursor of another range: repeat the prefix=, start= and end= of the request \
         whose response gave it"
    )]
    Foreign,
}

/// Encodes the cursor that continues `range` at `next`.
pub(in crate::http) fn encode(range: &Bounds, next: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(HEAD_LEN + next.len());
    bytes.push(VERSION);
    bytes.extend(hash_of(range));
    bytes.extend(check_of(hash_of(range), next));
    bytes.extend(next);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes the position at which `range` continues. The cursor must be undamaged, and of this
/// range.
pub(in crate::http) fn decode(range: &Bounds, text: &[u8]) -> Result<Vec<u8>, CursorError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError::Damaged)?;
    let Some((&[version, h0, h1, h2, h3, c0, c1, c2, c3], next)) =
        bytes.split_first_chunk::<HEAD_LEN>()
    else {
        return Err(CursorError::Damaged);
    };
    let hash = [h0, h1, h2, h3];
    if version != VERSION || [c0, c1, c2, c3] != check_of(hash, next) {
        return Err(CursorError::Damaged);
    }
    if hash != hash_of(range) || !range.can_continue_at(next) {
        return Err(CursorError::Foreign);
    }
    Ok(next.to_vec())
}

fn check_of(range: [u8; 4], next: &[u8]) -> [u8; 4] {
    low_bytes([&[VERSION][..], &range, next].concat())
}

fn hash_of(Bounds { start, end }: &Bounds) -> [u8; 4] {
    let len = (start.len() as u64).to_le_bytes();
    let end = end.as_deref().map_or(vec![0], |end| [&[1][..], end].concat());
    low_bytes([&len[..], start, &end].concat())
}

fn low_bytes(bytes: Vec<u8>) -> [u8; 4] {
    (xxh3_64(&bytes) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_is_good_for_its_range_and_no_other(
            start in vec(any::<u8>(), 0..5), end in proptest::option::of(vec(any::<u8>(), 1..5)),
            behind in vec(any::<u8>(), 0..5), place in any::<prop::sample::Index>(), bit in 0..8,
        ) {
            let range = Bounds { start: start.clone(), end };
            let next = [&start[..], &behind[..]].concat();
            prop_assume!(range.can_continue_at(&next));
            let cursor = encode(&range, &next);
            prop_assert_eq!(decode(&range, cursor.as_bytes()), Ok(next.clone()));
            let longer = Bounds { start: [&start[..], b"x"].concat(), end: range.end.clone() };
            prop_assert_eq!(decode(&longer, cursor.as_bytes()), Err(CursorError::Foreign));
            let endless = Bounds { end: None, ..range.clone() };
            if range.end.is_some() {
                prop_assert_eq!(decode(&endless, cursor.as_bytes()), Err(CursorError::Foreign));
            }
            let mut damaged = cursor.clone().into_bytes();
            let at = place.index(damaged.len());
            damaged[at] ^= 1u8 << bit;
            prop_assert!(decode(&range, &damaged).is_err());
            for cut in 0..cursor.len() {
                prop_assert!(decode(&range, &cursor.as_bytes()[..cut]).is_err());
            }
        }
    }

    #[test]
    fn a_cursor_does_not_leave_its_range() {
        let range = Bounds { start: b"b".to_vec(), end: Some(b"d".to_vec()) };
        for (next, good) in [("b", true), ("c", true), ("d", true), ("a", false), ("e", false)] {
            let cursor = encode(&range, next.as_bytes());
            assert_eq!(decode(&range, cursor.as_bytes()).is_ok(), good, "{next}");
        }
    }
}
