//! Comparisons as bytes: what is asked about a replica's records, and what it reports of them.

use bytes::Bytes;

use super::KEY_LEN;
use super::decode::Reader;
use super::encode::{OUTLINE_LEN, put_key, put_outline};
use super::proof::{ROUND_LEN, put_round};
use super::{Malformed, flag};
use crate::compare::{CompareRequest, Compared, Damage, Detail, MAX_DAMAGED, SUM_LEN, Sum};
use crate::record::Outline;

/// Bytes of times that bound what is meant, of the round, and of the watermark.
const TIMES_LEN: usize = 8 + 8 + ROUND_LEN + 8;

/// Bytes of a number of entries.
const COUNT_LEN: usize = 4;

pub(super) fn compare_len(request: &CompareRequest) -> usize {
    let detail = match &request.detail {
        Detail::Sums => 0,
        Detail::Outlines { buckets, .. } => COUNT_LEN + COUNT_LEN + 2 * buckets.len(),
    };
    KEY_LEN + request.start.len() + cursor_len(request.end.as_ref()) + TIMES_LEN + detail
}

fn cursor_len(cursor: Option<&Bytes>) -> usize {
    cursor.map_or(0, |cursor| KEY_LEN + cursor.len())
}

pub(super) fn compare_flags(request: &CompareRequest) -> u8 {
    let bounded = if request.end.is_some() { flag::BOUNDED } else { 0 };
    let listed = matches!(request.detail, Detail::Outlines { .. });
    bounded | if listed { flag::LISTED } else { 0 }
}

pub(super) fn put_compare(out: &mut Vec<u8>, request: &CompareRequest) {
    put_key(out, &request.start);
    if let Some(end) = &request.end {
        put_key(out, end);
    }
    out.extend_from_slice(&request.since.to_le_bytes());
    out.extend_from_slice(&request.until.to_le_bytes());
    put_round(out, request.round);
    out.extend_from_slice(&request.watermark.to_le_bytes());
    if let Detail::Outlines { buckets, max_bytes } = &request.detail {
        out.extend_from_slice(&max_bytes.to_le_bytes());
        out.extend_from_slice(&(buckets.len() as u32).to_le_bytes());
        buckets.iter().for_each(|bucket| out.extend_from_slice(&bucket.to_le_bytes()));
    }
}

pub(super) fn ranges_len(ranges: &[Damage]) -> usize {
    let len = |damage: &Damage| KEY_LEN + damage.first.len() + 1 + cursor_len(damage.last.as_ref());
    COUNT_LEN + ranges.iter().map(len).sum::<usize>()
}

pub(super) fn put_ranges(out: &mut Vec<u8>, ranges: &[Damage]) {
    out.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
    for Damage { first, last } in ranges {
        put_key(out, first);
        out.push(u8::from(last.is_some()));
        if let Some(last) = last {
            put_key(out, last);
        }
    }
}

pub(super) fn compared_len(compared: &Compared) -> usize {
    let outlines = compared.outlines.iter();
    let outlines = outlines.map(|(key, _)| KEY_LEN + key.len() + OUTLINE_LEN).sum::<usize>();
    let damaged = ranges_len(&compared.damaged);
    let sums = SUM_LEN * compared.sums.len();
    cursor_len(compared.next.as_ref()) + 8 + 8 + 2 * COUNT_LEN + sums + outlines + damaged
}

pub(super) fn put_compared(out: &mut Vec<u8>, compared: &Compared) {
    let Compared { sums, outlines, damaged, records, bytes_read, next } = compared;
    if let Some(next) = next {
        put_key(out, next);
    }
    out.extend_from_slice(&records.to_le_bytes());
    out.extend_from_slice(&bytes_read.to_le_bytes());
    out.extend_from_slice(&(sums.len() as u32).to_le_bytes());
    for Sum { bucket, place, copies, sum } in sums {
        out.extend_from_slice(&bucket.to_le_bytes());
        out.extend_from_slice(&[*place, *copies]);
        out.extend_from_slice(&sum.to_le_bytes());
    }
    out.extend_from_slice(&(outlines.len() as u32).to_le_bytes());
    for (key, outline) in outlines {
        put_key(out, key);
        put_outline(out, outline);
    }
    put_ranges(out, damaged);
}

impl Reader {
    pub(super) fn compare(&mut self, flags: u8) -> Result<CompareRequest, Malformed> {
        let start = self.cursor()?;
        let end = if flags & flag::BOUNDED != 0 { Some(self.cursor()?) } else { None };
        let (since, until) = (self.u64()?, self.u64()?);
        let (round, watermark) = (self.round()?, self.u64()?);
        let detail = if flags & flag::LISTED == 0 {
            Detail::Sums
        } else {
            let max_bytes = self.u32()?;
            let count = self.count(2)?;
            let buckets: Vec<u16> = (0..count).map(|_| self.u16()).collect::<Result<_, _>>()?;
            if !buckets.is_sorted_by(|a, b| a < b) {
                return Err(Malformed("buckets that are not in order"));
            }
            Detail::Outlines { buckets, max_bytes }
        };
        Ok(CompareRequest { start, end, since, until, round, watermark, detail })
    }

    pub(super) fn compared(&mut self, flags: u8) -> Result<Compared, Malformed> {
        let next = if flags & flag::BOUNDED != 0 { Some(self.cursor()?) } else { None };
        let (records, bytes_read) = (self.u64()?, self.u64()?);
        let count = self.count(SUM_LEN)?;
        let sums = (0..count).map(|_| self.sum()).collect::<Result<_, _>>()?;
        let count = self.count(KEY_LEN + OUTLINE_LEN)?;
        let outlines = (0..count).map(|_| self.listed()).collect::<Result<Vec<_>, _>>()?;
        if !outlines.is_sorted_by(|(one, _), (other, _)| one < other) {
            return Err(Malformed("outlines that are not in the order of their keys"));
        }
        let damaged = self.ranges(MAX_DAMAGED)?;
        Ok(Compared { sums, outlines, damaged, records, bytes_read, next })
    }

    /// How many entries follow, each of so many bytes at least.
    fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.left() / least {
            return Err(Malformed("more entries than there are bytes"));
        }
        Ok(count)
    }

    fn sum(&mut self) -> Result<Sum, Malformed> {
        let (bucket, [place, copies]) = (self.u16()?, self.array()?);
        Ok(Sum { bucket, place, copies, sum: u128::from_le_bytes(self.array()?) })
    }

    fn listed(&mut self) -> Result<(Bytes, Outline), Malformed> {
        Ok((self.key()?, self.outline()?))
    }

    pub(super) fn ranges(&mut self, most: usize) -> Result<Vec<Damage>, Malformed> {
        let count = self.u32()? as usize;
        if count > most {
            return Err(Malformed("more damaged ranges than are told"));
        }
        (0..count).map(|_| self.damage()).collect()
    }

    fn damage(&mut self) -> Result<Damage, Malformed> {
        let first = self.cursor()?;
        let last = match self.u8()? {
            0 => None,
            1 => Some(self.cursor()?),
            _ => return Err(Malformed("neither yes nor no")),
        };
        Ok(Damage { first, last })
    }
}
