//! Hints that this node's store has not stored yet. A hint that the store refuses becomes a mark,
//! so that the repair of the partition delivers the write.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::dispatch::core::Cx;
use crate::event::{Effect, HintId};
use crate::message::NodeId;
use crate::shared::Shared;
use crate::transfer::hint_ledger::hint_bytes;
use crate::transfer::missed::Mark;
use record::Record;

/// A hint that is being stored.
#[derive(Debug)]
struct HintUnderWay {
    peer: NodeId,
    /// The bytes that the ledger has reserved for the hint.
    bytes: u64,
    /// The mark that replaces the hint if the hint can't be stored.
    mark: Mark,
}

/// The hints that are being stored, as many as the ledger admits.
#[derive(Debug, Default)]
pub(crate) struct UnstoredHints {
    under_way: BTreeMap<HintId, HintUnderWay>,
    next: u64,
}

impl UnstoredHints {
    /// Stores a hint for a node that missed a write, or makes a mark if the ledger admits no hint.
    /// For itself, this node makes a mark.
    pub(crate) fn on_missed_write(
        &mut self,
        cx: &mut Cx<'_>,
        peer: NodeId,
        key: Bytes,
        record: Record,
    ) {
        let shared = &cx.core.shared;
        let bytes = hint_bytes(&key, &record);
        if peer == shared.own || !shared.transfer.hints.admit(peer, bytes) {
            shared.mark_missed(peer, &key, &record);
            return;
        }
        let hint = HintId(self.next);
        self.next += 1;
        let mark = shared.mark_of(&key, &record);
        self.under_way.insert(hint, HintUnderWay { peer, bytes, mark });
        cx.out.push(Effect::Hint { hint, peer, key, record });
    }

    /// Notes that a hint was stored, or that storing it failed.
    pub(crate) fn on_hint_stored(&mut self, shared: &Shared, hint: HintId, kept: bool) {
        let hinted = self.under_way.remove(&hint);
        let HintUnderWay { peer, bytes, mark } = hinted.expect("each hint is completed once");
        if kept {
            shared.transfer.hints.note_stored(peer, bytes);
        } else {
            shared.transfer.hints.release(peer, bytes);
            shared.transfer.missed.mark(peer, mark);
        }
    }
}
