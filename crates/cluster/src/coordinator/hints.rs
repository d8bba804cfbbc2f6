//! Hints on their way into this node's store, until it is known whether the store has them. What it
//! does not take becomes a mark, so that the replica is repaired instead.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Coordinator;
use crate::event::{Effect, HintId};
use crate::hints::hint_bytes;
use crate::message::NodeId;
use crate::missed::Mark;
use record::Record;

/// A hint that is not known to be stored yet.
#[derive(Debug)]
struct UnderWay {
    peer: NodeId,
    /// Bytes that the ledger has reserved for it.
    bytes: u64,
    /// The mark that takes its place if it can't be stored.
    mark: Mark,
}

/// Hints that are not known to be stored: as many as the ledger has room for.
#[derive(Debug, Default)]
pub(super) struct Hints {
    under_way: BTreeMap<HintId, UnderWay>,
    next: u64,
}

impl Coordinator {
    /// A node missed a write: that becomes a hint, or a mark if there is no room for a hint. This
    /// node keeps no hints for itself.
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

    /// A hint was stored, or could not be.
    pub(super) fn hinted(&mut self, hint: HintId, kept: bool) {
        let hinted = self.hints.under_way.remove(&hint);
        let UnderWay { peer, bytes, mark } = hinted.expect("each hint is completed once");
        if kept {
            self.shared.hints.kept(peer, bytes);
        } else {
            self.shared.hints.lost(peer, bytes);
            self.shared.missed.mark(peer, mark);
        }
    }
}
