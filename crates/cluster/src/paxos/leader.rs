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

use super::Changes;
use super::change::{Asker, ChangeStage, ChangeVote, ChangeWork, InTurn};
use crate::event::{Answer, Effect, FailureKind, OpId, RequestFailed, SlotId};
use crate::message::{NodeId, Reply};
use crate::paxos::operation::Change;
use crate::paxos::turns::{Turn, Turns};
use crate::protocol::core::{Core, Cx};
use crate::request::RequestCx;
use crate::request::acks::ReplicaSet;
use crate::request::part::{ReplicaError, VoteAt};
use crate::request::sets::PerSet;
use crate::request::slots::Slot;
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
pub(crate) struct Queues {
    waiting: BTreeMap<Turn, VecDeque<SlotId>>,
    count: usize,
    /// Turns that a write of this loop has: the next one is told when it ends.
    own: BTreeSet<Turn>,
    /// Those whose turn it is, to be begun once an event is handled.
    pub(crate) next: Vec<SlotId>,
}

impl Changes {
    /// Hands a client's write to the home of its key.
    pub(crate) fn bring_home(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let home = home(cx.core);
        if home == cx.core.shared.own {
            return self.wait_for_turn(cx, id);
        }
        let change = self.slots.work(id);
        change.stage = ChangeStage::Forwarded;
        change.votes = vec![ChangeVote::new(home, PerSet::default())];
        self.ask_of_change(cx, id, VoteAt(0));
    }

    /// The home replied.
    pub(crate) fn home_replied(&mut self, cx: &mut RequestCx<'_>, id: SlotId, reply: &Reply) {
        let adds = matches!(self.slots.work(id).conditional.change, Change::Add(_));
        match reply {
            Reply::Done { by, done } if done.fits(adds) => {
                // Places are those of the view that both went by when it was asked.
                let is_of_before = self.slots.work(id).of_earlier_view;
                let by = if is_of_before { ReplicaSet::default() } else { *by };
                self.answer_change(cx, id, *done, by, None);
            }
            // Or it says what makes no sense.
            Reply::Failed | Reply::Done { .. } => {
                let change = self.slots.work(id);
                change.elsewhere = true;
                self.coordinate_here(cx, id);
            }
            // Nothing was done.
            _ => self.coordinate_here(cx, id),
        }
    }

    /// The home did not reply, and won't.
    pub(crate) fn home_failed(&mut self, cx: &mut RequestCx<'_>, id: SlotId, error: ReplicaError) {
        if matches!(error, ReplicaError::Silent | ReplicaError::Failed) {
            self.slots.work(id).elsewhere = true;
        }
        self.coordinate_here(cx, id);
    }

    fn coordinate_here(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        self.make_votes(cx, id);
        self.wait_for_turn(cx, id);
    }

    /// Begins a write as soon as it is its turn.
    pub(crate) fn wait_for_turn(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let turn = Turns::of(&self.slots.get(id).key);
        let change = self.slots.work(id);
        (change.stage, change.since) = (ChangeStage::Queued, cx.now.mono);
        let is_own = self.queues.own.contains(&turn);
        let is_first = !self.queues.waiting.contains_key(&turn);
        if !is_own && is_first && cx.core.shared.paxos.turns.take(turn) {
            return self.begin_turn(cx, id, turn);
        }
        if self.queues.count >= MAX_QUEUED {
            let detail = "too many conditional writes wait for others of the same key";
            self.slots.get_mut(id).detail = Some(detail.to_owned());
            return self.deny_change(cx, id, FailureKind::Busy);
        }
        self.queues.count += 1;
        let queue = self.queues.waiting.entry(turn).or_default();
        queue.push_back(id);
        if !is_own && queue.len() == 1 {
            self.hedges.at(cx.now.mono + LOOK_AGAIN, id);
        }
    }

    fn begin_turn(&mut self, cx: &mut RequestCx<'_>, id: SlotId, turn: Turn) {
        self.slots.work(id).turn = Some(InTurn { turn, in_a_row: 1 });
        self.queues.own.insert(turn);
        self.try_change(cx, id);
    }

    /// It is looked whether the turn has come of a write that is the first of its queue.
    pub(crate) fn look_for_turn(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let turn = Turns::of(&self.slots.get(id).key);
        if !cx.core.shared.paxos.turns.take(turn) {
            return self.hedges.at(cx.now.mono + LOOK_AGAIN, id);
        }
        let first = self.pop(turn).expect("who looks is in the queue");
        self.begin_turn(cx, first, turn);
    }

    /// A write that waits is given up.
    pub(crate) fn leave_queue(&mut self, id: SlotId) {
        if !matches!(self.slots.work(id).stage, ChangeStage::Queued) {
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
                self.hedges.at(0, *first);
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
    pub(crate) fn take_followers(&mut self, id: SlotId) -> Vec<SlotId> {
        let (slots, mut followers) = (&self.slots, Vec::new());
        let first = slots.get(id);
        let Some(InTurn { turn, .. }) = first.work.turn else { return followers };
        let Some(queue) = self.queues.waiting.get_mut(&turn) else { return followers };
        if !first.work.is_fresh() {
            return followers;
        }
        let may_follow = |other: &Slot<ChangeWork>| {
            other.key == first.key && other.quorums == first.quorums && other.work.is_fresh()
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
    pub(crate) fn dissolve(&mut self, id: SlotId) {
        let followers = std::mem::take(&mut self.slots.work(id).followers);
        self.queue_again(id, followers);
    }

    /// A round that stores nothing can't detect a plain write that came after its promises were
    /// asked for. Followers that were queued before that are answered; later ones may have begun
    /// after such a write was acknowledged, and are queued again.
    pub(crate) fn part_with_late(&mut self, id: SlotId) {
        let change = self.slots.work(id);
        let (asked, followers) = (change.since, std::mem::take(&mut change.followers));
        let is_early = |follower: &SlotId| self.slots.get(*follower).work.since < asked;
        let (early, late) = followers.into_iter().partition(is_early);
        self.slots.work(id).followers = early;
        self.queue_again(id, late);
    }

    fn queue_again(&mut self, id: SlotId, followers: Vec<SlotId>) {
        let turn = Turns::of(&self.slots.get(id).key);
        for follower in followers.into_iter().rev() {
            // Its deadline may be over.
            if self.slots.find(follower).is_some() {
                self.slots.work(follower).stage = ChangeStage::Queued;
                self.queues.waiting.entry(turn).or_default().push_front(follower);
                self.queues.count += 1;
            }
        }
    }

    /// A write is answered: the next of this loop has its turn, but for the sake of other loops not
    /// too many of them in a row.
    pub(crate) fn end_turn(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let Some(InTurn { turn, in_a_row }) = self.slots.work(id).turn.take() else { return };
        let next = self.queues.waiting.get(&turn).and_then(|queue| queue.front().copied());
        // What became of one that was tried is not told for long.
        let is_fresh = next.is_none_or(|next| self.slots.work(next).is_fresh());
        if is_fresh && in_a_row >= MAX_IN_A_ROW && cx.core.shared.paxos.turns.is_wanted(turn) {
            self.give_up_turn(cx.core, turn);
            if let Some(next) = next {
                self.hedges.at(cx.now.mono + LOOK_AGAIN, next);
            }
            return;
        }
        match self.pop(turn) {
            None => self.give_up_turn(cx.core, turn),
            Some(next) => {
                let in_a_row = in_a_row + 1;
                self.slots.work(next).turn = Some(InTurn { turn, in_a_row });
                self.queues.next.push(next);
            }
        }
    }

    fn give_up_turn(&mut self, core: &Core, turn: Turn) {
        self.queues.own.remove(&turn);
        core.shared.paxos.turns.end(turn);
    }

    /// Those whose turn has come begin.
    pub(crate) fn begin_next(&mut self, cx: &mut RequestCx<'_>) -> bool {
        let Some(id) = self.queues.next.pop() else { return false };
        // Its deadline may be over by now: then it has passed its turn on.
        if self.slots.find(id).is_some() {
            self.try_change(cx, id);
        }
        true
    }

    /// A client's write, which nobody has begun, goes to its home.
    pub(super) fn look_for_home(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        self.make_votes(cx, id);
        self.bring_home(cx, id);
    }
}

/// The first of the replicas that were looked up last that is up, of the set that is read. Of one
/// that no link was made to yet that is not known.
fn home(core: &Core) -> NodeId {
    let is_up = |node: &NodeId| core.is_up(*node);
    core.replicas.read.iter().copied().find(is_up).unwrap_or(core.shared.own)
}

impl Asker {
    /// Answers whoever asked for a write with what came of it.
    pub(super) fn answer(self, cx: &mut Cx<'_>, answer: Answer) {
        match self {
            Self::Client(client) => cx.out.push(Effect::Answer { client, answer }),
            Self::Reader(reader) => reader.answer(cx, answer),
            Self::Peer(op @ OpId::Peer { placement, .. }) => {
                let is_of_before = placement != cx.core.view.id().placement;
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
                cx.respond(op, reply);
            }
            Self::Peer(OpId::Slot(_)) => unreachable!("a node does not hand itself a write"),
        }
    }
}
