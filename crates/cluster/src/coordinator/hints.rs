//! Hints on their way into this node's store: what a replica missed, until it is known whether the
//! store has it. What it does not take is marked, so that the replica is repaired instead.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Coordinator;
use crate::event::{Effect, HintId};
use crate::hints::hint_bytes;
use crate::message::NodeId;
use crate::missed::Mark;
use crate::record::Record;

/// What is known of a hint that is not kept yet.
#[derive(Debug)]
struct UnderWay {
    peer: NodeId,
    /// What the ledger has set aside for it.
    bytes: u64,
    /// What its replica lacks without it.
    mark: Mark,
}

/// Hints that are not known to be kept: as many as the ledger has room for.
#[derive(Debug, Default)]
pub(super) struct Hints {
    under_way: BTreeMap<HintId, UnderWay>,
    next: u64,
}

impl Coordinator {
    /// A node missed a write: it is kept for the node, or marked if that can't be. This node keeps
    /// no hints for itself.
    pub(super) fn missed_by(
        &mut self,
        peer: NodeId,
        key: Bytes,
        record: Record,
        out: &mut Vec<Effect>,
    ) {
        let bytes = hint_bytes(&key, &record);
        if peer == self.shared.own || !self.shared.hints.admit(peer, bytes) {
            self.shared.miss(peer, &key, &record);
            return;
        }
        let hint = HintId(self.hints.next);
        self.hints.next += 1;
        let mark = self.shared.mark_of(&key, &record);
        self.hints.under_way.insert(hint, UnderWay { peer, bytes, mark });
        out.push(Effect::Hint { hint, peer, key, record });
    }

    /// A hint is in the store, or could not be put there.
    pub(super) fn hinted(&mut self, hint: HintId, kept: bool) {
        let hinted = self.hints.under_way.remove(&hint);
        let UnderWay { peer, bytes, mark } = hinted.expect("each hint is told of once");
        if kept {
            self.shared.hints.kept(peer, bytes);
        } else {
            self.shared.hints.lost(peer, bytes);
            self.shared.missed.mark(peer, mark);
        }
    }
}
