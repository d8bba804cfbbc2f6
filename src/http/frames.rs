//! `application/vnd.kvorum.items`: the items of a range with length prefixes. So keys and values
//! may contain any bytes, and a reader distinguishes a truncated response from a complete one.
//!
//! ```text
//!  body  = "KVI" 0x01 { item } ( end | next )      name(n): a big-endian number of n bytes
//!  item  = 0x01 flags(1) etag_len(1) key_len(2) value_len(4) expires_ms(8) etag key value
//!  end   = 0x02                       the range has no more items
//!  next  = 0x03 cursor_len(2) cursor  the page ends here; after=cursor reads the next page
//! ```
//!
//! Bit 0 of `flags` is set if the value was left out (`values=false`). The other bits are 0. The
//! byte after "KVI" is the format's version.

use std::io::{self, Read};

use bytes::{BufMut, BytesMut};

/// Media type, for `Content-Type` and `Accept`.
pub(crate) const CONTENT_TYPE: &str = "application/vnd.kvorum.items";

/// The first bytes of each body: the format's name and version.
const MAGIC: [u8; 4] = [b'K', b'V', b'I', 1];

const ITEM: u8 = 1;
const END: u8 = 2;
const NEXT: u8 = 3;

/// The flag of an item whose value is left out.
const NO_VALUE: u8 = 1;

/// Bytes of an item's head, without its kind.
const HEAD_LEN: usize = 1 + 1 + 2 + 4 + 8;

/// Maximum length of a value that a reader accepts: eight times the largest `--max-value` of a
/// node. A greater length indicates damage.
const MAX_VALUE_LEN: u32 = 64 << 20;

/// Writes the magic bytes.
pub(crate) fn put_magic(out: &mut BytesMut) {
    out.put_slice(&MAGIC);
}

/// Writes an item except its value. `value_len` is `None` if the value is left out.
pub(crate) fn put_item(
    out: &mut BytesMut,
    etag: &[u8],
    key: &[u8],
    value_len: Option<usize>,
    expires_ms: u64,
) {
    let len = value_len.unwrap_or(0);
    out.put_u8(ITEM);
    out.put_u8(if value_len.is_none() { NO_VALUE } else { 0 });
    out.put_u8(etag.len().try_into().expect("an ETag has at most 54 bytes"));
    out.put_u16(key.len().try_into().expect("a key has at most 1,024 bytes"));
    out.put_u32(len.try_into().expect("a value has at most 8 MiB"));
    out.put_u64(expires_ms);
    out.put_slice(etag);
    out.put_slice(key);
}

/// Writes the end of a body. `next` is the cursor of the next page; `None` if the range ends.
pub(crate) fn put_end(out: &mut BytesMut, next: Option<&str>) {
    let Some(cursor) = next else { return out.put_u8(END) };
    out.put_u8(NEXT);
    out.put_u16(cursor.len().try_into().expect("a cursor has at most 1,400 bytes"));
    out.put_slice(cursor.as_bytes());
}

/// An item of a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) etag: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// The value; `None` = left out.
    pub(crate) value: Option<Vec<u8>>,
    /// Expiry in milliseconds since 1970; 0 = never.
    pub(crate) expires_ms: u64,
}

/// A frame of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Item(Item),
    /// The range has no more items.
    End,
    /// The page ends here. The next page begins at this cursor.
    Next(String),
}

/// The reason why a body can't be read further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("the response ends before its end frame")]
    Cut,
    #[error("the response does not begin with the bytes \"KVI\"")]
    Foreign,
    #[error("the format has version {0}; this program reads version 1")]
    Version(u8),
    #[error("the format has no frame of kind {0:#04x}")]
    Kind(u8),
    #[error("the format has no item with the flags {0:#04x}")]
    Flags(u8),
    #[error("an item has a value of {0} bytes")]
    Long(u32),
    #[error("a cursor is not ASCII text")]
    Cursor,
    #[error("the response has bytes after its end frame")]
    Trailing,
}

/// Reads a body frame by frame.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    from: R,
    has_begun: bool,
}

impl<R: Read> Frames<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, has_begun: false }
    }

    /// Reads the next frame. After [`Frame::End`] or [`Frame::Next`] the body must end.
    pub(crate) fn read(&mut self) -> Result<Frame, FrameError> {
        if !self.has_begun {
            let [magic @ .., version] = self.take::<4>()?;
            if magic != MAGIC[..3] {
                return Err(FrameError::Foreign);
            }
            if version != MAGIC[3] {
                return Err(FrameError::Version(version));
            }
            self.has_begun = true;
        }
        let [kind] = self.take()?;
        match kind {
            ITEM => self.item(),
            END => self.expect_end(Frame::End),
            NEXT => {
                let len = u16::from_be_bytes(self.take()?);
                let cursor = String::from_utf8(self.bytes(len.into())?);
                let cursor = cursor.ok().filter(|cursor| cursor.is_ascii());
                self.expect_end(Frame::Next(cursor.ok_or(FrameError::Cursor)?))
            }
            other => Err(FrameError::Kind(other)),
        }
    }

    fn item(&mut self) -> Result<Frame, FrameError> {
        let head: [u8; HEAD_LEN] = self.take()?;
        let [flags, etag_len, key_high, key_low, rest @ ..] = head;
        let [value_len @ .., _, _, _, _, _, _, _, _] = rest;
        let [_, _, _, _, expires_ms @ ..] = rest;
        if flags & !NO_VALUE != 0 {
            return Err(FrameError::Flags(flags));
        }
        let value_len = u32::from_be_bytes(value_len);
        if value_len > MAX_VALUE_LEN {
            return Err(FrameError::Long(value_len));
        }
        let etag = self.bytes(etag_len.into())?;
        let key = self.bytes(u16::from_be_bytes([key_high, key_low]).into())?;
        let value = self.bytes(value_len as usize)?;
        let value = (flags & NO_VALUE == 0).then_some(value);
        Ok(Frame::Item(Item { etag, key, value, expires_ms: u64::from_be_bytes(expires_ms) }))
    }

    /// Returns `frame`, which must be the last one. Bytes after it are an error.
    fn expect_end(&mut self, frame: Frame) -> Result<Frame, FrameError> {
        let mut byte = [0];
        loop {
            match self.from.read(&mut byte) {
                Ok(0) => return Ok(frame),
                Ok(_) => return Err(FrameError::Trailing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(cut_error)?;
        Ok(bytes)
    }

    fn bytes(&mut self, len: usize) -> Result<Vec<u8>, FrameError> {
        let mut bytes = vec![0; len];
        self.from.read_exact(&mut bytes).map_err(cut_error)?;
        Ok(bytes)
    }
}

fn cut_error(error: io::Error) -> FrameError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => FrameError::Cut,
        _ => FrameError::Read(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn body(items: &[(Vec<u8>, Option<Vec<u8>>, u64)], next: Option<&str>) -> Vec<u8> {
        let mut out = BytesMut::new();
        put_magic(&mut out);
        for (key, value, expires_ms) in items {
            put_item(&mut out, b"\"tag\"", key, value.as_ref().map(Vec::len), *expires_ms);
            out.put_slice(value.as_deref().unwrap_or_default());
        }
        put_end(&mut out, next);
        out.to_vec()
    }

    fn all(body: &[u8]) -> Result<Vec<Frame>, FrameError> {
        let (mut frames, mut all) = (Frames::new(body), Vec::new());
        loop {
            let frame = frames.read()?;
            let is_item = matches!(frame, Frame::Item(_));
            all.push(frame);
            if !is_item {
                return Ok(all);
            }
        }
    }

    proptest! {
        #[test]
        fn any_items_survive_a_round_trip_and_any_cut_is_an_error(
            items in vec((vec(any::<u8>(), 0..9), any::<Option<Vec<u8>>>(), any::<u64>()), 0..5),
            next in proptest::option::of("[A-Za-z0-9_-]{1,9}"),
        ) {
            let body = body(&items, next.as_deref());
            let mut expected: Vec<_> = items.into_iter().map(|(key, value, expires_ms)| {
                Frame::Item(Item { etag: b"\"tag\"".to_vec(), key, value, expires_ms })
            }).collect();
            expected.push(next.map_or(Frame::End, Frame::Next));
            prop_assert_eq!(all(&body).unwrap(), expected);
            for cut in 0..body.len() {
                prop_assert!(matches!(all(&body[..cut]), Err(FrameError::Cut)), "{}", cut);
            }
            let trailing = [&body[..], b"x"].concat();
            prop_assert!(matches!(all(&trailing), Err(FrameError::Trailing)));
        }

        #[test]
        fn any_bytes_are_read_as_frames_or_refused(bytes in vec(any::<u8>(), 0..60)) {
            let _ = all(&bytes);
            let _ = all(&[&MAGIC[..], &bytes].concat());
        }
    }

    /// docs/reference/openapi.yaml and docs/reference/http.md describe these bytes.
    #[test]
    fn frames_have_the_documented_bytes() {
        let body = body(&[(b"k".to_vec(), Some(b"val".to_vec()), 0x0102)], Some("c"));
        let expected: [&[u8]; 6] = [
            b"KVI\x01",
            b"\x01\x00\x05\x00\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x01\x02",
            b"\"tag\"",
            b"k",
            b"val",
            b"\x03\x00\x01c",
        ];
        assert_eq!(body, expected.concat());
        assert!(matches!(all(b"KVI\x02\x02"), Err(FrameError::Version(2))));
        assert!(matches!(all(b"<htm"), Err(FrameError::Foreign)));
        assert!(matches!(all(b"KVI\x01\x09"), Err(FrameError::Kind(9))));
    }
}
