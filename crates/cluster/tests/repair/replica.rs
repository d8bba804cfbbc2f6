//! One replica of one key: its record, its seal and watermark, and what a restart finds of them.

use std::collections::BTreeSet;

use crate::rules::Rules;

/// A record: a plain write (ballot 0) begins a family, a conditional one continues it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) time: u8,
    /// Its family was begun by a conditional write on an absent key: newer than all plain writes
    /// of its time.
    pub(crate) on_absent: bool,
    pub(crate) ballot: u8,
    /// What was put, then what was appended; empty = a tombstone.
    pub(crate) value: Vec<u8>,
}

impl Record {
    pub(crate) fn plain(time: u8, value: &[u8]) -> Self {
        Self { time, on_absent: false, ballot: 0, value: value.to_vec() }
    }

    /// What decides which record holds.
    pub(crate) fn rank(&self) -> (u8, bool, u8) {
        (self.time, self.on_absent, self.ballot)
    }

    /// When it was written.
    pub(crate) fn when(&self) -> u8 {
        if self.ballot > 0 { self.ballot } else { self.time }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.value.is_empty()
    }

    fn is_of_family(&self, other: &Self) -> bool {
        (self.time, self.on_absent) == (other.time, other.on_absent)
    }
}

/// What a directory holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Directory {
    pub(crate) record: Option<Record>,
    /// The record can't be read.
    pub(crate) is_rotten: bool,
    /// Up to here nothing new is taken.
    pub(crate) seal: u8,
    /// The last round that it takes part in.
    pub(crate) round: u8,
    /// Up to here all replicas held the same.
    pub(crate) watermark: u8,
    /// What the last commit promised for all keys.
    pub(crate) floor: u8,
    /// Writes up to here may have been acknowledged and lost.
    pub(crate) lost_before: u8,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) held: Directory,
    /// What a restart finds.
    pub(crate) durable: Directory,
    /// An older copy of it.
    pub(crate) copy: Option<Directory>,
    /// The greatest ballot that it has promised. It outlives a restart, as the clock's bound.
    pub(crate) promise: u8,
    /// The latest life of the third replica's directory that it knows: each that replaces another
    /// begins one.
    pub(crate) life: u8,
    /// Whether it was brought a tombstone that it may have purged.
    pub(crate) is_brought_back: bool,
    /// Who has streamed to it so far, if it is rebuilt; `None` = it is authoritative.
    pub(crate) rebuilt_by: Option<BTreeSet<usize>>,
}

/// What a replica tells a round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sum {
    pub(crate) record: Option<Record>,
    pub(crate) is_damaged: bool,
    pub(crate) watermark: u8,
    pub(crate) floor: u8,
    pub(crate) promise: u8,
    pub(crate) life: u8,
}

/// What a commit says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Proof {
    /// Up to here all replicas held the same.
    pub(crate) watermark: u8,
    /// The greatest ballot that one of them had promised by then.
    pub(crate) floor: u8,
    /// The life of the third replica's directory that was summed.
    pub(crate) life: u8,
}

/// What a replica answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Stored,
    /// It holds something newer, or takes nothing of that time any more.
    Newer(u8),
    /// What was brought is older than its seal.
    Stale,
    Outbid,
    /// What it holds, its watermark, and whether it is authoritative.
    Holds(Option<Record>, u8, bool),
    Summed(Sum),
    Nothing,
}

impl Replica {
    pub(crate) fn is_authoritative(&self) -> bool {
        self.rebuilt_by.is_none()
    }

    /// What it holds becomes durable, as far as the rules say so.
    pub(crate) fn sync(&mut self, rules: &Rules) {
        self.durable = self.held.clone();
        if !rules.seal_is_durable {
            (self.durable.seal, self.durable.round) = (0, 0);
        }
        if !rules.commit_is_durable {
            (self.durable.watermark, self.durable.floor) = (0, 0);
        }
    }

    fn store(&mut self, record: &Record, rules: &Rules) {
        self.hold(record);
        self.sync(rules);
    }

    /// Stores a record, which is not durable yet.
    fn hold(&mut self, record: &Record) {
        self.is_brought_back |= record.is_tombstone() && record.when() <= self.held.watermark;
        self.held.record = Some(record.clone());
    }

    /// Whether what it holds makes this record superfluous.
    fn has(&self, record: &Record) -> bool {
        self.held.record.as_ref().is_some_and(|held| held.rank() >= record.rank())
    }

    /// A client's plain write.
    pub(crate) fn write(&mut self, record: &Record, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        if let Some(held) = self.held.record.as_ref().filter(|held| held.rank() >= record.rank()) {
            let is_stored = held.is_of_family(record);
            return if is_stored { Reply::Stored } else { Reply::Newer(held.when()) };
        }
        let seal = self.held.seal;
        if record.time <= seal && rules.seal_refuses_writes {
            return if rules.refused_is_reissued { Reply::Newer(seal) } else { Reply::Stored };
        }
        self.store(record, rules);
        let lost = self.held.lost_before;
        if record.time <= lost { Reply::Newer(lost) } else { Reply::Stored }
    }

    /// What this replica missed, from the node that coordinated it. A conditional record is chosen.
    pub(crate) fn take_hint(&mut self, record: &Record, rules: &Rules) {
        let seal = if rules.seal_refuses_hints { self.held.seal } else { 0 };
        let floor = if rules.hints_obey_commit { self.held.floor } else { 0 };
        let is_late = record.when() <= seal || record.ballot > 0 && record.ballot <= floor;
        if !self.held.is_rotten && !is_late && !self.has(record) {
            self.store(record, rules);
        }
    }

    /// The least ballot that it stores, less one.
    fn promised(&self, rules: &Rules) -> u8 {
        let seal = if rules.seal_refuses_ballots { self.held.seal } else { 0 };
        let floor = if rules.commit_raises_promises { self.held.floor } else { 0 };
        seal.max(floor)
    }

    /// A coordinator asks for a promise.
    pub(crate) fn prepare(&mut self, ballot: u8, rules: &Rules) -> Reply {
        if self.held.is_rotten || !self.is_authoritative() {
            return Reply::Nothing;
        }
        if ballot <= self.promise.max(self.promised(rules)) {
            return Reply::Outbid;
        }
        self.promise = ballot;
        self.read()
    }

    /// A conditional record, from its coordinator or from whoever found it elsewhere.
    pub(crate) fn accept(&mut self, record: &Record, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        if record.ballot < self.promise || record.ballot <= self.promised(rules) {
            return Reply::Outbid;
        }
        if self.held.record.as_ref().is_some_and(|held| held.rank() > record.rank()) {
            return Reply::Newer(0);
        }
        self.promise = self.promise.max(record.ballot);
        self.store(record, rules);
        Reply::Stored
    }

    /// A record that a reader found elsewhere.
    pub(crate) fn repair(&mut self, record: &Record, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        if self.has(record) && record.ballot == 0 || self.held.record.as_ref() == Some(record) {
            return Reply::Stored;
        }
        if record.when() <= self.held.seal && rules.seal_refuses_repair {
            return Reply::Stale;
        }
        if record.ballot > 0 {
            return self.accept(record, rules);
        }
        self.store(record, rules);
        Reply::Stored
    }

    pub(crate) fn read(&self) -> Reply {
        if self.held.is_rotten {
            return Reply::Nothing;
        }
        Reply::Holds(self.held.record.clone(), self.held.watermark, self.is_authoritative())
    }

    /// Whether a round may ask this replica yet.
    pub(crate) fn counts(&self, rules: &Rules) -> bool {
        self.is_authoritative() || !rules.rebuilt_does_not_count
    }

    /// Whether it takes something from a round.
    pub(crate) fn takes_part(&mut self, round: u8, rules: &Rules) -> bool {
        let is_current = round >= self.held.round || !rules.later_round_ends_earlier;
        self.held.round = self.held.round.max(round);
        is_current
    }

    /// A round begins: from now on nothing new up to `time` is taken.
    pub(crate) fn seal(&mut self, time: u8, rules: &Rules) -> Reply {
        self.held.seal = self.held.seal.max(time);
        self.sync(rules);
        self.sum(rules)
    }

    fn sum(&self, rules: &Rules) -> Reply {
        let Directory { record, is_rotten, watermark, floor, .. } = self.held.clone();
        Reply::Summed(Sum {
            record: record.filter(|_| !is_rotten),
            is_damaged: is_rotten && rules.damage_is_told,
            watermark,
            floor,
            promise: self.promise,
            life: self.life,
        })
    }

    /// A round brings what another replica holds. A conditional record is chosen.
    pub(crate) fn exchange(&mut self, record: Option<&Record>, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            (self.held.record, self.held.is_rotten) = (record.cloned(), false);
        } else if let Some(record) = record.filter(|record| !self.has(record)) {
            self.hold(record);
        }
        if rules.exchange_is_durable {
            self.sync(rules);
        }
        self.sum(rules)
    }

    /// Takes over a watermark from a replica that holds `record`.
    pub(crate) fn take_over(
        &mut self,
        (watermark, floor): (u8, u8),
        record: Option<&Record>,
        rules: &Rules,
    ) -> Reply {
        if self.held.watermark < watermark {
            let is_alone = |held: &Record| held.when() <= watermark && Some(held) != record;
            if rules.watermark_drops && self.held.record.as_ref().is_some_and(is_alone) {
                self.held.record = None;
            }
            if let Some(record) = record.filter(|record| !self.has(record)) {
                self.held.record = Some(record.clone());
            }
            self.held.watermark = watermark;
            self.held.seal = self.held.seal.max(watermark);
            self.held.floor = self.held.floor.max(floor);
            self.sync(rules);
        }
        self.sum(rules)
    }

    /// All replicas held the same.
    pub(crate) fn commit(&mut self, proof: &Proof, rules: &Rules) {
        let is_void = proof.life < self.life && rules.commit_names_lives;
        if !is_void && self.held.seal >= proof.watermark {
            self.held.watermark = self.held.watermark.max(proof.watermark);
            self.held.floor = self.held.floor.max(proof.floor);
            self.sync(rules);
        }
    }

    pub(crate) fn may_purge(&self, rules: &Rules) -> bool {
        let proven =
            if rules.purge_waits_for_commit { self.held.watermark } else { self.held.seal };
        let is_due = |record: &Record| record.is_tombstone() && record.when() <= proven;
        !self.held.is_rotten && self.held.record.as_ref().is_some_and(is_due)
    }

    pub(crate) fn purge(&mut self, rules: &Rules) {
        self.held.record = None;
        self.sync(rules);
    }

    pub(crate) fn restart(&mut self) {
        self.held = self.durable.clone();
    }

    /// It starts with another directory than it ended with. Its clock is ahead of all that it may
    /// have acknowledged and promised.
    pub(crate) fn replace(&mut self, directory: Directory, now: u8, rules: &Rules) {
        self.held = Directory { lost_before: now, ..directory };
        self.promise = self.promise.max(now);
        self.life += 1;
        self.rebuilt_by = Some(BTreeSet::new());
        self.sync(rules);
    }

    /// Another replica streams what it holds to this one, which is rebuilt.
    pub(crate) fn stream(&mut self, from: usize, source: &Directory, rules: &Rules) {
        if rules.rebuilt_takes_watermark {
            let proof = (source.watermark, source.floor);
            self.take_over(proof, source.record.as_ref(), rules);
        }
        if rules.rebuilt_joins_round {
            self.held.seal = self.held.seal.max(source.seal);
            self.held.round = self.held.round.max(source.round);
        }
        let record = source.record.as_ref().filter(|record| !self.has(record));
        let lags = source.watermark < self.held.watermark && rules.watermark_refuses_stream;
        let is_stale = |record: &&Record| lags && record.when() <= self.held.watermark;
        if let Some(record) = record.filter(|record| !is_stale(record)) {
            self.hold(record);
        }
        self.sync(rules);
        self.rebuilt_by.as_mut().expect("it is rebuilt").insert(from);
    }
}
