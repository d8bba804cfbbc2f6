//! Routes conditional writes to the key's leader, which coordinates the writes of a key in
//! sequence.
//!
//! ```text
//!  write ─▶ is this node the first of the key's replicas that is up?
//!             ├─ no ──▶ sent to that replica (Change) ─┬─ done ──▶ answer
//!             │                                        └─ not done ──▶ this node leads the write
//!             └─ yes ─▶ queue of the key ─▶ key lock ─▶ Prepare …
//! ```
//!
//! With one leader, the writes of a key wait for each other instead of outbidding each other. A
//! round combines up to eight writes that wait when a majority has promised. Safety does not depend
//! on the leader: any node may coordinate at any time. If the connection to the leader is lost
//! while a write is outstanding, this node determines whether the write was done, and does not
//! repeat it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Changes;
use super::change_work::{ChangeRequester, ChangeStage, ChangeVote, ChangeWork, HeldLock};
use crate::dispatch::core::{Core, Cx};
use crate::event::{Answer, Effect, FailureKind, OpId, RequestFailure, SlotId};
use crate::message::{NodeId, Reply};
use crate::paxos::key_locks::{KeyLock, KeyLocks};
use crate::paxos::operation::Change;
use crate::request::RequestCx;
use crate::request::outstanding::{ReplicaError, VoteIndex};
use crate::request::receipt::ReplicaSet;
use crate::request::sets::PerSet;
use crate::request::slots::Slot;
use record::MAX_OPERATIONS;

/// The largest number of conditional writes that wait for a key lock on one loop; further writes
/// are refused as overload.
const MAX_QUEUED: usize = 4096;

/// The interval at which a loop polls for a key lock that another loop holds, in microseconds.
const POLL_MICROS: u64 = 500;

/// The number of consecutive rounds (some milliseconds) after which a loop releases a key lock if
/// another loop wants it.
const MAX_IN_A_ROW: u32 = 16;

/// The largest number of other writes in a write's round: after a failed round, the key's history
/// must show whether each of them was done.
const MAX_FOLLOWERS: usize = MAX_OPERATIONS - 1;

/// The number of queued writes that are searched for followers.
const FOLLOWER_SEARCH_LIMIT: usize = 64;

/// The waiting conditional writes of one loop, in a queue for each key lock.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: BTreeMap<KeyLock, VecDeque<SlotId>>,
    count: usize,
    /// Key locks that this loop holds. When a write ends, its lock passes to the next waiting
    /// write.
    own: BTreeSet<KeyLock>,
    /// Writes that have received their lock, and begin after the present event.
    pub(crate) next: Vec<SlotId>,
}

impl Changes {
    /// Forwards a client's write to its key's leader.
    pub(crate) fn forward_to_leader(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let home = leader(cx.core);
        if home == cx.core.shared.own {
            return self.wait_for_lock(cx, id);
        }
        let change = self.slots.work(id);
        change.stage = ChangeStage::Forwarded;
        change.votes = vec![ChangeVote::new(home, PerSet::default())];
        self.ask_of_change(cx, id, VoteIndex(0));
    }

    /// Handles the leader's reply.
    pub(crate) fn on_leader_reply(&mut self, cx: &mut RequestCx<'_>, id: SlotId, reply: &Reply) {
        let adds = matches!(self.slots.work(id).conditional.change, Change::Add(_));
        match reply {
            Reply::Done { by, done } if done.is_possible_for(adds) => {
                // `by` has positions in the view that both nodes had when the write was forwarded.
                let is_of_earlier_view = self.slots.work(id).was_tried_under_earlier_view;
                let by = if is_of_earlier_view { ReplicaSet::default() } else { *by };
                self.answer_change(cx, id, *done, by, None);
            }
            // Only a faulty peer sends a `Done` that does not fit the write; it is handled like
            // `Failed`.
            Reply::Failed | Reply::Done { .. } => {
                let change = self.slots.work(id);
                change.elsewhere = true;
                self.coordinate_here(cx, id);
            }
            // The leader has not begun the write.
            _ => self.coordinate_here(cx, id),
        }
    }

    /// Handles a leader's failure to reply.
    pub(crate) fn on_leader_failure(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        error: ReplicaError,
    ) {
        if matches!(error, ReplicaError::Silent | ReplicaError::Failed) {
            self.slots.work(id).elsewhere = true;
        }
        self.coordinate_here(cx, id);
    }

    fn coordinate_here(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        self.make_votes(cx, id);
        self.wait_for_lock(cx, id);
    }

    /// Begins a write as soon as it gets its key lock.
    pub(crate) fn wait_for_lock(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let lock = KeyLocks::of(&self.slots.get(id).key);
        let change = self.slots.work(id);
        (change.stage, change.since) = (ChangeStage::Queued, cx.now.mono);
        let is_own = self.queues.own.contains(&lock);
        let is_first = !self.queues.waiting.contains_key(&lock);
        if !is_own && is_first && cx.core.shared.paxos.key_locks.take(lock) {
            return self.start_locked(cx, id, lock);
        }
        if self.queues.count >= MAX_QUEUED {
            let detail = "too many conditional writes wait for others of the same key";
            self.slots.get_mut(id).detail = Some(detail.to_owned());
            return self.fail_change(cx, id, FailureKind::Busy);
        }
        self.queues.count += 1;
        let queue = self.queues.waiting.entry(lock).or_default();
        queue.push_back(id);
        if !is_own && queue.len() == 1 {
            self.hedges.at(cx.now.mono + POLL_MICROS, id);
        }
    }

    fn start_locked(&mut self, cx: &mut RequestCx<'_>, id: SlotId, lock: KeyLock) {
        self.slots.work(id).held = Some(HeldLock { lock, in_a_row: 1 });
        self.queues.own.insert(lock);
        self.try_change(cx, id);
    }

    /// Polls for the key lock on behalf of the first write of the queue.
    pub(crate) fn try_lock(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let lock = KeyLocks::of(&self.slots.get(id).key);
        if !cx.core.shared.paxos.key_locks.take(lock) {
            return self.hedges.at(cx.now.mono + POLL_MICROS, id);
        }
        let first = self.pop(lock).expect("who looks is in the queue");
        self.start_locked(cx, first, lock);
    }

    /// Removes a failed write from its queue.
    pub(crate) fn leave_queue(&mut self, id: SlotId) {
        if !matches!(self.slots.work(id).stage, ChangeStage::Queued) {
            return;
        }
        let lock = KeyLocks::of(&self.slots.get(id).key);
        let Some(queue) = self.queues.waiting.get_mut(&lock) else { return };
        let Some(place) = queue.iter().position(|waits| *waits == id) else { return };
        queue.remove(place);
        assert!(self.queues.count > 0, "each that waits was counted");
        self.queues.count -= 1;
        match queue.front() {
            None => drop(self.queues.waiting.remove(&lock)),
            // The write that is now first polls for the lock.
            Some(first) if place == 0 && !self.queues.own.contains(&lock) => {
                self.hedges.at(0, *first);
            }
            Some(_) => {}
        }
    }

    /// Removes and returns the first waiting write; `None` = no write waits.
    fn pop(&mut self, lock: KeyLock) -> Option<SlotId> {
        let queue = self.queues.waiting.get_mut(&lock)?;
        let first = queue.pop_front().expect("a queue is dropped when it is empty");
        self.queues.count -= 1;
        if queue.is_empty() {
            self.queues.waiting.remove(&lock);
        }
        Some(first)
    }

    /// Takes at most `most` writes of the same key out of the queue, to be carried out in the round
    /// of the write `id`.
    pub(crate) fn take_followers(&mut self, id: SlotId, most: usize) -> Vec<SlotId> {
        let (slots, mut followers) = (&self.slots, Vec::new());
        let first = slots.get(id);
        let Some(HeldLock { lock, .. }) = first.work.held else { return followers };
        let Some(queue) = self.queues.waiting.get_mut(&lock) else { return followers };
        if !first.work.is_fresh() {
            return followers;
        }
        let may_follow = |other: &Slot<ChangeWork>| {
            other.key == first.key && other.quorums == first.quorums && other.work.is_fresh()
        };
        let mut place = 0;
        while place < queue.len().min(FOLLOWER_SEARCH_LIMIT)
            && followers.len() < most.min(MAX_FOLLOWERS)
        {
            if may_follow(slots.get(queue[place])) {
                followers.extend(queue.remove(place));
            } else {
                place += 1;
            }
        }
        assert!(self.queues.count >= followers.len(), "each that waits was counted");
        self.queues.count -= followers.len();
        if queue.is_empty() {
            self.queues.waiting.remove(&lock);
        }
        followers
    }

    /// Dissolves a failed round: its followers return to the head of the queue.
    pub(crate) fn dissolve_batch(&mut self, id: SlotId) {
        let followers = std::mem::take(&mut self.slots.work(id).followers);
        self.queue_again(id, followers);
    }

    /// Splits off late followers. A round that stores nothing does not detect a plain write that
    /// came after the round requested its promises. So only followers that were queued before that
    /// request are answered. A later follower may have begun after such a plain write was
    /// acknowledged, and is queued again.
    pub(crate) fn split_off_late(&mut self, id: SlotId) {
        let change = self.slots.work(id);
        let (asked, followers) = (change.since, std::mem::take(&mut change.followers));
        let is_early = |follower: &SlotId| self.slots.get(*follower).work.since < asked;
        let (early, late) = followers.into_iter().partition(is_early);
        self.slots.work(id).followers = early;
        self.queue_again(id, late);
    }

    fn queue_again(&mut self, id: SlotId, followers: Vec<SlotId>) {
        let lock = KeyLocks::of(&self.slots.get(id).key);
        for follower in followers.into_iter().rev() {
            // The follower's deadline may have passed.
            if self.slots.find(follower).is_some() {
                self.slots.work(follower).stage = ChangeStage::Queued;
                self.queues.waiting.entry(lock).or_default().push_front(follower);
                self.queues.count += 1;
            }
        }
    }

    /// Passes the key lock of an answered write to this loop's next write. After a number of
    /// consecutive rounds, releases the lock instead if another loop wants it.
    pub(crate) fn unlock(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let Some(HeldLock { lock, in_a_row }) = self.slots.work(id).held.take() else { return };
        let next = self.queues.waiting.get(&lock).and_then(|queue| queue.front().copied());
        // Replicas remember the outcome of a tried write only briefly, so a tried write that is
        // next keeps the lock.
        let is_fresh = next.is_none_or(|next| self.slots.work(next).is_fresh());
        if is_fresh && in_a_row >= MAX_IN_A_ROW && cx.core.shared.paxos.key_locks.is_wanted(lock) {
            self.release_lock(cx.core, lock);
            if let Some(next) = next {
                self.hedges.at(cx.now.mono + POLL_MICROS, next);
            }
            return;
        }
        match self.pop(lock) {
            None => self.release_lock(cx.core, lock),
            Some(next) => {
                let in_a_row = in_a_row + 1;
                self.slots.work(next).held = Some(HeldLock { lock, in_a_row });
                self.queues.next.push(next);
            }
        }
    }

    fn release_lock(&mut self, core: &Core, lock: KeyLock) {
        self.queues.own.remove(&lock);
        core.shared.paxos.key_locks.end(lock);
    }

    /// Begins a write that has received its key lock; returns `false` if there is no such write.
    pub(crate) fn begin_next(&mut self, cx: &mut RequestCx<'_>) -> bool {
        let Some(id) = self.queues.next.pop() else { return false };
        // A write that has expired meanwhile has already passed its lock on.
        if self.slots.find(id).is_some() {
            self.try_change(cx, id);
        }
        true
    }

    /// Sends a client's write to the key's leader again, because no node has begun the write.
    pub(super) fn forward_again(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        self.make_votes(cx, id);
        self.forward_to_leader(cx, id);
    }
}

/// Returns the leader: of the read set's replicas of the key that was looked up last, the first
/// that is up. A node without a connection so far counts as down.
fn leader(core: &Core) -> NodeId {
    let is_up = |node: &NodeId| core.is_up(*node);
    core.replicas.read.iter().copied().find(is_up).unwrap_or(core.shared.own)
}

impl ChangeRequester {
    /// Answers the requester of the write.
    pub(super) fn answer(self, cx: &mut Cx<'_>, answer: Answer) {
        match self {
            Self::Client(client) => cx.out.push(Effect::Answer { client, answer }),
            Self::Reader(Some(reader)) => reader.answer(cx, answer),
            Self::Reader(None) => {}
            Self::Peer(op @ OpId::Peer { placement, .. }) => {
                let is_of_earlier_view = placement != cx.core.view.id().placement;
                let reply = match answer {
                    // The requester would take these positions for positions in its own view.
                    Answer::Done(done, _) if is_of_earlier_view => {
                        Reply::Done { by: ReplicaSet::default(), done }
                    }
                    Answer::Done(done, acks) => Reply::Done { by: acks.by, done },
                    Answer::Failed(RequestFailure { unknown: false, failure, .. }) => {
                        let is_full = failure == FailureKind::NoSpace;
                        if is_full { Reply::NoSpace } else { Reply::Busy }
                    }
                    _ => Reply::Failed,
                };
                cx.reply_unchecked(op, reply);
            }
            Self::Peer(OpId::Slot(_)) => unreachable!("a node does not hand itself a write"),
        }
    }
}
