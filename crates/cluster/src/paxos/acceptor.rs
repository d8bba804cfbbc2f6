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

use crate::event::{Demand, Effect, OpId, StoreError};
use crate::message::{Class, Reply};
use crate::paxos::promises::BucketHold;
use crate::paxos::recent::Via;
use crate::placement::topology::partition_of;
use crate::protocol::core::{Core, Cx};
use crate::replica::reply::{reply_to_error, reply_to_write};
use record::{Record, Steps};

/// How often it is looked whether a record that another loop stores is stored, in microseconds.
const LOOK_AGAIN: u64 = 500;

/// What is under way on a replica. One entry for each request of a coordinator that has not been
/// answered, so no more than there are of those.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
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
    pages: BTreeMap<OpId, StoredPage>,
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
struct StoredPage {
    items: Vec<(Bytes, Record)>,
    /// Whether nothing is promised until they are stored.
    pauses: bool,
}

/// A record that has arrived to be stored.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) key: Bytes,
    pub(crate) record: Record,
    /// Whether its coordinator has asked for no promises since its last one.
    pub(crate) goes_on: bool,
}

/// A record that is to be stored.
#[derive(Debug)]
struct Storing {
    key: Bytes,
    record: Record,
    /// The conditional writes that are in the record before it.
    before: Steps,
    demand: Demand,
    held: BucketHold,
    /// Of the view by which it was asked for.
    epoch: u64,
    /// Whether it was handed to the store: until then it is only looked what is there.
    writes: bool,
}

impl Acceptor {
    pub(crate) fn is_empty(&self) -> bool {
        self.promised.is_empty() && self.storing.is_empty() && self.waiting.is_empty()
    }

    /// When it is looked again, if anything waits.
    pub(crate) fn next_look(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.look_at)
    }

    /// Whether the store was asked to read for this.
    pub(crate) fn reads(&self, op: OpId) -> bool {
        !self.is_empty()
            && (self.promised.contains_key(&op)
                || self.storing.get(&op).is_some_and(|storing| !storing.writes))
    }
}

impl Acceptor {
    /// A coordinator asks for a promise.
    pub(crate) fn prepare(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        (key, ballot, most): (Bytes, u64, u32),
        demand: Demand,
    ) {
        if is_late(cx, op, ballot) {
            return cx.done(op, Reply::Ahead);
        }
        // It may have promised more than it knows, or could not know it after a crash.
        let membership = &cx.core.shared.membership.state;
        let knows = membership.is_authoritative_for_all() && ballot > membership.promised_before();
        if !knows || !admits(cx, op, ballot) {
            // Of one that is of the other set alone this would be a promise.
            let is_read = cx.core.view.topology.holds(cx.core.shared.own, partition_of(&key), 0);
            let refusal =
                if is_read { Reply::Absent { authoritative: false } } else { Reply::Busy };
            return cx.done(op, refusal);
        }
        if let Err(promise) = cx.core.shared.paxos.promises.promise(&key, ballot) {
            return cx.done(op, Reply::Outbid { promise });
        }
        // One that is still to take the partition promises too, and tells what it holds: a majority
        // of those to come counts for itself once they are alone.
        let is_whole = !is_to_take(cx.core, || partition_of(&key));
        self.promised.insert(op, Promised { until: demand.until, is_whole });
        cx.out.push(Effect::Read { op, key, most, demand });
    }

    /// A record that a conditional write made is to be stored: by its coordinator, or by whoever
    /// found it elsewhere.
    pub(crate) fn accept(&mut self, cx: &mut Cx<'_>, op: OpId, arrived: Arrived, demand: Demand) {
        if let Some(waits) = self.try_accept(cx, op, arrived, demand) {
            let partition = partition_of(&waits.key);
            let waiting = &mut self.waiting;
            if waiting.is_empty() {
                self.look_at = cx.now.mono + LOOK_AGAIN;
            }
            waiting.entry(partition).or_default().push_back((op, demand, waits));
        }
    }

    /// Returns what has to wait: nothing higher is promised, but another record is being stored, or
    /// a page of them.
    fn try_accept(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        arrived: Arrived,
        demand: Demand,
    ) -> Option<Arrived> {
        let ballot = arrived.record.ballot();
        let refusal = match self.refusal(cx, op, &arrived) {
            Some(refusal) => refusal,
            None => match cx.core.shared.paxos.promises.hold(&arrived.key, ballot) {
                Ok(held) => {
                    let Arrived { key, record, .. } = arrived;
                    let most = cx.core.config.brief_bytes;
                    cx.out.push(Effect::Read { op, key: key.clone(), most, demand });
                    let before = Steps::default();
                    let (epoch, writes) = (cx.core.view.epoch, false);
                    let storing = Storing { key, record, before, demand, held, epoch, writes };
                    self.storing.insert(op, storing);
                    return None;
                }
                Err(promise) if promise <= ballot => return Some(arrived),
                Err(promise) => Reply::Outbid { promise },
            },
        };
        cx.done(op, refusal);
        None
    }

    /// Why a record is not stored, whatever is promised.
    fn refusal(&self, cx: &mut Cx<'_>, op: OpId, arrived: &Arrived) -> Option<Reply> {
        let ballot = arrived.record.ballot();
        let membership = &cx.core.shared.membership.state;
        // A life that lost its disk may have promised that much.
        let promise = membership.promised_before();
        if ballot <= promise {
            return Some(Reply::Outbid { promise });
        }
        // As long as it does not know what it lost it may have promised more than it knows; and
        // without the plain writes that it lost it would let pass what goes on from before them.
        if !membership.knows_what_it_lost() || arrived.goes_on && !is_whole(cx.core, &arrived.key) {
            return Some(Reply::Absent { authoritative: false });
        }
        // A faulty peer asks two things under one id.
        let is_known = self.storing.contains_key(&op);
        (is_known || !admits(cx, op, ballot)).then_some(Reply::Busy)
    }

    /// What waits is stored as far as it can be: in partitions where a record of this loop was
    /// stored just now.
    pub(crate) fn accepts_after_others(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(partition) = self.freed.pop() else { return false };
        self.accepts_waiting(cx, partition);
        true
    }

    /// The same in all of them, for other loops may have stored one.
    pub(crate) fn look_again(&mut self, cx: &mut Cx<'_>) {
        self.look_at = cx.now.mono + LOOK_AGAIN;
        let partitions: Vec<u16> = self.waiting.keys().copied().collect();
        for partition in partitions {
            self.accepts_waiting(cx, partition);
        }
    }

    fn accepts_waiting(&mut self, cx: &mut Cx<'_>, partition: u16) {
        let Some(mut waiting) = self.waiting.remove(&partition) else { return };
        while let Some((op, demand, arrived)) = waiting.pop_front() {
            // Else nobody waits for the reply.
            if demand.until > cx.now.mono
                && let Some(waits) = self.try_accept(cx, op, arrived, demand)
            {
                waiting.push_front((op, demand, waits));
                break;
            }
        }
        if !waiting.is_empty() {
            self.waiting.insert(partition, waiting);
        }
    }

    /// The store read for a promise, or before a record is stored.
    pub(crate) fn accepts_read(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        read: Result<Reply, StoreError>,
    ) {
        if let Some(Promised { is_whole: authoritative, .. }) = self.promised.remove(&op) {
            let reply = match read {
                Ok(Reply::Found { record, .. }) => Reply::Found { record, authoritative },
                Ok(Reply::Long { outline, .. }) => Reply::Long { outline, authoritative },
                Ok(_) => Reply::Absent { authoritative },
                Err(error) => reply_to_error(&error),
            };
            return cx.done(op, reply);
        }
        let storing = self.storing.get_mut(&op).expect("it was just found");
        let rank = match read {
            Ok(Reply::Found { record, .. }) => {
                storing.before = record.steps();
                Some(record.rank())
            }
            Ok(Reply::Long { outline, .. }) => Some(outline.rank),
            Ok(_) => None,
            Err(error) => {
                self.give_up(cx.core, op);
                return cx.done(op, reply_to_error(&error));
            }
        };
        if let Some(rank) = rank.filter(|rank| *rank > storing.record.rank()) {
            self.give_up(cx.core, op);
            return cx.done(op, Reply::Newer { time: rank.when() });
        }
        storing.writes = true;
        let (key, record, demand) = (storing.key.clone(), storing.record.clone(), storing.demand);
        let via = shows_later(cx.core, &key);
        cx.core.must_look(&record);
        cx.out.push(Effect::Write { op, key, record, via, look: false, durable: true, demand });
    }

    /// A page of records that a node has streamed to this one is to be stored, whatever is promised
    /// for their keys. What a member is sent is chosen, as hints are: it harms no promise. What is
    /// sent to one that is being rebuilt need not be: a record that was made under a lower ballot
    /// must not come up after a coordinator was promised that there is none. So nothing is promised
    /// until it is stored, and what was promised before is taken back. Returns `false` if it can't
    /// be stored yet.
    pub(crate) fn accepts_page(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        class: Class,
        items: &[(Bytes, Record)],
    ) -> bool {
        let items: Vec<_> = items.iter().filter(|(_, r)| r.ballot() > 0).cloned().collect();
        let Some(greatest) = items.iter().map(|(_, record)| record.ballot()).max() else {
            return true;
        };
        // A faulty peer asks two things under one id.
        if self.pages.contains_key(&op) {
            return false;
        }
        let pauses = class == Class::Repair && !cx.core.shared.membership.state.is_member();
        if pauses {
            cx.core.shared.paxos.promises.pause();
            let all = cx.core.shared.clock.now(cx.now) + 1;
            // They are of this node's own clock, or not too far ahead of it.
            if !cx.core.shared.promise_all(cx.now, all.max(greatest), u64::MAX) {
                cx.core.shared.paxos.promises.resume();
                return false;
            }
        }
        self.pages.insert(op, StoredPage { items, pauses });
        true
    }

    /// A page is stored, or was not.
    pub(crate) fn page_written(&mut self, core: &Core, op: OpId, is_stored: bool) {
        let Some(StoredPage { items, pauses }) = self.pages.remove(&op) else { return };
        for (key, record) in items.iter().filter(|_| is_stored) {
            let steps = record.steps();
            let via = (Via::Replica, core.view.epoch);
            core.shared.paxos.recent.note(key, record, [&Steps::default(), &steps], via);
        }
        if pauses {
            core.shared.paxos.promises.resume();
        }
    }

    /// The store wrote; returns whether that was such a record.
    pub(crate) fn accepts_written(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
    ) -> bool {
        let storing = self.storing.get(&op).filter(|storing| storing.writes);
        let Some(Storing { key, record, before, epoch, .. }) = storing else { return false };
        if result.is_ok() {
            let steps = record.steps();
            let via = (Via::Accept, *epoch);
            cx.core.shared.paxos.recent.note(key, record, [before, &steps], via);
        }
        self.give_up(cx.core, op);
        cx.done(op, reply_to_write(result));
        true
    }

    /// Reads that were skipped, because nobody waits for them, end here.
    pub(crate) fn accepts_no_longer(&mut self, cx: &mut Cx<'_>) {
        self.promised.retain(|_, promised| promised.until > cx.now.mono);
        let is_over = |storing: &Storing| !storing.writes && storing.demand.until <= cx.now.mono;
        let over = self.storing.iter().filter(|(_, storing)| is_over(storing));
        let over: Vec<OpId> = over.map(|(op, _)| *op).collect();
        over.into_iter().for_each(|op| self.give_up(cx.core, op));
    }

    /// Another placement is in force. What waits to be stored by the one before is not: nobody
    /// would count it, and by now others may have been promised what they were not then. What was
    /// handed to the store is: until it is there nothing is promised.
    pub(crate) fn accepts_no_more_of_before(&mut self, cx: &mut Cx<'_>) {
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_values().flatten().map(|(op, _, _)| op);
        let reading = self.storing.iter().filter(|(_, storing)| !storing.writes);
        let reading: Vec<OpId> = reading.map(|(op, _)| *op).collect();
        reading.iter().for_each(|op| self.give_up(cx.core, *op));
        // Whoever asked is told that this node goes by a later view.
        for op in reading.into_iter().chain(waiting) {
            cx.done(op, Reply::Busy);
        }
    }

    fn give_up(&mut self, core: &Core, op: OpId) {
        let storing = self.storing.remove(&op).expect("it is being stored");
        let partition = storing.held.partition();
        core.shared.paxos.promises.free(storing.held);
        if self.waiting.contains_key(&partition) {
            self.freed.push(partition);
        }
    }
}

/// What it will show that this node has accepted a record of this key. While the key moves a
/// majority of its replicas of before and one of those of after have to accept it, and later
/// nobody is asked who only was one of before.
fn shows_later(core: &Core, key: &[u8]) -> Via {
    if core.view.moves(partition_of(key)) { Via::Replica } else { Via::Accept }
}

/// Whether this node holds all of a key that it is to know as one of its replicas by default:
/// it has lost nothing, nor is it still to take what moves to it.
fn is_whole(core: &Core, key: &[u8]) -> bool {
    let membership = &core.shared.membership.state;
    membership.is_authoritative_for_all() && !is_to_take(core, || partition_of(key))
}

/// Whether this node is still to take a partition that moves to it.
pub(super) fn is_to_take(core: &Core, partition: impl Fn() -> u16) -> bool {
    let (view, own) = (&core.view, core.shared.own);
    core.shared.membership.lacks.load(Ordering::SeqCst)
        && view.other.as_ref().is_some_and(|other| other.holds(own, partition(), 0))
        && !view.topology.holds(own, partition(), 0)
}

/// Returns whether a ballot may be promised: it is below the bound above which the next start
/// begins.
fn admits(cx: &Cx<'_>, op: OpId, ballot: u64) -> bool {
    cx.core.shared.clock.admit(ballot, cx.now, skew_of(cx.core, op))
}

fn is_late(cx: &Cx<'_>, op: OpId, ballot: u64) -> bool {
    cx.core.shared.clock.is_ahead(ballot, cx.now, skew_of(cx.core, op))
}

/// How far ahead of the wall clock a ballot may be: this node's own may be as far as its clock
/// is, as the versions of its writes.
fn skew_of(core: &Core, op: OpId) -> u64 {
    match op {
        OpId::Slot(_) => u64::MAX,
        OpId::Peer { .. } => core.config.max_skew_micros,
    }
}
