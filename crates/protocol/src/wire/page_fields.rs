//! The encoding of page requests and pages. A number after a field is the field's length in bytes;
//! `count k, × element` is a count in k bytes, followed by as many elements.
//!
//! ```text
//!   request: start │ end, if the head has the flag BOUNDED │ max bytes 4 │ filter
//!   filter, one of four, told apart by the head's flags:
//!     chosen:      ack 1 │ from 1 │ count 2, × node 2
//!     held by:     node 2 │ since 8 │ promise 8 │ count 2, × partition 2
//!     moved:       node 2 │ first 1 │ seed 8 │ count 4, × digest 8
//!     remembered:  node 2 │ lost 1 (always true; absent if the node has its memory)
//!   page: next, if the head has the flag BOUNDED │ entries
//! ```

use super::field::{Authoritative, Entries, Field};
use super::out::Out;
use super::reader::FieldReader;
use super::{Malformed, flag};
use crate::message::{Filter, NodeId, Page, PageRequest};
use crate::transfer::filter::MAX_KNOWN;
use crate::transfer::missed::MAX_LISTED;

impl Field for PageRequest {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { start, end, filter, max_bytes } = value;
        out.key(start);
        out.bound(end.as_deref());
        out.u32(*max_bytes);
        put_filter(filter, out);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let (start, end) = (from.bound()?, from.bound_if_any()?);
        let max_bytes = from.u32()?;
        Ok(Self { start, end, filter: take_filter(from)?, max_bytes })
    }
}

fn put_filter(filter: &Filter, out: &mut impl Out) {
    match filter {
        Filter::Chosen { ack, from, preference } => {
            out.u8(*ack);
            out.u8(*from);
            out.u16(preference.len() as u16);
            preference.iter().for_each(|node| out.u16(node.0));
        }
        Filter::HeldBy { node, since, promise, partitions } => {
            out.flag(flag::HELD_BY);
            out.u16(node.0);
            out.u64(*since);
            out.u64(*promise);
            out.u16(partitions.len() as u16);
            partitions.iter().for_each(|partition| out.u16(*partition));
        }
        Filter::Moved { node, first, seed, known } => {
            out.flag(flag::MOVED);
            out.u16(node.0);
            out.bool(*first);
            out.u64(*seed);
            out.u32(known.len() as u32);
            known.iter().for_each(|digest| out.u64(*digest));
        }
        Filter::Remembered { node, lost } => {
            out.flag(flag::REMEMBERED);
            out.u16(node.0);
            if *lost {
                out.bool(true);
            }
        }
    }
}

/// Reads a filter. If the head has the flags of two filters, the second flag stays unread and is an
/// error at the end of the item.
fn take_filter(from: &mut FieldReader<'_>) -> Result<Filter, Malformed> {
    if from.flag(flag::HELD_BY) {
        take_held_by(from)
    } else if from.flag(flag::MOVED) {
        take_moved(from)
    } else if from.flag(flag::REMEMBERED) {
        take_remembered(from)
    } else {
        take_chosen(from)
    }
}

fn take_remembered(from: &mut FieldReader<'_>) -> Result<Filter, Malformed> {
    let (node, lost) = (NodeId::take(from)?, from.unread_bytes() > 0);
    if lost && !from.bool()? {
        return Err(Malformed("a node that says that it has lost nothing"));
    }
    Ok(Filter::Remembered { node, lost })
}

fn take_chosen(from: &mut FieldReader<'_>) -> Result<Filter, Malformed> {
    let (ack, of, count) = (from.u8()?, from.u8()?, usize::from(from.u16()?));
    if from.unread_bytes() < 2 * count {
        return Err(Malformed("it ends too early"));
    }
    let preference = (0..count).map(|_| NodeId::take(from)).collect::<Result<_, _>>()?;
    Ok(Filter::Chosen { ack, from: of, preference })
}

fn take_held_by(from: &mut FieldReader<'_>) -> Result<Filter, Malformed> {
    let (node, since, promise) = (NodeId::take(from)?, from.u64()?, from.u64()?);
    let count = usize::from(from.u16()?);
    if count > MAX_LISTED || count > from.unread_bytes() / 2 {
        return Err(Malformed("more partitions than are listed"));
    }
    let partitions: Vec<u16> = (0..count).map(|_| from.u16()).collect::<Result<_, _>>()?;
    if !partitions.is_sorted_by(|a, b| a < b) {
        return Err(Malformed("partitions that are not in order"));
    }
    Ok(Filter::HeldBy { node, since, promise, partitions })
}

fn take_moved(from: &mut FieldReader<'_>) -> Result<Filter, Malformed> {
    let (node, first, seed) = (NodeId::take(from)?, from.bool()?, from.u64()?);
    let count = from.u32()? as usize;
    if count > MAX_KNOWN || count > from.unread_bytes() / 8 {
        return Err(Malformed("more digests than may be told"));
    }
    let known = (0..count).map(|_| from.u64()).collect::<Result<_, _>>()?;
    Ok(Filter::Moved { node, first, seed, known })
}

impl Field for Page {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { items, next, authoritative } = value;
        out.bound(next.as_deref());
        Entries::put(items, out);
        Authoritative::put(authoritative, out);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let (next, items) = (from.bound_if_any()?, Entries::take(from)?);
        Ok(Self { items, next, authoritative: Authoritative::take(from)? })
    }
}
