//! Rounds of repair: the node that drives one compares what all nodes hold, range of keys by range
//! of keys, and has what differs brought to whoever lacks it. Then what could not be read on one
//! node is written there anew, and the damaged blocks are given up.
//!
//! ```text
//!   all are sealed (`proving.rs`)
//!   sums of this node ─▶ keys from … to … ─▶ sums of the others ─▶ equal: the next keys
//!                                                  └─▶ differing buckets ─▶ exchange ─┘
//!   at the end: damaged keys of a node ─▶ exchange of all of them ─▶ Discard
//! ```
//!
//! Any node may drive a round, at any time, and several may at once: all that a round writes is the
//! newest record of a key as a replica holds it. By itself a node begins one when none was driven
//! for `interval`, the first in the order of names soonest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::exchange::{Exchange, Meant, Next};
use super::proving::Steps;
use super::{Caller, Node, NodeEffect};
use crate::clock::{Clock, Now, Version};
use crate::compare::{CompareRequest, Compared, Damage, Detail, MAX_RANGES, Sum};
use crate::directory::LifeId;
use crate::event::FailureKind;
use crate::message::{Class, NodeId, Reply, Request};
use crate::proof::RoundId;
use crate::rounds::{RoundReport, Unhealed};
use crate::sums::differing;

/// How long after a failure a node is asked again, in microseconds …
pub(super) const RETRY_MICROS: u64 = 500_000;

/// … how often, if it can't be reached or fails …
const RETRIES: u32 = 3;

/// … and if it is busy.
const BUSY_RETRIES: u32 = 60;

/// By which part of the interval each further node waits longer before it drives a round …
const STAGGER: u64 = 8;

/// … up to so many.
const MAX_STAGGERED: u64 = 16;

/// When rounds are driven, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundConfig {
    /// Microseconds from one round to the next; 0 = a node drives none by itself.
    pub interval_micros: u64,
    /// Microseconds from one round to the next that compares everything.
    pub full_interval_micros: u64,
    /// Percent of the time that a round which nobody asked for may be at work, 1 to 100.
    pub share: u64,
    /// Records that are younger are not compared, in microseconds: they may be on their way.
    pub settled_micros: u64,
}

impl RoundConfig {
    /// A node drives no round by itself; those that are asked for compare all that is not newer
    /// than this node's clock.
    pub const NONE: Self =
        Self { interval_micros: 0, full_interval_micros: 0, share: 100, settled_micros: 0 };
}

/// A round under way.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) report: RoundReport,
    pub(super) id: RoundId,
    pub(super) phase: Phase,
    /// What nodes have to do before and after they are compared.
    pub(super) steps: Steps,
    /// The watermark that all of them have.
    pub(super) watermark: u64,
    /// Whether a record has another number of copies than there are by default.
    pub(super) is_mixed: bool,
    /// Whether a node holds a record from a clock that is ahead.
    pub(super) is_ahead: bool,
    /// Whether none had of what is not compared again; then: up to the end of this round.
    pub(super) is_uniform: bool,
    /// Nodes that take part, this one among them.
    pub(super) nodes: BTreeSet<NodeId>,
    /// Where the current range begins.
    start: Bytes,
    /// What is known of it so far.
    parts: BTreeMap<NodeId, NodePart>,
    /// Nodes that are asked, with where the range that they are asked about begins and ends.
    asked: BTreeMap<NodeId, (Bytes, Option<Bytes>)>,
    exchange: Option<Exchange>,
    damaged: BTreeSet<(NodeId, Damage)>,
    /// Nodes that hold records of which they are the only replica.
    sole: BTreeSet<NodeId>,
    healing: Option<Healing>,
    /// Failures of each node, one after the other.
    pub(super) failures: BTreeMap<NodeId, u32>,
    /// When work on the current range began, and when it may go on.
    pub(super) began: u64,
    pub(super) not_before: u64,
}

/// What a round has shown that made all nodes equal, be it proven or not.
#[derive(Debug, Default)]
pub(super) struct Equal {
    /// All hold the same of what was written up to this time …
    pub(super) up_to: u64,
    /// … in these lives: what a node was brought in an earlier one may be gone …
    pub(super) lives: BTreeMap<NodeId, LifeId>,
    /// … and none holds a record with another number of copies than there are by default.
    pub(super) is_uniform: bool,
}

/// How far a round is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nodes take nothing new up to its time any more.
    Sealing,
    /// They are compared, and made equal.
    Comparing,
    /// What was brought becomes durable.
    Readying,
    /// It is proven.
    Committing,
}

/// What one node has reported of the current range.
#[derive(Debug)]
struct NodePart {
    /// The end of the range that they are of.
    end: Option<Bytes>,
    compared: Compared,
}

/// Damaged ranges, one after the other.
#[derive(Debug)]
struct Healing {
    all: BTreeSet<(NodeId, Damage)>,
    left: VecDeque<(NodeId, Damage)>,
    current: Option<(NodeId, Damage)>,
    /// Keys among the current one that could not be brought …
    failed: u64,
    /// … and whether another node can't read all of it either, as has shown only now.
    is_both: bool,
    /// What is written anew, and can be given up.
    ready: BTreeMap<NodeId, Vec<Damage>>,
    /// What a node is asked to give up.
    discarding: Option<(NodeId, Vec<Damage>)>,
}

impl Node {
    /// Drives the round under way, or begins one that is due.
    pub(super) fn round_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        if self.round.is_some() {
            self.go_on_round(now, out);
        } else if self.begin_round(now) {
            self.seal_all(now, out);
        }
    }

    fn begin_round(&mut self, now: Now) -> bool {
        let rounds = &self.shared.rounds;
        let wanted = rounds.wanted();
        let is_whole = self.shared.membership.is_authoritative_for_all();
        // While partitions move nothing is proven: a receiver may lack what all others hold.
        let moves = self.view.other.is_some();
        let is_out = self.shared.membership.is_fenced() || self.shared.is_removed();
        if !is_whole || moves || is_out || self.shared.is_alone() {
            return false;
        }
        // Who is about to join holds no replicas yet.
        let Some(place) = self.view.topology.place_of(self.shared.own) else { return false };
        let RoundConfig { interval_micros, full_interval_micros, settled_micros, .. } =
            self.config.rounds;
        if rounds.last_asked() == 0 {
            // The first is due an interval after the start.
            rounds.asked(now);
        }
        let staggered = (place as u64).min(MAX_STAGGERED);
        let wait = interval_micros + interval_micros / STAGGER * staggered;
        let is_due = interval_micros > 0
            && now.mono >= rounds.last_asked() + wait
            && !rounds.is_yielding(now)
            && !(rounds.is_active(now) && self.shared.proofs.known().seal.node != self.shared.own);
        // What was written before it was asked for may still be on its way.
        let settled = Clock::limit(now.wall.saturating_sub(settled_micros), 0);
        let young = settled + 1..=Clock::limit(now.wall, 0);
        let waits = wanted.is_some_and(|wanted| young.contains(&wanted.up_to));
        if waits || !is_due && wanted.is_none() {
            return false;
        }
        let last_full = self.last_full.map(|last| last.saturating_add(full_interval_micros));
        let full_is_due = last_full.is_none_or(|due| due <= now.mono);
        let full = wanted.is_some_and(|wanted| wanted.full) || full_is_due;
        let seal = self.shared.proofs.known().seal;
        let id = RoundId { time: settled.max(seal.time + 1), node: self.shared.own };
        let report = RoundReport {
            number: rounds.begin(),
            full,
            asked_for: wanted.is_some(),
            until: id.time,
            began: now.wall,
            ..RoundReport::default()
        };
        self.shared.rounds.publish(&report);
        self.round = Some(Round {
            report,
            id,
            phase: Phase::Sealing,
            steps: Steps::default(),
            watermark: 0,
            is_mixed: false,
            is_ahead: false,
            is_uniform: false,
            nodes: self.view.topology.ids().collect(),
            start: Bytes::new(),
            parts: BTreeMap::new(),
            asked: BTreeMap::new(),
            exchange: None,
            damaged: BTreeSet::new(),
            sole: BTreeSet::new(),
            healing: None,
            failures: BTreeMap::new(),
            began: now.mono,
            not_before: 0,
        });
        true
    }

    /// Keys are placed otherwise from now on. A round compares by the placement that it began with,
    /// and what it has shown is of those replicas; what all were ready for they may commit.
    pub(super) fn placement_changes(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        (self.equal, self.last_full) = (Equal::default(), None);
        if let Some(round) = self.round.as_mut().filter(|round| round.phase != Phase::Committing) {
            round.report.stopped = Some("the members of the cluster change");
            self.go_on_round(now, out);
        }
    }

    /// Does what can be done now.
    pub(super) fn go_on_round(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let Some(round) = &mut self.round else { return };
        if !self.shared.membership.is_authoritative_for_all() {
            round.report.stopped = Some("the node that drives it is being rebuilt");
        }
        if round.report.stopped.is_some() {
            return self.end_round(now, out);
        }
        // One that somebody asks for, here or of another node, while another takes its time comes
        // sooner.
        let rounds = &self.shared.rounds;
        let is_awaited = rounds.wanted().is_some() || rounds.is_yielding(now);
        let is_awaited = is_awaited && round.phase == Phase::Comparing;
        if round.not_before > now.mono && !(is_awaited && round.failures.is_empty()) {
            return;
        }
        if round.phase != Phase::Comparing {
            self.go_on_steps(now, out);
        } else if round.exchange.is_some() {
            self.go_on_exchange(now, out);
        } else if round.healing.is_some() {
            self.go_on_healing(now, out);
        } else {
            self.go_on_comparing(now, out);
        }
    }

    fn compare_with(
        &mut self,
        node: NodeId,
        request: Request,
        range: (Bytes, Option<Bytes>),
        out: &mut Vec<NodeEffect>,
    ) {
        let round = self.round.as_mut().expect("one is under way");
        round.asked.insert(node, range);
        let number = round.report.number;
        self.call(Caller::Compare(number, node), node, Class::Stream, request, out);
    }

    fn go_on_comparing(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let own = self.shared.own;
        let round = self.round.as_mut().expect("one is under way");
        let ends = round.parts.values().map(|part| &part.end);
        let end = ends.min_by(|a, b| sooner(a, b)).cloned().flatten();
        round.parts.retain(|_, part| part.end == end);
        // How far a range goes is for this node's store to say first.
        let first = !round.parts.contains_key(&own);
        let is_due = |node: &NodeId| {
            let is_known = round.parts.contains_key(node) || round.asked.contains_key(node);
            !is_known && (*node == own || !first)
        };
        let due: Vec<NodeId> = round.nodes.iter().copied().filter(is_due).collect();
        if due.is_empty() && round.asked.is_empty() {
            return self.compare(now, end, out);
        }
        let (since, until) = (round.report.since, round.report.until);
        let (id, watermark) = (round.id, round.watermark);
        let start = round.start.clone();
        for node in due {
            let (start, end) = (start.clone(), end.clone());
            let range = (start.clone(), end.clone());
            let request = CompareRequest {
                start,
                end,
                since,
                until,
                round: id,
                watermark,
                detail: Detail::Sums,
            };
            self.compare_with(node, Request::Compare(request), range, out);
        }
    }

    /// All nodes have reported the sums of a range.
    fn compare(&mut self, now: Now, end: Option<Bytes>, out: &mut Vec<NodeEffect>) {
        let own = self.shared.own;
        let round = self.round.as_mut().expect("one is under way");
        let usual = self.view.topology.default_copies();
        for (node, NodePart { compared, .. }) in &round.parts {
            let is_other = |sum: &Sum| sum.sum != 0 && (sum.copies != usual || sum.place >= usual);
            let mut summed = compared.sums.iter().filter(|sum| !sum.is_of_continued());
            round.is_mixed |= summed.any(is_other);
            if usual > 1 && compared.sums.iter().any(|sum| sum.sum != 0 && sum.copies == 1) {
                round.sole.insert(*node);
            }
            if *node == own {
                round.report.records += compared.records;
            }
            for damage in &compared.damaged {
                // A block across the end of a range is reported with this one and with the next.
                round.report.damaged += u64::from(round.damaged.insert((*node, damage.clone())));
                if round.damaged.len() > MAX_RANGES {
                    round.damaged.pop_last();
                }
            }
        }
        let sums: BTreeMap<NodeId, &[Sum]> =
            round.parts.iter().map(|(node, part)| (*node, &part.compared.sums[..])).collect();
        let buckets = differing(&sums, usual);
        round.parts.clear();
        if buckets.is_empty() {
            return self.range_is_done(now, end, out);
        }
        let (nodes, since) = (round.nodes.iter().copied(), round.report.since);
        let range = (&round.start, end);
        let meant = Meant { round: round.id, watermark: round.watermark, since, buckets };
        round.exchange = Some(Exchange::new(nodes, range, meant, None));
        self.go_on_exchange(now, out);
    }

    /// A node has replied to a comparison, or has failed.
    pub(super) fn compared(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(round) = self.round.as_mut().filter(|round| round.report.number == number) else {
            return;
        };
        let Some((start, end)) = round.asked.remove(&node) else { return };
        match result {
            Ok(Reply::Compared(compared)) => {
                round.failures.remove(&node);
                round.report.bytes_read += compared.bytes_read;
                if let Some(exchange) = &mut round.exchange {
                    if let Some(healing) = &mut round.healing {
                        healing.noted(node, &compared.damaged, &mut round.report);
                    }
                    exchange.received(node, compared);
                } else {
                    let end = compared.next.clone().or(end);
                    round.parts.insert(node, NodePart { end, compared });
                }
            }
            Ok(Reply::WrongEpoch) => {
                round.report.stopped = Some("another node drives a later round");
            }
            result => {
                let is_busy = matches!(result, Ok(Reply::Busy) | Err(FailureKind::Busy));
                let failures = round.failures.entry(node).or_default();
                *failures += 1;
                let most = if is_busy { BUSY_RETRIES } else { RETRIES };
                if *failures >= most || matches!(result, Ok(Reply::Absent { .. })) {
                    return self.goes_on_without(now, node, out);
                }
                if let Some(exchange) = &mut round.exchange {
                    exchange.not_received(node, start);
                }
                round.not_before = now.mono + RETRY_MICROS;
            }
        }
        self.go_on_round(now, out);
    }

    pub(super) fn goes_on_without(&mut self, now: Now, node: NodeId, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        round.failures.remove(&node);
        round.nodes.remove(&node);
        round.parts.remove(&node);
        round.steps.forget(node);
        round.report.absent.push(node);
        if let Some(exchange) = &mut round.exchange {
            exchange.forget(node);
        }
        if node == self.shared.own {
            round.report.stopped = Some("the store of the node that drives it can't be read");
        } else if round.nodes.len() == 1 {
            round.report.stopped = Some("no other node takes part");
        }
        self.go_on_round(now, out);
    }

    fn go_on_exchange(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let (clock, skew) = (&self.shared.clock, self.config.max_skew_micros);
        let round = self.round.as_mut().expect("one is under way");
        let number = round.report.number;
        let exchange = round.exchange.as_mut().expect("one is under way");
        exchange
            .merge(&self.view.topology, |outline| clock.is_ahead(outline.rank.when(), now, skew));
        let mut reads = Vec::new();
        while let Some(read) = exchange.next_read() {
            reads.push(read);
        }
        let lists = exchange.next_lists();
        let counts = exchange.take_counts();
        let is_over = exchange.is_over();
        let end = exchange.end.clone();
        round.report.differing += counts.differing;
        round.report.repaired += counts.repaired;
        round.report.failed += counts.failed;
        round.is_ahead |= counts.ahead > 0;
        if let Some(healing) = &mut round.healing {
            healing.failed += counts.failed + counts.ahead;
        }
        for (job, next) in reads {
            match next {
                Next::Read(holder, request) => {
                    self.call(Caller::Fetch(number, job), holder, Class::Stream, request, out);
                }
                Next::Delete(key) => self.delete_again(number, job, &key, out),
            }
        }
        for (node, request) in lists {
            let Request::Compare(CompareRequest { start, end, .. }) = &request else { continue };
            let range = (start.clone(), end.clone());
            self.compare_with(node, request, range, out);
        }
        if is_over {
            let round = self.round.as_mut().expect("one is under way");
            round.exchange = None;
            if round.healing.is_some() {
                self.go_on_healing(now, out);
            } else {
                self.range_is_done(now, end, out);
            }
        }
    }

    /// The record of a key that differs was read, or was not.
    pub(super) fn fetched(
        &mut self,
        now: Now,
        (number, job): (u64, u64),
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(id) = self.round.as_ref().map(|round| round.id) else { return };
        let round = self.round.as_mut().filter(|round| round.report.number == number);
        let Some(exchange) = round.and_then(|round| round.exchange.as_mut()) else { return };
        if let Ok(Reply::Found { record, .. }) = result
            && exchange.is_what_differs(job, &record)
        {
            let (key, lacking) = exchange.was_read(&self.view.topology, job, record.copies);
            if lacking.is_empty() {
                return self.go_on_round(now, out);
            }
            for node in lacking {
                let (key, record) = (key.clone(), record.clone());
                let request = Request::Bring { round: id, key, record };
                self.call(Caller::Bring(number, job), node, Class::Repair, request, out);
            }
        } else {
            exchange.unread(job);
            self.go_on_round(now, out);
        }
    }

    /// What came up again where damage hides its tombstone is deleted once more: by a version that
    /// is above all that was proven, and below all that came since.
    fn delete_again(&mut self, number: u64, job: u64, key: &Bytes, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        let version = Version { time: round.watermark, origin: u32::MAX };
        let record = (self.config.tombstone)(key, version);
        let id = round.id;
        let exchange = round.exchange.as_mut().expect("it has the job");
        let (key, lacking) = exchange.was_read(&self.view.topology, job, 0);
        for node in lacking {
            let (key, record) = (key.clone(), record.clone());
            let request = Request::Bring { round: id, key, record };
            self.call(Caller::Bring(number, job), node, Class::Repair, request, out);
        }
    }

    /// A replica that lacked a record was sent it.
    pub(super) fn brought(
        &mut self,
        now: Now,
        (number, job): (u64, u64),
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let round = self.round.as_mut().filter(|round| round.report.number == number);
        let Some(exchange) = round.and_then(|round| round.exchange.as_mut()) else { return };
        exchange.was_written(job, matches!(result, Ok(Reply::Stored | Reply::Newer { .. })));
        self.go_on_round(now, out);
    }

    /// A range is equal, as far as it could be made so.
    fn range_is_done(&mut self, now: Now, end: Option<Bytes>, out: &mut Vec<NodeEffect>) {
        let share = self.config.rounds.share.clamp(1, 100);
        self.shared.rounds.asked(now);
        let round = self.round.as_mut().expect("one is under way");
        if !round.report.asked_for && end.is_some() {
            let spent = now.mono.saturating_sub(round.began);
            round.not_before = now.mono + spent * (100 - share) / share;
        }
        round.began = now.mono.max(round.not_before);
        if let Some(end) = end {
            round.start = end;
        } else {
            let all = std::mem::take(&mut round.damaged);
            let left = all.iter().cloned().collect();
            let (ready, discarding) = (BTreeMap::new(), None);
            let (current, failed, is_both) = (None, 0, false);
            round.healing =
                Some(Healing { all, left, current, failed, is_both, ready, discarding });
        }
        self.shared.rounds.publish(&round.report);
        self.go_on_round(now, out);
    }

    /// The next damaged range of keys, or the next step with the current one.
    fn go_on_healing(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        loop {
            let round = self.round.as_mut().expect("one is under way");
            let is_absent = !round.report.absent.is_empty();
            let healing = round.healing.as_mut().expect("it goes on");
            if healing.discarding.is_some() {
                return;
            }
            if let Some((node, damage)) = healing.current.take() {
                // All that others hold of it is written there, or could not be.
                let is_both = std::mem::take(&mut healing.is_both);
                match (is_absent, is_both, std::mem::take(&mut healing.failed)) {
                    (false, false, 0) => healing.ready.entry(node).or_default().push(damage),
                    (true, ..) => round.report.stays(node, damage, Unhealed::Absent),
                    (_, true, _) => round.report.stays(node, damage, Unhealed::Both),
                    (..) => round.report.stays(node, damage, Unhealed::Failed),
                }
                continue;
            }
            if let Some((node, damage)) = healing.left.pop_front() {
                let is_other =
                    |(other, theirs): &(NodeId, Damage)| *other != node && overlap(theirs, &damage);
                if healing.all.iter().any(is_other) {
                    round.report.stays(node, damage, Unhealed::Both);
                    continue;
                }
                let end = damage.last.as_ref().map(|last| [&last[..], &[0]].concat().into());
                let nodes = round.nodes.iter().copied();
                let (id, watermark, buckets) = (round.id, round.watermark, Vec::new());
                let meant = Meant { round: id, watermark, since: 0, buckets };
                let all = Exchange::new(nodes, (&damage.first, end), meant, Some(node));
                round.exchange = Some(all);
                healing.current = Some((node, damage));
                return self.go_on_exchange(now, out);
            }
            let Some((node, ranges)) = healing.ready.pop_first() else {
                return self.prove(now, out);
            };
            healing.discarding = Some((node, ranges.clone()));
            let caller = Caller::Discard(round.report.number);
            return self.call(caller, node, Class::Repair, Request::Discard(ranges), out);
        }
    }

    /// A node has given up what it could not read, or could not.
    pub(super) fn discarded(
        &mut self,
        now: Now,
        number: u64,
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(round) = self.round.as_mut().filter(|round| round.report.number == number) else {
            return;
        };
        let healing = round.healing.as_mut().expect("it was asked for");
        let (node, ranges) = healing.discarding.take().expect("it was asked for");
        let is_done = matches!(result, Ok(Reply::Stored | Reply::Newer { .. }));
        if is_done && !round.sole.contains(&node) {
            round.report.healed += ranges.len() as u64;
        } else {
            let why = if is_done { Unhealed::Sole } else { Unhealed::Failed };
            ranges.into_iter().for_each(|damage| round.report.stays(node, damage, why));
        }
        self.shared.rounds.publish(&round.report);
        self.go_on_round(now, out);
    }

    pub(super) fn end_round(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let round = self.round.take().expect("it ends");
        let Round { mut report, steps, is_ahead, is_uniform, .. } = round;
        report.ended = Some(now.wall);
        if report.is_equal() {
            // What hides under records from a clock that is ahead is compared again.
            if !is_ahead {
                self.equal = Equal { up_to: report.until, lives: steps.lives, is_uniform };
            }
            if report.full {
                self.last_full = Some(now.mono);
            }
        } else if report.healed < report.damaged || report.failed > 0 {
            // An incremental one would not see that.
            self.last_full = None;
        }
        self.shared.rounds.asked(now);
        self.shared.rounds.publish(&report);
        out.push(NodeEffect::RoundEnded(report));
    }
}

impl Healing {
    /// A node reports what it can't read among keys that another one is healed of: of records that
    /// are too old for this round that shows only here.
    fn noted(&mut self, node: NodeId, damaged: &[Damage], report: &mut RoundReport) {
        let Some((sick, current)) = &self.current else { return };
        for damage in damaged.iter().filter(|_| node != *sick) {
            self.is_both |= overlap(damage, current);
            if self.all.len() < MAX_RANGES && self.all.insert((node, damage.clone())) {
                report.damaged += 1;
                report.stays(node, damage.clone(), Unhealed::Both);
            }
        }
    }
}

/// Which end of a range comes first; none is behind all.
fn sooner(a: &Option<Bytes>, b: &Option<Bytes>) -> std::cmp::Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn overlap(one: &Damage, other: &Damage) -> bool {
    let ends_before = |a: &Damage, b: &Damage| a.last.as_ref().is_some_and(|last| *last < b.first);
    !ends_before(one, other) && !ends_before(other, one)
}
