//! The replica's side: what other nodes ask of this node's store.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Coordinator;
use super::acceptor::Arrived;
use crate::clock::Now;
use crate::compare::CompareRequest;
use crate::event::{ConnectionId, Demand, Effect, OpId, StoreError};
use crate::message::{Class, Filter, PageRequest, Reply, Request};
use crate::recent::{Via, WriteName};
use crate::topology::partition_of;
use crate::view::ViewId;
use record::{Outline, Record};

impl Coordinator {
    /// For how long the work of another node's request is of use: as long as that node waits, but
    /// no longer than any request of its class may take here.
    pub(super) fn demand_of(&self, now: Now, class: Class, remaining_ms: u32) -> Demand {
        let remaining = (u64::from(remaining_ms) * 1000).min(self.patience(class));
        Demand { class, until: now.mono + remaining }
    }

    /// Another node sent a request. Nothing is done if it has stopped waiting.
    pub(super) fn requested(
        &mut self,
        now: Now,
        connection: ConnectionId,
        id: u64,
        demand: Demand,
        (under, request): (ViewId, Request),
        out: &mut Vec<Effect>,
    ) {
        if demand.until <= now.mono {
            return;
        }
        let partition = request.read_key().map(|key| partition_of(key));
        let is_of_any = request.is_of_any_view();
        let placement = if is_of_any { 0 } else { under.placement };
        let op = OpId::Peer { connection, id, partition, placement };
        let is_of_proof = matches!(request, Request::Round { .. });
        let membership = &self.shared.membership;
        if membership.is_fenced() || membership.is_outdated() && !is_of_proof {
            // Nothing is changed, and nothing of what is here is disclosed.
            return self.respond_to_op(op, Reply::WrongEpoch, out);
        }
        if !is_of_any && !self.view.agrees_with(under) {
            return self.of_another_view(op, demand, under, request, out);
        }
        self.perform(now, op, demand, request, out);
    }

    /// Carries out a request, of another node or of this one.
    pub(super) fn perform(
        &mut self,
        now: Now,
        op: OpId,
        demand: Demand,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        if !self.shared.known_disk.acknowledges() && is_acknowledged(op, &request) {
            return self.wait_until_known(op, demand, request, out);
        }
        match request {
            Request::Read { key, most } => out.push(Effect::Read { op, key, most, demand }),
            Request::ReadQuorum { key, most } => {
                self.read_quorum_for(now, op, demand, (key, most), out);
            }
            Request::Change { key, id, ack, conditional } => {
                self.change_for(now, op, demand, (key, id, ack), conditional, out);
            }
            Request::Recall { key, id, since, digest } => {
                self.recall_of(op, (key, WriteName { id, digest }, since), demand, out);
            }
            Request::Prepare { watermark, .. } if watermark != self.shared.proofs.watermark() => {
                let state = self.round_state(now);
                self.done(op, Reply::Round(state), out);
            }
            Request::Prepare { key, ballot, most, watermark: _ } => {
                self.prepare(now, op, (key, ballot, most), demand, out);
            }
            // Whatever its class: once it is stored it would hide every write of the key until its
            // time comes, and read repair would spread it.
            Request::Write { record, .. } | Request::AcceptNext { record, .. }
                if self.is_ahead(now, &record) =>
            {
                self.done(op, Reply::Ahead, out);
            }
            Request::Writes { items } if items.iter().any(|(_, r)| self.is_ahead(now, r)) => {
                self.done(op, Reply::Ahead, out);
            }
            Request::Write { key, record } if self.is_of_others(demand.class, &key, &record) => {
                self.done(op, Reply::Stored, out);
            }
            Request::Write { key, record } => {
                if record.is_of(&key) {
                    self.hold_record(now, op, key, record, demand, out);
                } else {
                    self.done(op, Reply::Failed, out);
                }
            }
            Request::AcceptNext { key, record } => {
                if record.ballot() > 0 && record.is_of(&key) {
                    let arrived = Arrived { key, record, goes_on: true };
                    self.accept(now, op, arrived, demand, out);
                } else {
                    self.done(op, Reply::Failed, out);
                }
            }
            Request::Writes { items } => self.hold_all(now, op, items, demand, out),
            // Asked again a little later: what is being stored below that ballot is stored by then.
            Request::Page(request) if !self.promises_for(now, &request) => {
                self.done(op, Reply::Busy, out);
            }
            Request::Page(request) => out.push(Effect::Page { op, request, demand }),
            Request::Ping => self.done(op, Reply::Pong, out),
            request => self.perform_for_node(now, op, demand, request, out),
        }
    }

    /// Stores records that come as one batch, or none of them: hints, or what this node takes or is
    /// streamed.
    fn hold_all(
        &mut self,
        now: Now,
        op: OpId,
        mut items: Vec<(Bytes, Record)>,
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        items.retain(|(key, record)| !self.is_of_others(demand.class, key, record));
        if items.is_empty() {
            self.done(op, Reply::Stored, out);
        } else if !items.iter().all(|(key, record)| record.is_of(key)) {
            self.done(op, Reply::Failed, out);
        } else if !self.accepts_page(now, op, demand.class, &items) {
            self.done(op, Reply::Busy, out);
        } else {
            for (_, record) in &items {
                self.must_look(record);
            }
            // What this node takes or is streamed may be older than its seal.
            let lacks = self.shared.lacks.load(Ordering::SeqCst);
            let is_brought =
                demand.class == Class::Repair && (lacks || !self.shared.membership.is_member());
            out.push(Effect::WriteAll { op, items, is_brought, demand });
        }
    }

    /// Whether it is a plain write that no client waits for and that is placed elsewhere, in each
    /// topology of the view in force: it is of no use here, and would be a leftover. Who reads
    /// brings records to their replicas only, by the same placement, so nobody counts on it.
    fn is_of_others(&self, class: Class, key: &[u8], record: &Record) -> bool {
        let is_plain = class != Class::Client && record.ballot() == 0;
        is_plain && !self.view.places(self.shared.own, key, record.copies())
    }

    /// The same of what a node is asked as a whole, by the task of another one or its own.
    fn perform_for_node(
        &mut self,
        now: Now,
        op: OpId,
        demand: Demand,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        match request {
            // What is not here yet comes otherwise, and must not be taken for what others lack.
            Request::Compare(_) if !self.shared.membership.is_authoritative_for_all() => {
                self.done(op, Reply::Absent { authoritative: false }, out);
            }
            Request::Compare(CompareRequest { round, watermark, .. })
                if self.shared.proofs.known().seal != round
                    || self.shared.proofs.watermark() != watermark =>
            {
                self.done(op, Reply::WrongEpoch, out);
            }
            Request::Compare(request) => {
                self.shared.rounds.works(now);
                out.push(Effect::Compare { op, request, demand });
            }
            Request::Discard(ranges) => out.push(Effect::Discard { op, ranges }),
            Request::Round { round, step } => self.step_of_round(now, op, (round, step), out),
            Request::Bring { round, key, record } => {
                self.bring(now, op, (round, key, record), demand, out);
            }
            Request::Missed { node, marks } if self.view.has(node) => {
                marks.iter().for_each(|mark| self.shared.missed.mark(node, *mark));
                out.push(Effect::KeepMissed { op, node });
            }
            Request::Missed { .. } => self.done(op, Reply::Failed, out),
            Request::Council(asked) => self.council_asked(op, &asked, out),
            Request::Moves => self.done(op, Reply::Moves(self.shared.moves_state()), out),
            Request::KnowsDisk { node, incarnation } => {
                let is_known = self.shared.logs.incarnation(node) == Some(incarnation);
                self.done(op, if is_known { Reply::Pong } else { Reply::Busy }, out);
            }
            Request::ClusterId => {
                let answer = self.shared.cluster.answer();
                self.done(op, answer.map_or(Reply::Busy, Reply::ClusterId), out);
            }
            request => unreachable!("it is about a key: {request:?}"),
        }
    }

    /// Promises what a node that is to be sent records has promised. Returns `false` if that can't
    /// be done yet.
    fn promises_for(&self, now: Now, page: &PageRequest) -> bool {
        match page.filter {
            Filter::HeldBy { promise, .. } if promise > 0 => {
                self.shared.promise_all(now, promise, self.config.max_skew_micros)
            }
            _ => true,
        }
    }

    /// Stores a record once this node's disk is known, unless a conditional write made the record
    /// and this node has promised otherwise.
    pub(super) fn hold_record(
        &mut self,
        now: Now,
        op: OpId,
        key: Bytes,
        record: Record,
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        if !self.shared.known_disk.acknowledges() {
            let request = Request::Write { key, record };
            return self.wait_until_known(op, demand, request, out);
        }
        if record.ballot() > 0 {
            let arrived = Arrived { key, record, goes_on: false };
            self.accept(now, op, arrived, demand, out);
        } else {
            self.write_to_store(op, key, record, demand, out);
        }
    }

    /// Writes a record to the store. The result will say whether a newer one is here, or may have
    /// been lost.
    pub(super) fn write_to_store(
        &mut self,
        op: OpId,
        key: Bytes,
        record: Record,
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        let look = self.must_look(&record);
        if let Some(lost) = self.shared.may_have_lost(&key, record.version().time) {
            self.overtaken.insert(op, lost);
        }
        let (via, durable) = (Via::Replica, false);
        out.push(Effect::Write { op, key, record, via, look, durable, demand });
    }

    /// Whether a record's version is further ahead of this node's wall clock than clocks may be.
    pub(super) fn is_ahead(&self, now: Now, record: &Record) -> bool {
        self.is_future(now, record.when())
    }

    /// The same, by when a record was written.
    pub(super) fn is_future(&self, now: Now, when: u64) -> bool {
        when > self.takes_up_to(now)
    }

    /// The greatest time of a record that is not a future one.
    pub(super) fn takes_up_to(&self, now: Now) -> u64 {
        self.shared.clock.takes_up_to(now, self.config.max_skew_micros)
    }

    /// Whether this node's store may hold a newer record than this one, which is about to be
    /// written. That is noted in a cluster of one too: once another node has joined, that may write
    /// something older.
    pub(super) fn must_look(&self, record: &Record) -> bool {
        let (newest, origin) = (&self.shared.newest, self.shared.clock.origin());
        newest.may_hide(record.version(), origin, self.view.is_alone())
    }

    /// The store read, for a client or for another node.
    pub(super) fn was_read(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Option<Record>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        if self.acceptor.reads(op) {
            let found = |record| Reply::Found { record, authoritative: true };
            let absent = Reply::Absent { authoritative: true };
            let read = result.map(|record| record.map_or(absent, found));
            return self.accepts_read(op, read, out);
        }
        match op {
            OpId::Slot(id) => self.read_here(now, id, result, out),
            // It was read for a write, which was given up since: its time is over.
            OpId::Peer { partition: None, .. } => {}
            OpId::Peer { partition: Some(_), .. } => {
                let reply = self.reply_to_read(result);
                self.done(op, reply, out);
            }
        }
    }

    /// The store read a record that is too long for whoever asked.
    pub(super) fn outlined(&mut self, now: Now, op: OpId, outline: Outline, out: &mut Vec<Effect>) {
        if self.acceptor.reads(op) {
            return self.accepts_read(op, Ok(Reply::Long { outline, authoritative: true }), out);
        }
        match op {
            OpId::Slot(id) => self.outlined_here(now, id, outline, out),
            OpId::Peer { partition: None, .. } => {}
            OpId::Peer { partition: Some(_), .. } => {
                let time = Some(outline.rank.when());
                let authoritative = self.shared.membership.is_authoritative(time);
                self.done(op, Reply::Long { outline, authoritative }, out);
            }
        }
    }

    /// The store wrote, for a client or for another node.
    pub(super) fn was_written(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        if self.proof_was_kept(now, op, &result, out)
            || self.vote_was_kept(op, &result, out)
            || self.accepts_written(op, &result, out)
        {
            return;
        }
        self.page_written(op, result.is_ok());
        let lost = self.overtaken.remove(&op);
        let result = result.map(|newer| newer.max(lost));
        match op {
            OpId::Slot(id) => self.wrote_here(now, id, result, out),
            OpId::Peer { .. } => self.done(op, reply_to_write(&result), out),
        }
    }
}

/// Whether the reply to a request counts as this node's part of a write, as that to a single record
/// does. What this node streams to itself is counted by nobody.
fn is_acknowledged(op: OpId, request: &Request) -> bool {
    match request {
        Request::AcceptNext { .. } | Request::Prepare { .. } => true,
        Request::Writes { .. } => matches!(op, OpId::Peer { .. }),
        _ => false,
    }
}

/// The reply to another node's write, by what the store made of it.
pub(super) fn reply_to_write(result: &Result<Option<u64>, StoreError>) -> Reply {
    match result {
        Ok(None) => Reply::Stored,
        Ok(Some(time)) => Reply::Newer { time: *time },
        Err(error) => reply_to_error(error),
    }
}

/// The reply to another node's request that this node's store failed.
pub(super) fn reply_to_error(error: &StoreError) -> Reply {
    match error {
        StoreError::Busy(_) => Reply::Busy,
        StoreError::NoSpace(_) => Reply::NoSpace,
        StoreError::Sealed(seal) => Reply::Outbid { promise: *seal },
        StoreError::Failed { .. } => Reply::Failed,
    }
}
