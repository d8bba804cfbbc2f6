//! The encoding of vote requests to the metadata quorum (council), and of its replies. Each field
//! is followed by its length in bytes.
//!
//! ```text
//!   request: step 1 │ ballot 8 │ layout            reply: kind 1 │ ballot 8 │ layout
//!
//!   layout: length 4 (0 = no layout) │ that many bytes (`layout/bytes/`)
//! ```

use std::sync::Arc;

use super::Malformed;
use super::field::Field;
use super::out::Out;
use super::reader::FieldReader;
use crate::membership::layout::{Ballot, Layout, MAX_BYTES, VoteReply, VoteRequest};

impl Field for VoteRequest {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        match value {
            Self::Ask => put_vote(0, 0, None, out),
            Self::Prepare { base, ballot } => put_vote(1, *ballot, Some(base), out),
            Self::Accept { ballot, layout } => put_vote(2, *ballot, Some(layout), out),
            Self::Decided(layout) => put_vote(3, 0, Some(layout), out),
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(match take_vote(from)? {
            (0, 0, None) => Self::Ask,
            (1, ballot, Some(base)) => Self::Prepare { base, ballot },
            (2, ballot, Some(layout)) => Self::Accept { ballot, layout },
            (3, 0, Some(layout)) => Self::Decided(layout),
            _ => return Err(Malformed("an unknown step of a vote")),
        })
    }
}

impl Field for VoteReply {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        match value {
            Self::Promise(None) => put_vote(0, 0, None, out),
            Self::Promise(Some((ballot, layout))) => put_vote(0, *ballot, Some(layout), out),
            Self::Accepted => put_vote(1, 0, None, out),
            Self::Learned => put_vote(2, 0, None, out),
            Self::Outbid(ballot) => put_vote(3, *ballot, None, out),
            Self::Known(layout) => put_vote(4, 0, Some(layout), out),
            Self::NoVote => put_vote(5, 0, None, out),
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(match take_vote(from)? {
            (0, 0, None) => Self::Promise(None),
            (0, ballot, Some(layout)) => Self::Promise(Some((ballot, layout))),
            (1, 0, None) => Self::Accepted,
            (2, 0, None) => Self::Learned,
            (3, ballot, None) => Self::Outbid(ballot),
            (4, 0, Some(layout)) => Self::Known(layout),
            (5, 0, None) => Self::NoVote,
            _ => return Err(Malformed("an unknown vote")),
        })
    }
}

fn put_vote(code: u8, ballot: Ballot, layout: Option<&Layout>, out: &mut impl Out) {
    let bytes = layout.map_or_else(Vec::new, Layout::to_bytes);
    out.u8(code);
    out.u64(ballot);
    out.u32(bytes.len() as u32);
    out.bytes(&bytes);
}

fn take_vote(from: &mut FieldReader<'_>) -> Result<(u8, Ballot, Option<Arc<Layout>>), Malformed> {
    let (code, ballot, length) = (from.u8()?, from.u64()?, from.u32()? as usize);
    if length > MAX_BYTES {
        return Err(Malformed("a layout that is too long"));
    }
    if length == 0 {
        return Ok((code, ballot, None));
    }
    let layout = Layout::from_bytes(&from.take(length)?).map_err(Malformed)?;
    Ok((code, ballot, Some(Arc::new(layout))))
}
