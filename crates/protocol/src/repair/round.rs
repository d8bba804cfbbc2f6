//! A repair round as its driver runs it, from the first request to the last.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::exchange::ExchangeRange;
use super::{EqualRound, PastRounds};
use crate::background::task::{self, Context};
use crate::event::FailureKind;
use crate::membership::disk_ids::BootId;
use crate::message::{Class, NodeId, Reply, Request};
use crate::placement::view::View;
use crate::repair::compare_messages::{CompareRequest, Compared, Damage, Detail, MAX_RANGES, Sum};
use crate::repair::status::{RoundReport, Unhealed, Unrepaired};
use crate::repair::sums::differing_buckets;
use crate::repair::watermark::RoundId;

/// Pause before a node that failed is asked again, in microseconds.
pub(super) const RETRY_MICROS: u64 = 500_000;

/// Maximum number of attempts with a node that cannot be reached or fails.
pub(super) const RETRIES: u32 = 3;

/// Maximum number of attempts with a node that is busy, or while another node drives a round: half
/// a minute in total.
pub(super) const BUSY_RETRIES: u32 = 60;

/// The reason reported when another node's round has overtaken this round.
pub(super) const OTHER_NODE_DRIVES: &str = "another node drives a round";

/// A round under way.
pub(super) struct Round {
    pub(super) context: Context,
    pub(super) past: Rc<RefCell<PastRounds>>,
    /// The view at the start of the round; a change of placement ends the round.
    pub(super) view: Arc<View>,
    pub(super) id: RoundId,
    pub(super) report: RoundReport,
    /// The participating nodes, including this node.
    pub(super) nodes: BTreeSet<NodeId>,
    /// The boot ids with which the nodes raised their fences.
    pub(super) lives: BTreeMap<NodeId, BootId>,
    /// The watermark that all participants have.
    pub(super) watermark: u64,
    /// True if a record has a number of copies other than the default.
    is_mixed: bool,
    /// True if a node holds a future record.
    is_ahead: bool,
    /// True if all records that this round skips have the default number of copies; at its end, if
    /// all records up to the round's time have it.
    pub(super) is_uniform: bool,
    damaged: BTreeSet<(NodeId, Damage)>,
    /// Nodes that hold records of which they are the only replica.
    sole: BTreeSet<NodeId>,
}

/// The reason why a round ends before its last step.
pub(super) enum RoundEnd {
    /// Part of the comparison was not done.
    Stopped(&'static str),
    /// All nodes are equal, but a condition of the proof is not met.
    Unproven(&'static str),
}

impl Round {
    pub(super) fn new(
        context: Context,
        past: Rc<RefCell<PastRounds>>,
        id: RoundId,
        report: RoundReport,
    ) -> Self {
        let view = context.view();
        Self {
            context,
            past,
            id,
            report,
            nodes: view.topology.ids().collect(),
            view,
            lives: BTreeMap::new(),
            watermark: 0,
            is_mixed: false,
            is_ahead: false,
            is_uniform: false,
            damaged: BTreeSet::new(),
            sole: BTreeSet::new(),
        }
    }

    /// Runs the round to its end and reports it.
    pub(super) async fn run(mut self) {
        match self.steps().await {
            Ok(()) => {}
            Err(RoundEnd::Stopped(why)) => self.report.stopped = Some(why),
            Err(RoundEnd::Unproven(why)) => self.report.unproven = Some(why),
        }
        let past = Rc::clone(&self.past);
        let mut past = past.borrow_mut();
        past.record_end(&self.context, &self.report);
        // A future record may hide an older record, which must then be compared again.
        if self.report.is_equal() && !self.is_ahead {
            let (up_to, is_uniform) = (self.report.until, self.is_uniform);
            past.equal = EqualRound { up_to, lives: self.lives, is_uniform };
        }
        super::end(&self.context, self.report);
    }

    async fn steps(&mut self) -> Result<(), RoundEnd> {
        self.fence().await?;
        self.make_equal().await?;
        self.heal().await?;
        if !self.report.is_equal() {
            // The report has the reason.
            return Ok(());
        }
        self.may_prove()?;
        self.prove().await
    }

    /// Compares the records of all nodes, one range of keys at a time, and brings differing records
    /// to the nodes that lack them.
    async fn make_equal(&mut self) -> Result<(), RoundEnd> {
        let mut start = Bytes::new();
        loop {
            let began = self.context.now().mono;
            let (end, parts) = self.sums_from(&start).await?;
            let buckets = self.differing_buckets(&parts);
            if !buckets.is_empty() {
                let since = self.report.since;
                let range =
                    ExchangeRange { start, end: end.clone(), since, buckets, damaged: None };
                self.exchange(range).await?;
            }
            self.context.shared().repair.rounds.note_round_activity(self.context.now());
            self.context.shared().repair.rounds.publish(&self.report);
            let Some(end) = end else { return Ok(()) };
            self.pace(began).await;
            start = end;
        }
    }

    /// Pauses after a range, so that an automatic round uses only its share of the time. A round
    /// requested during the pause, on this or another node, ends the pause.
    async fn pace(&self, began: u64) {
        if self.report.is_requested {
            return;
        }
        let share = self.context.config().rounds.share.clamp(1, 100);
        let now = self.context.now().mono;
        let until = now + now.saturating_sub(began) * (100 - share) / share;
        let rounds = &self.context.shared().repair.rounds;
        let is_awaited = |now| rounds.requested_round().is_some() || rounds.is_yielding(now);
        self.context.wait_until(|now| now.mono >= until || is_awaited(now)).await;
    }

    /// Returns the sums of all nodes over one range of keys from `start`, and the end of the range:
    /// the earliest key at which any node stopped. This node's store answers first and proposes the
    /// end. A node that summed further is asked again with the earliest end.
    async fn sums_from(
        &mut self,
        start: &Bytes,
    ) -> Result<(Option<Bytes>, BTreeMap<NodeId, Compared>), RoundEnd> {
        let own = self.context.shared().own;
        let mut parts: BTreeMap<NodeId, (Option<Bytes>, Compared)> = BTreeMap::new();
        let mut end = None;
        loop {
            let is_due = |node: &NodeId| {
                !parts.contains_key(node) && (*node == own || parts.contains_key(&own))
            };
            let due: Vec<NodeId> = self.nodes.iter().copied().filter(is_due).collect();
            let (since, until) = (self.report.since, self.report.until);
            let request = |node| {
                let (start, end, detail) = (start.clone(), end.clone(), Detail::Sums);
                let (round, watermark) = (self.id, self.watermark);
                (node, CompareRequest { start, end, since, until, round, watermark, detail })
            };
            let requests = due.into_iter().map(request).collect();
            for (node, compared) in self.compare_all(requests).await? {
                let end = compared.next.clone().or_else(|| end.clone());
                parts.insert(node, (end, compared));
            }
            parts.retain(|node, _| self.nodes.contains(node));
            let ends = parts.values().map(|(end, _)| end);
            end = ends.min_by(|a, b| compare_range_ends(a, b)).cloned().flatten();
            parts.retain(|_, (of, _)| *of == end);
            if self.nodes.iter().all(|node| parts.contains_key(node)) {
                let parts = parts.into_iter().map(|(node, (_, compared))| (node, compared));
                return Ok((end, parts.collect()));
            }
        }
    }

    /// Updates the round's state and report from the nodes' sums. Returns the buckets in which the
    /// nodes differ.
    fn differing_buckets(&mut self, parts: &BTreeMap<NodeId, Compared>) -> Vec<u16> {
        let usual = self.view.topology.default_copies();
        for (node, compared) in parts {
            let is_other = |sum: &Sum| sum.sum != 0 && (sum.copies != usual || sum.place >= usual);
            let mut summed = compared.sums.iter().filter(|sum| !sum.is_count_of_unsummed());
            self.is_mixed |= summed.any(is_other);
            if usual > 1 && compared.sums.iter().any(|sum| sum.sum != 0 && sum.copies == 1) {
                self.sole.insert(*node);
            }
            if *node == self.context.shared().own {
                self.report.records += compared.records;
            }
            for damage in &compared.damaged {
                // A damaged block that spans the end of a range is reported with both ranges.
                let is_new = self.damaged.insert((*node, damage.clone()));
                self.report.damaged += u64::from(is_new);
                if self.damaged.len() > MAX_RANGES {
                    self.damaged.pop_last();
                }
            }
        }
        let sums = parts.iter().map(|(node, compared)| (*node, &compared.sums[..]));
        differing_buckets(&sums.collect(), usual)
    }

    /// Copies the records of each damaged range from the other nodes to the node that cannot read
    /// it; then that node discards the damage.
    async fn heal(&mut self) -> Result<(), RoundEnd> {
        let mut known = std::mem::take(&mut self.damaged);
        let mut ready: BTreeMap<NodeId, Vec<Damage>> = BTreeMap::new();
        for (node, damage) in known.clone() {
            let is_shared =
                |(other, theirs): &(NodeId, Damage)| *other != node && overlaps(theirs, &damage);
            if known.iter().any(is_shared) {
                self.report.note_unhealed(node, damage, Unhealed::Both);
                continue;
            }
            let end = damage.last.as_ref().map(|last| [&last[..], &[0]].concat().into());
            let (start, since, buckets) = (damage.first.clone(), 0, Vec::new());
            let range = ExchangeRange { start, end, since, buckets, damaged: Some(node) };
            let found = self.exchange(range).await?;
            // Another node's damage among records too old for this round's comparison is first
            // reported in this exchange.
            let of_others = found.damaged.into_iter().filter(|(other, _)| *other != node);
            let mut is_both = false;
            for (other, theirs) in of_others {
                is_both |= overlaps(&theirs, &damage);
                if known.len() < MAX_RANGES && known.insert((other, theirs.clone())) {
                    self.report.damaged += 1;
                    self.report.note_unhealed(other, theirs, Unhealed::Both);
                }
            }
            // The range is ready only if all other nodes' records in it were written to the damaged
            // node.
            match (self.report.absent.is_empty(), is_both, found.failed) {
                (true, false, 0) => ready.entry(node).or_default().push(damage),
                (false, ..) => self.report.note_unhealed(node, damage, Unhealed::Absent),
                (_, true, _) => self.report.note_unhealed(node, damage, Unhealed::Both),
                (..) => self.report.note_unhealed(node, damage, Unhealed::Failed),
            }
        }
        for (node, ranges) in ready {
            self.discard_damage(node, ranges).await;
        }
        Ok(())
    }

    async fn discard_damage(&mut self, node: NodeId, ranges: Vec<Damage>) {
        let request = Request::Discard(ranges.clone());
        let result = self.context.call(node, Class::Repair, request).await;
        let is_done = matches!(result, Ok(Reply::Stored | Reply::Newer { .. }));
        if is_done && !self.sole.contains(&node) {
            self.report.healed += ranges.len() as u64;
        } else {
            let why = if is_done { Unhealed::Sole } else { Unhealed::Failed };
            ranges.into_iter().for_each(|damage| self.report.note_unhealed(node, damage, why));
        }
        self.context.shared().repair.rounds.publish(&self.report);
    }

    /// Checks the conditions under which the equality of all nodes is a proof.
    fn may_prove(&mut self) -> Result<(), RoundEnd> {
        if self.is_ahead {
            let why = "a node holds records from a clock that was ahead: kvorum repair-clock";
            return Err(RoundEnd::Unproven(why));
        }
        if self.context.view().has_joining_nodes() {
            return Err(RoundEnd::Unproven("nodes are about to join"));
        }
        // A node that is not a replica of a key may hold an older record of the key. Only a full
        // round detects such a record.
        self.is_uniform = !self.is_mixed && (self.report.full || self.is_uniform);
        if !self.is_uniform && !self.report.full {
            let why = "keys were written with another number of copies: a full round proves it";
            return Err(RoundEnd::Unproven(why));
        }
        Ok(())
    }

    /// Queries these nodes concurrently. A node that gives no answer after all retries leaves the
    /// round.
    pub(super) async fn compare_all(
        &mut self,
        requests: Vec<(NodeId, CompareRequest)>,
    ) -> Result<Vec<(NodeId, Compared)>, RoundEnd> {
        let asked = requests.into_iter().map(|(node, request)| self.compare(node, request));
        let mut reported = Vec::new();
        for (node, compared) in task::try_join_all(asked).await? {
            match compared {
                Some(compared) => {
                    self.report.bytes_read += compared.bytes_read;
                    reported.push((node, compared));
                }
                None => self.continue_without(node)?,
            }
        }
        Ok(reported)
    }

    /// Queries one node; `None` = the node gave no answer after all retries.
    async fn compare(
        &self,
        node: NodeId,
        request: CompareRequest,
    ) -> Result<(NodeId, Option<Compared>), RoundEnd> {
        let mut failures = 0;
        loop {
            let request = Request::Compare(request.clone());
            match self.context.call(node, Class::Stream, request).await {
                Ok(Reply::Compared(compared)) => return Ok((node, Some(compared))),
                Ok(Reply::TopologyMismatch) => return Err(RoundEnd::Stopped(OTHER_NODE_DRIVES)),
                result => {
                    failures += 1;
                    if is_given_up(&result, failures) {
                        return Ok((node, None));
                    }
                    self.context.pause(RETRY_MICROS).await;
                }
            }
        }
    }

    /// Removes a node from the round.
    pub(super) fn continue_without(&mut self, node: NodeId) -> Result<(), RoundEnd> {
        self.nodes.remove(&node);
        self.report.absent.push(node);
        if node == self.context.shared().own {
            return Err(RoundEnd::Stopped(
                "the store of the node that drives it can't be read, or its disk is full",
            ));
        }
        if self.nodes.len() == 1 {
            return Err(RoundEnd::Stopped("no other node takes part"));
        }
        Ok(())
    }

    /// Adds the nodes because of which keys stay different to the report.
    pub(super) fn note_unrepaired(
        &mut self,
        unrepaired: impl Iterator<Item = (NodeId, Unrepaired)>,
    ) {
        for reason in unrepaired {
            *self.report.unrepaired.entry(reason).or_default() += 1;
        }
    }

    /// Adds the results of an exchange to the report.
    pub(super) fn count(&mut self, differing: u64, repaired: u64, failed: u64, ahead: u64) {
        self.report.differing += differing;
        self.report.repaired += repaired;
        self.report.failed += failed;
        self.is_ahead |= ahead > 0;
    }
}

/// True if a node is not asked again after this result and this number of consecutive failures.
pub(super) fn is_given_up(result: &Result<Reply, FailureKind>, failures: u32) -> bool {
    let is_busy = matches!(result, Ok(Reply::Busy | Reply::Ahead) | Err(FailureKind::Busy));
    let most = if is_busy { BUSY_RETRIES } else { RETRIES };
    failures >= most || matches!(result, Ok(Reply::Absent { .. }))
}

/// Orders the ends of two ranges; `None` is greater than all keys.
fn compare_range_ends(a: &Option<Bytes>, b: &Option<Bytes>) -> std::cmp::Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn overlaps(one: &Damage, other: &Damage) -> bool {
    let ends_before = |a: &Damage, b: &Damage| a.last.as_ref().is_some_and(|last| *last < b.first);
    !ends_before(one, other) && !ends_before(other, one)
}
