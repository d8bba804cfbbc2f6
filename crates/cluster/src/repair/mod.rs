//! Rounds of repair: one node has all nodes compare what they hold, and makes them equal. Then it
//! proves that they are, so that what was deleted may be purged.
//!
//! ```text
//!  Repair (when a round begins, and what stops it) ─▶ round.rs, top to bottom:
//!    fence.rs     all nodes take nothing new up to the round's time
//!    round.rs     range of keys by range of keys: sums of all nodes ─▶ they differ ─┐
//!    exchange.rs  keys of both, the newest record of each to whoever lacks it ◀─────┘
//!    round.rs     damaged ranges: written anew, given up
//!    fence.rs     all are ready ─▶ proven: a watermark
//! ```
//!
//! Any node may drive a round, at any time, and several may at once: a round writes nothing but the
//! newest record of a key as a replica holds it. A node begins one by itself when none was driven
//! for `interval`, the first in the order of names soonest.

pub(crate) mod compare;
mod exchange;
mod fence;
pub(crate) mod proof_exchange;
mod round;
pub(crate) mod status;
pub(crate) mod sums;
pub(crate) mod watermark;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::background::effect::NodeEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::clock::Clock;
use crate::membership::directory::LifeId;
use crate::repair::status::{RoundConfig, RoundReport};
use crate::repair::watermark::RoundId;
use round::Round;

/// By which part of the interval each further node waits longer before it drives a round …
const STAGGER: u64 = 8;

/// … up to so many nodes.
const MAX_STAGGERED: u64 = 16;

/// The rounds that this node drives: one at a time.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    round: Option<TaskId>,
    past: Rc<RefCell<Past>>,
}

/// What earlier rounds of this node have shown.
#[derive(Debug, Default)]
struct Past {
    equal: Equal,
    /// When the last round ended that compared everything, by the monotonic clock; `None` = the
    /// next one has to.
    last_full: Option<u64>,
}

/// What a round has shown that made all nodes equal, be it proven or not.
#[derive(Debug, Default)]
struct Equal {
    /// All nodes hold the same of what was written up to this time …
    up_to: u64,
    /// … in these lives: what a node was brought in an earlier one may be gone …
    lives: BTreeMap<crate::message::NodeId, LifeId>,
    /// … and none holds a record with another number of copies than there are by default.
    is_uniform: bool,
}

impl Repair {
    /// Begins a round that is due.
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

    /// Stops the round under way if this node must not drive one any more.
    pub(crate) fn stop_if_void(&mut self, tasks: &mut Tasks) {
        if !tasks.context().shared().membership.state.is_authoritative_for_all() {
            self.stop(tasks, "the node that drives it is being rebuilt");
        }
    }

    /// Keys are placed otherwise from now on. A round compares by the placement that it began with,
    /// and what it has shown is of those replicas; what all were ready for they may commit.
    pub(crate) fn placement_changes(&mut self, tasks: &mut Tasks) {
        *self.past.borrow_mut() = Past::default();
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
        // What all nodes were ready for is proven, whoever of them has committed it.
        report.stopped = Some(why).filter(|_| !report.proven);
        self.past.borrow_mut().ended(context, &report);
        end(context, report);
    }

    /// The round that is to begin now, if one is.
    fn due(&self, context: &Context) -> Option<(RoundId, RoundReport)> {
        let (shared, now, view) = (context.shared(), context.now(), context.view());
        let rounds = &shared.repair.rounds;
        let is_whole = shared.membership.state.is_authoritative_for_all();
        // While partitions move nothing is proven: a receiver may lack what all others hold.
        let moves = view.other.is_some();
        let is_out = shared.membership.state.is_fenced() || shared.is_removed();
        if !is_whole || moves || is_out || shared.is_alone() {
            return None;
        }
        // Who is about to join holds no replicas yet.
        let place = view.topology.place_of(shared.own)?;
        let RoundConfig { interval_micros, full_interval_micros, settled_micros, .. } =
            context.config().rounds;
        if rounds.last_asked() == 0 {
            // The first is due an interval after the start.
            rounds.asked(now);
        }
        let staggered = (place as u64).min(MAX_STAGGERED);
        let wait = interval_micros + interval_micros / STAGGER * staggered;
        let seal = shared.repair.proofs.known().seal;
        let is_due = interval_micros > 0
            && now.mono >= rounds.last_asked() + wait
            && !rounds.is_yielding(now)
            && !(rounds.is_active(now) && seal.node != shared.own);
        let wanted = rounds.wanted();
        // What was written before it was asked for may still be on its way.
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
            asked_for: wanted.is_some(),
            until: id.time,
            began: now.wall,
            ..RoundReport::default()
        };
        Some((id, report))
    }
}

impl Past {
    /// A round has ended that did not make all nodes equal: an incremental one would not see what
    /// it has left.
    fn ended(&mut self, context: &Context, report: &RoundReport) {
        if report.is_equal() && report.full {
            self.last_full = Some(context.now().mono);
        } else if !report.is_equal() && (report.healed < report.damaged || report.failed > 0) {
            self.last_full = None;
        }
    }
}

/// Tells that a round is over.
fn end(context: &Context, mut report: RoundReport) {
    report.ended = Some(context.now().wall);
    context.shared().repair.rounds.asked(context.now());
    context.shared().repair.rounds.publish(&report);
    context.effect(NodeEffect::RoundEnded(report));
}
