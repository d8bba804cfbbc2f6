//! Delivering hints: batch after batch in the order of their keys, one under way for each node, and
//! none forgotten before the node said that it has stored it.
//!
//! A hint for a node that is no replica of its record any more, in neither topology of the view in
//! force, is dropped instead, and so are all of a node that has left. Nobody counts on a hint: its
//! write was acknowledged by other replicas or not at all. Whoever holds the partition now has
//! taken what those held that are in force, or is one of them; and the node begins with nothing if
//! it ever gets the partition back.
//!
//! A *future hint*, with a timestamp further ahead of this node's wall clock or of the
//! receiver's than clocks may be, stays where it is while the others go out. A later pass looks at
//! it again. So does one at a hint that was delivered and that the store, overloaded or full, could
//! not remove: it is delivered again, and counts as waiting until it is gone. Were it not counted,
//! it would be taken for another one that came later, and that one would wait for ever.

use bytes::Bytes;

use super::{Caller, Node, NodeEffect};
use crate::clock::{Clock, Now};
use crate::event::FailureKind;
use crate::hints::hint_bytes;
use crate::message::{Class, NodeId, Reply, Request};
use record::Record;

/// Bytes of one batch of hints. One is under way for each node, which bounds the rate to what it
/// stores and syncs in the time of a round trip.
const BATCH_BYTES: usize = 256 * 1024;

/// How long after a failure the next attempt is made at first, in microseconds …
const FIRST_WAIT: u64 = 250_000;

/// … and at most, while the node says that it is busy. One that can't be reached is tried again
/// after the first wait every time: it is to have its hints within a second after it is back.
const MOST_WAIT: u64 = 4_000_000;

/// How long after a pass that left future hints the next one begins at the latest, in
/// microseconds: a clock that was behind may be right by then.
const LOOK_AGAIN: u64 = 60_000_000;

/// So many times as long as such a pass was reading there is none after it: reading over what has
/// to stay is not to take more than a tenth of a disk's time.
const REST: u64 = 9;

/// Passes in a row that left what they had delivered, after which there is as much rest for all
/// that such a pass did: its node is written to in vain. Before it, the store was just busy for a
/// moment.
const VAIN_PASSES: u32 = 3;

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Reading,
    Sending(Batch),
}

/// Hints on their way.
#[derive(Debug)]
struct Batch {
    items: Vec<(Bytes, Record)>,
    /// Future hints that were read with them and stay.
    stays: Stays,
    /// The last key of both kinds.
    last: Bytes,
}

/// Future hints that stay in the store.
#[derive(Debug, Default, Clone, Copy)]
struct Stays {
    hints: u64,
    bytes: u64,
    /// In how many microseconds the first of them can go out.
    wait: u64,
}

impl Stays {
    fn add(self, other: Self) -> Self {
        let wait = match (self.hints, other.hints) {
            (0, _) => other.wait,
            (_, 0) => self.wait,
            _ => self.wait.min(other.wait),
        };
        Self { hints: self.hints + other.hints, bytes: self.bytes + other.bytes, wait }
    }

    fn of(key: &[u8], record: &Record, limit: u64) -> Self {
        let wait = Clock::micros(record.when()).saturating_sub(Clock::micros(limit));
        Self { hints: 1, bytes: hint_bytes(key, record), wait }
    }
}

/// The hints of one node.
#[derive(Debug, Default)]
pub(super) struct Replay {
    state: State,
    /// The last key that was passed in this pass over the hints.
    after: Option<Bytes>,
    /// When this pass began, and what was counted then.
    began: u64,
    counted: (u64, u64),
    /// Since when it waits for the store to read, and how long it has done so in all.
    reads_since: u64,
    reading: u64,
    /// Whether it delivered anything, or dropped what need not be delivered.
    delivered: bool,
    /// The greatest time of a version that the node takes, if it refused some of it for its clock.
    refused: Option<u64>,
    /// Whether some of what was delivered is in the store still, and for how many passes before
    /// this one that was so.
    undropped: bool,
    vain_passes: u32,
    /// What it left.
    stays: Stays,
    not_before: u64,
    /// Until then, nothing is due if no more hints wait than stayed.
    stays_until: u64,
    wait: u64,
}

/// Microseconds without a pass after one that left something.
fn rest_after(now: Now, replay: &Replay) -> u64 {
    let vain = replay.vain_passes;
    let least = match replay.refused {
        Some(_) => MOST_WAIT,
        None => (FIRST_WAIT << vain.min(VAIN_PASSES + 1)).min(MOST_WAIT),
    };
    let took = match replay.stays.hints {
        _ if vain > VAIN_PASSES => now.mono.saturating_sub(replay.began),
        0 => 0,
        _ => replay.reading,
    };
    took.saturating_mul(REST).clamp(least, LOOK_AGAIN)
}

impl Node {
    pub(super) fn replay_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let has_left = |node: &NodeId| !self.view.has(*node);
        let gone: Vec<NodeId> = self.peers.ids().filter(has_left).collect();
        for peer in self.others().chain(gone) {
            let counted = self.shared.hints.waiting(peer);
            let replay = &mut self.peers.of(peer).replay;
            let idle = matches!(replay.state, State::Idle) && replay.not_before <= now.mono;
            let only_stays = counted.0 <= replay.stays.hints && now.mono < replay.stays_until;
            if !idle || counted.0 == 0 || only_stays {
                continue;
            }
            if replay.after.is_none() {
                (replay.began, replay.counted) = (now.mono, counted);
                (replay.delivered, replay.refused) = (false, None);
                (replay.reading, replay.undropped) = (0, false);
                replay.stays = Stays::default();
            }
            self.ask_for_hints(now, peer, out);
        }
    }

    fn ask_for_hints(&mut self, now: Now, peer: NodeId, out: &mut Vec<NodeEffect>) {
        let replay = &mut self.peers.of(peer).replay;
        replay.state = State::Reading;
        replay.reads_since = now.mono;
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
        let replay = &mut self.peers.of(peer).replay;
        replay.reading += now.mono.saturating_sub(replay.reads_since);
        match items.last().map(|(key, _)| key.clone()) {
            Some(last) => {
                self.send_hints(now, peer, Batch { items, stays: Stays::default(), last }, out);
            }
            None => self.end_of_pass(now, peer),
        }
    }

    /// Sends those of a batch that are not in the future, and goes on behind them. A pass may last
    /// long, so what that is goes by the time of each batch.
    fn send_hints(&mut self, now: Now, peer: NodeId, mut batch: Batch, out: &mut Vec<NodeEffect>) {
        self.drop_needless(peer, &mut batch, out);
        let replay = &mut self.peers.of(peer).replay;
        let limit = self.shared.clock.takes_up_to(now, self.config.max_skew_micros);
        let limit = replay.refused.map_or(limit, |refused| refused.min(limit));
        let stay = batch.items.extract_if(.., |(_, record)| record.when() > limit);
        batch.stays =
            stay.fold(batch.stays, |sum, (key, record)| sum.add(Stays::of(&key, &record, limit)));
        if batch.items.is_empty() {
            self.pass_batch(now, peer, batch, out);
            return;
        }
        let request = Request::Writes { items: batch.items.clone() };
        replay.state = State::Sending(batch);
        self.call(Caller::Replay(peer), peer, Class::Hint, request, out);
    }

    /// Drops those of records that are not placed on their node.
    fn drop_needless(&mut self, peer: NodeId, batch: &mut Batch, out: &mut Vec<NodeEffect>) {
        let is_elsewhere =
            |(key, record): &mut (Bytes, Record)| !self.view.places(peer, key, record.copies());
        let items: Vec<_> = batch.items.extract_if(.., is_elsewhere).collect();
        if !items.is_empty() {
            let bytes = items.iter().map(|(key, record)| hint_bytes(key, record)).sum();
            self.shared.hints.needless(peer, items.len() as u64, bytes);
            self.peers.of(peer).replay.delivered = true;
            out.push(NodeEffect::DropHints { peer, items });
        }
    }

    fn pass_batch(&mut self, now: Now, peer: NodeId, batch: Batch, out: &mut Vec<NodeEffect>) {
        let replay = &mut self.peers.of(peer).replay;
        replay.stays = replay.stays.add(batch.stays);
        replay.after = Some(batch.last);
        self.ask_for_hints(now, peer, out);
    }

    /// Hints that were delivered are in the store still, for the next pass to deliver again.
    pub(super) fn hints_stay(&mut self, peer: NodeId, hints: u64, bytes: u64) {
        self.shared.hints.found(peer, hints, bytes);
        self.peers.of(peer).replay.undropped = true;
    }

    /// Hints that came meanwhile may lie before where it ended, so there is another one unless
    /// this one delivered nothing at all.
    fn end_of_pass(&mut self, now: Now, peer: NodeId) {
        let replay = &mut self.peers.of(peer).replay;
        replay.state = State::Idle;
        replay.after = None;
        replay.not_before = now.mono;
        let stays = replay.stays;
        if !replay.delivered {
            let (hints, bytes) = replay.counted;
            let gone = (hints.saturating_sub(stays.hints), bytes.saturating_sub(stays.bytes));
            self.shared.hints.none_left(peer, gone);
        }
        replay.vain_passes = if replay.undropped { replay.vain_passes + 1 } else { 0 };
        if stays.hints > 0 || replay.undropped {
            replay.not_before += rest_after(now, replay);
            replay.stays_until = now.mono + stays.wait.min(LOOK_AGAIN);
        }
        self.shared.hints.stay(peer, stays.hints);
    }

    pub(super) fn replayed(
        &mut self,
        now: Now,
        peer: NodeId,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let replay = &mut self.peers.of(peer).replay;
        let State::Sending(batch) = std::mem::take(&mut replay.state) else { return };
        match result {
            Ok(Reply::Stored | Reply::Newer { .. }) => {
                replay.wait = FIRST_WAIT;
                replay.delivered = true;
                let items = batch.items.clone();
                let bytes = items.iter().map(|(key, record)| hint_bytes(key, record)).sum();
                self.shared.hints.delivered(peer, items.len() as u64, bytes);
                self.shared.logs.stored_late(peer);
                out.push(NodeEffect::DropHints { peer, items });
                self.pass_batch(now, peer, batch, out);
            }
            // Its clock is behind this one. Which of them it would take is found by halving.
            Ok(Reply::Ahead) => {
                let mut times: Vec<_> =
                    batch.items.iter().map(|(_, record)| record.when()).collect();
                times.sort_unstable();
                replay.refused = Some(times[times.len() / 2].saturating_sub(1));
                self.send_hints(now, peer, batch, out);
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
