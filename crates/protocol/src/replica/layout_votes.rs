//! This node's votes on layouts, which other nodes request. A reply waits until the vote is
//! durable.

use std::collections::BTreeMap;

use crate::dispatch::core::Cx;
use crate::event::{Effect, OpId, StoreError};
use crate::membership::layout::{VoteReply, VoteRequest};
use crate::message::Reply;

/// Votes that are being stored, and the replies to send afterwards.
#[derive(Debug, Default)]
pub(crate) struct PendingVotes {
    storing: BTreeMap<OpId, VoteReply>,
}

impl PendingVotes {
    pub(crate) fn on_vote_request(&mut self, cx: &mut Cx<'_>, op: OpId, asked: &VoteRequest) {
        // The directory of a fenced node is a copy, and two copies of one directory must not both
        // vote.
        if cx.core.shared.membership.state.is_fenced() {
            return cx.reply_as_replica(op, Reply::Council(VoteReply::NoVote));
        }
        // The directory may have been restored to an earlier state. Nodes that received a later
        // vote from this node report it. So this node votes only once its directory is confirmed
        // and all such reports are settled; until then, the asker retries.
        let is_vote = matches!(asked, VoteRequest::Prepare { .. } | VoteRequest::Accept { .. });
        let is_known = cx.core.shared.membership.state.is_confirmed()
            && !cx.core.shared.membership.logs.is_in_doubt();
        if is_vote && !is_known {
            return cx.reply_as_replica(op, Reply::Busy);
        }
        let (reply, must_be_kept) = cx.core.shared.membership.layouts.handle_request(asked);
        if must_be_kept {
            self.storing.insert(op, reply);
            cx.out.push(Effect::StoreLayouts { op });
        } else {
            cx.reply_as_replica(op, Reply::Council(reply));
        }
    }

    /// Handles the result of storing a vote, and replies. Returns `false` if the operation stored
    /// no vote.
    pub(crate) fn on_stored(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
    ) -> bool {
        let Some(reply) = self.storing.remove(&op) else { return false };
        let reply = match result {
            Ok(_) => Reply::Council(reply),
            Err(error) => super::reply::reply_to_error(error),
        };
        cx.reply_as_replica(op, reply);
        true
    }
}
