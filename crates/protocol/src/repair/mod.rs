//! Repair rounds: one node, the driver, lets all nodes compare their records and removes the
//! differences. Then it proves that the nodes are equal, so that tombstones may be purged.
//!
//! ```text
//!  Repair (starts and stops rounds) ─▶ round.rs, top to bottom:
//!    fence.rs     all nodes stop accepting new records with times up to the round's time
//!    round.rs     for each range of keys: finds the buckets in which the nodes' sums differ
//!    exchange.rs  lists all keys of these buckets, and brings the newest record of each key to the
//!                 nodes that lack it
//!    round.rs     for each range that a node cannot read: rewrites the other nodes' records on
//!                 that node, which then discards the damaged data
//!    fence.rs     makes the records durable on all nodes, and advances the watermark
//! ```
//!
//! Any node may drive a round at any time, and several nodes may drive rounds at once: for each
//! key, a round writes only the newest record that some replica holds. A node starts a round
//! automatically if no round was driven for `interval`. The start is staggered, so that the first
//! node by name starts soonest.

pub(crate) mod compare_messages;
mod exchange;
mod fence;
pub(crate) mod missed_proofs;
mod round;
pub(crate) mod status;
pub(crate) mod sums;
pub(crate) mod watermark;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::background::effect::BackgroundEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::clock::Clock;
use crate::membership::disk_ids::BootId;
use crate::repair::status::{RoundConfig, RoundReport};
use crate::repair::watermark::RoundId;
use round::Round;

/// Each node, in the order of names, waits 1 / `STAGGER` of the interval longer than the node
/// before it.
const STAGGER: u64 = 8;

/// Maximum number of additional waits of one node, each 1 / `STAGGER` of the interval.
const MAX_STAGGERED: u64 = 16;

/// The rounds that this node drives, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    round: Option<TaskId>,
    past: Rc<RefCell<PastRounds>>,
}

/// Results of this node's earlier rounds, which later incremental rounds use.
#[derive(Debug, Default)]
struct PastRounds {
    equal: EqualRound,
    /// Time when the last full round ended, in microseconds of the monotonic clock; `None` = the
    /// next round is full.
    last_full: Option<u64>,
}

/// The result of a round that made all nodes equal, whether or not it proved the equality.
#[derive(Debug, Default)]
struct EqualRound {
    /// The version time up to which all nodes hold the same records.
    up_to: u64,
    /// The boot ids of the nodes at that time. A later boot of a node may have lost records that
    /// were brought to the earlier boot.
    lives: BTreeMap<crate::message::NodeId, BootId>,
    /// True if no node holds a record with a number of copies other than the default.
    is_uniform: bool,
}

impl Repair {
    /// Starts a round if one is due.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        if self.is_under_way(tasks) {
            return;
        }
        // A round whose task was dropped has not reported its end.
        self.stop(tasks, "its task was dropped");
        let context = tasks.context().clone();
        let Some((id, report)) = self.due(&context) else { return };
        context.shared().repair.rounds.publish(&report);
        let round = Round::new(context, Rc::clone(&self.past), id, report);
        self.round = Some(tasks.spawn("repair round", round.run()));
    }

    /// Stops the round under way if this node must no longer drive rounds.
    pub(crate) fn stop_if_void(&mut self, tasks: &mut Tasks) {
        if !tasks.context().shared().membership.state.is_authoritative_for_all() {
            self.stop(tasks, "the node that drives it is being rebuilt");
        }
    }

    /// Handles a change of placement. A round compares by the placement that it began with, so the
    /// round under way is stopped, and results about the previous replicas are dropped. A round for
    /// which all nodes were ready may still commit.
    pub(crate) fn placement_changes(&mut self, tasks: &mut Tasks) {
        *self.past.borrow_mut() = PastRounds::default();
        let current = tasks.context().shared().repair.rounds.status().current;
        if !current.is_some_and(|report| report.proven) {
            self.stop(tasks, "the members of the cluster change");
        }
    }

    fn is_under_way(&self, tasks: &Tasks) -> bool {
        self.round.is_some_and(|round| tasks.is_under_way(round))
    }

    fn stop(&mut self, tasks: &mut Tasks, why: &'static str) {
        let Some(round) = self.round.take() else { return };
        tasks.stop(round);
        let context = tasks.context();
        let Some(mut report) = context.shared().repair.rounds.status().current else { return };
        // A round for which all nodes were ready is proven, even if only some of them have
        // committed it.
        report.stopped = Some(why).filter(|_| !report.proven);
        self.past.borrow_mut().record_end(context, &report);
        end(context, report);
    }

    /// Returns the round to start now, if one is due.
    fn due(&self, context: &Context) -> Option<(RoundId, RoundReport)> {
        let (shared, now, view) = (context.shared(), context.now(), context.view());
        let rounds = &shared.repair.rounds;
        let is_whole = shared.membership.state.is_authoritative_for_all();
        // Nothing is proven while partitions move: a receiver may lack records that all other nodes
        // hold.
        let moves = view.other.is_some();
        let is_out = shared.membership.state.is_fenced() || shared.is_removed();
        if !is_whole || moves || is_out || shared.is_alone() {
            return None;
        }
        // A joining node holds no replicas yet.
        let place = view.topology.position_of(shared.own)?;
        let RoundConfig { interval_micros, full_interval_micros, settled_micros, .. } =
            context.config().rounds;
        if rounds.last_round_activity() == 0 {
            // The first round is due an interval after the start.
            rounds.note_round_activity(now);
        }
        let staggered = (place as u64).min(MAX_STAGGERED);
        let wait = interval_micros + interval_micros / STAGGER * staggered;
        let seal = shared.repair.proofs.known_proof().seal;
        let is_due = interval_micros > 0
            && now.mono >= rounds.last_round_activity() + wait
            && !rounds.is_yielding(now)
            && !(rounds.is_active(now) && seal.node != shared.own);
        let wanted = rounds.requested_round();
        // Records written before the request may still be in flight.
        let settled = Clock::limit(now.wall.saturating_sub(settled_micros), 0);
        let young = settled + 1..=Clock::limit(now.wall, 0);
        let waits = wanted.is_some_and(|wanted| young.contains(&wanted.up_to));
        if waits || !is_due && wanted.is_none() {
            return None;
        }
        let last_full = self.past.borrow().last_full;
        let full_is_due =
            last_full.is_none_or(|last| last.saturating_add(full_interval_micros) <= now.mono);
        let id = RoundId { time: settled.max(seal.time + 1), node: shared.own };
        let report = RoundReport {
            number: rounds.begin(),
            full: wanted.is_some_and(|wanted| wanted.full) || full_is_due,
            is_requested: wanted.is_some(),
            until: id.time,
            began: now.wall,
            ..RoundReport::default()
        };
        Some((id, report))
    }
}

impl PastRounds {
    /// Notes the end of a round. If the round left differences, the next round must be full: an
    /// incremental round would not compare them again.
    fn record_end(&mut self, context: &Context, report: &RoundReport) {
        if report.is_equal() && report.full {
            self.last_full = Some(context.now().mono);
        } else if !report.is_equal() && (report.healed < report.damaged || report.failed > 0) {
            self.last_full = None;
        }
    }
}

/// Publishes and reports the end of a round.
fn end(context: &Context, mut report: RoundReport) {
    report.ended = Some(context.now().wall);
    context.shared().repair.rounds.note_round_activity(context.now());
    context.shared().repair.rounds.publish(&report);
    context.effect(BackgroundEffect::RoundEnded(report));
}
