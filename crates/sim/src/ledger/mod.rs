//! The clients' requests and answers, recorded outside the cluster, and checks of the answers.
//!
//! For every key, and for every pair of `ack` and `from` used on the key, the ledger knows the
//! greatest version that was acknowledged, or returned by a read: the *floor*. An operation
//! remembers the floors at its start. Its answer must not be below a floor if the replicas of the
//! floor must intersect the replicas of the operation.
//!
//! ```text
//!  write 2/3 acknowledged, version 7 ──▶ floor (2 of 3) = 7
//!                                         │ 2 + 2 > 3: a later read 2/3 gives 7 or more,
//!                                         │            a later write 2/3 gets a version above 7
//!                                         └ 2 + 1 = 3: a later read 1/3 may miss it
//! ```
//!
//! When a layout change moves keys, the module `moves` adjusts or ends their floors.

mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use lsm::PurgeRule;
use protocol::{Answer, AskedQuorum, Damage, Kind, Quorum, Rank, Record, Version};

use crate::histories::{ContendedWrite, Histories, is_contended};
use crate::records::{WriteId, write_of};
use crate::values::decode;
pub(crate) use moves::is_replica;
use moves::quorum_under_default;

/// Kind of a client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Get,
    Put,
    Delete,
    /// A conditional write.
    Change(ContendedWrite),
    /// A scan of all keys.
    Scan,
}

/// Final outcome of an operation, as its client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientOutcome {
    /// The node's answer.
    Answer(Answer),
    /// All records of a range.
    Range(Vec<(Bytes, Record)>),
    /// No node accepted the request. The client knows that the operation had no effect.
    Refused,
    /// The connection broke, or the client gave up.
    Nothing,
}

/// A request as its client sends it.
#[derive(Debug, Clone)]
pub(crate) struct ClientRequest {
    pub(crate) what: RequestKind,
    pub(crate) key: Bytes,
    /// The layout in force determines an `ack` or `from` that the client does not set.
    pub(crate) quorum: AskedQuorum,
    /// Time to live of a written value, in milliseconds; 0 = for ever.
    pub(crate) ttl_ms: u64,
}

#[derive(Debug)]
struct Operation {
    asked: ClientRequest,
    begun: u64,
    /// Earliest time at which a clock may evaluate the operation, in milliseconds.
    earliest_ms: u64,
    /// Number of disks lost before the operation.
    wipes: u32,
    /// Number of switches of reads to other replicas before the operation.
    moves: usize,
    /// Number of placement changes before the operation. `is_quiet` is true if the last change was
    /// complete.
    placements: u64,
    is_quiet: bool,
    /// True if a node has discarded a block with this key since the operation began.
    is_in_damage: bool,
    /// Floors at the start of the operation, by key.
    floors: BTreeMap<Bytes, Vec<Floor>>,
}

/// A lower bound on the versions of a key. `held_by` of the key's first `from` replicas hold it.
#[derive(Debug, Clone, Copy)]
struct Floor {
    held_by: u8,
    from: u8,
    /// Least version that reads must return.
    version: Version,
    /// Greatest acknowledged version, which the versions of later writes must exceed.
    order: Option<Version>,
    /// Number of disks lost before the floor was raised.
    wipes: u32,
}

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    /// The write is in progress, or its outcome is unknown.
    Open,
    Acknowledged(Version),
    /// The write had no effect and will have none.
    None,
}

#[derive(Debug)]
struct Write {
    key: Bytes,
    kind: Kind,
    begun: u64,
    /// Expiry of the value in milliseconds since 1970; 0 = never.
    expiry_ms: u64,
    known_outcome: WriteOutcome,
    /// Greatest version under which the write was returned, of the versions that no clock has
    /// issued. A repair proof may replace the write's base version by such a version.
    continued: Option<Version>,
    /// Time at which the write was first returned.
    seen: Option<u64>,
}

/// State of all replicas as of the last repair proof.
#[derive(Debug, Default)]
struct ProvenState {
    /// Time of the proof; 0 = never.
    at: u64,
    /// Watermark: the proof covers versions up to this time.
    watermark: u64,
    /// The newest record of each key. Keys without an entry have no record, or a purgeable record.
    ranks: BTreeMap<Bytes, Rank>,
}

/// Numbers of operations by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Reads that were answered.
    pub reads: u64,
    /// Ranges that were read to their end.
    pub ranges: u64,
    /// Writes and deletes that were acknowledged.
    pub writes: u64,
    /// Operations that were refused, or failed without effect.
    pub failed: u64,
    /// Writes with an unknown outcome.
    pub unknown: u64,
}

/// The ledger: see the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    operations: BTreeMap<u64, Operation>,
    writes: BTreeMap<WriteId, Write>,
    floors: BTreeMap<Bytes, Vec<Floor>>,
    /// Numbers of copies that a key was written with; 0 = the default.
    copies: BTreeMap<Bytes, BTreeSet<u8>>,
    versions: BTreeMap<Version, WriteId>,
    /// Latest time that any node's wall clock has shown, in milliseconds.
    pub(crate) latest_ms: u64,
    /// Greatest time of any version.
    pub(crate) greatest: u64,
    /// Time at which records written with a wrong clock were last removed from a store.
    forgot_future: u64,
    deletes: BTreeMap<Bytes, Vec<WriteId>>,
    next: u64,
    /// The last repair proof.
    proven: ProvenState,
    /// The default number of copies of a key: at first, and since each switch of reads to other
    /// replicas.
    defaults: Vec<u8>,
    /// Number of placement changes: moves that began, ended or were reverted.
    placements: u64,
    /// True once all nodes have finished the last placement change and dropped their orphaned
    /// records.
    is_quiet: bool,
    /// Number of disks lost so far. Each disk may have held the only copy of a write that a single
    /// replica acknowledged.
    wipes: u32,
    /// Time and origin of each lost disk. The durable bound of the node's clock was lost with the
    /// disk.
    lost_bounds: Vec<(u64, u32)>,
    /// Greatest version time that the disk lost last can have held, as the node with the new disk
    /// estimates.
    lost_before: u64,
    /// Time at which a node may last have forgotten writes with an idempotency key.
    pub(crate) forgetful_at: u64,
    /// Histories of contended keys, which have no floors.
    pub(crate) histories: Histories,
    pub(crate) tally: Tally,
    pub(crate) wrong: Vec<String>,
}

impl Ledger {
    /// Creates an empty ledger.
    pub(crate) fn new(default_copies: u8) -> Self {
        Self { defaults: vec![default_copies], ..Self::default() }
    }

    /// Records the start of an operation, and its write, if any. Returns the number of both. No
    /// clock by which the operation may be evaluated is behind `earliest_ms`.
    pub(crate) fn begin(&mut self, now: u64, earliest_ms: u64, asked: ClientRequest) -> u64 {
        self.next += 1;
        let own = self.floors.get_key_value(&asked.key);
        let floors = match asked.what {
            RequestKind::Scan => self.floors.clone(),
            _ => own.map(|(key, floors)| (key.clone(), floors.clone())).into_iter().collect(),
        };
        if is_contended(&asked.key) {
            self.histories.begin(self.next, now, earliest_ms, &asked);
        } else if let Some(kind) = kind_of(&asked.what) {
            let (key, begun) = (asked.key.clone(), now);
            let copies = asked.quorum.from.unwrap_or(0);
            self.copies.entry(key.clone()).or_default().insert(copies);
            if kind == Kind::Tombstone {
                self.deletes.entry(key.clone()).or_default().push(WriteId(self.next));
            }
            let (known_outcome, expiry_ms, continued) = (WriteOutcome::Open, 0, None);
            let write = Write { key, kind, begun, expiry_ms, known_outcome, continued, seen: None };
            self.writes.insert(WriteId(self.next), write);
        }
        let operation = Operation {
            asked,
            begun: now,
            earliest_ms,
            wipes: self.wipes,
            moves: self.moves(),
            placements: self.placements,
            is_quiet: self.is_quiet,
            is_in_damage: false,
            floors,
        };
        self.operations.insert(self.next, operation);
        self.next
    }

    /// Returns the number of the next operation.
    pub(crate) fn next(&self) -> u64 {
        self.next + 1
    }

    /// Records the expiry of a write's value, as set by a node.
    pub(crate) fn record_expiry(&mut self, key: &Bytes, number: u64, expiry_ms: u64) {
        self.histories.record_expiry(key, number, expiry_ms);
        if let Some(write) = self.writes.get_mut(&WriteId(number)) {
            write.expiry_ms = expiry_ms;
        }
    }

    /// Notes that a clock is set back to `wall_ms`. Operations in progress may be evaluated at that
    /// time.
    pub(crate) fn record_clock_set_back(&mut self, wall_ms: u64) {
        self.histories.record_clock_set_back(wall_ms);
        for operation in self.operations.values_mut() {
            operation.earliest_ms = operation.earliest_ms.min(wall_ms);
        }
    }

    pub(crate) fn client_request(&self, number: u64) -> Option<&ClientRequest> {
        self.operations.get(&number).map(|operation| &operation.asked)
    }

    /// Records a version that a node issues.
    pub(crate) fn record_version(&mut self, now: u64, write: WriteId, version: Version) {
        // An answer that was in transit when its record was removed from the store does not prove
        // that the store holds the record.
        if self.writes.get(&write).is_none_or(|write| write.begun >= self.forgot_future) {
            self.greatest = self.greatest.max(version.time);
        }
        let key = self.operations.get(&write.0).map(|operation| &operation.asked.key);
        if key.is_some_and(|key| self.histories.record_version(key, write.0, version)) {
            return;
        }
        // Origin u32::MAX marks a version that no clock issued: the version of a conditional write
        // to an absent key, or a base version that a repair proof created.
        let is_issued = version.origin != u32::MAX;
        if is_issued
            && let Some(other) = self.versions.insert(version, write)
            && other != write
            && !self.has_lost_disk_between(version, write, other)
        {
            self.report_error(
                now,
                format!("version {version:?} of {write:?} was given to {other:?} too"),
            );
        }
    }

    /// Returns true if the node that issued a version lost its disk between two writes. The node
    /// then did not know the versions that it had issued before, and may issue one again if its
    /// clock is behind the lost bound.
    fn has_lost_disk_between(&self, version: Version, write: WriteId, other: WriteId) -> bool {
        let begun = |write| self.writes.get(&write).map(|write: &Write| write.begun);
        let (Some(one), Some(other)) = (begun(write), begun(other)) else { return false };
        let between = one.min(other)..=one.max(other);
        self.lost_bounds
            .iter()
            .any(|(lost, origin)| *origin == version.origin && between.contains(lost))
    }

    /// Records the outcome of an operation.
    pub(crate) fn end(&mut self, now: u64, number: u64, outcome: &ClientOutcome) {
        let Some(mut operation) = self.operations.remove(&number) else { return };
        for (key, floors) in &mut operation.floors {
            let mixed = self.is_mixed(key);
            let safe = |floor: &Floor| floor.wipes == self.wipes || floor.held_by > 1 && !mixed;
            floors.retain(safe);
        }
        if let ClientOutcome::Answer(Answer::Found(Some(record))) = outcome {
            self.check_returned(now, &operation, &operation.asked.key, record);
        }
        if is_contended(&operation.asked.key) && operation.asked.what != RequestKind::Scan {
            return self.end_contended(now, number, &operation.asked, outcome);
        }
        let write = WriteId(number);
        match (outcome, &operation.asked.what) {
            (ClientOutcome::Answer(Answer::Found(record)), RequestKind::Get) => {
                self.tally.reads += 1;
                self.check_read(now, &operation, record.as_ref());
            }
            (
                ClientOutcome::Answer(Answer::Written(version, _)),
                RequestKind::Put | RequestKind::Delete,
            ) => {
                self.tally.writes += 1;
                self.record_acknowledged(now, write, &operation, *version);
            }
            (ClientOutcome::Answer(Answer::Failed(failed)), what) => {
                if *what == RequestKind::Get || !failed.unknown {
                    self.tally.failed += 1;
                    self.record_failed(now, write);
                } else {
                    self.tally.unknown += 1;
                }
            }
            (ClientOutcome::Refused, _) => {
                self.tally.failed += 1;
                self.record_failed(now, write);
            }
            (ClientOutcome::Range(items), RequestKind::Scan) => {
                self.tally.ranges += 1;
                self.check_range(now, &operation, items);
            }
            (ClientOutcome::Nothing, RequestKind::Get | RequestKind::Scan) => {
                self.tally.failed += 1;
            }
            (ClientOutcome::Nothing, _) => self.tally.unknown += 1,
            (ClientOutcome::Answer(_) | ClientOutcome::Range(_), what) => {
                self.report_error(now, format!("{what:?} {number} was answered {outcome:?}"));
            }
        }
    }

    fn end_contended(
        &mut self,
        now: u64,
        number: u64,
        asked: &ClientRequest,
        outcome: &ClientOutcome,
    ) {
        if let ClientOutcome::Answer(Answer::Found(Some(record))) = outcome {
            self.greatest = self.greatest.max(record.write_time());
        }
        if let Some(what) = self.histories.end((now, self.latest_ms), number, asked, outcome) {
            self.report_error(now, format!("{:?}: {what}", asked.key));
        }
    }

    fn check_read(&mut self, now: u64, operation: &Operation, record: Option<&Record>) {
        let (key, quorum) = (&operation.asked.key, operation.asked.quorum);
        if let Some(record) = record {
            self.check_seen(now, key, record);
        }
        let version = record.map(|record| record.version());
        let floors: Vec<Floor> = self.binding_floors(operation, key).collect();
        for floor in floors {
            // A tombstone of the key may be purged already.
            let seen = match version {
                Some(version) => version >= floor.version,
                None => self.may_be_gone(key, floor.version),
            };
            if !seen {
                let what = format!(
                    "lost: a read {quorum} of {key:?}, begun at {}, returns {}, \
                     but {floor} was known by then",
                    operation.begun,
                    describe_record(record)
                );
                self.report_error(now, what);
            }
        }
        // A read leaves its record on at least as many replicas as the read asked.
        if let Some(record) = record
            && self.is_kept(operation)
            && let Some((held_by, from)) = self.holders(operation, key, record.copies())
        {
            let (version, wipes) = (record.version(), operation.wipes);
            self.raise_floor(key, Floor { held_by, from, version, order: None, wipes });
        }
    }

    fn check_range(&mut self, now: u64, operation: &Operation, items: &[(Bytes, Record)]) {
        if !items.is_sorted_by(|(a, _), (b, _)| a < b) {
            self.report_error(now, "a range is not in the order of its keys".to_owned());
        }
        for (key, record) in items {
            self.check_seen(now, key, record);
            self.check_returned(now, operation, key, record);
            let expiry_ms = record.expiry_ms();
            if expiry_ms != 0 && expiry_ms <= operation.earliest_ms {
                let (begun, what) = (operation.begun, describe_record(Some(record)));
                let what = format!("expired: a range, begun at {begun}, returns {what} of {key:?}");
                self.report_error(now, what);
            }
        }
        let found: BTreeMap<_, _> = items.iter().map(|(key, record)| (key, record)).collect();
        let quorum = operation.asked.quorum;
        for key in operation.floors.keys() {
            let record = found.get(key).copied();
            let floors: Vec<Floor> = self.binding_floors(operation, key).collect();
            for floor in floors {
                let seen = match record {
                    Some(record) => record.version() >= floor.version,
                    None => self.may_be_gone(key, floor.version),
                };
                if !seen {
                    let what = format!(
                        "lost: a range {quorum}, begun at {}, returns {} of {key:?}, \
                         but {floor} was known by then",
                        operation.begun,
                        describe_record(record)
                    );
                    self.report_error(now, what);
                }
            }
        }
    }

    /// Returns true if a key may have a tombstone or an expired value of at least this version.
    fn may_be_gone(&self, key: &Bytes, version: Version) -> bool {
        let deletes = self.deletes.get(key).into_iter().flatten();
        let deletes = deletes.filter_map(|id| self.writes.get(id));
        let expires = |write: &&Write| write.expiry_ms != 0 && write.expiry_ms <= self.latest_ms;
        let expired = self.writes.values().filter(|write| write.key == *key).filter(expires);
        deletes.chain(expired).any(|write| match write.known_outcome {
            WriteOutcome::None => false,
            WriteOutcome::Open => true,
            WriteOutcome::Acknowledged(of) => of >= version || write.continued >= Some(version),
        })
    }

    fn record_acknowledged(
        &mut self,
        now: u64,
        write: WriteId,
        operation: &Operation,
        version: Version,
    ) {
        self.record_version(now, write, version);
        if let Some(write) = self.writes.get_mut(&write) {
            write.known_outcome = WriteOutcome::Acknowledged(version);
        }
        let (key, quorum) = (&operation.asked.key, operation.asked.quorum);
        let floors: Vec<Floor> = self.binding_floors(operation, key).collect();
        for floor in floors {
            if floor.order.is_some_and(|order| version <= order) {
                let what = format!(
                    "order: {write:?} {quorum} of {key:?}, begun at {}, is versioned {:x}, \
                     but {floor} was known by then",
                    operation.begun, version.time
                );
                self.report_error(now, what);
            }
        }
        let copies = quorum.from.unwrap_or(0);
        if let Some((held_by, from)) = self.holders(operation, key, copies) {
            let (order, wipes) = (Some(version), operation.wipes);
            self.raise_floor(key, Floor { held_by, from, version, order, wipes });
        }
    }

    fn record_failed(&mut self, now: u64, write: WriteId) {
        let Some(failed) = self.writes.get_mut(&write) else { return };
        failed.known_outcome = WriteOutcome::None;
        if let Some(seen) = failed.seen {
            let what = format!("invented: {write:?} was not done, but was returned at {seen}");
            self.report_error(now, what);
        }
    }

    /// Records a repair proof. Up to the watermark, all replicas hold the records of `ranks` and no
    /// others.
    pub(crate) fn record_proof(&mut self, now: u64, watermark: u64, ranks: BTreeMap<Bytes, Rank>) {
        if watermark > self.proven.watermark {
            self.proven = ProvenState { at: now, watermark, ranks };
        }
    }

    /// Checks a record returned to a client. No majority read may return a record that a repair
    /// proof has excluded, whichever disks are lost and restored.
    fn check_returned(&mut self, now: u64, operation: &Operation, key: &Bytes, record: &Record) {
        let asked = operation.asked.quorum;
        let is_default = |default: &u8| record.copies() == 0 || record.copies() == *default;
        let is_usual = asked.from.is_none() && self.defaults.iter().all(is_default);
        let quorum = quorum_under_default(asked, self.defaults[operation.moves]);
        let is_majority = 2 * quorum.ack > quorum.from;
        let ProvenState { at, watermark, ranks } = &self.proven;
        let is_proven = *at > 0 && operation.begun > *at && record.write_time() <= *watermark;
        let is_gone = PurgeRule::is_purgeable_at(record.view(), *watermark);
        if is_usual
            && is_majority
            && is_proven
            && !is_gone
            && ranks.get(key) != Some(&record.rank())
        {
            let what = format!(
                "risen: {} of {key:?} was returned to who asked at {}; since {at} it is proven \
                 that up to {watermark:x} there is only {:x?}",
                describe_record(Some(record)),
                operation.begun,
                ranks.get(key)
            );
            self.report_error(now, what);
        }
    }

    /// Checks a record seen by a client or by the final checks.
    pub(crate) fn check_seen(&mut self, now: u64, key: &Bytes, record: &Record) {
        if is_contended(key) {
            if decode(key, record).is_none() {
                self.report_error(
                    now,
                    format!("invented: {} under {key:?}", describe_record(Some(record))),
                );
            }
            return;
        }
        let Some(id) = write_of(key, record) else {
            self.report_error(
                now,
                format!("invented: {} under {key:?}", describe_record(Some(record))),
            );
            return;
        };
        let Some(write) = self.writes.get_mut(&id) else {
            self.report_error(now, format!("invented: nobody wrote {id:?} under {key:?}"));
            return;
        };
        write.seen.get_or_insert(now);
        let version = record.version();
        write.continued = write.continued.max(Some(version).filter(|v| v.origin == u32::MAX));
        let (own, begun, known_outcome) = (write.key == *key, write.begun, write.known_outcome);
        let kind = write.kind;
        if !own || kind != record.kind() || begun > now {
            self.report_error(now, format!("invented: {id:?} was returned under {key:?}"));
        }
        if known_outcome == WriteOutcome::None {
            self.report_error(
                now,
                format!("invented: {id:?} of {key:?} was not done, but was returned"),
            );
        }
        self.record_version(now, id, record.version());
    }

    fn raise_floor(&mut self, key: &Bytes, floor: Floor) {
        // One of the floor's holders may be the node whose disk was lost after the operation began.
        let lost = (self.wipes - floor.wipes).min(u32::from(floor.held_by)) as u8;
        let floor = Floor { held_by: floor.held_by - lost, ..floor };
        if lost > 0 && (floor.held_by == 0 || floor.version.time > self.lost_before) {
            return;
        }
        let floors = self.floors.entry(key.clone()).or_default();
        let same = |other: &&mut Floor| (other.held_by, other.from) == (floor.held_by, floor.from);
        match floors.iter_mut().find(same) {
            Some(held) => {
                if floor.version > held.version {
                    (held.version, held.wipes) = (floor.version, floor.wipes);
                }
                held.order = held.order.max(floor.order);
            }
            None => floors.push(floor),
        }
    }

    /// Notes that a disk was lost.
    ///
    /// A record that only one replica had to hold may be lost. A record with more copies than a
    /// newer record of its key may be lost too: the other replicas hold the newer record in its
    /// place, and do not know that the lost replica had to hold the older record. The bound of the
    /// node's clock is lost with the disk: if the clock was set back too, versions of this `origin`
    /// may be issued again. The node that starts with an empty disk assumes that its previous
    /// incarnation acknowledged no version after `lost_before`.
    pub(crate) fn record_disk_loss(&mut self, now: u64, origin: u32, lost_before: u64) {
        self.wipes += 1;
        self.lost_bounds.push((now, origin));
        self.lost_before = lost_before;
        if self.greatest > lost_before {
            self.histories.give_up_keys();
        }
        let of_operations = self.operations.values_mut().map(|operation| &mut operation.floors);
        for floors in of_operations.chain([&mut self.floors]).flat_map(BTreeMap::values_mut) {
            floors.retain(|floor| floor.version.time <= lost_before);
        }
    }

    /// Notes that a node has discarded unreadable blocks with these keys. A record that no other
    /// replica had to hold is lost, whether the disk is replaced later or not.
    pub(crate) fn record_discarded(&mut self, ranges: &[Damage]) {
        let is_in = |key: &Bytes| {
            let ends = |damage: &Damage| damage.last.as_ref().is_none_or(|last| key <= last);
            ranges.iter().any(|damage| damage.first <= *key && ends(damage))
        };
        let mut floors = std::mem::take(&mut self.floors);
        let mut operations = std::mem::take(&mut self.operations);
        let of_operations = operations.values_mut().map(|operation| &mut operation.floors);
        for floors in of_operations.chain([&mut floors]) {
            for (key, floors) in floors.iter_mut().filter(|(key, _)| is_in(key)) {
                let is_mixed = self.is_mixed(key);
                floors.retain(|floor| floor.held_by > 1 && !is_mixed);
            }
        }
        for operation in operations.values_mut() {
            operation.is_in_damage |= is_in(&operation.asked.key);
        }
        (self.floors, self.operations) = (floors, operations);
    }

    /// Notes the loss of the records with versions more than an hour after `limit`. One node wrote
    /// them while its clock was off by days.
    pub(crate) fn forget_future(&mut self, now: u64, limit: u64) {
        const HOUR: u64 = 3_600_000_000 << 12;
        self.forgot_future = now;
        if self.greatest > limit + HOUR {
            self.greatest = limit;
        }
    }

    /// Returns every key for which a write was begun.
    pub(crate) fn keys(&self) -> Vec<Bytes> {
        let mut keys: Vec<_> = self.writes.values().map(|write| write.key.clone()).collect();
        keys.extend(self.histories.keys());
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the number of operations in progress.
    pub(crate) fn open_operations(&self) -> usize {
        self.operations.len()
    }

    pub(crate) fn report_error(&mut self, now: u64, what: String) {
        self.wrong.push(format!("at {}.{:06}: {what}", now / 1_000_000, now % 1_000_000));
    }
}

impl Floor {
    /// Returns true if every choice of `ack` replicas includes a holder of the floor.
    fn overlaps(&self, quorum: Quorum) -> bool {
        let both = u16::from(self.held_by) + u16::from(quorum.ack);
        both > u16::from(self.from.max(quorum.from))
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held_by, from, version, .. } = self;
        write!(f, "{:x}-{:08x} on {held_by} of {from}", version.time, version.origin)
    }
}

/// Formats a record for an error message.
pub(crate) fn describe_record(record: Option<&Record>) -> String {
    let Some(record) = record else { return "nothing".to_owned() };
    let (Rank { version, ballot, kind, .. }, copies) = (record.rank(), record.copies());
    let ballot = if ballot > 0 { format!("+{ballot:x}") } else { String::new() };
    format!("{kind:?} {:x}-{:08x}{ballot} x{copies}", version.time, version.origin)
}

fn kind_of(what: &RequestKind) -> Option<Kind> {
    match what {
        RequestKind::Get | RequestKind::Scan | RequestKind::Change(_) => None,
        RequestKind::Put => Some(Kind::Value),
        RequestKind::Delete => Some(Kind::Tombstone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: u32 = 7;

    fn put(ledger: &mut Ledger, now: u64) -> WriteId {
        let (what, key) = (RequestKind::Put, Bytes::from("k"));
        let quorum = Quorum { ack: 1, from: 1 }.into();
        WriteId(ledger.begin(now, 0, ClientRequest { what, key, quorum, ttl_ms: 0 }))
    }

    #[test]
    fn a_version_is_issued_once_for_each_disk_of_its_node() {
        let version = Version { time: 5, origin: ORIGIN };
        let mut ledger = Ledger::new(3);
        let first = put(&mut ledger, 10);
        ledger.record_version(11, first, version);
        ledger.record_disk_loss(20, ORIGIN, 9);
        let second = put(&mut ledger, 30);
        // A client reads a record of the lost disk before its version is issued again, and after.
        for write in [first, second, first] {
            ledger.record_version(31, write, version);
        }
        assert_eq!(ledger.wrong, [""; 0]);
        let third = put(&mut ledger, 40);
        ledger.record_version(41, second, version);
        ledger.record_version(42, third, version);
        assert_eq!(ledger.wrong.len(), 1, "no disk was lost since the second");
    }

    #[test]
    fn a_reissued_version_after_another_nodes_disk_loss_is_an_error() {
        let version = Version { time: 5, origin: ORIGIN };
        let mut ledger = Ledger::new(3);
        let first = put(&mut ledger, 10);
        ledger.record_version(11, first, version);
        ledger.record_disk_loss(20, ORIGIN + 1, 9);
        let second = put(&mut ledger, 30);
        ledger.record_version(31, second, version);
        assert_eq!(ledger.wrong.len(), 1);
    }
}
