//! The destinations of a message's bytes: a connection's output buffer, or a counter of bytes.

use super::{Head, ITEM_HEAD, flag};

/// A destination of the bytes of a message's body.
pub(super) trait Out {
    fn bytes(&mut self, bytes: &[u8]);

    /// Sets one of the [`flag`]s in the message's head.
    fn flag(&mut self, flag: u8);

    fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn bool(&mut self, yes: bool) {
        self.u8(u8::from(yes));
    }

    /// Writes a key or a bound of a range: the length, then the bytes.
    fn key(&mut self, key: &[u8]) {
        self.u16(key.len() as u16);
        self.bytes(key);
    }

    /// Writes the optional bound of a range. A flag in the head is set if the bound follows.
    fn bound(&mut self, bound: Option<&[u8]>) {
        if let Some(bound) = bound {
            self.flag(flag::BOUNDED);
            self.key(bound);
        }
    }
}

/// An item whose body is being written.
pub(super) struct OpenItem<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
}

impl<'a> OpenItem<'a> {
    /// Begins an item at the end of `out`.
    pub(super) fn new(out: &'a mut Vec<u8>, head: Head) -> Self {
        let begin = out.len();
        out.extend_from_slice(&[head.kind, 0, head.class, 0]);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&head.id.to_le_bytes());
        out.extend_from_slice(&head.remaining_ms.to_le_bytes());
        Self { out, begin }
    }

    /// Completes an item by writing the length of its body.
    pub(super) fn close(self) {
        let length = (self.out.len() - self.begin - ITEM_HEAD) as u32;
        self.out[self.begin + 4..self.begin + 8].copy_from_slice(&length.to_le_bytes());
    }
}

impl Out for OpenItem<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn flag(&mut self, flag: u8) {
        self.out[self.begin + 1] |= flag;
    }
}

/// A counter of the bytes of a body.
#[derive(Debug, Default)]
pub(super) struct ByteCounter(pub(super) usize);

impl Out for ByteCounter {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn flag(&mut self, _: u8) {}
}
