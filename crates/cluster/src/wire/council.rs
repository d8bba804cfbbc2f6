//! What is asked of councillors about layouts, and what they say, as bytes.
//!
//! ```text
//!   asked: step 1 │ ballot 8 │ layout            said: what 1 │ ballot 8 │ layout
//!
//!   layout = length 4 (0 = none) │ its bytes (`layout/bytes.rs`)
//! ```

use std::sync::Arc;

use super::Malformed;
use super::decode::Reader;
use crate::layout::{Ballot, Layout, MAX_BYTES, VoteReply, VoteRequest};

/// Bytes of either before the layout's own.
const HEAD: usize = 1 + 8 + 4;

/// What a request says: its step, a ballot, a layout.
fn of_request(request: &VoteRequest) -> (u8, Ballot, Option<&Layout>) {
    match request {
        VoteRequest::Ask => (0, 0, None),
        VoteRequest::Prepare { base, ballot } => (1, *ballot, Some(base)),
        VoteRequest::Accept { ballot, layout } => (2, *ballot, Some(layout)),
        VoteRequest::Decided(layout) => (3, 0, Some(layout)),
    }
}

/// The same of a reply.
fn of_reply(reply: &VoteReply) -> (u8, Ballot, Option<&Layout>) {
    match reply {
        VoteReply::Promise(None) => (0, 0, None),
        VoteReply::Promise(Some((ballot, layout))) => (0, *ballot, Some(layout)),
        VoteReply::Accepted => (1, 0, None),
        VoteReply::Learned => (2, 0, None),
        VoteReply::Outbid(ballot) => (3, *ballot, None),
        VoteReply::Known(layout) => (4, 0, Some(layout)),
        VoteReply::NoVote => (5, 0, None),
    }
}

fn len((_, _, layout): (u8, Ballot, Option<&Layout>)) -> usize {
    HEAD + layout.map_or(0, |layout| layout.to_bytes().len())
}

fn put(out: &mut Vec<u8>, (code, ballot, layout): (u8, Ballot, Option<&Layout>)) {
    let bytes = layout.map_or_else(Vec::new, Layout::to_bytes);
    out.push(code);
    out.extend_from_slice(&ballot.to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&bytes);
}

pub(super) fn vote_request_len(request: &VoteRequest) -> usize {
    len(of_request(request))
}

pub(super) fn vote_reply_len(reply: &VoteReply) -> usize {
    len(of_reply(reply))
}

pub(super) fn put_vote_request(out: &mut Vec<u8>, request: &VoteRequest) {
    put(out, of_request(request));
}

pub(super) fn put_vote_reply(out: &mut Vec<u8>, reply: &VoteReply) {
    put(out, of_reply(reply));
}

impl Reader {
    fn vote(&mut self) -> Result<(u8, Ballot, Option<Arc<Layout>>), Malformed> {
        let (code, ballot, length) = (self.u8()?, self.u64()?, self.u32()? as usize);
        if length > MAX_BYTES {
            return Err(Malformed("a layout that is too long"));
        }
        if length == 0 {
            return Ok((code, ballot, None));
        }
        let layout = Layout::from_bytes(&self.take(length)?).map_err(Malformed)?;
        Ok((code, ballot, Some(Arc::new(layout))))
    }

    pub(super) fn vote_request(&mut self) -> Result<VoteRequest, Malformed> {
        Ok(match self.vote()? {
            (0, 0, None) => VoteRequest::Ask,
            (1, ballot, Some(base)) => VoteRequest::Prepare { base, ballot },
            (2, ballot, Some(layout)) => VoteRequest::Accept { ballot, layout },
            (3, 0, Some(layout)) => VoteRequest::Decided(layout),
            _ => return Err(Malformed("an unknown step of a vote")),
        })
    }

    pub(super) fn vote_reply(&mut self) -> Result<VoteReply, Malformed> {
        Ok(match self.vote()? {
            (0, 0, None) => VoteReply::Promise(None),
            (0, ballot, Some(layout)) => VoteReply::Promise(Some((ballot, layout))),
            (1, 0, None) => VoteReply::Accepted,
            (2, 0, None) => VoteReply::Learned,
            (3, ballot, None) => VoteReply::Outbid(ballot),
            (4, 0, Some(layout)) => VoteReply::Known(layout),
            (5, 0, None) => VoteReply::NoVote,
            _ => return Err(Malformed("an unknown vote")),
        })
    }
}
