//! A batch: writes that become durable and visible together, across trees and spaces.
//!
//! A batch is encoded once, when its writes enter the engine. The WAL stores this encoding, and the
//! memtable is filled from it:
//!
//! ```text
//!  operation := space u8 │ key length u16 │ record length u32 │ key │ record      (repeated)
//! ```

use crate::error::Error;
use record::{Fields, Kind, MAX_RECORD_LEN, MIN_RECORD_LEN, Record, RecordRef, Version};

/// Longest key in bytes. A client's key has at most 1 KiB. A hint's key consists of a node name, an
/// incarnation and a client's key.
pub const MAX_KEY_LEN: usize = 4 * 1024;

const OPERATION_HEAD: usize = 7;

/// Longest batch in bytes. A batch must fit in memory, in one WAL segment and in one `write`.
pub const MAX_BATCH_LEN: usize = 32 * 1024 * 1024;

/// A key space. The same key in two spaces names two independent records. One batch can write to
/// several spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// Keys of clients.
    Data = 0,
    /// Hints for unreachable replicas.
    Hints = 1,
    /// State of the node itself.
    Node = 2,
    /// Reserved for conditional writes.
    Conditions = 3,
    /// Conditional writes with an idempotency key, kept while a client may retry them.
    Idempotency = 4,
}

impl Space {
    pub(crate) fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Data,
            1 => Self::Hints,
            2 => Self::Node,
            3 => Self::Conditions,
            4 => Self::Idempotency,
            _ => return None,
        })
    }
}

/// Writes that become durable and visible together.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    len: usize,
    durable: bool,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forces a sync when the batch is committed, whatever the sync mode.
    pub fn make_durable(&mut self) {
        self.durable = true;
    }

    /// Returns true if the commit of this batch forces a sync.
    pub fn forces_sync(&self) -> bool {
        self.durable
    }

    /// Returns true if the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length of the encoded batch in bytes. The group header of the WAL is not included.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a value. Returns [`Error::TooLarge`], without adding anything, if the key, the record
    /// or the batch would exceed its limit.
    pub fn put(
        &mut self,
        space: Space,
        key: &[u8],
        version: Version,
        value: &[u8],
    ) -> Result<(), Error> {
        self.write(space, key, &Fields::new(Kind::Value, version), value)
    }

    /// Adds a tombstone. Fails like [`Batch::put`].
    pub fn delete(&mut self, space: Space, key: &[u8], version: Version) -> Result<(), Error> {
        self.write(space, key, &Fields::new(Kind::Tombstone, version), &[])
    }

    /// Adds a new record and computes its checksum. Fails like [`Batch::put`].
    pub fn write(
        &mut self,
        space: Space,
        key: &[u8],
        fields: &Fields<'_>,
        value: &[u8],
    ) -> Result<(), Error> {
        let record_len = record::encoded_len(fields, value.len());
        self.head(space, key, record_len)?;
        record::encode(&mut self.bytes, key, fields, value);
        self.len += 1;
        Ok(())
    }

    /// Adds an existing record unchanged. Fails like [`Batch::put`].
    pub fn record(&mut self, space: Space, key: &[u8], record: &Record) -> Result<(), Error> {
        let raw = record.view().raw();
        self.head(space, key, raw.len())?;
        self.bytes.extend_from_slice(raw);
        self.len += 1;
        Ok(())
    }

    fn head(&mut self, space: Space, key: &[u8], record_len: usize) -> Result<(), Error> {
        let total = self.bytes.len() + OPERATION_HEAD + key.len() + record_len;
        for (what, len, bound) in [
            ("key", key.len(), MAX_KEY_LEN),
            ("record", record_len, MAX_RECORD_LEN),
            ("batch", total, MAX_BATCH_LEN),
        ] {
            if len > bound {
                return Err(Error::TooLarge { what, len, bound });
            }
        }
        // Reserves space for the record too, so that the buffer grows once per operation.
        self.bytes.reserve(total - self.bytes.len());
        let mut head = [space as u8; OPERATION_HEAD];
        head[1..3].copy_from_slice(&(key.len() as u16).to_le_bytes());
        head[3..].copy_from_slice(&(record_len as u32).to_le_bytes());
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(key);
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation<'a> {
    pub(crate) space: Space,
    pub(crate) key: &'a [u8],
    pub(crate) record: RecordRef<'a>,
}

/// Iterates over encoded operations; ends with an error at the first malformed one.
pub(crate) struct Operations<'a> {
    rest: &'a [u8],
}

impl<'a> Operations<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn decode_next(&mut self) -> Result<Operation<'a>, &'static str> {
        let rest = self.rest;
        if rest.len() < OPERATION_HEAD {
            return Err("an operation's head is cut short");
        }
        let space = Space::from_u8(rest[0]).ok_or("unknown space")?;
        let key_len = usize::from(u16::from_le_bytes([rest[1], rest[2]]));
        let record_len = u32::from_le_bytes([rest[3], rest[4], rest[5], rest[6]]) as usize;
        if key_len > MAX_KEY_LEN || !(MIN_RECORD_LEN..=MAX_RECORD_LEN).contains(&record_len) {
            return Err("key or record length out of range");
        }
        let end = OPERATION_HEAD + key_len + record_len;
        if rest.len() < end {
            return Err("an operation is cut short");
        }
        let key = &rest[OPERATION_HEAD..OPERATION_HEAD + key_len];
        let record = RecordRef::parse(&rest[OPERATION_HEAD + key_len..end]).map_err(|bad| bad.0)?;
        self.rest = &rest[end..];
        Ok(Operation { space, key, record })
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.decode_next();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const VERSION: Version = Version { time: 1, origin: 2 };

    #[test]
    fn operations_are_decoded_in_order() {
        let mut batch = Batch::new();
        batch.put(Space::Data, b"a", VERSION, b"1").unwrap();
        batch.delete(Space::Hints, b"", VERSION).unwrap();
        let operations: Vec<_> = Operations::new(batch.bytes()).map(Result::unwrap).collect();
        assert_eq!(operations.len(), 2);
        assert_eq!((operations[0].space, operations[0].key), (Space::Data, &b"a"[..]));
        assert_eq!(operations[0].record.value(), b"1");
        assert_eq!(operations[1].record.kind(), Kind::Tombstone);
    }

    #[test]
    fn a_batch_cut_inside_an_operation_fails_to_decode() {
        let mut batch = Batch::new();
        batch.put(Space::Data, b"key", VERSION, b"value").unwrap();
        for len in 1..batch.byte_len() {
            assert!(Operations::new(&batch.bytes()[..len]).any(|op| op.is_err()), "cut at {len}");
        }
    }

    #[test]
    fn an_operation_over_a_limit_is_not_added() {
        let mut batch = Batch::new();
        let key = vec![0; MAX_KEY_LEN + 1];
        assert!(matches!(
            batch.put(Space::Data, &key, VERSION, b""),
            Err(Error::TooLarge { what: "key", .. })
        ));
        assert!(batch.is_empty() && batch.byte_len() == 0);
    }

    proptest! {
        /// The log's checksum detects a damaged batch, but not a batch that another release encoded
        /// differently. The decoder must survive both.
        #[test]
        fn random_bytes_decode_or_are_refused(
            mut bytes in vec(any::<u8>(), 0..200),
            space in 0u8..4,
            key_len in 0u16..40,
            record_len in 0u32..80,
        ) {
            if let Some(head) = bytes.first_chunk_mut::<OPERATION_HEAD>() {
                head[0] = space;
                head[1..3].copy_from_slice(&key_len.to_le_bytes());
                head[3..].copy_from_slice(&record_len.to_le_bytes());
            }
            let mut read = 0;
            for operation in Operations::new(&bytes) {
                let Ok(operation) = operation else { break };
                let record = operation.record;
                read += OPERATION_HEAD + operation.key.len() + record.raw().len();
                prop_assert!(read <= bytes.len() && record.value().len() < record.raw().len());
                let _ = (record.version(), record.kind(), record.copies(), record.expiry_ms());
                let _ = record.verify(operation.key);
            }
        }
    }
}
