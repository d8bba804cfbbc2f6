//! The reader of received items. Any process may have sent the bytes, so nothing here panics, and
//! no received length decides an allocation.

use bytes::Bytes;

use super::{Head, KEY_MAX, Malformed, flag, kind};

/// The longest bound, in bytes: the bound just after a key is the key followed by a zero byte.
const BOUND_MAX: usize = KEY_MAX + 1;

/// A reader of one item.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    bytes: &'a Bytes,
    at: usize,
    /// The offset of the item's end.
    end: usize,
    /// The flags of the item's head that no field has read yet.
    flags: u8,
}

impl<'a> FieldReader<'a> {
    /// Reads the head of the item that begins at `at`.
    pub(super) fn open(bytes: &'a Bytes, at: usize) -> Result<(Head, Self), Malformed> {
        let mut reader = Self { bytes, at, end: bytes.len(), flags: 0 };
        let [kind, flags, class, zero] = reader.array()?;
        let length = reader.u32()? as usize;
        let (id, remaining_ms) = (reader.u64()?, reader.u32()?);
        if zero != 0 {
            return Err(Malformed("a reserved byte is not zero"));
        }
        if length > reader.unread_bytes() {
            return Err(Malformed("an item longer than what holds it"));
        }
        if kind >= kind::PIECE && (class != 0 || remaining_ms != 0) {
            return Err(Malformed("a class or a time where there is no request"));
        }
        reader.end = reader.at + length;
        reader.flags = flags;
        Ok((Head { kind, class, id, remaining_ms }, reader))
    }

    /// Returns the offset of the next item. An item with unread bytes or flags is an error.
    pub(super) fn close(self) -> Result<usize, Malformed> {
        if self.unread_bytes() != 0 {
            return Err(Malformed("an item of another length than it says"));
        }
        if self.flags != 0 {
            return Err(Malformed("an unknown flag"));
        }
        Ok(self.end)
    }

    /// Returns the number of unread bytes of the item.
    pub(super) fn unread_bytes(&self) -> usize {
        self.end - self.at
    }

    /// True if the head has this flag. A flag that no field reads is an error at the end of the
    /// item ([`FieldReader::close`]).
    pub(super) fn flag(&mut self, flag: u8) -> bool {
        let has = self.flags & flag != 0;
        self.flags &= !flag;
        has
    }

    fn skip(&mut self, count: usize) -> Result<usize, Malformed> {
        let begin = self.at;
        if count > self.unread_bytes() {
            return Err(Malformed("it ends too early"));
        }
        self.at += count;
        Ok(begin)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let begin = self.skip(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[begin..begin + N]);
        Ok(array)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        let begin = self.skip(count)?;
        Ok(self.bytes.slice(begin..begin + count))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }

    /// Reads a number of entries, each of at least `least` bytes. A number for which the item is
    /// too short is an error.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.unread_bytes() / least {
            return Err(Malformed("more entries than there are bytes"));
        }
        Ok(count)
    }

    pub(super) fn key(&mut self) -> Result<Bytes, Malformed> {
        let length = usize::from(self.u16()?);
        if length == 0 || length > KEY_MAX {
            return Err(Malformed("a key that is empty or too long"));
        }
        self.take(length)
    }

    /// Reads a bound of a range, or the key at which a range continues.
    pub(super) fn bound(&mut self) -> Result<Bytes, Malformed> {
        let length = usize::from(self.u16()?);
        if length > BOUND_MAX {
            return Err(Malformed("a bound of a range that is too long"));
        }
        self.take(length)
    }

    /// Reads an optional bound; `None` = the head has no flag for it.
    pub(super) fn bound_if_any(&mut self) -> Result<Option<Bytes>, Malformed> {
        if self.flag(flag::BOUNDED) { self.bound().map(Some) } else { Ok(None) }
    }
}
