//! The model's node, a replica of the key: its record, its knowledge of proofs, and the durable
//! part of both.

use std::collections::BTreeSet;

use crate::rules::Rules;

/// A record. A plain write (ballot 0) begins a base version; conditional writes continue it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) time: u8,
    /// True if the version has the greatest origin: the record continues an absent key or replaces
    /// a purged tombstone. Such a record outranks all plain writes of its time.
    pub(crate) on_absent: bool,
    pub(crate) ballot: u8,
    /// The put value, then the appended ids; empty = a tombstone.
    pub(crate) value: Vec<u8>,
}

impl Record {
    pub(crate) fn plain(time: u8, value: &[u8]) -> Self {
        Self { time, on_absent: false, ballot: 0, value: value.to_vec() }
    }

    /// Returns a tombstone that outranks all records up to the watermark, but no later record.
    pub(crate) fn tombstone_of(watermark: u8) -> Self {
        Self { on_absent: true, ..Self::plain(watermark, &[]) }
    }

    /// Returns the rank. The record with the greater rank wins.
    pub(crate) fn rank(&self) -> (u8, bool, u8) {
        (self.time, self.on_absent, self.ballot)
    }

    /// Returns the time at which the record was written.
    pub(crate) fn when(&self) -> u8 {
        if self.ballot > 0 { self.ballot } else { self.time }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.value.is_empty()
    }

    /// True if the record may be purged at this watermark.
    pub(crate) fn is_gone(&self, watermark: u8) -> bool {
        self.is_tombstone() && self.time.max(self.ballot) <= watermark
    }
}

/// A round: the time up to which it compares, and its driver. Time 0 = no round. A later round ends
/// an earlier one.
pub(crate) type RoundId = (u8, u8);

/// A directory's knowledge of proofs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Proof {
    /// The repair fence: the node accepts no new records up to its time.
    pub(crate) seal: RoundId,
    /// The last round whose exchanged records are all durable on this node.
    pub(crate) ready: RoundId,
    /// The last round for which all nodes were ready: its time is the watermark.
    pub(crate) proven: RoundId,
    /// The greatest ballot that any node had promised when the round was proven.
    pub(crate) floor: u8,
    /// The time at which the empty directory was made; 0 = before the model's start.
    pub(crate) made: u8,
    /// True if the directory is the first of its node, and has lowered its initial fence.
    pub(crate) is_first: bool,
}

impl Proof {
    pub(crate) fn watermark(&self) -> u8 {
        self.proven.0
    }
}

/// The contents of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Directory {
    pub(crate) record: Option<Record>,
    /// An older record, which surfaces if `record` is unreadable; or a record that a round brought
    /// while `record` was unreadable.
    pub(crate) beneath: Option<Record>,
    /// True if the record is unreadable.
    pub(crate) is_rotten: bool,
    pub(crate) proof: Proof,
    /// Writes up to this time may have been acknowledged and lost.
    pub(crate) lost_before: u8,
    /// The time of the end of the directory's log: all later acknowledged writes are newer.
    pub(crate) end: u8,
}

impl Directory {
    /// Returns a new directory of this node, made at the time `now` with a fence at that time.
    pub(crate) fn of_new(node: u8, now: u8, rules: &Rules) -> Self {
        let seal = if rules.new_is_sealed { (now, node) } else { (0, 0) };
        let made = if rules.new_adopts_proofs { now } else { 0 };
        Self { proof: Proof { seal, made, ..Proof::default() }, ..Self::default() }
    }
}

/// A node as a replica; see the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) held: Directory,
    /// The contents after a restart.
    pub(crate) durable: Directory,
    /// An older copy of the directory.
    pub(crate) copy: Option<Directory>,
    /// The greatest promised ballot. A promise survives a restart, because the clock's bound does.
    pub(crate) promise: u8,
    /// Number of process starts.
    pub(crate) life: u8,
    /// The last round that has fenced the current process.
    pub(crate) sealed: RoundId,
    /// The nodes that have streamed to this one; `None` = this node is authoritative.
    pub(crate) rebuilt_by: Option<BTreeSet<u8>>,
    /// The time up to which all nodes were equal in the last round that this node drove, and the
    /// nodes' process starts at that time.
    pub(crate) equal: Option<(u8, Vec<u8>)>,
    /// True if this node, while it was a member, received again a tombstone that it may have
    /// purged.
    pub(crate) is_brought_back: bool,
    /// The number of directories of the node that were set aside.
    pub(crate) set_aside: u8,
}

/// A node's report of its own state in a round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RoundState {
    pub(crate) life: u8,
    pub(crate) proof: Proof,
    pub(crate) promise: u8,
}

/// The reply of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Stored,
    /// The node holds a newer record, or its repair fence refuses the record's time.
    Newer(u8),
    Outbid,
    /// The node's record, and whether the node is authoritative.
    Holds(Option<Record>, bool),
    /// The reply to a step of a round.
    Round(RoundState),
    /// The node's record, and whether a newer record is unreadable.
    Listed(Option<Record>, bool),
    /// The node is not fenced by the round of the request.
    WrongEpoch,
    Nothing,
}

/// The way in which a node treats a proof that it missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    Known,
    TakesOver,
    Outdated,
}

impl Replica {
    pub(crate) fn is_authoritative(&self) -> bool {
        self.rebuilt_by.is_none()
    }

    pub(crate) fn watermark(&self) -> u8 {
        self.held.proof.watermark()
    }

    /// Makes the present contents durable.
    pub(crate) fn sync(&mut self, rules: &Rules) {
        self.durable = self.held.clone();
        if !rules.commit_is_durable {
            self.durable.proof = Proof { proven: (0, 0), floor: 0, ..self.held.proof };
        }
    }

    fn store(&mut self, record: &Record, rules: &Rules) {
        self.hold(record);
        self.sync(rules);
    }

    /// Stores a record, unless a newer one is held. It is not durable yet.
    fn hold(&mut self, record: &Record) {
        let is_again = !record.on_absent && record.is_gone(self.watermark());
        self.is_brought_back |= is_again && !self.has(record) && self.is_authoritative();
        let place =
            if self.held.is_rotten { &mut self.held.beneath } else { &mut self.held.record };
        if place.as_ref().is_none_or(|held| held.rank() < record.rank()) {
            *place = Some(record.clone());
        }
    }

    /// True if the held record is the same or newer.
    fn has(&self, record: &Record) -> bool {
        self.held.record.as_ref().is_some_and(|held| held.rank() >= record.rank())
    }

    fn seal_if(&self, obeys: bool) -> u8 {
        if obeys { self.held.proof.seal.0 } else { 0 }
    }

    /// Handles a client's plain write.
    pub(crate) fn write(&mut self, record: &Record, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        let held = self.held.record.as_ref().filter(|held| held.rank() > record.rank());
        let newer = held.map_or(0, Record::when);
        let seal = self.seal_if(rules.seal_refuses_writes);
        if record.time <= seal {
            let is_told = rules.refused_is_reissued;
            return if is_told { Reply::Newer(seal.max(newer)) } else { Reply::Stored };
        }
        if newer > 0 {
            let is_stored = held
                .is_some_and(|held| (held.time, held.on_absent) == (record.time, record.on_absent));
            return if is_stored { Reply::Stored } else { Reply::Newer(newer) };
        }
        self.store(record, rules);
        let lost = self.held.lost_before;
        if record.time <= lost { Reply::Newer(lost) } else { Reply::Stored }
    }

    /// Handles a hint from the coordinator of the write. A conditional write's record in a hint is
    /// chosen.
    pub(crate) fn store_hint(&mut self, record: &Record, rules: &Rules) {
        let floor = if rules.hints_obey_commit { self.held.proof.floor } else { 0 };
        let is_sealed = record.when() <= self.seal_if(rules.seal_refuses_hints);
        let is_late = is_sealed || record.ballot > 0 && record.ballot <= floor;
        if !self.held.is_rotten && !is_late && !self.has(record) {
            self.store(record, rules);
        }
    }

    /// Returns the ballot up to which the fence and the last commit refuse records, regardless of
    /// the replica's own promises.
    fn refusal_floor(&self, rules: &Rules) -> u8 {
        let floor = if rules.commit_raises_promises { self.held.proof.floor } else { 0 };
        self.seal_if(rules.seal_refuses_ballots).max(floor)
    }

    /// Handles a coordinator's request for a promise; `watermark` is the coordinator's watermark.
    pub(crate) fn prepare(&mut self, ballot: u8, watermark: u8, rules: &Rules) -> Reply {
        let is_other = watermark != self.watermark() && rules.promises_of_one_watermark;
        if self.held.is_rotten || is_other || !self.is_authoritative() {
            return if is_other { Reply::Outbid } else { Reply::Nothing };
        }
        if ballot <= self.promise.max(self.refusal_floor(rules)) {
            return Reply::Outbid;
        }
        self.promise = ballot;
        self.read()
    }

    /// Handles a conditional write's record, from its coordinator or from a node that found it
    /// elsewhere.
    pub(crate) fn accept(&mut self, record: &Record, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        let lost = self.held.lost_before.max(self.refusal_floor(rules));
        if record.ballot < self.promise || record.ballot <= lost {
            return Reply::Outbid;
        }
        if self.held.record.as_ref().is_some_and(|held| held.rank() > record.rank()) {
            return Reply::Newer(0);
        }
        self.promise = self.promise.max(record.ballot);
        self.store(record, rules);
        Reply::Stored
    }

    /// Handles a plain write's record that a reader found elsewhere.
    pub(crate) fn repair(&mut self, record: &Record, rules: &Rules) -> Reply {
        if record.ballot > 0 {
            return self.accept(record, rules);
        }
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        if record.time <= self.seal_if(rules.seal_refuses_repair) {
            return Reply::Outbid;
        }
        self.store(record, rules);
        Reply::Stored
    }

    pub(crate) fn read(&self) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        Reply::Holds(self.held.record.clone(), self.is_authoritative())
    }

    fn round_state(&self) -> Reply {
        let (life, proof, promise) = (self.life, self.held.proof, self.promise);
        Reply::Round(RoundState { life, proof, promise })
    }

    /// Raises the repair fence: from now on the node accepts no new records up to the round's time.
    pub(crate) fn seal(&mut self, round: RoundId, rules: &Rules) -> Reply {
        if round >= self.held.proof.seal {
            self.sealed = round;
        }
        if round > self.held.proof.seal {
            self.held.proof.seal = round;
            if rules.seal_is_durable {
                self.sync(rules);
            }
        }
        self.round_state()
    }

    fn is_of(&self, round: RoundId, rules: &Rules) -> bool {
        self.held.proof.seal == round || !rules.later_round_ends_earlier
    }

    /// Reports the node's record to a round.
    pub(crate) fn list(&self, round: RoundId, watermark: u8, rules: &Rules) -> Reply {
        if !self.is_of(round, rules) || self.watermark() != watermark && rules.lagging_adopts_proofs
        {
            return Reply::WrongEpoch;
        }
        if self.held.is_rotten && rules.damage_is_told {
            return Reply::Listed(self.held.beneath.clone(), true);
        }
        Reply::Listed(self.held.record.clone().filter(|_| !self.held.is_rotten), false)
    }

    /// Stores a record that a round brings from another node. A conditional write's record is
    /// chosen.
    pub(crate) fn bring(&mut self, round: RoundId, record: &Record, rules: &Rules) -> Reply {
        let is_proven = self.held.proof.proven >= round && rules.later_round_ends_earlier;
        if !self.is_of(round, rules) || is_proven {
            return Reply::WrongEpoch;
        }
        self.hold(record);
        Reply::Stored
    }

    /// Discards the unreadable record. Before, the other nodes' records of the key were brought.
    pub(crate) fn discard(&mut self, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            (self.held.record, self.held.is_rotten) = (self.held.beneath.take(), false);
            self.sync(rules);
        }
        Reply::Stored
    }

    /// Makes all records durable that a round has brought.
    pub(crate) fn ready(&mut self, round: RoundId, rules: &Rules) -> Reply {
        let is_same_life = self.sealed == round || !rules.ready_without_restart;
        if self.is_of(round, rules) && is_same_life {
            self.held.proof.ready = self.held.proof.ready.max(round);
            if rules.ready_is_durable {
                self.sync(rules);
            } else {
                self.durable.proof.ready = self.held.proof.ready;
            }
        }
        self.round_state()
    }

    pub(crate) fn classify_proof(&self, proven: RoundId, rules: &Rules) -> Missed {
        let known = &self.held.proof;
        let made = if known.is_first && rules.first_forgets_made { 0 } else { known.made };
        if known.proven >= proven {
            Missed::Known
        } else if known.ready >= proven || made >= proven.0 || !rules.outdated_is_noticed {
            Missed::TakesOver
        } else {
            Missed::Outdated
        }
    }

    /// Handles a commit. All nodes were ready for the round, and no promise was above `floor`.
    /// Returns the treatment of the proof.
    pub(crate) fn commit(&mut self, proven: RoundId, floor: u8, rules: &Rules) -> (Missed, Reply) {
        let missed = self.classify_proof(proven, rules);
        if missed == Missed::TakesOver {
            let known = self.held.proof;
            self.held.proof = Proof {
                seal: known.seal.max(proven),
                proven,
                floor: known.floor.max(floor),
                ..known
            };
            self.sync(rules);
        }
        (missed, self.round_state())
    }

    pub(crate) fn may_purge(&self, rules: &Rules) -> bool {
        let Proof { seal, proven, .. } = self.held.proof;
        let watermark = if rules.purge_waits_for_commit { proven.0 } else { seal.0 };
        let is_due = |record: &Record| record.is_gone(watermark);
        !self.held.is_rotten && self.held.record.as_ref().is_some_and(is_due)
    }

    pub(crate) fn purge(&mut self, rules: &Rules) {
        (self.held.record, self.held.beneath) = (None, None);
        self.sync(rules);
    }

    /// Restarts the node with its durable state.
    pub(crate) fn restart(&mut self) {
        (self.held, self.equal, self.sealed) = (self.durable.clone(), None, (0, 0));
        self.rebuilt_by = self.rebuilt_by.take().map(|_| BTreeSet::new());
        self.life = self.life.saturating_add(1);
    }

    /// Starts the node with another directory. The clock is later than all records and promises
    /// that the node may have acknowledged.
    pub(crate) fn replace(&mut self, directory: Directory, now: u8, rules: &Rules) {
        self.durable = Directory { lost_before: now, ..directory };
        self.restart();
        self.promise = self.promise.max(now);
        self.rebuilt_by = Some(BTreeSet::new());
        self.sync(rules);
    }

    /// Handles the stream of one of `all` other nodes to this node, which is not authoritative. An
    /// older copy of a directory accepts only records that are newer than the copy.
    pub(crate) fn stream(&mut self, from: u8, record: Option<&Record>, all: usize, rules: &Rules) {
        let end = self.held.end;
        if let Some(record) = record.filter(|record| end == 0 || record.when() > end) {
            self.hold(record);
        }
        self.sync(rules);
        self.rebuilt_by.as_mut().expect("it is not authoritative").insert(from);
        self.rebuilt_by = self.rebuilt_by.take().filter(|by| by.len() < all);
    }
}
