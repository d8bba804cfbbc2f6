//! One node, as a replica of the one key: its record, what it knows of proofs, and what a restart
//! finds of that.

use std::collections::BTreeSet;

use crate::rules::Rules;

/// A record: a plain write (ballot 0) begins a family, a conditional one continues it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) time: u8,
    /// Its version has the greatest origin: what was made of an absent key, or instead of a
    /// tombstone that was purged. It is newer than all plain writes of its time.
    pub(crate) on_absent: bool,
    pub(crate) ballot: u8,
    /// What was put, then what was appended; empty = a tombstone.
    pub(crate) value: Vec<u8>,
}

impl Record {
    pub(crate) fn plain(time: u8, value: &[u8]) -> Self {
        Self { time, on_absent: false, ballot: 0, value: value.to_vec() }
    }

    /// A tombstone above all that was proven, and below all that came since.
    pub(crate) fn tombstone_of(watermark: u8) -> Self {
        Self { on_absent: true, ..Self::plain(watermark, &[]) }
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

    /// Whether it may be purged by this watermark.
    pub(crate) fn is_gone(&self, watermark: u8) -> bool {
        self.is_tombstone() && self.time.max(self.ballot) <= watermark
    }
}

/// A round: what was written up to its time is compared; and the node that drives it. Time 0 =
/// there was none. A later one ends an earlier one.
pub(crate) type RoundId = (u8, u8);

/// What a directory knows of proofs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Proof {
    /// Up to its time nothing new is taken.
    pub(crate) seal: RoundId,
    /// The last round of which everything that was brought is durable.
    pub(crate) ready: RoundId,
    /// The last one of which all nodes were ready: its time is the watermark.
    pub(crate) proven: RoundId,
    /// The greatest ballot that any node had promised by then.
    pub(crate) floor: u8,
    /// When the directory was made, empty; 0 = before all that is modelled.
    pub(crate) made: u8,
}

impl Proof {
    pub(crate) fn watermark(&self) -> u8 {
        self.proven.0
    }
}

/// What a directory holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Directory {
    pub(crate) record: Option<Record>,
    /// An older one that comes up if that can't be read, or what a round has brought since.
    pub(crate) beneath: Option<Record>,
    /// The record can't be read.
    pub(crate) is_rotten: bool,
    pub(crate) proof: Proof,
    /// Writes up to here may have been acknowledged and lost.
    pub(crate) lost_before: u8,
    /// How far its log came, as a time: what was acknowledged since then is newer than that.
    pub(crate) end: u8,
}

impl Directory {
    /// A new one, made by this node when clocks said that time. It is sealed from its beginning on.
    pub(crate) fn of_new(node: u8, now: u8, rules: &Rules) -> Self {
        let seal = if rules.new_is_sealed { (now, node) } else { (0, 0) };
        let made = if rules.new_takes_over { now } else { 0 };
        Self { proof: Proof { seal, made, ..Proof::default() }, ..Self::default() }
    }
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
    /// How often it was started, …
    pub(crate) life: u8,
    /// … and the last round that has sealed it since.
    pub(crate) sealed: RoundId,
    /// Who has streamed to it so far, if it is not authoritative.
    pub(crate) rebuilt_by: Option<BTreeSet<u8>>,
    /// Up to when all held the same by the last round that it drove, and the lives that nodes had
    /// then.
    pub(crate) equal: Option<(u8, Vec<u8>)>,
    /// Whether it was brought a tombstone that it may have purged, as a member.
    pub(crate) is_brought_back: bool,
    /// How often its directory was set aside.
    pub(crate) set_aside: u8,
}

/// What a node tells of itself in a round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RoundState {
    pub(crate) life: u8,
    pub(crate) proof: Proof,
    pub(crate) promise: u8,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Stored,
    /// It holds something newer, or takes nothing of that time any more.
    Newer(u8),
    Outbid,
    /// What it holds, and whether it is authoritative.
    Holds(Option<Record>, bool),
    /// To a step of a round.
    Round(RoundState),
    /// What it holds, and whether something newer of it can't be read.
    Listed(Option<Record>, bool),
    /// Of another round than the one that it is sealed by.
    WrongEpoch,
    Nothing,
}

/// What a node may do about a proof that it missed.
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

    /// What it holds becomes durable.
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

    /// Stores a record, which is not durable yet; the newest is kept.
    fn hold(&mut self, record: &Record) {
        let is_again = !record.on_absent && record.is_gone(self.watermark());
        self.is_brought_back |= is_again && !self.has(record) && self.is_authoritative();
        let place =
            if self.held.is_rotten { &mut self.held.beneath } else { &mut self.held.record };
        if place.as_ref().is_none_or(|held| held.rank() < record.rank()) {
            *place = Some(record.clone());
        }
    }

    /// Whether what it holds makes this record superfluous.
    fn has(&self, record: &Record) -> bool {
        self.held.record.as_ref().is_some_and(|held| held.rank() >= record.rank())
    }

    fn seal_if(&self, obeys: bool) -> u8 {
        if obeys { self.held.proof.seal.0 } else { 0 }
    }

    /// A client's plain write.
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

    /// What it missed, from the node that coordinated it. A conditional record is chosen.
    pub(crate) fn take_hint(&mut self, record: &Record, rules: &Rules) {
        let floor = if rules.hints_obey_commit { self.held.proof.floor } else { 0 };
        let is_sealed = record.when() <= self.seal_if(rules.seal_refuses_hints);
        let is_late = is_sealed || record.ballot > 0 && record.ballot <= floor;
        if !self.held.is_rotten && !is_late && !self.has(record) {
            self.store(record, rules);
        }
    }

    /// The least ballot that it stores, less one, whatever it has promised to coordinators.
    fn promised(&self, rules: &Rules) -> u8 {
        let floor = if rules.commit_raises_promises { self.held.proof.floor } else { 0 };
        self.seal_if(rules.seal_refuses_ballots).max(floor)
    }

    /// A coordinator asks for a promise, by its watermark.
    pub(crate) fn prepare(&mut self, ballot: u8, watermark: u8, rules: &Rules) -> Reply {
        let is_other = watermark != self.watermark() && rules.promises_of_one_watermark;
        if self.held.is_rotten || is_other || !self.is_authoritative() {
            return if is_other { Reply::Outbid } else { Reply::Nothing };
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
        let lost = self.held.lost_before.max(self.promised(rules));
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

    /// A plain record that a reader found elsewhere.
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

    /// A round begins: from now on nothing new up to its time is taken.
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

    /// A round compares.
    pub(crate) fn list(&self, round: RoundId, watermark: u8, rules: &Rules) -> Reply {
        if !self.is_of(round, rules) || self.watermark() != watermark && rules.lagging_takes_over {
            return Reply::WrongEpoch;
        }
        if self.held.is_rotten && rules.damage_is_told {
            return Reply::Listed(self.held.beneath.clone(), true);
        }
        Reply::Listed(self.held.record.clone().filter(|_| !self.held.is_rotten), false)
    }

    /// A round brings what another node holds. A conditional record is chosen.
    pub(crate) fn bring(&mut self, round: RoundId, record: &Record, rules: &Rules) -> Reply {
        let is_proven = self.held.proof.proven >= round && rules.later_round_ends_earlier;
        if !self.is_of(round, rules) || is_proven {
            return Reply::WrongEpoch;
        }
        self.hold(record);
        Reply::Stored
    }

    /// All that others hold of what it can't read was brought.
    pub(crate) fn discard(&mut self, rules: &Rules) -> Reply {
        if self.held.is_rotten {
            (self.held.record, self.held.is_rotten) = (self.held.beneath.take(), false);
            self.sync(rules);
        }
        Reply::Stored
    }

    /// What a round brought becomes durable.
    pub(crate) fn ready(&mut self, round: RoundId, rules: &Rules) -> Reply {
        let is_same_life = self.sealed == round || !rules.ready_in_sealed_life;
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

    pub(crate) fn missed(&self, proven: RoundId, rules: &Rules) -> Missed {
        let known = &self.held.proof;
        if known.proven >= proven {
            Missed::Known
        } else if known.ready >= proven || known.made >= proven.0 || !rules.outdated_is_noticed {
            Missed::TakesOver
        } else {
            Missed::Outdated
        }
    }

    /// All nodes were ready, and had promised no ballot above the floor. Returns what the node can
    /// do about it.
    pub(crate) fn commit(&mut self, proven: RoundId, floor: u8, rules: &Rules) -> (Missed, Reply) {
        let missed = self.missed(proven, rules);
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

    /// It starts with what is durable.
    pub(crate) fn restart(&mut self) {
        (self.held, self.equal, self.sealed) = (self.durable.clone(), None, (0, 0));
        self.rebuilt_by = self.rebuilt_by.take().map(|_| BTreeSet::new());
        self.life = self.life.saturating_add(1);
    }

    /// It starts with another directory than it ended with. Its clock is ahead of all that it may
    /// have acknowledged and promised.
    pub(crate) fn replace(&mut self, directory: Directory, now: u8, rules: &Rules) {
        self.durable = Directory { lost_before: now, ..directory };
        self.restart();
        self.promise = self.promise.max(now);
        self.rebuilt_by = Some(BTreeSet::new());
        self.sync(rules);
    }

    /// One of `all` others has streamed what it holds to this node, which is not authoritative: of
    /// an older copy what is newer than that.
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
