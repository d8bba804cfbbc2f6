//! A round of repair, from its first request to its last: what the node that drives it does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::exchange::ExchangeRange;
use super::{Equal, Past};
use crate::background::task::{self, Context};
use crate::event::FailureKind;
use crate::membership::directory::LifeId;
use crate::message::{Class, NodeId, Reply, Request};
use crate::placement::view::View;
use crate::repair::compare::{CompareRequest, Compared, Damage, Detail, MAX_RANGES, Sum};
use crate::repair::status::{RoundReport, Unhealed};
use crate::repair::sums::differing;
use crate::repair::watermark::RoundId;

/// Microseconds after which a node is asked again that failed …
pub(super) const RETRY_MICROS: u64 = 500_000;

/// … how often, if it can't be reached or fails …
pub(super) const RETRIES: u32 = 3;

/// … and if it is busy, or another node drives a round: half a minute altogether.
pub(super) const BUSY_RETRIES: u32 = 60;

/// Why a round stopped that another node's round went past.
pub(super) const OTHER_DRIVES: &str = "another node drives a round";

/// A round under way.
pub(super) struct Round {
    pub(super) context: Context,
    pub(super) past: Rc<RefCell<Past>>,
    /// The view that it began with: another placement ends it.
    pub(super) view: Arc<View>,
    pub(super) id: RoundId,
    pub(super) report: RoundReport,
    /// Nodes that take part, this one among them.
    pub(super) nodes: BTreeSet<NodeId>,
    /// The lives in which they were sealed.
    pub(super) lives: BTreeMap<NodeId, LifeId>,
    /// The watermark that all of them have.
    pub(super) watermark: u64,
    /// Whether a record has another number of copies than there are by default.
    is_mixed: bool,
    /// Whether a node holds a record from a clock that is ahead.
    is_ahead: bool,
    /// Whether none of what is not compared again had another number of copies.
    pub(super) is_uniform: bool,
    damaged: BTreeSet<(NodeId, Damage)>,
    /// Nodes that hold records of which they are the only replica.
    sole: BTreeSet<NodeId>,
}

/// Why a round ends before its last step.
pub(super) enum End {
    /// Not all that was to be compared was.
    Stopped(&'static str),
    /// All nodes are equal, and that proves nothing.
    Unproven(&'static str),
}

impl Round {
    pub(super) fn new(
        context: Context,
        past: Rc<RefCell<Past>>,
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

    /// The round, from its beginning to its end.
    pub(super) async fn run(mut self) {
        match self.steps().await {
            Ok(()) => {}
            Err(End::Stopped(why)) => self.report.stopped = Some(why),
            Err(End::Unproven(why)) => self.report.unproven = Some(why),
        }
        let past = Rc::clone(&self.past);
        let mut past = past.borrow_mut();
        past.ended(&self.context, &self.report);
        // What hides under records from a clock that is ahead is compared again.
        if self.report.is_equal() && !self.is_ahead {
            let (up_to, is_uniform) = (self.report.until, self.is_uniform);
            past.equal = Equal { up_to, lives: self.lives, is_uniform };
        }
        super::end(&self.context, self.report);
    }

    async fn steps(&mut self) -> Result<(), End> {
        self.fence().await?;
        self.make_equal().await?;
        self.heal().await?;
        if !self.report.is_equal() {
            // The report says why.
            return Ok(());
        }
        self.may_prove()?;
        self.prove().await
    }

    /// Compares what all nodes hold, range of keys by range of keys, and brings what differs to
    /// whoever lacks it.
    async fn make_equal(&mut self) -> Result<(), End> {
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
            self.context.shared().repair.rounds.asked(self.context.now());
            self.context.shared().repair.rounds.publish(&self.report);
            let Some(end) = end else { return Ok(()) };
            self.pace(began).await;
            start = end;
        }
    }

    /// Rests after a range, so that a round which nobody asked for is at work for its share of the
    /// time only. One that somebody asks for meanwhile, here or of another node, comes sooner.
    async fn pace(&self, began: u64) {
        if self.report.asked_for {
            return;
        }
        let share = self.context.config().rounds.share.clamp(1, 100);
        let now = self.context.now().mono;
        let until = now + now.saturating_sub(began) * (100 - share) / share;
        let rounds = &self.context.shared().repair.rounds;
        let is_awaited = |now| rounds.wanted().is_some() || rounds.is_yielding(now);
        self.context.until(|now| now.mono >= until || is_awaited(now)).await;
    }

    /// The sums of all nodes for the keys that begin at `start`, and the end of that range: as far
    /// as each of them got at once. This node's store says first how far that is.
    async fn sums_from(
        &mut self,
        start: &Bytes,
    ) -> Result<(Option<Bytes>, BTreeMap<NodeId, Compared>), End> {
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
            end = ends.min_by(|a, b| sooner(a, b)).cloned().flatten();
            parts.retain(|_, (of, _)| *of == end);
            if self.nodes.iter().all(|node| parts.contains_key(node)) {
                let parts = parts.into_iter().map(|(node, (_, compared))| (node, compared));
                return Ok((end, parts.collect()));
            }
        }
    }

    /// Notes what the sums say of the nodes; returns the buckets in which they differ.
    fn differing_buckets(&mut self, parts: &BTreeMap<NodeId, Compared>) -> Vec<u16> {
        let usual = self.view.topology.default_copies();
        for (node, compared) in parts {
            let is_other = |sum: &Sum| sum.sum != 0 && (sum.copies != usual || sum.place >= usual);
            let mut summed = compared.sums.iter().filter(|sum| !sum.is_of_continued());
            self.is_mixed |= summed.any(is_other);
            if usual > 1 && compared.sums.iter().any(|sum| sum.sum != 0 && sum.copies == 1) {
                self.sole.insert(*node);
            }
            if *node == self.context.shared().own {
                self.report.records += compared.records;
            }
            for damage in &compared.damaged {
                // A block across the end of a range is reported with this one and with the next.
                let is_new = self.damaged.insert((*node, damage.clone()));
                self.report.damaged += u64::from(is_new);
                if self.damaged.len() > MAX_RANGES {
                    self.damaged.pop_last();
                }
            }
        }
        let sums = parts.iter().map(|(node, compared)| (*node, &compared.sums[..]));
        differing(&sums.collect(), usual)
    }

    /// Writes anew, on a node that can't read it, what the others hold of each damaged range; then
    /// the node gives up the damage.
    async fn heal(&mut self) -> Result<(), End> {
        let mut known = std::mem::take(&mut self.damaged);
        let mut ready: BTreeMap<NodeId, Vec<Damage>> = BTreeMap::new();
        for (node, damage) in known.clone() {
            let is_shared =
                |(other, theirs): &(NodeId, Damage)| *other != node && overlap(theirs, &damage);
            if known.iter().any(is_shared) {
                self.report.stays(node, damage, Unhealed::Both);
                continue;
            }
            let end = damage.last.as_ref().map(|last| [&last[..], &[0]].concat().into());
            let (start, since, buckets) = (damage.first.clone(), 0, Vec::new());
            let range = ExchangeRange { start, end, since, buckets, damaged: Some(node) };
            let found = self.exchange(range).await?;
            // Of records that are too old for this round damage shows only here.
            let of_others = found.damaged.into_iter().filter(|(other, _)| *other != node);
            let mut is_both = false;
            for (other, theirs) in of_others {
                is_both |= overlap(&theirs, &damage);
                if known.len() < MAX_RANGES && known.insert((other, theirs.clone())) {
                    self.report.damaged += 1;
                    self.report.stays(other, theirs, Unhealed::Both);
                }
            }
            // All that others hold of it is written there, or could not be.
            match (self.report.absent.is_empty(), is_both, found.failed) {
                (true, false, 0) => ready.entry(node).or_default().push(damage),
                (false, ..) => self.report.stays(node, damage, Unhealed::Absent),
                (_, true, _) => self.report.stays(node, damage, Unhealed::Both),
                (..) => self.report.stays(node, damage, Unhealed::Failed),
            }
        }
        for (node, ranges) in ready {
            self.give_up(node, ranges).await;
        }
        Ok(())
    }

    async fn give_up(&mut self, node: NodeId, ranges: Vec<Damage>) {
        let request = Request::Discard(ranges.clone());
        let result = self.context.call(node, Class::Repair, request).await;
        let is_done = matches!(result, Ok(Reply::Stored | Reply::Newer { .. }));
        if is_done && !self.sole.contains(&node) {
            self.report.healed += ranges.len() as u64;
        } else {
            let why = if is_done { Unhealed::Sole } else { Unhealed::Failed };
            ranges.into_iter().for_each(|damage| self.report.stays(node, damage, why));
        }
        self.context.shared().repair.rounds.publish(&self.report);
    }

    /// Whether that all nodes are equal proves anything.
    fn may_prove(&mut self) -> Result<(), End> {
        if self.is_ahead {
            let why = "a node holds records from a clock that was ahead: kvorum repair-clock";
            return Err(End::Unproven(why));
        }
        if self.context.view().awaits_nodes() {
            return Err(End::Unproven("nodes are about to join"));
        }
        // Who holds something older of a key than its replicas is seen by reading everything only.
        self.is_uniform = !self.is_mixed && (self.report.full || self.is_uniform);
        if !self.is_uniform && !self.report.full {
            let why = "keys were written with another number of copies: a full round proves it";
            return Err(End::Unproven(why));
        }
        Ok(())
    }

    /// Asks these nodes at once what they hold. A node that does not say so in the end takes part
    /// no more.
    pub(super) async fn compare_all(
        &mut self,
        requests: Vec<(NodeId, CompareRequest)>,
    ) -> Result<Vec<(NodeId, Compared)>, End> {
        let asked = requests.into_iter().map(|(node, request)| self.compare(node, request));
        let mut reported = Vec::new();
        for (node, compared) in task::try_all(asked).await? {
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

    /// What a node holds; `None` = the node does not say so in the end.
    async fn compare(
        &self,
        node: NodeId,
        request: CompareRequest,
    ) -> Result<(NodeId, Option<Compared>), End> {
        let mut failures = 0;
        loop {
            let request = Request::Compare(request.clone());
            match self.context.call(node, Class::Stream, request).await {
                Ok(Reply::Compared(compared)) => return Ok((node, Some(compared))),
                Ok(Reply::WrongEpoch) => return Err(End::Stopped(OTHER_DRIVES)),
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

    /// A node takes part no more.
    pub(super) fn continue_without(&mut self, node: NodeId) -> Result<(), End> {
        self.nodes.remove(&node);
        self.report.absent.push(node);
        if node == self.context.shared().own {
            return Err(End::Stopped("the store of the node that drives it can't be read"));
        }
        if self.nodes.len() == 1 {
            return Err(End::Stopped("no other node takes part"));
        }
        Ok(())
    }

    /// Counts what an exchange has done.
    pub(super) fn count(&mut self, differing: u64, repaired: u64, failed: u64, ahead: u64) {
        self.report.differing += differing;
        self.report.repaired += repaired;
        self.report.failed += failed;
        self.is_ahead |= ahead > 0;
    }
}

/// Whether a node is asked no more that has failed so often, one time after the other.
pub(super) fn is_given_up(result: &Result<Reply, FailureKind>, failures: u32) -> bool {
    let is_busy = matches!(result, Ok(Reply::Busy | Reply::Ahead) | Err(FailureKind::Busy));
    let most = if is_busy { BUSY_RETRIES } else { RETRIES };
    failures >= most || matches!(result, Ok(Reply::Absent { .. }))
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
