//! A repair round, from the view of its driver.
//!
//! ```text
//!  1 Seal ─────▶ all nodes are fenced
//!       ├─ a node has a later round's fence ─▶ pause, then Seal again with a later time
//!       └─ a node lags ─▶ Commit of the round that it missed
//!  2 List ─────▶ all nodes have listed their records
//!  3 Bring ────▶ the newest record is brought to the nodes that lack it
//!       └─ a conditional write's record: a majority is read first
//!  4 Discard ──▶ a node that cannot read its record has discarded it
//!  5 Ready ────▶ all nodes are ready, and none has restarted since its fence was raised
//!  6 Commit
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::client::{Client, First, Step};
use crate::register::Op;
use crate::replica::{Record, Reply, RoundId, RoundState};
use crate::rules::Rules;
use crate::state::{Message, REPLICAS};

/// Maximum number of times that a round takes a later time because another round has one.
const MOST_RAISES: u8 = 2;

/// Maximum number of reads of a conditional write's record. A read is repeated if replicas refuse
/// its repair.
const MOST_READS: u8 = 3;

/// The phase of a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Sealing,
    /// The round has backed off, and waits for the end of another round.
    Waiting,
    /// Lagging nodes adopt proofs that they missed.
    Leveling,
    Comparing,
    /// A conditional write's record is read.
    Reading,
    Bringing,
    Discarding,
    Readying,
    Over,
}

/// A repair round; see the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Round {
    /// The round's id; time 0 = the round has not begun.
    pub(crate) id: RoundId,
    pub(crate) phase: Phase,
    is_full: bool,
    /// The nodes that take part.
    nodes: BTreeSet<u8>,
    /// The nodes that have not done the current step.
    open: BTreeSet<u8>,
    /// True if a node that did not answer has been left out.
    is_without: bool,
    reported: BTreeMap<u8, RoundState>,
    lives: BTreeMap<u8, u8>,
    watermark: u8,
    /// The exclusive lower bound of the times of compared records.
    since: u8,
    listed: BTreeMap<u8, (Option<Record>, bool)>,
    /// The newest record while a majority is read for it, and the nodes that lack it.
    newest: Option<Record>,
    lacking: BTreeSet<u8>,
    reads: Option<Client>,
    raises: u8,
    is_failed: bool,
    pub(crate) is_committed: bool,
    /// True if the round need not prove anything, because of a fault or a later round.
    pub(crate) is_void: bool,
}

/// Messages to send, each with its recipient.
pub(crate) type Sent = Vec<(u8, Message)>;

/// The clock, and the parts of the driver's state that a round uses.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) clock: &'a mut u8,
    /// Each node's watermark.
    pub(crate) watermarks: Vec<u8>,
    pub(crate) equal: Option<(u8, Vec<u8>)>,
    pub(crate) rules: &'a Rules,
}

impl Round {
    pub(crate) fn begin(&mut self, id: RoundId, is_full: bool, nodes: u8) -> Sent {
        (self.is_full, self.nodes) = (is_full, (0..nodes).collect());
        self.seal_all(id)
    }

    fn seal_all(&mut self, id: RoundId) -> Sent {
        (self.id, self.phase) = (id, Phase::Sealing);
        self.reported.clear();
        self.open = self.nodes.clone();
        // The driver is fenced last: the replies of the other nodes show whether its clock is
        // right.
        self.open.iter().filter(|to| **to != id.1).map(|to| (*to, Message::Seal(id))).collect()
    }

    /// True if other rounds must wait for the end of this round.
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Waiting | Phase::Over)
    }

    /// Returns the time up to which the round found all nodes equal, and the nodes' process starts
    /// at the fence; `None` = the round found no equality.
    pub(crate) fn equal(&self) -> Option<(u8, Vec<u8>)> {
        let is_equal = !self.is_failed && !self.is_without && !self.listed.is_empty();
        is_equal.then(|| (self.id.0, self.lives.values().copied().collect()))
    }

    /// Backs off, because another round has fenced a node.
    pub(crate) fn lets_go(&mut self) -> Sent {
        self.phase = Phase::Waiting;
        Vec::new()
    }

    pub(crate) fn continue_round(&mut self, seal: u8) -> Sent {
        self.seal_all((self.id.0.max(seal + 1), self.id.1))
    }

    /// Continues without a node that does not answer. The round then proves nothing.
    pub(crate) fn continue_without_node(&mut self, node: u8, seen: &mut Seen<'_>) -> Sent {
        self.is_without = true;
        self.nodes.remove(&node);
        self.reported.remove(&node);
        self.has_done(node, seen)
    }

    /// Returns the nodes that have not answered yet, in phases in which they can be left out.
    pub(crate) fn awaits(&self) -> impl Iterator<Item = u8> {
        let counts = matches!(self.phase, Phase::Sealing | Phase::Leveling | Phase::Comparing);
        self.open.iter().copied().filter(move |node| counts && *node != self.id.1)
    }

    /// Reduces an ended round to its result.
    pub(crate) fn end(&mut self) {
        let Self { id, phase, is_committed, is_void, .. } = *self;
        *self = Self { id, phase, is_committed, is_void, ..Self::default() };
    }

    /// Ends the round at the end of its driver's process.
    pub(crate) fn ends_with_its_node(&mut self) {
        if self.is_active() || self.phase == Phase::Waiting {
            (self.phase, self.is_void) = (Phase::Over, true);
            self.end();
        }
    }

    /// Handles a node's reply.
    pub(crate) fn receive(
        &mut self,
        (from, asked): (u8, &Message),
        reply: Reply,
        seen: &mut Seen<'_>,
    ) -> Sent {
        match (asked, reply) {
            (Message::Seal(round), Reply::Round(state)) if *round == self.id => {
                self.on_seal_reply(from, state, seen)
            }
            (Message::Commit { .. }, Reply::Round(state)) if self.phase == Phase::Leveling => {
                let most = self.reported.values().map(|state| state.proof.proven).max();
                if Some(state.proof.proven) < most {
                    // The node's directory is an older copy.
                    return self.continue_without_node(from, seen);
                }
                self.reported.insert(from, state);
                self.has_done(from, seen)
            }
            (Message::List { round, .. }, reply)
                if *round == self.id && self.phase == Phase::Comparing =>
            {
                match reply {
                    Reply::Listed(record, is_damaged) => {
                        self.listed.insert(from, (record, is_damaged));
                        self.has_done(from, seen)
                    }
                    _ => self.is_late(),
                }
            }
            (Message::Bring { round, .. } | Message::Discard(round), reply)
                if *round == self.id
                    && matches!(self.phase, Phase::Bringing | Phase::Discarding) =>
            {
                let is_late = reply != Reply::Stored;
                (self.is_failed, self.is_void) =
                    (self.is_failed || is_late, self.is_void || is_late);
                self.has_done(from, seen)
            }
            (Message::Ready(round), Reply::Round(state)) if *round == self.id => {
                self.is_ready(from, state, seen)
            }
            (asked, reply) if self.phase == Phase::Reading => {
                self.reads_on((from, asked), reply, seen)
            }
            _ => Vec::new(),
        }
    }

    fn is_late(&mut self) -> Sent {
        (self.phase, self.is_failed, self.is_void) = (Phase::Over, true, true);
        Vec::new()
    }

    /// Notes that a node has done the present step of the round.
    fn has_done(&mut self, node: u8, seen: &mut Seen<'_>) -> Sent {
        self.open.remove(&node);
        match self.phase {
            Phase::Sealing if self.open.iter().eq([&self.id.1]) => {
                vec![(self.id.1, Message::Seal(self.id))]
            }
            _ if !self.open.is_empty() => Vec::new(),
            Phase::Sealing => self.all_are_sealed(seen),
            Phase::Leveling => self.compare(seen),
            Phase::Comparing => self.look(seen),
            Phase::Bringing => self.heal(seen),
            Phase::Discarding => self.prove(seen),
            _ => Vec::new(),
        }
    }

    fn on_seal_reply(&mut self, from: u8, state: RoundState, seen: &mut Seen<'_>) -> Sent {
        if self.phase != Phase::Sealing {
            return Vec::new();
        }
        let seal = state.proof.seal;
        if seal == self.id {
            self.reported.insert(from, state);
            return self.has_done(from, seen);
        }
        self.raises += 1;
        if self.raises > MOST_RAISES {
            return self.is_late();
        }
        let id = (seal.0 + 1, self.id.1);
        *seen.clock = id.0.max(*seen.clock);
        self.seal_all(id)
    }

    fn all_are_sealed(&mut self, seen: &mut Seen<'_>) -> Sent {
        let greatest =
            self.reported.values().map(|state| (state.proof.proven, state.proof.floor)).max();
        let (proven, floor) = greatest.expect("there are some");
        let lags =
            |state: &RoundState| state.proof.proven < proven && seen.rules.lagging_adopts_proofs;
        let lagging = self.reported.iter().filter(|(_, state)| lags(state));
        self.open = lagging.map(|(node, _)| *node).collect();
        (self.phase, self.watermark) = (Phase::Leveling, proven.0);
        if self.open.is_empty() {
            return self.compare(seen);
        }
        self.open.iter().map(|to| (*to, Message::Commit { round: proven, floor })).collect()
    }

    fn compare(&mut self, seen: &mut Seen<'_>) -> Sent {
        self.lives = self.reported.iter().map(|(node, state)| (*node, state.life)).collect();
        let lives: Vec<u8> = self.lives.values().copied().collect();
        let holds =
            |(_, then): &(u8, Vec<u8>)| *then == lives || !seen.rules.restart_voids_equality;
        let equal = seen.equal.take().filter(holds).map_or(0, |(time, _)| time);
        self.since = if self.is_full { 0 } else { self.watermark.max(equal) };
        (self.phase, self.open) = (Phase::Comparing, self.nodes.clone());
        let (round, watermark) = (self.id, self.watermark);
        self.nodes.iter().map(|to| (*to, Message::List { round, watermark })).collect()
    }

    fn is_healing(&self) -> bool {
        self.listed.values().any(|(_, is_damaged)| *is_damaged)
    }

    /// After all nodes have listed their records, determines the record to bring and its
    /// recipients.
    fn look(&mut self, seen: &mut Seen<'_>) -> Sent {
        let rules = seen.rules;
        let since = if self.is_healing() { 0 } else { self.since };
        let is_meant = |record: &Record| {
            record.when() > since && (rules.exchange_brings_newest || record.when() <= self.id.0)
        };
        let listed = self.listed.iter().map(|(node, (record, is_damaged))| {
            (*node, (record.clone().filter(is_meant), *is_damaged))
        });
        let listed: BTreeMap<u8, (Option<Record>, bool)> = listed.collect();
        let is_replica = |node: &u8| usize::from(*node) < REPLICAS;
        let is_gone = |record: &Record| record.is_gone(self.watermark) && rules.sums_skip_purgeable;
        let sum = |record: &Record| record.when() <= self.id.0 && !is_gone(record);
        let sums = listed.iter().filter(|(node, _)| is_replica(node));
        let mut sums = sums.map(|(_, (record, _))| record.clone().filter(sum));
        let first = sums.next().flatten();
        let newest = listed.values().filter_map(|(record, _)| record.as_ref());
        let newest = newest.max_by_key(|record| record.rank()).cloned();
        let Some(newest) = newest.filter(|_| self.is_healing() || sums.any(|sum| sum != first))
        else {
            return self.heal(seen);
        };
        let holds = |(record, _): &(Option<Record>, bool)| record.is_some();
        let is_risen = newest.when() <= self.watermark
            && listed.values().all(|entry| entry.1 == holds(entry))
            && listed.values().any(|entry| !entry.1);
        if is_risen && rules.resurfaced_is_deleted {
            let holders = listed.iter().filter(|(_, entry)| holds(entry));
            let holders = holders.map(|(node, _)| *node).collect();
            return self.bring(&Record::tombstone_of(self.watermark), holders, seen);
        }
        let lacks = |node: &u8, held: Option<&Record>| match held {
            Some(held) => held.rank() < newest.rank(),
            None => is_replica(node) && !is_gone(&newest),
        };
        let lacking = listed.iter().filter(|(node, (held, _))| lacks(node, held.as_ref()));
        let lacking: BTreeSet<u8> = lacking.map(|(node, _)| *node).collect();
        let is_it = |entry: &(Option<Record>, bool)| !entry.1 && entry.0.as_ref() == Some(&newest);
        let Some((holder, _)) = listed.iter().rev().find(|(_, entry)| is_it(entry)) else {
            // The record surfaced in place of an unreadable record, and is unreadable too.
            self.is_failed = true;
            return self.heal(seen);
        };
        if newest.ballot == 0 || lacking.is_empty() || !rules.minority_is_completed {
            return self.bring(&newest, lacking, seen);
        }
        let mut read = Client::new(Op::Get, *holder, First::default());
        let asked = read.begin(seen.clock, seen.watermarks[usize::from(*holder)], rules);
        (self.phase, self.reads) = (Phase::Reading, Some(read));
        (self.newest, self.lacking) = (Some(newest), lacking);
        to_replicas(&asked)
    }

    fn reads_on(
        &mut self,
        (from, asked): (u8, &Message),
        reply: Reply,
        seen: &mut Seen<'_>,
    ) -> Sent {
        let read = self.reads.as_mut().expect("it reads");
        let watermark = seen.watermarks[usize::from(read.at)];
        match read.receive((from, asked), reply, watermark, seen.rules) {
            Step::Send(message) => to_replicas(&message),
            Step::Wait if read.refused && read.tries < MOST_READS => {
                to_replicas(&read.begin(seen.clock, watermark, seen.rules))
            }
            Step::Wait if !read.refused => Vec::new(),
            step => {
                self.reads = None;
                let (newest, lacking) = (self.newest.take(), std::mem::take(&mut self.lacking));
                let read = if let Step::Answer(_, record) = step { record } else { None };
                let is_older =
                    |read: &Record| Some(read.rank()) < newest.as_ref().map(Record::rank);
                match read.filter(|read| !is_older(read) || !seen.rules.read_is_not_older) {
                    Some(read) => self.bring(&read, lacking, seen),
                    None => {
                        (self.is_failed, self.is_void) = (true, true);
                        self.heal(seen)
                    }
                }
            }
        }
    }

    fn bring(&mut self, record: &Record, lacking: BTreeSet<u8>, seen: &mut Seen<'_>) -> Sent {
        (self.phase, self.open) = (Phase::Bringing, lacking);
        if self.open.is_empty() {
            return self.heal(seen);
        }
        let bring = Message::Bring { round: self.id, record: record.clone() };
        self.open.iter().map(|to| (*to, bring.clone())).collect()
    }

    /// Discards unreadable records, once all other nodes have reported their records of the key.
    fn heal(&mut self, seen: &mut Seen<'_>) -> Sent {
        let damaged = self.listed.iter().filter(|(_, entry)| entry.1).map(|(node, _)| *node);
        self.open = damaged.collect();
        let waits = self.is_without && seen.rules.healing_waits;
        if self.open.is_empty() || waits || self.is_failed {
            return self.prove(seen);
        }
        self.phase = Phase::Discarding;
        self.open.iter().map(|to| (*to, Message::Discard(self.id))).collect()
    }

    fn prove(&mut self, seen: &mut Seen<'_>) -> Sent {
        let is_without = self.is_without && seen.rules.all_take_part;
        if self.is_failed || is_without {
            self.phase = Phase::Over;
            return Vec::new();
        }
        (self.phase, self.open) = (Phase::Readying, self.nodes.clone());
        self.nodes.iter().map(|to| (*to, Message::Ready(self.id))).collect()
    }

    fn is_ready(&mut self, from: u8, state: RoundState, seen: &mut Seen<'_>) -> Sent {
        if self.phase != Phase::Readying {
            return Vec::new();
        }
        let lives = seen.rules.lives_are_compared;
        if state.proof.ready != self.id || lives && self.lives.get(&from) != Some(&state.life) {
            (self.phase, self.is_void) = (Phase::Over, true);
            return Vec::new();
        }
        self.reported.insert(from, state);
        self.open.remove(&from);
        if !self.open.is_empty() {
            return Vec::new();
        }
        (self.phase, self.is_committed) = (Phase::Over, true);
        let promised = self.reported.values().map(|state| state.promise).max().unwrap_or(0);
        // The model has one ballot after each promised one; the protocol has 63.
        let floor = promised + u8::from(seen.rules.commit_outbids_following);
        let commit = Message::Commit { round: self.id, floor };
        self.nodes.iter().map(|to| (*to, commit.clone())).collect()
    }
}

fn to_replicas(message: &Message) -> Sent {
    (0..REPLICAS as u8).map(|to| (to, message.clone())).collect()
}
