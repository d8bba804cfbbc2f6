//! An event loop of the node: runs its `Protocol`, and executes the protocol's effects.
//!
//! ```text
//!  from the driver: events, results of effects ─▶ protocol::Protocol ─▶ effects, each of which
//!    ├─ goes to the driver: reads, writes, pages, messages, answers
//!    ├─ waits in the backlog, if it is a write that the store does not accept yet
//!    └─ completes at once ─▶ its event goes to protocol::Protocol
//! ```
//!
//! The loop handles events one after the other. An effect that completes at once queues its event,
//! and never calls back into the protocol.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::store::store_error;
use bytes::Bytes;
use lsm::{Lookup, NewerVersion, Space};
use protocol::{
    AloneId, Answer, AskedQuorum, BackgroundEvent, ClientId, Config, Demand, Effect, Event,
    FailureKind, FencePermit, LogPosition, MAX_OPERATIONS, MembershipState, Now, OpId, Protocol,
    Record, Reply, Shared, StoreError, Via, hint_bytes,
};

use crate::backlog::{Backlog, Bounds, KeyCheck, WRITE_OVERHEAD, Write};
use crate::driver::{Delivered, Driver, Outcome, StoreRead, WriteError, WritePurpose};
use crate::hints::{self, Hint};
use crate::idempotency::{self, OPERATION_BYTES};
use crate::identity::{Identity, OwnRecords};

/// Limit on the events that one event may cause, directly and indirectly; only an endless cycle
/// exceeds it. Each request under way causes several events when a link is lost, or when all writes
/// that wait for the store are refused, and a node with much memory may have some millions of
/// requests.
const MAX_EVENTS: usize = 1 << 27;

/// Number of events handled per reading of the clock. Events in between have the time of the last
/// reading.
const EVENTS_PER_CLOCK_READING: usize = 16;

/// Reason for refusing records of keys that move here: see [`Shared::must_drop_orphan_of`].
const BUSY_EMPTYING: &str = "the node is still deleting old records of these keys";

/// The result of a check that needs a record from the disk.
struct MustWait;

/// The state of one event loop; see the module.
#[derive(Debug)]
pub struct Loop {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    protocol: Protocol,
    backlog: Backlog,
    max_skew_micros: u64,
    /// Events of effects that completed at once, for the protocol.
    events: VecDeque<Event>,
    effects: Vec<Effect>,
}

impl Loop {
    /// Returns a loop without requests. Up to `waiting_bytes` bytes of writes may wait for the
    /// store.
    pub fn new(
        shared: Arc<Shared>,
        identity: Arc<Identity>,
        config: Config,
        waiting_bytes: usize,
    ) -> Self {
        let bounds = Bounds {
            bytes: waiting_bytes,
            owned_from: config.brief_bytes as usize,
            deadline_micros: config.deadline_micros,
        };
        Self {
            protocol: Protocol::new(Arc::clone(&shared), config),
            backlog: Backlog::new(bounds),
            max_skew_micros: config.max_skew_micros,
            events: VecDeque::new(),
            effects: Vec::new(),
            shared,
            identity,
        }
    }

    /// Returns the number of conditional writes whose client or node has not been answered.
    pub fn unanswered_changes(&self) -> usize {
        self.protocol.unanswered_changes()
    }

    /// Dispatches an event to the protocol, and executes all effects that follow from the event.
    pub fn handle<D: Driver>(&mut self, driver: &mut D, event: Event) {
        let now = driver.now();
        self.dispatch(driver, now, event);
        self.run_effects(driver, now);
    }

    /// Answers a read at once if this node's store alone decides it; `None` = the read needs an
    /// [`Event::Get`].
    pub fn get_alone<D: Driver>(
        &mut self,
        driver: &mut D,
        key: &[u8],
        asked: AskedQuorum,
    ) -> Option<Answer> {
        if !self.protocol.reads_alone(key, asked) {
            return None;
        }
        let held = match driver.try_get(Space::Data, key) {
            Ok(Lookup::Found(record)) => Some(record),
            Ok(Lookup::Absent) => None,
            // The event's read waits for the disk, or reports the error.
            Ok(Lookup::WouldBlock | Lookup::TooLong(_)) | Err(_) => return None,
        };
        self.protocol.answer_alone(driver.now(), held)
    }

    /// Writes a client's record, which has a version of this node. An answer to `client` reports
    /// the result.
    pub fn write<D: Driver>(
        &mut self,
        driver: &mut D,
        client: ClientId,
        (key, record): (Bytes, Record),
        quorum: AskedQuorum,
    ) {
        if !self.backlog.is_empty() || !self.protocol.writes_alone(&key, &record, quorum) {
            return self.handle(driver, Event::Write { client, key, record, quorum });
        }
        let now = driver.now();
        let id = self.protocol.write_alone(now, client, (key, record), quorum);
        let Some((key, record)) = self.protocol.alone(id) else { return };
        let (record, purpose) =
            ((key, record, Via::Replica), |permit| WritePurpose::Alone(id, permit));
        if let Err(error) = self.add(driver, record, None, false, purpose) {
            // The protocol writes the record again as an ordinary write, which reports the error.
            self.end_alone(driver, now, id, Err(write_error(&error)));
        }
    }

    fn end_alone<D: Driver>(
        &mut self,
        driver: &mut D,
        now: Now,
        id: AloneId,
        result: Result<(), StoreError>,
    ) {
        let answered = self.protocol.end_alone(now, id, result, &mut self.effects);
        if let Some((client, answer)) = answered {
            driver.answer(client, answer);
        }
        if !self.effects.is_empty() {
            self.run_effects(driver, now);
        }
    }

    /// Handles the result of a store read that had to wait.
    pub fn was_read<D: Driver>(
        &mut self,
        driver: &mut D,
        op: OpId,
        wanted: &StoreRead,
        result: Result<Option<Record>, StoreError>,
    ) {
        if let StoreRead::Before(write) = wanted {
            let newest = || self.shared.replica.newest.time();
            let time = |record: Record| record.version().time;
            let is_newer = |held: &Record| held.version() > write.record.version();
            // An error surfaces again, with more context, when the record is written or read.
            let newer = result.map_or_else(|_| Some(newest()), |r| r.filter(is_newer).map(time));
            self.store(driver, Write { look: KeyCheck::Done(newer), ..write.clone() });
            let now = driver.now();
            return self.run_effects(driver, now);
        }
        self.handle(driver, read_event(op, wanted, result));
    }

    /// Handles the result of a write.
    pub fn on_write_result<D: Driver>(
        &mut self,
        driver: &mut D,
        purpose: WritePurpose,
        outcome: &Outcome,
    ) {
        match purpose {
            WritePurpose::Op(op, newer, permit) => {
                self.shared.repair.proofs.release(permit);
                if outcome.is_ok() {
                    self.shared
                        .membership
                        .logs
                        .raise_position(LogPosition(driver.engine().sequence()));
                }
                let result = outcome.as_ref().map(|()| newer).map_err(write_error);
                self.handle(driver, Event::Written { op, result });
            }
            WritePurpose::Alone(id, permit) => {
                self.shared.repair.proofs.release(permit);
                if outcome.is_ok() {
                    self.shared
                        .membership
                        .logs
                        .raise_position(LogPosition(driver.engine().sequence()));
                }
                if outcome.is_ok()
                    && let Some((client, answer)) = self.protocol.complete_alone(id)
                {
                    return driver.answer(client, answer);
                }
                let now = driver.now();
                let result = outcome.as_ref().copied().map_err(write_error);
                self.end_alone(driver, now, id, result);
            }
            WritePurpose::Hint(Hint { id, .. }) => {
                self.handle(driver, Event::HintStored { hint: id, kept: outcome.is_ok() });
            }
            // If the removal failed, the hints are still in the store, and are delivered again.
            WritePurpose::Delivered(Delivered { peer, hints, bytes }) => {
                if outcome.as_ref().is_err_and(|error| !error.is_final()) {
                    self.shared.transfer.hints.count_found(peer, hints, bytes);
                }
            }
            WritePurpose::Task(call) => {
                let failed = |error: &WriteError| match error {
                    WriteError::Busy | WriteError::Sealed(_) => FailureKind::Busy,
                    WriteError::Store(_) => FailureKind::Failed,
                };
                let result = outcome.as_ref().map(|()| Reply::Stored).map_err(failed);
                driver.send_to_task(BackgroundEvent::CallReturned { call, result }.into());
            }
        }
    }

    /// Handles the result of storing one of the node's own records, for which another node waits.
    pub fn on_own_record_stored<D: Driver>(
        &mut self,
        driver: &mut D,
        op: OpId,
        keeps: &OwnRecords,
        result: Result<(), lsm::Error>,
    ) {
        if result.is_ok() {
            self.identity.apply_durable(&self.shared, keeps);
            if let OwnRecords::Proof(proof) = keeps {
                driver.engine().purge_rule().raise_watermark(proof.proven.time);
            }
        }
        let result = result.map(|()| None).map_err(|error| store_error(&error));
        self.handle(driver, Event::Written { op, result });
    }

    /// Retries waiting writes and handles timers.
    pub fn wake<D: Driver>(&mut self, driver: &mut D) {
        self.store_backlog(driver);
        self.handle(driver, Event::Tick);
    }

    /// Returns when [`Loop::wake`] is due at the latest, by the monotonic clock, in microseconds;
    /// `None` = no timer is set.
    pub fn next_wake(&mut self) -> Option<u64> {
        let (tick, look) = (self.protocol.next_wake(), self.backlog.next_attempt());
        tick.into_iter().chain(look).min()
    }

    /// Returns the number of requests under way.
    pub fn len(&self) -> usize {
        self.protocol.len()
    }

    /// Returns true if no request is under way.
    pub fn is_empty(&self) -> bool {
        self.protocol.is_empty()
    }

    fn dispatch<D: Driver>(&mut self, driver: &mut D, now: Now, event: Event) {
        driver.note(&event);
        self.protocol.handle(now, event, &mut self.effects);
    }

    fn run_effects<D: Driver>(&mut self, driver: &mut D, mut now: Now) {
        for number in 1..MAX_EVENTS {
            let mut effects = mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.perform(driver, effect);
            }
            self.effects = effects;
            let Some(event) = self.events.pop_front() else { return };
            if number % EVENTS_PER_CLOCK_READING == 0 {
                now = driver.now();
            }
            self.dispatch(driver, now, event);
        }
        unreachable!("events cause events without end");
    }

    fn perform<D: Driver>(&mut self, driver: &mut D, effect: Effect) {
        match effect {
            Effect::Read { op, key, most, demand } => {
                self.read(driver, op, StoreRead::Record { key, most }, demand);
            }
            Effect::Recall { op, key, asked, demand } => {
                let name = idempotency::name(&key, asked.id);
                self.read(driver, op, StoreRead::Operation { name, asked }, demand);
            }
            Effect::Write { op, key, record, via, look, durable, demand } => {
                let look = if look { KeyCheck::Needed } else { KeyCheck::NotNeeded };
                self.store(driver, Write { op, key, record, via, look, durable, demand });
            }
            // A busy store refuses these items at once. Unlike a client's write they need not wait,
            // because their sender retries.
            Effect::WriteAll { op, items, via, ignores_fences, demand: _ } => {
                self.store_all(driver, op, (&items, via), ignores_fences);
            }
            Effect::Page { op, request, demand } => driver.page(op, request, demand),
            Effect::Compare { op, request, demand } => driver.compare(op, request, demand),
            Effect::Discard { op, ranges } => driver.discard(op, ranges),
            Effect::Send { peer, message } => driver.send(peer, message),
            Effect::Respond { connection, id, reply } => driver.respond(connection, id, reply),
            Effect::Answer { client, answer } => driver.answer(client, answer),
            Effect::ReturnCall { call, result } => driver.return_call(call, result),
            Effect::Hint { hint, peer, key, record } => {
                self.keep_hint(driver, Hint::of(hint, peer, key, &record), &record);
            }
            Effect::StoreMissed { op, node } => {
                let (batch, keeps) = self.identity.keep_missed(&self.shared, node);
                driver.keep(op, batch, keeps);
            }
            Effect::StoreLayouts { op } => {
                let (batch, keeps) = self.identity.keep_layouts(&self.shared);
                driver.keep(op, batch, keeps);
            }
            Effect::StoreProof { op, proof } => {
                let (batch, keeps) = self.identity.keep_proof(proof);
                driver.keep(op, batch, keeps);
            }
        }
    }

    fn read<D: Driver>(&mut self, driver: &mut D, op: OpId, wanted: StoreRead, demand: Demand) {
        let (space, key) = wanted.place();
        let result = match driver.try_get(space, key) {
            Ok(Lookup::Found(record)) => Ok(Some(record)),
            Ok(Lookup::Absent) => Ok(None),
            Ok(Lookup::WouldBlock | Lookup::TooLong(_)) => {
                return driver.read(op, wanted, demand);
            }
            Err(error) => Err(store_error(&error)),
        };
        self.events.push_back(read_event(op, &wanted, result));
    }

    /// Writes a record to this node's store; ends in an event.
    fn store<D: Driver>(&mut self, driver: &mut D, write: Write) {
        let result = if self.backlog.is_empty() {
            self.try_store(driver, &write)
        } else {
            Err(WriteError::Busy)
        };
        let (op, result) = match result {
            Ok(()) => return,
            Err(WriteError::Busy) => match self.backlog.add(driver.now().mono, write) {
                None => return,
                Some(write) => (write.op, Err(write_error(&WriteError::Busy))),
            },
            Err(error) => (write.op, Err(write_error(&error))),
        };
        self.events.push_back(Event::Written { op, result });
    }

    fn try_store<D: Driver>(&self, driver: &mut D, write: &Write) -> Outcome {
        let Write { op, key, record, via, look, durable, .. } = write;
        let newer = match look {
            KeyCheck::NotNeeded => None,
            KeyCheck::Done(newer) => *newer,
            KeyCheck::Needed => match self.newer_version_time(driver, key, record) {
                Ok(newer) => newer,
                Err(MustWait) => {
                    driver.read(*op, StoreRead::Before(write.clone()), write.demand);
                    return Ok(());
                }
            },
        };
        let purpose = |permit| WritePurpose::Op(*op, newer, permit);
        self.add(driver, (key, record, *via), newer, *durable, purpose)
    }

    /// Adds a record to the writes of this turn. `newer` is the version time of a newer record of
    /// the key.
    fn add<D: Driver>(
        &self,
        driver: &mut D,
        (key, record, via): (&Bytes, &Record, Via),
        newer: Option<u64>,
        is_durable: bool,
        purpose: impl FnOnce(FencePermit) -> WritePurpose,
    ) -> Outcome {
        if self.shared.replica.write_checks.is_any_on() {
            self.check_before_write(driver, key, record)?;
        }
        let bytes = bytes_of(key, record);
        let entries = idempotency::entries(&self.shared, driver.engine(), (key, record), via)
            .map_err(WriteError::Store)?;
        let proofs = &self.shared.repair.proofs;
        // Records of conditional writes are fenced by promises instead.
        let permit = match record.ballot() {
            0 => {
                // The version that the write gets next must exceed the repair fence and all records
                // here.
                let sealed = |seal: u64| WriteError::Sealed(seal.max(newer.unwrap_or(0)));
                proofs.admit(record.write_time()).map_err(sealed)?
            }
            _ => proofs.admit_any(),
        };
        let purpose = purpose(permit);
        let added = driver.write(bytes, purpose, |batch| {
            batch.record(Space::Data, key, record)?;
            entries.iter().try_for_each(|entry| idempotency::put_entry(batch, entry))?;
            if is_durable {
                batch.make_durable();
            }
            Ok(())
        });
        if added.is_err() {
            proofs.release(permit);
        }
        added
    }

    /// Does the checks that only few nodes need before a write: refuses records of keys that the
    /// node is about to drop, and counts the record.
    #[cold]
    fn check_before_write<D: Driver>(
        &self,
        driver: &mut D,
        key: &Bytes,
        record: &Record,
    ) -> Outcome {
        if self.shared.must_drop_orphan_of(key, record.copies()) {
            return Err(WriteError::Store(lsm::Error::Busy { what: BUSY_EMPTYING }));
        }
        if self.shared.replica.write_checks.counts_bytes() {
            driver.accept(key, record);
        }
        Ok(())
    }

    /// Returns the version time of a newer record of the key, or an upper bound of this time;
    /// `None` = the key has no newer record.
    fn newer_version_time<D: Driver>(
        &self,
        driver: &D,
        key: &[u8],
        record: &Record,
    ) -> Result<Option<u64>, MustWait> {
        let version = record.version();
        let newest = self.shared.replica.newest.time();
        match driver.engine().holds_newer(Space::Data, key, version) {
            Ok(NewerVersion::No) => Ok(None),
            Ok(NewerVersion::Held(held)) => Ok(Some(held.time)),
            // Some record here is so far ahead that no write can get a version above it, so the
            // node must know whether that record is of this key.
            Ok(NewerVersion::WouldBlock)
                if self.shared.clock.is_ahead(newest, driver.now(), self.max_skew_micros) =>
            {
                Err(MustWait)
            }
            // An error surfaces again, with more context, when the record is written or read.
            Ok(NewerVersion::WouldBlock) | Err(_) => Ok(Some(newest)),
        }
    }

    /// Stores several records of another node, all or none; that node retries.
    fn store_all<D: Driver>(
        &mut self,
        driver: &mut D,
        op: OpId,
        (items, via): (&[(Bytes, Record)], Via),
        ignores_fences: bool,
    ) {
        let shared = &self.shared;
        let must_drop_orphans =
            |(key, record): &(Bytes, Record)| shared.must_drop_orphan_of(key, record.copies());
        if items.iter().any(must_drop_orphans) {
            let result = Err(StoreError::Busy(BUSY_EMPTYING));
            return self.events.push_back(Event::Written { op, result });
        }
        // The permit is taken before the repair fence (seal) is read, so that a fence raised later
        // waits for this write.
        let permit = shared.repair.proofs.admit_any();
        let is_taken = |(_, record): &&(Bytes, Record)| {
            ignores_fences || !shared.repair.proofs.refuses(record.rank())
        };
        let all = items.len();
        let items: Vec<&(Bytes, Record)> = items.iter().filter(is_taken).collect();
        // Only the first directory of a name needs no repair fence. A joining node does not know
        // yet whether its directory is the first, so it refuses the write, and the sender retries.
        if items.len() < all && shared.membership.state.state() == MembershipState::Joining {
            shared.repair.proofs.release(permit);
            let result = Err(write_error(&WriteError::Busy));
            return self.events.push_back(Event::Written { op, result });
        }
        if items.is_empty() {
            shared.repair.proofs.release(permit);
            return self.events.push_back(Event::Written { op, result: Ok(None) });
        }
        if shared.replica.write_checks.counts_bytes() {
            items.iter().for_each(|(key, record)| driver.accept(key, record));
        }
        let bytes = items.iter().map(|(key, record)| bytes_of(key, record)).sum();
        let engine = driver.engine();
        let entries = items
            .iter()
            .map(|(key, record)| idempotency::entries(shared, engine, (key, record), via));
        let added = match entries.collect::<Result<Vec<_>, _>>() {
            Ok(entries) => driver.write(bytes, WritePurpose::Op(op, None, permit), |batch| {
                items
                    .iter()
                    .try_for_each(|(key, record)| batch.record(Space::Data, key, record))?;
                let mut entries = entries.iter().flatten();
                entries.try_for_each(|entry| idempotency::put_entry(batch, entry))
            }),
            Err(error) => Err(WriteError::Store(error)),
        };
        if let Err(error) = added {
            shared.repair.proofs.release(permit);
            self.events.push_back(Event::Written { op, result: Err(write_error(&error)) });
        }
    }

    /// Stores waiting writes, oldest first, until the store refuses a write.
    fn store_backlog<D: Driver>(&mut self, driver: &mut D) {
        let now = driver.now().mono;
        if !self.backlog.is_due(now) {
            return;
        }
        while let Some((write, until)) = self.backlog.pop() {
            let late = until <= now;
            let result = if late { Err(WriteError::Busy) } else { self.try_store(driver, &write) };
            match result {
                Ok(()) => {}
                Err(WriteError::Busy) if !late => return self.backlog.put_back(write, until),
                Err(error) => {
                    let result = Err(write_error(&error));
                    self.events.push_back(Event::Written { op: write.op, result });
                }
            }
        }
    }

    /// Stores a hint. An event reports the result.
    fn keep_hint<D: Driver>(&mut self, driver: &mut D, hint: Hint, record: &Record) {
        let shared = &self.shared;
        let bytes = hint_bytes(&hint.key, record) as usize;
        let added = driver.write(bytes, WritePurpose::Hint(hint.clone()), |batch| {
            hints::put(shared, batch, &hint, record)
        });
        if added.is_err() {
            self.events.push_back(Event::HintStored { hint: hint.id, kept: false });
        }
    }
}

/// Returns the event for the result of a store read.
fn read_event(op: OpId, wanted: &StoreRead, result: Result<Option<Record>, StoreError>) -> Event {
    match (wanted, result) {
        (StoreRead::Record { most, .. }, Ok(Some(record)))
            if record.byte_len() > *most as usize =>
        {
            Event::ReadTooLong { op, outline: record.outline() }
        }
        (StoreRead::Record { .. }, result) => Event::Read { op, result },
        (StoreRead::Operation { asked, .. }, result) => {
            let parse = |entry: Record| idempotency::parse(*asked, &entry);
            let result = result.and_then(|entry| entry.map(parse).transpose());
            Event::Recalled { op, result }
        }
        (StoreRead::Before(_), _) => unreachable!("a write goes on with it"),
    }
}

/// Returns the approximate number of bytes that a record adds to the log.
fn bytes_of(key: &[u8], record: &Record) -> usize {
    let operations = if record.ballot() > 0 { MAX_OPERATIONS * OPERATION_BYTES } else { 0 };
    key.len() + record.byte_len() + WRITE_OVERHEAD + operations
}

fn write_error(error: &WriteError) -> StoreError {
    match error {
        WriteError::Busy => StoreError::Busy("the write queue is full"),
        WriteError::Sealed(seal) => StoreError::Sealed(*seal),
        WriteError::Store(error) => store_error(error),
    }
}

#[cfg(test)]
mod tests;
