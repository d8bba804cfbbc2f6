//! Delivering hints: batch after batch in the order of their keys, one under way for each node, and
//! none forgotten before the node said that it has stored it.

use bytes::Bytes;

use super::{Caller, Node, NodeEffect};
use crate::event::{Now, Trouble};
use crate::hints::hint_bytes;
use crate::message::{Class, NodeId, Reply, Request};
use crate::record::Record;

/// Bytes of one batch of hints. One is under way for each node, which bounds the rate to what it
/// stores and syncs in the time of a round trip.
const BATCH_BYTES: usize = 256 * 1024;

/// How long after a failure the next attempt is made at first, in microseconds …
const FIRST_WAIT: u64 = 250_000;

/// … and at most, while the node says that it is busy. One that can't be reached is tried again
/// after the first wait every time: it is to have its hints within a second after it is back.
const MOST_WAIT: u64 = 4_000_000;

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Reading,
    Sending(Vec<(Bytes, Record)>),
}

/// The hints of one node.
#[derive(Debug, Default)]
pub(super) struct Replay {
    state: State,
    /// The last key that was delivered in this pass over the hints.
    after: Option<Bytes>,
    /// What was counted when this pass began.
    counted: (u64, u64),
    not_before: u64,
    wait: u64,
}

impl Node {
    pub(super) fn replay_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        for peer in self.others() {
            let counted = self.shared.hints.waiting(peer);
            let replay = &mut self.replays[usize::from(peer.0)];
            let idle = matches!(replay.state, State::Idle);
            if idle && counted.0 > 0 && replay.not_before <= now.mono {
                if replay.after.is_none() {
                    replay.counted = counted;
                }
                self.ask_for_hints(peer, out);
            }
        }
    }

    fn ask_for_hints(&mut self, peer: NodeId, out: &mut Vec<NodeEffect>) {
        let replay = &mut self.replays[usize::from(peer.0)];
        replay.state = State::Reading;
        let (after, max_bytes) = (replay.after.clone(), BATCH_BYTES);
        out.push(NodeEffect::ReadHints { peer, after, max_bytes });
    }

    pub(super) fn read_hints(
        &mut self,
        now: Now,
        peer: NodeId,
        items: Vec<(Bytes, Record)>,
        out: &mut Vec<NodeEffect>,
    ) {
        let replay = &mut self.replays[usize::from(peer.0)];
        if !items.is_empty() {
            let request = Request::Writes { items: items.clone() };
            replay.state = State::Sending(items);
            self.call(Caller::Replay(peer), peer, Class::Hint, request, out);
            return;
        }
        replay.state = State::Idle;
        // The end of a pass. Hints that came meanwhile may lie before it, so there is another one
        // unless this one found nothing at all.
        if replay.after.take().is_none() {
            self.shared.hints.none_left(peer, replay.counted);
        }
        replay.not_before = now.mono;
    }

    pub(super) fn replayed(
        &mut self,
        now: Now,
        peer: NodeId,
        result: Result<Reply, Trouble>,
        out: &mut Vec<NodeEffect>,
    ) {
        let replay = &mut self.replays[usize::from(peer.0)];
        let State::Sending(items) = std::mem::take(&mut replay.state) else { return };
        match result {
            Ok(Reply::Stored | Reply::Newer { .. }) => {
                replay.wait = FIRST_WAIT;
                replay.after = items.last().map(|(key, _)| key.clone());
                let bytes = items.iter().map(|(key, record)| hint_bytes(key, record)).sum();
                self.shared.hints.delivered(peer, items.len() as u64, bytes);
                self.shared.logs.stored_late(peer);
                out.push(NodeEffect::DropHints { peer, items });
                self.ask_for_hints(peer, out);
            }
            Ok(_) => {
                replay.wait = (replay.wait * 2).clamp(FIRST_WAIT, MOST_WAIT);
                replay.not_before = now.mono + replay.wait;
            }
            Err(_) => {
                replay.wait = FIRST_WAIT;
                replay.not_before = now.mono + FIRST_WAIT;
            }
        }
    }
}
