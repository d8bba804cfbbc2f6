//! Who coordinates a conditional write, and when: the *home* of its key, one after the other.
//!
//! ```text
//!  change ─▶ is this node the first of the key's replicas that is up?
//!              ├─ no ──▶ Change ──▶ the one that is ─┬─ done ──▶ answer
//!              │                                     └─ it was not ──▶ this node, as its own home
//!              └─ yes ─▶ queue of the key ─▶ its turn ─▶ Prepare …
//! ```
//!
//! That is so that writes of one key wait for each other instead of outbidding each other; and what
//! waits when a majority has promised is done in one round, up to eight of them. Nothing depends on
//! it: anybody may coordinate at any time. If the connection to the home is lost with a write, this
//! node looks whether the write was done, and does not do it once more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::state::{Asker, ChangeVote, InTurn, Stage};
use super::{Coordinator, change_of};
use crate::acks::ReplicaSet;
use crate::clock::Now;
use crate::conditional::Change;
use crate::coordinator::part::{ReplicaError, VoteAt};
use crate::coordinator::sets::PerSet;
use crate::coordinator::slots::Slot;
use crate::event::{Answer, Effect, FailureKind, OpId, RequestFailed, SlotId};
use crate::message::{NodeId, Reply};
use crate::turns::{Turn, Turns};
use record::MAX_OPERATIONS;

/// Conditional writes that wait for their turn on one loop; more are refused as overload.
const MAX_QUEUED: usize = 4096;

/// How often it is looked whether another loop of this node has ended its turn, in microseconds.
const LOOK_AGAIN: u64 = 500;

/// A loop ends its turn after so many rounds if another one waits for it: some milliseconds.
const MAX_IN_A_ROW: u32 = 16;

/// So many others are done in a write's round: the key must tell of each of them whether it was
/// done, should the round fail.
const MAX_FOLLOWERS: usize = MAX_OPERATIONS - 1;

/// They are looked for among so many that wait.
const FOLLOWERS_WITHIN: usize = 64;

/// Conditional writes of one loop that wait for their turn.
#[derive(Debug, Default)]
pub(in crate::coordinator) struct Queues {
    waiting: BTreeMap<Turn, VecDeque<SlotId>>,
    count: usize,
    /// Turns that a write of this loop has: the next one is told when it ends.
    own: BTreeSet<Turn>,
    /// Those whose turn it is, to be begun once an event is handled.
    pub(in crate::coordinator) next: Vec<SlotId>,
}

impl Coordinator {
    /// The first of the replicas in `self.replicas` that is up, of the set that is read. Of one
    /// that no link was made to yet that is not known.
    fn home(&self) -> NodeId {
        let is_up = |node: &NodeId| self.is_up(*node);
        self.replicas.read.iter().copied().find(is_up).unwrap_or(self.shared.own)
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        node == self.shared.own || self.peers.is_up(node)
    }

    /// Hands a client's write to the home of its key.
    pub(in crate::coordinator) fn bring_home(
        &mut self,
        now: Now,
        id: SlotId,
        out: &mut Vec<Effect>,
    ) {
        let home = self.home();
        if home == self.shared.own {
            return self.wait_for_turn(now, id, out);
        }
        let change = self.slots.change(id);
        change.stage = Stage::Forwarded;
        change.votes = vec![ChangeVote::new(home, PerSet::default())];
        self.ask_of_change(now, id, VoteAt(0), out);
    }

    /// The home replied.
    pub(super) fn home_replied(
        &mut self,
        now: Now,
        id: SlotId,
        reply: &Reply,
        out: &mut Vec<Effect>,
    ) {
        let adds = matches!(self.slots.change(id).conditional.change, Change::Add(_));
        match reply {
            Reply::Done { by, done } if done.fits(adds) => {
                // Places are those of the view that both went by when it was asked.
                let is_of_before = self.slots.change(id).of_earlier_view;
                let by = if is_of_before { ReplicaSet::default() } else { *by };
                self.answer_change(now, id, *done, by, None, out);
            }
            // Or it says what makes no sense.
            Reply::Failed | Reply::Done { .. } => {
                let change = self.slots.change(id);
                change.elsewhere = true;
                self.coordinate_here(now, id, out);
            }
            // Nothing was done.
            _ => self.coordinate_here(now, id, out),
        }
    }

    /// The home did not reply, and won't.
    pub(super) fn home_failed(
        &mut self,
        now: Now,
        id: SlotId,
        error: ReplicaError,
        out: &mut Vec<Effect>,
    ) {
        if matches!(error, ReplicaError::Silent | ReplicaError::Failed) {
            self.slots.change(id).elsewhere = true;
        }
        self.coordinate_here(now, id, out);
    }

    fn coordinate_here(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let id = self.slots.renew(id);
        self.make_change_votes(id);
        self.wait_for_turn(now, id, out);
    }

    /// Begins a write as soon as it is its turn.
    pub(super) fn wait_for_turn(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let turn = Turns::of(&self.slots.get(id).key);
        let change = self.slots.change(id);
        (change.stage, change.since) = (Stage::Queued, now.mono);
        let is_own = self.queues.own.contains(&turn);
        let is_first = !self.queues.waiting.contains_key(&turn);
        if !is_own && is_first && self.shared.turns.take(turn) {
            return self.begin_turn(now, id, turn, out);
        }
        if self.queues.count >= MAX_QUEUED {
            let detail = "too many conditional writes wait for others of the same key";
            self.slots.get_mut(id).detail = Some(detail.to_owned());
            return self.deny_change(now, id, FailureKind::Busy, out);
        }
        self.queues.count += 1;
        let queue = self.queues.waiting.entry(turn).or_default();
        queue.push_back(id);
        if !is_own && queue.len() == 1 {
            self.slots.hedge_at(now.mono + LOOK_AGAIN, id);
        }
    }

    fn begin_turn(&mut self, now: Now, id: SlotId, turn: Turn, out: &mut Vec<Effect>) {
        self.slots.change(id).turn = Some(InTurn { turn, in_a_row: 1 });
        self.queues.own.insert(turn);
        self.try_change(now, id, out);
    }

    /// It is looked whether the turn has come of a write that is the first of its queue.
    pub(super) fn look_for_turn(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let turn = Turns::of(&self.slots.get(id).key);
        if !self.shared.turns.take(turn) {
            return self.slots.hedge_at(now.mono + LOOK_AGAIN, id);
        }
        let first = self.pop(turn).expect("who looks is in the queue");
        self.begin_turn(now, first, turn, out);
    }

    /// A write that waits is given up.
    pub(super) fn leave_queue(&mut self, id: SlotId) {
        if !matches!(self.slots.change(id).stage, Stage::Queued) {
            return;
        }
        let turn = Turns::of(&self.slots.get(id).key);
        let Some(queue) = self.queues.waiting.get_mut(&turn) else { return };
        let Some(place) = queue.iter().position(|waits| *waits == id) else { return };
        queue.remove(place);
        assert!(self.queues.count > 0, "each that waits was counted");
        self.queues.count -= 1;
        match queue.front() {
            None => drop(self.queues.waiting.remove(&turn)),
            // The first one looks whether its turn has come.
            Some(first) if place == 0 && !self.queues.own.contains(&turn) => {
                self.slots.hedge_at(0, *first);
            }
            Some(_) => {}
        }
    }

    /// The first that waits.
    fn pop(&mut self, turn: Turn) -> Option<SlotId> {
        let queue = self.queues.waiting.get_mut(&turn)?;
        let first = queue.pop_front().expect("a queue is dropped when it is empty");
        self.queues.count -= 1;
        if queue.is_empty() {
            self.queues.waiting.remove(&turn);
        }
        Some(first)
    }

    /// Takes writes of the same key out of the queue, to be done in the round of this one.
    pub(super) fn take_followers(&mut self, id: SlotId) -> Vec<SlotId> {
        let (slots, mut followers) = (&self.slots, Vec::new());
        let first = slots.get(id);
        let Some(InTurn { turn, .. }) = change_of(first).turn else { return followers };
        let Some(queue) = self.queues.waiting.get_mut(&turn) else { return followers };
        if !change_of(first).is_fresh() {
            return followers;
        }
        let may_follow = |other: &Slot| {
            other.key == first.key && other.quorums == first.quorums && change_of(other).is_fresh()
        };
        let mut place = 0;
        while place < queue.len().min(FOLLOWERS_WITHIN) && followers.len() < MAX_FOLLOWERS {
            if may_follow(slots.get(queue[place])) {
                followers.extend(queue.remove(place));
            } else {
                place += 1;
            }
        }
        assert!(self.queues.count >= followers.len(), "each that waits was counted");
        self.queues.count -= followers.len();
        if queue.is_empty() {
            self.queues.waiting.remove(&turn);
        }
        followers
    }

    /// A round is not done: its followers wait for their own turns, before all others.
    pub(super) fn dissolve(&mut self, id: SlotId) {
        let followers = std::mem::take(&mut self.slots.change(id).followers);
        self.queue_again(id, followers);
    }

    /// A round changes nothing, so that it does not show whether a plain write came since promises
    /// were asked for. What began to wait before that is answered; the others may have begun after
    /// such a write was acknowledged, and wait for their own turns.
    pub(super) fn part_with_late(&mut self, id: SlotId) {
        let change = self.slots.change(id);
        let (asked, followers) = (change.since, std::mem::take(&mut change.followers));
        let is_early = |follower: &SlotId| change_of(self.slots.get(*follower)).since < asked;
        let (early, late) = followers.into_iter().partition(is_early);
        self.slots.change(id).followers = early;
        self.queue_again(id, late);
    }

    fn queue_again(&mut self, id: SlotId, followers: Vec<SlotId>) {
        let turn = Turns::of(&self.slots.get(id).key);
        for follower in followers.into_iter().rev() {
            // Its deadline may be over.
            if self.slots.find(follower).is_some() {
                self.slots.change(follower).stage = Stage::Queued;
                self.queues.waiting.entry(turn).or_default().push_front(follower);
                self.queues.count += 1;
            }
        }
    }

    /// A write is answered: the next of this loop has its turn, but for the sake of other loops not
    /// too many of them in a row.
    pub(super) fn end_turn(&mut self, now: Now, id: SlotId) {
        let Some(InTurn { turn, in_a_row }) = self.slots.change(id).turn.take() else { return };
        let next = self.queues.waiting.get(&turn).and_then(|queue| queue.front().copied());
        // What became of one that was tried is not told for long.
        let is_fresh = next.is_none_or(|next| self.slots.change(next).is_fresh());
        if is_fresh && in_a_row >= MAX_IN_A_ROW && self.shared.turns.is_wanted(turn) {
            self.give_up_turn(turn);
            if let Some(next) = next {
                self.slots.hedge_at(now.mono + LOOK_AGAIN, next);
            }
            return;
        }
        match self.pop(turn) {
            None => self.give_up_turn(turn),
            Some(next) => {
                let in_a_row = in_a_row + 1;
                self.slots.change(next).turn = Some(InTurn { turn, in_a_row });
                self.queues.next.push(next);
            }
        }
    }

    fn give_up_turn(&mut self, turn: Turn) {
        self.queues.own.remove(&turn);
        self.shared.turns.end(turn);
    }

    /// Those whose turn has come begin.
    pub(in crate::coordinator) fn begin_next(&mut self, now: Now, out: &mut Vec<Effect>) -> bool {
        let Some(id) = self.queues.next.pop() else { return false };
        // Its deadline may be over by now: then it has passed its turn on.
        if self.slots.find(id).is_some() {
            self.try_change(now, id, out);
        }
        true
    }

    /// Answers whoever asked for a write with what came of it.
    pub(super) fn answer_asker(&mut self, asker: Asker, answer: Answer, out: &mut Vec<Effect>) {
        match asker {
            Asker::Client(client) => out.push(Effect::Answer { client, answer }),
            Asker::Reader(reader) => self.answer_reader(reader, answer, out),
            Asker::Peer(op @ OpId::Peer { placement, .. }) => {
                let is_of_before = placement != self.view.id().placement;
                let reply = match answer {
                    // Places would be taken for those of the view that it was asked under.
                    Answer::Done(done, _) if is_of_before => {
                        Reply::Done { by: ReplicaSet::default(), done }
                    }
                    Answer::Done(done, acks) => Reply::Done { by: acks.by, done },
                    Answer::Failed(RequestFailed { unknown: false, failure, .. }) => {
                        let is_full = failure == FailureKind::NoSpace;
                        if is_full { Reply::NoSpace } else { Reply::Busy }
                    }
                    _ => Reply::Failed,
                };
                self.respond_to_op(op, reply, out);
            }
            Asker::Peer(OpId::Slot(_)) => unreachable!("a node does not hand itself a write"),
        }
    }
}
