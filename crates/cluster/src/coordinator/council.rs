//! This node's vote about layouts, when another node asks for it: what it says waits until it is
//! durable.

use super::Coordinator;
use crate::event::{Effect, OpId, StoreError};
use crate::layout::{VoteReply, VoteRequest};
use crate::message::Reply;

impl Coordinator {
    pub(super) fn council_asked(&mut self, op: OpId, asked: &VoteRequest, out: &mut Vec<Effect>) {
        // Its directory is a copy: it must not vote beside the other one.
        if self.shared.membership.is_fenced() {
            return self.done(op, Reply::Council(VoteReply::NoVote), out);
        }
        // The directory may be an earlier state of itself: whoever has had a vote of it says so,
        // and learns of the next one when that claim is settled. The asker tries again.
        let is_vote = matches!(asked, VoteRequest::Prepare { .. } | VoteRequest::Accept { .. });
        let is_known = self.shared.membership.is_confirmed() && !self.shared.logs.is_in_doubt();
        if is_vote && !is_known {
            return self.done(op, Reply::Busy, out);
        }
        let (reply, must_be_kept) = self.shared.layouts.asked(asked);
        if must_be_kept {
            self.voting.insert(op, reply);
            out.push(Effect::KeepLayouts { op });
        } else {
            self.done(op, Reply::Council(reply), out);
        }
    }

    /// What was kept of a vote is durable, or is not.
    pub(super) fn vote_was_kept(
        &mut self,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(reply) = self.voting.remove(&op) else { return false };
        let reply = match result {
            Ok(_) => Reply::Council(reply),
            Err(error) => super::replica::reply_to_error(error),
        };
        self.done(op, reply, out);
        true
    }
}
