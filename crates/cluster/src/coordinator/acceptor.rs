//! The replica's side of conditional writes: promises, and records that are stored only if they may
//! be.
//!
//! ```text
//!  Prepare ─▶ promise ─▶ read ─▶ the newest record
//!  Write of a record with a ballot ─▶ hold the key's bucket ─▶ read ─┬─▶ write, durably ─▶ Stored
//!                       ▲              ├─ Outbid                     └─ outranked ─▶ Newer
//!                       └─ a little later ◀─ another one is being stored there
//! ```
//!
//! Source: D. Rystsov, *CASPaxos: Replicated State Machines without logs* (2018), section 2.2, with
//! a register that plain writes overwrite without asking.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Coordinator;
use crate::clock::{Clock, Now};
use crate::conditional::{REMEMBERED_MICROS, has_idempotency_key};
use crate::event::{Demand, Effect, OpId, Shared, StoreError};
use crate::message::{Class, Reply};
use crate::promises::Held;
use crate::recent::{Recalled, Via, WriteName};
use crate::topology::partition_of;
use record::{Record, Steps};

/// How often it is looked whether a record that another loop stores is stored, in microseconds.
const LOOK_AGAIN: u64 = 500;

/// What is under way on a replica. One entry for each request of a coordinator that has not been
/// answered, so no more than there are of those.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    /// Promises that were given, while the record is read.
    promised: BTreeMap<OpId, Promised>,
    storing: BTreeMap<OpId, Storing>,
    /// Records that come after others which are being stored: a coordinator goes on as soon as a
    /// majority has stored one, and this replica may be slower.
    waiting: BTreeMap<u16, VecDeque<(OpId, Demand, Arrived)>>,
    /// When it is looked whether they can be stored.
    look_at: u64,
    /// Partitions in which a record was stored just now, and others wait.
    freed: Vec<u16>,
    /// Records that conditional writes made, in pages from other nodes that are being stored.
    pages: BTreeMap<OpId, Page>,
}

/// What a coordinator that asked for a promise is told, once the record is read.
#[derive(Debug)]
struct Promised {
    /// Until when it is of use.
    until: u64,
    /// Whether this node has all of the key's partition: it is not still to take it.
    is_whole: bool,
}

/// Some records of other nodes.
#[derive(Debug)]
struct Page {
    items: Vec<(Bytes, Record)>,
    /// Whether nothing is promised until they are stored.
    pauses: bool,
}

/// A record that has arrived to be stored.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) key: Bytes,
    pub(super) record: Record,
    /// Whether its coordinator has asked for no promises since its last one.
    pub(super) goes_on: bool,
}

/// A record that is to be stored.
#[derive(Debug)]
struct Storing {
    key: Bytes,
    record: Record,
    /// The conditional writes that are in the record before it.
    before: Steps,
    demand: Demand,
    held: Held,
    /// Of the view by which it was asked for.
    epoch: u64,
    /// Whether it was handed to the store: until then it is only looked what is there.
    writes: bool,
}

impl Acceptor {
    pub(super) fn is_empty(&self) -> bool {
        self.promised.is_empty() && self.storing.is_empty() && self.waiting.is_empty()
    }

    /// When it is looked again, if anything waits.
    pub(super) fn next_look(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.look_at)
    }

    /// Whether the store was asked to read for this.
    pub(super) fn reads(&self, op: OpId) -> bool {
        !self.is_empty()
            && (self.promised.contains_key(&op)
                || self.storing.get(&op).is_some_and(|storing| !storing.writes))
    }
}

impl Coordinator {
    /// A coordinator asks for a promise.
    pub(super) fn prepare(
        &mut self,
        now: Now,
        op: OpId,
        (key, ballot, most): (Bytes, u64, u32),
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        if self.is_late(now, op, ballot) {
            return self.done(op, Reply::Ahead, out);
        }
        // It may have promised more than it knows, or could not know it after a crash.
        let membership = &self.shared.membership;
        let knows = membership.is_authoritative_for_all() && ballot > membership.promised_before();
        if !knows || !self.admits(now, op, ballot) {
            // Of one that is of the other set alone this would be a promise.
            let is_read = self.view.topology.holds(self.shared.own, partition_of(&key), 0);
            let refusal =
                if is_read { Reply::Absent { authoritative: false } } else { Reply::Busy };
            return self.done(op, refusal, out);
        }
        if let Err(promise) = self.shared.promises.promise(&key, ballot) {
            return self.done(op, Reply::Outbid { promise }, out);
        }
        // One that is still to take the partition promises too, and tells what it holds: a majority
        // of those to come counts for itself once they are alone.
        let is_whole = !self.is_to_take(|| partition_of(&key));
        self.acceptor.promised.insert(op, Promised { until: demand.until, is_whole });
        out.push(Effect::Read { op, key, most, demand });
    }

    /// A record that a conditional write made is to be stored: by its coordinator, or by whoever
    /// found it elsewhere.
    pub(super) fn accept(
        &mut self,
        now: Now,
        op: OpId,
        arrived: Arrived,
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        if let Some(waits) = self.try_accept(now, op, arrived, demand, out) {
            let partition = partition_of(&waits.key);
            let waiting = &mut self.acceptor.waiting;
            if waiting.is_empty() {
                self.acceptor.look_at = now.mono + LOOK_AGAIN;
            }
            waiting.entry(partition).or_default().push_back((op, demand, waits));
        }
    }

    /// Returns what has to wait: nothing higher is promised, but another record is being stored, or
    /// a page of them.
    fn try_accept(
        &mut self,
        now: Now,
        op: OpId,
        arrived: Arrived,
        demand: Demand,
        out: &mut Vec<Effect>,
    ) -> Option<Arrived> {
        let ballot = arrived.record.ballot();
        let refusal = match self.refusal(now, op, &arrived) {
            Some(refusal) => refusal,
            None => match self.shared.promises.hold(&arrived.key, ballot) {
                Ok(held) => {
                    let Arrived { key, record, .. } = arrived;
                    let most = self.config.brief_bytes;
                    out.push(Effect::Read { op, key: key.clone(), most, demand });
                    let before = Steps::default();
                    let (epoch, writes) = (self.view.epoch, false);
                    let storing = Storing { key, record, before, demand, held, epoch, writes };
                    self.acceptor.storing.insert(op, storing);
                    return None;
                }
                Err(promise) if promise <= ballot => return Some(arrived),
                Err(promise) => Reply::Outbid { promise },
            },
        };
        self.done(op, refusal, out);
        None
    }

    /// Why a record is not stored, whatever is promised.
    fn refusal(&self, now: Now, op: OpId, arrived: &Arrived) -> Option<Reply> {
        let ballot = arrived.record.ballot();
        let membership = &self.shared.membership;
        // A life that lost its disk may have promised that much.
        let promise = membership.promised_before();
        if ballot <= promise {
            return Some(Reply::Outbid { promise });
        }
        // As long as it does not know what it lost it may have promised more than it knows; and
        // without the plain writes that it lost it would let pass what goes on from before them.
        if !membership.knows_what_it_lost() || arrived.goes_on && !self.is_whole(&arrived.key) {
            return Some(Reply::Absent { authoritative: false });
        }
        // A faulty peer asks two things under one id.
        let is_known = self.acceptor.storing.contains_key(&op);
        (is_known || !self.admits(now, op, ballot)).then_some(Reply::Busy)
    }

    /// What waits is stored as far as it can be: in partitions where a record of this loop was
    /// stored just now.
    pub(super) fn accepts_after_others(&mut self, now: Now, out: &mut Vec<Effect>) -> bool {
        let Some(partition) = self.acceptor.freed.pop() else { return false };
        self.accepts_waiting(now, partition, out);
        true
    }

    /// The same in all of them, for other loops may have stored one.
    pub(super) fn look_again(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.acceptor.look_at = now.mono + LOOK_AGAIN;
        let partitions: Vec<u16> = self.acceptor.waiting.keys().copied().collect();
        for partition in partitions {
            self.accepts_waiting(now, partition, out);
        }
    }

    fn accepts_waiting(&mut self, now: Now, partition: u16, out: &mut Vec<Effect>) {
        let Some(mut waiting) = self.acceptor.waiting.remove(&partition) else { return };
        while let Some((op, demand, arrived)) = waiting.pop_front() {
            // Else nobody waits for the reply.
            if demand.until > now.mono
                && let Some(waits) = self.try_accept(now, op, arrived, demand, out)
            {
                waiting.push_front((op, demand, waits));
                break;
            }
        }
        if !waiting.is_empty() {
            self.acceptor.waiting.insert(partition, waiting);
        }
    }

    /// The store read for a promise, or before a record is stored.
    pub(super) fn accepts_read(
        &mut self,
        op: OpId,
        read: Result<Reply, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(Promised { is_whole: authoritative, .. }) = self.acceptor.promised.remove(&op) {
            let reply = match read {
                Ok(Reply::Found { record, .. }) => Reply::Found { record, authoritative },
                Ok(Reply::Long { outline, .. }) => Reply::Long { outline, authoritative },
                Ok(_) => Reply::Absent { authoritative },
                Err(error) => super::replica::reply_to_error(&error),
            };
            return self.done(op, reply, out);
        }
        let storing = self.acceptor.storing.get_mut(&op).expect("it was just found");
        let rank = match read {
            Ok(Reply::Found { record, .. }) => {
                storing.before = record.steps();
                Some(record.rank())
            }
            Ok(Reply::Long { outline, .. }) => Some(outline.rank),
            Ok(_) => None,
            Err(error) => {
                self.give_up(op);
                return self.done(op, super::replica::reply_to_error(&error), out);
            }
        };
        if let Some(rank) = rank.filter(|rank| *rank > storing.record.rank()) {
            self.give_up(op);
            return self.done(op, Reply::Newer { time: rank.when() }, out);
        }
        storing.writes = true;
        let (key, record, demand) = (storing.key.clone(), storing.record.clone(), storing.demand);
        let via = self.shows_later(&key);
        self.must_look(&record);
        out.push(Effect::Write { op, key, record, via, look: false, durable: true, demand });
    }

    /// What it will show that this node has accepted a record of this key. While the key moves a
    /// majority of its replicas of before and one of those of after have to accept it, and later
    /// nobody is asked who only was one of before.
    fn shows_later(&self, key: &[u8]) -> Via {
        if self.view.moves(partition_of(key)) { Via::Replica } else { Via::Accept }
    }

    /// A page of records that a node has streamed to this one is to be stored, whatever is promised
    /// for their keys. What a member is sent is chosen, as hints are: it harms no promise. What is
    /// sent to one that is being rebuilt need not be: a record that was made under a lower ballot
    /// must not come up after a coordinator was promised that there is none. So nothing is promised
    /// until it is stored, and what was promised before is taken back. Returns `false` if it can't
    /// be stored yet.
    pub(super) fn accepts_page(
        &mut self,
        now: Now,
        op: OpId,
        class: Class,
        items: &[(Bytes, Record)],
    ) -> bool {
        let items: Vec<_> = items.iter().filter(|(_, r)| r.ballot() > 0).cloned().collect();
        let Some(greatest) = items.iter().map(|(_, record)| record.ballot()).max() else {
            return true;
        };
        // A faulty peer asks two things under one id.
        if self.acceptor.pages.contains_key(&op) {
            return false;
        }
        let pauses = class == Class::Repair && !self.shared.membership.is_member();
        if pauses {
            self.shared.promises.pause();
            let all = self.shared.clock.now(now) + 1;
            // They are of this node's own clock, or not too far ahead of it.
            if !self.shared.promise_all(now, all.max(greatest), u64::MAX) {
                self.shared.promises.resume();
                return false;
            }
        }
        self.acceptor.pages.insert(op, Page { items, pauses });
        true
    }

    /// A page is stored, or was not.
    pub(super) fn page_written(&mut self, op: OpId, is_stored: bool) {
        let Some(Page { items, pauses }) = self.acceptor.pages.remove(&op) else { return };
        for (key, record) in items.iter().filter(|_| is_stored) {
            let steps = record.steps();
            let via = (Via::Replica, self.view.epoch);
            self.shared.recent.note(key, record, [&Steps::default(), &steps], via);
        }
        if pauses {
            self.shared.promises.resume();
        }
    }

    /// Another node, or this one, asks for a conditional write that was first tried under `since`;
    /// of one with an idempotency key that does not matter, for it may be from long ago.
    pub(super) fn recall_of(
        &mut self,
        op: OpId,
        (key, asked, since): (Bytes, WriteName, u64),
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        let recalled = match self.shared.recent.recall(&key, asked, since) {
            // The store may know it better.
            Recalled::Never
            | Recalled::Forgotten
            | Recalled::Reused
            | Recalled::Stored { ballot: 0, .. }
                if has_idempotency_key(asked.id) =>
            {
                return out.push(Effect::Recall { op, key, asked, demand });
            }
            // A life that lost its disk may have stored it.
            Recalled::Never if since <= self.forgets_before(partition_of(&key)) => {
                Recalled::Forgotten
            }
            recalled => recalled,
        };
        self.done(op, Reply::Recalled(recalled), out);
    }

    /// Up to which time of a version this node does not know what was tried: it may have lost that
    /// with a disk, or the partition has moved to it since.
    fn forgets_before(&self, partition: u16) -> u64 {
        let Shared { membership, layouts, .. } = &*self.shared;
        membership.promised_before().max(layouts.forgets_before(partition))
    }

    /// Up to which time of a version this node does not know which writes with an idempotency key
    /// were stored: it may have lost that with a disk, or not have been told all that those
    /// remembered which had the partition before.
    fn has_forgotten(&self, partition: Option<u16>) -> u64 {
        let Shared { membership, layouts, .. } = &*self.shared;
        let lost = membership.words_lost_before();
        match partition {
            None => lost,
            Some(partition) if self.is_to_take(|| partition) => u64::MAX,
            partition => lost.max(layouts.has_forgotten(partition)),
        }
    }

    /// The store looked for one that has an idempotency key.
    pub(super) fn was_recalled(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Option<Recalled>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let partition = match op {
            OpId::Peer { partition, .. } => partition,
            OpId::Slot(id) => self.slots.find(id).map(|slot| partition_of(&slot.key)),
        };
        let lost = Clock::micros(self.has_forgotten(partition));
        let reply = match result {
            Ok(Some(recalled)) => Reply::Recalled(recalled),
            // A life that lost its disk may have stored it.
            Ok(None) if lost + REMEMBERED_MICROS > now.wall => Reply::Recalled(Recalled::Forgotten),
            Ok(None) => Reply::Recalled(Recalled::Never),
            Err(error) => super::replica::reply_to_error(&error),
        };
        self.done(op, reply, out);
    }

    /// The store wrote; returns whether that was such a record.
    pub(super) fn accepts_written(
        &mut self,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) -> bool {
        let storing = self.acceptor.storing.get(&op).filter(|storing| storing.writes);
        let Some(Storing { key, record, before, epoch, .. }) = storing else { return false };
        if result.is_ok() {
            let steps = record.steps();
            let via = (Via::Accept, *epoch);
            self.shared.recent.note(key, record, [before, &steps], via);
        }
        self.give_up(op);
        self.done(op, super::replica::reply_to_write(result), out);
        true
    }

    /// Reads that were skipped, because nobody waits for them, end here.
    pub(super) fn accepts_no_longer(&mut self, now: Now) {
        self.acceptor.promised.retain(|_, promised| promised.until > now.mono);
        let is_over = |storing: &Storing| !storing.writes && storing.demand.until <= now.mono;
        let over = self.acceptor.storing.iter().filter(|(_, storing)| is_over(storing));
        let over: Vec<OpId> = over.map(|(op, _)| *op).collect();
        over.into_iter().for_each(|op| self.give_up(op));
    }

    /// Another placement is in force. What waits to be stored by the one before is not: nobody
    /// would count it, and by now others may have been promised what they were not then. What was
    /// handed to the store is: until it is there nothing is promised.
    pub(super) fn accepts_no_more_of_before(&mut self, out: &mut Vec<Effect>) {
        let waiting = std::mem::take(&mut self.acceptor.waiting);
        let waiting = waiting.into_values().flatten().map(|(op, _, _)| op);
        let reading = self.acceptor.storing.iter().filter(|(_, storing)| !storing.writes);
        let reading: Vec<OpId> = reading.map(|(op, _)| *op).collect();
        reading.iter().for_each(|op| self.give_up(*op));
        // Whoever asked is told that this node goes by a later view.
        for op in reading.into_iter().chain(waiting) {
            self.done(op, Reply::Busy, out);
        }
    }

    fn give_up(&mut self, op: OpId) {
        let storing = self.acceptor.storing.remove(&op).expect("it is being stored");
        let partition = storing.held.partition();
        self.shared.promises.free(storing.held);
        if self.acceptor.waiting.contains_key(&partition) {
            self.acceptor.freed.push(partition);
        }
    }

    /// Whether this node holds all of a key that it is to know as one of its replicas by default:
    /// it has lost nothing, nor is it still to take what moves to it.
    fn is_whole(&self, key: &[u8]) -> bool {
        let membership = &self.shared.membership;
        membership.is_authoritative_for_all() && !self.is_to_take(|| partition_of(key))
    }

    /// Whether this node is still to take a partition that moves to it.
    fn is_to_take(&self, partition: impl Fn() -> u16) -> bool {
        let (view, own) = (&self.view, self.shared.own);
        self.shared.lacks.load(Ordering::SeqCst)
            && view.other.as_ref().is_some_and(|other| other.holds(own, partition(), 0))
            && !view.topology.holds(own, partition(), 0)
    }

    /// Whether a ballot may be promised: it is below the bound above which the next start begins.
    fn admits(&self, now: Now, op: OpId, ballot: u64) -> bool {
        self.shared.clock.admit(ballot, now, self.skew_of(op))
    }

    fn is_late(&self, now: Now, op: OpId, ballot: u64) -> bool {
        self.shared.clock.is_ahead(ballot, now, self.skew_of(op))
    }

    /// How far ahead of the wall clock a ballot may be: this node's own may be as far as its clock
    /// is, as the versions of its writes.
    fn skew_of(&self, op: OpId) -> u64 {
        match op {
            OpId::Slot(_) => u64::MAX,
            OpId::Peer { .. } => self.config.max_skew_micros,
        }
    }
}
