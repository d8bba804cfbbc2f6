//! The encoding of requests to compare replicas, and of the replies.

use bytes::Bytes;

use super::field::{Field, Key, OUTLINE_LEN};
use super::out::Out;
use super::reader::FieldReader;
use super::{KEY_LEN, Malformed, flag};
use crate::repair::compare_messages::{
    CompareRequest, Compared, Damage, Detail, MAX_DAMAGED, MAX_RANGES, SUM_LEN, Sum,
};
use crate::repair::watermark::RoundId;
use record::RecordOutline;

impl Field for CompareRequest {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { start, end, since, until, round, watermark, detail } = value;
        out.key(start);
        out.bound(end.as_deref());
        out.u64(*since);
        out.u64(*until);
        RoundId::put(round, out);
        out.u64(*watermark);
        if let Detail::Outlines { buckets, max_bytes } = detail {
            out.flag(flag::LISTED);
            out.u32(*max_bytes);
            out.u32(buckets.len() as u32);
            buckets.iter().for_each(|bucket| out.u16(*bucket));
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let (start, end) = (from.bound()?, from.bound_if_any()?);
        let (since, until) = (from.u64()?, from.u64()?);
        let (round, watermark) = (RoundId::take(from)?, from.u64()?);
        let detail = if from.flag(flag::LISTED) { take_listed(from)? } else { Detail::Sums };
        Ok(Self { start, end, since, until, round, watermark, detail })
    }
}

fn take_listed(from: &mut FieldReader<'_>) -> Result<Detail, Malformed> {
    let max_bytes = from.u32()?;
    let count = from.count(2)?;
    let buckets: Vec<u16> = (0..count).map(|_| from.u16()).collect::<Result<_, _>>()?;
    if !buckets.is_sorted_by(|a, b| a < b) {
        return Err(Malformed("buckets that are not in order"));
    }
    Ok(Detail::Outlines { buckets, max_bytes })
}

impl Field for Compared {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { sums, outlines, damaged, records, bytes_read, next } = value;
        out.bound(next.as_deref());
        out.u64(*records);
        out.u64(*bytes_read);
        out.u32(sums.len() as u32);
        sums.iter().for_each(|sum| Sum::put(sum, out));
        out.u32(outlines.len() as u32);
        for (key, outline) in outlines {
            Key::put(key, out);
            RecordOutline::put(outline, out);
        }
        put_ranges(damaged, out);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let next = from.bound_if_any()?;
        let (records, bytes_read) = (from.u64()?, from.u64()?);
        let count = from.count(SUM_LEN)?;
        let sums = (0..count).map(|_| Sum::take(from)).collect::<Result<_, _>>()?;
        let count = from.count(KEY_LEN + OUTLINE_LEN)?;
        let listed = |_| Ok((Key::take(from)?, RecordOutline::take(from)?));
        let outlines =
            (0..count).map(listed).collect::<Result<Vec<(Bytes, RecordOutline)>, _>>()?;
        if !outlines.is_sorted_by(|(one, _), (other, _)| one < other) {
            return Err(Malformed("outlines that are not in the order of their keys"));
        }
        let damaged = take_ranges(from, MAX_DAMAGED)?;
        Ok(Self { sums, outlines, damaged, records, bytes_read, next })
    }
}

impl Field for Sum {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { bucket, place, copies, sum } = value;
        out.u16(*bucket);
        out.u8(*place);
        out.u8(*copies);
        out.bytes(&sum.to_le_bytes());
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let (bucket, [place, copies]) = (from.u16()?, from.array()?);
        Ok(Self { bucket, place, copies, sum: u128::from_le_bytes(from.array()?) })
    }
}

/// The ranges of keys whose unreadable blocks are to be discarded.
pub(super) struct Ranges;

impl Field for Ranges {
    type Value = Vec<Damage>;

    fn put(value: &Self::Value, out: &mut impl Out) {
        put_ranges(value, out);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self::Value, Malformed> {
        take_ranges(from, MAX_RANGES)
    }
}

fn put_ranges(ranges: &[Damage], out: &mut impl Out) {
    out.u32(ranges.len() as u32);
    for Damage { first, last } in ranges {
        out.key(first);
        out.bool(last.is_some());
        if let Some(last) = last {
            out.key(last);
        }
    }
}

fn take_ranges(from: &mut FieldReader<'_>, most: usize) -> Result<Vec<Damage>, Malformed> {
    let count = from.u32()? as usize;
    if count > most {
        return Err(Malformed("more damaged ranges than are told"));
    }
    let damage = |_| {
        let first = from.bound()?;
        let last = if from.bool()? { Some(from.bound()?) } else { None };
        Ok(Damage { first, last })
    };
    (0..count).map(damage).collect()
}
