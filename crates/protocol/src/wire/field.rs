//! The fields of message bodies, each with its encoder and its decoder.

use bytes::Bytes;

use super::Malformed;
use super::flag;
use super::out::Out;
use super::reader::FieldReader;
use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_ids::Incarnation;
use crate::message::NodeId;
use crate::request::receipt::ReplicaSet;
use crate::transfer::missed::{MAX_LISTED, Mark};
use record::{Kind, Rank, Record, RecordOutline, Version};

/// A field of a body, and its encoding. The length of the encoding follows from its content.
pub(super) trait Field {
    /// The field's type in memory.
    type Value;

    fn put(value: &Self::Value, out: &mut impl Out);

    /// Reads only encodings that `put` writes: encoding the value again gives the same bytes.
    fn take(from: &mut FieldReader<'_>) -> Result<Self::Value, Malformed>;
}

/// The least length of an entry in bytes: the key's length, one byte of key, the record's length.
const MIN_ENTRY_LEN: usize = 2 + 1 + 4;

/// The largest number of entries for which memory is reserved before they are read. Most messages
/// have fewer.
const ENTRIES_AT_ONCE: usize = 1024;

/// The length of an outline in bytes: time, origin, ballot, kind, copies, check, length.
pub(super) const OUTLINE_LEN: usize = 8 + 4 + 8 + 1 + 1 + 8 + 4;

/// The length of a mark in bytes.
const MARK_LEN: usize = 12;

/// The code for all partitions.
const ALL_PARTITIONS: u32 = u32::MAX;

impl Field for u8 {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u8(*value);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        from.u8()
    }
}

impl Field for u32 {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u32(*value);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        from.u32()
    }
}

impl Field for u64 {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u64(*value);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        from.u64()
    }
}

impl Field for Incarnation {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u64(value.0);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Self::of_number(from.u64()?).ok_or(Malformed("an incarnation of 0"))
    }
}

impl Field for NodeId {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u16(value.0);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        from.u16().map(Self)
    }
}

/// A cluster's id; 0 = none.
pub(super) struct IdIfAny;

impl Field for IdIfAny {
    type Value = Option<ClusterId>;

    fn put(value: &Option<ClusterId>, out: &mut impl Out) {
        out.u64(ClusterId::number(*value));
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Option<ClusterId>, Malformed> {
        from.u64().map(ClusterId::of_number)
    }
}

impl Field for ReplicaSet {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u8(value.0);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        from.u8().map(Self)
    }
}

/// A flag in the head: true if the answering node is authoritative, so that its "not found" counts.
pub(super) struct Authoritative;

impl Field for Authoritative {
    type Value = bool;

    fn put(value: &bool, out: &mut impl Out) {
        if *value {
            out.flag(flag::AUTHORITATIVE);
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<bool, Malformed> {
        Ok(from.flag(flag::AUTHORITATIVE))
    }
}

/// The last field of a body: the longest record, in bytes, that the asker has memory for. Omitted
/// if the asker accepts records of any length.
pub(super) struct MostIfAny;

impl Field for MostIfAny {
    type Value = u32;

    fn put(value: &u32, out: &mut impl Out) {
        if *value != u32::MAX {
            out.u32(*value);
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<u32, Malformed> {
        if from.unread_bytes() == 0 {
            return Ok(u32::MAX);
        }
        match from.u32()? {
            u32::MAX => Err(Malformed("a limit that says that there is no limit")),
            most => Ok(most),
        }
    }
}

/// The last field of a body: the digest of a client's request. Omitted if the digest is unknown.
pub(super) struct DigestIfAny;

impl Field for DigestIfAny {
    type Value = u64;

    fn put(value: &u64, out: &mut impl Out) {
        if *value != 0 {
            out.u64(*value);
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<u64, Malformed> {
        if from.unread_bytes() == 0 {
            return Ok(0);
        }
        match from.u64()? {
            0 => Err(Malformed("a digest that says that it is unknown")),
            digest => Ok(digest),
        }
    }
}

/// A key, which is neither empty nor too long.
pub(super) struct Key;

impl Field for Key {
    type Value = Bytes;

    fn put(value: &Bytes, out: &mut impl Out) {
        out.key(value);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Bytes, Malformed> {
        from.key()
    }
}

impl Field for Record {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u32(value.byte_len() as u32);
        out.bytes(value.raw());
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let length = from.u32()? as usize;
        Self::parse(from.take(length)?).map_err(|_| Malformed("a malformed record"))
    }
}

impl Field for RecordOutline {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { rank: Rank { version, ballot, kind, check }, copies, bytes } = *value;
        out.u64(version.time);
        out.u32(version.origin);
        out.u64(ballot);
        out.u8(match kind {
            Kind::Value => 0,
            Kind::Tombstone => 1,
            Kind::Superseded => 2,
        });
        out.u8(copies);
        out.u64(check);
        out.u32(bytes);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let version = Version { time: from.u64()?, origin: from.u32()? };
        let ballot = from.u64()?;
        let kind = match from.u8()? {
            0 => Kind::Value,
            1 => Kind::Tombstone,
            2 => Kind::Superseded,
            _ => return Err(Malformed("a record of an unknown kind")),
        };
        let copies = from.u8()?;
        let rank = Rank { version, ballot, kind, check: from.u64()? };
        Ok(Self { rank, copies, bytes: from.u32()? })
    }
}

/// Keys and their records.
pub(super) struct Entries;

impl Field for Entries {
    type Value = Vec<(Bytes, Record)>;

    fn put(value: &Self::Value, out: &mut impl Out) {
        out.u32(value.len() as u32);
        for (key, record) in value {
            Key::put(key, out);
            Record::put(record, out);
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self::Value, Malformed> {
        let count = from.count(MIN_ENTRY_LEN)?;
        // In memory, an entry takes many times the bytes of the shortest encoded entry.
        let mut entries = Vec::with_capacity(count.min(ENTRIES_AT_ONCE));
        for _ in 0..count {
            entries.push((Key::take(from)?, Record::take(from)?));
        }
        Ok(entries)
    }
}

/// Marks of the partitions whose records a node may lack.
pub(super) struct MarkList;

impl Field for MarkList {
    type Value = Vec<Mark>;

    fn put(value: &Self::Value, out: &mut impl Out) {
        out.u32(value.len() as u32);
        for Mark { partition, since } in value {
            out.u32(partition.map_or(ALL_PARTITIONS, u32::from));
            out.u64(*since);
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self::Value, Malformed> {
        let count = from.u32()? as usize;
        if count > MAX_LISTED + 1 || count > from.unread_bytes() / MARK_LEN {
            return Err(Malformed("more marks than there can be"));
        }
        let mut marks = Vec::with_capacity(count);
        for _ in 0..count {
            let partition = match from.u32()? {
                ALL_PARTITIONS => None,
                partition => match u16::try_from(partition) {
                    Ok(partition) => Some(partition),
                    Err(_) => return Err(Malformed("no such partition")),
                },
            };
            marks.push(Mark { partition, since: from.u64()? });
        }
        Ok(marks)
    }
}
