//! What the node that drives a round has all nodes do before and after they are compared: seal
//! themselves, make durable what was brought, and take the round's time for their watermark.
//!
//! ```text
//!  Seal ─▶ all are sealed, with one watermark ─▶ compare, exchange, heal
//!    ▲└─ one lags: Commit of the round that it missed
//!    └── another round was later: a little later, above that
//!  all are equal ─▶ Ready ─▶ all are, in the same lives ─▶ Commit
//! ```

use std::collections::BTreeMap;

use super::round::{Phase, RETRY_MICROS};
use super::{Caller, Node, NodeEffect};
use crate::clock::{Now, last_following};
use crate::directory::LifeId;
use crate::event::FailureKind;
use crate::message::{Class, NodeId, Reply, Request};
use crate::proof::{Missed, RoundId, RoundState, RoundStep};
use crate::rounds::BACK_OFF_MICROS;

/// How often a node is asked again, if it can't be reached or fails …
const RETRIES: u32 = 3;

/// … and if it is busy, or another node drives a round: from half a minute to three.
const BUSY_RETRIES: u32 = 60;

/// What nodes are to do, and what they have reported.
#[derive(Debug, Default)]
pub(super) struct Steps {
    open: BTreeMap<NodeId, Open>,
    reported: BTreeMap<NodeId, RoundState>,
    /// Since when each of them has run.
    pub(super) lives: BTreeMap<NodeId, LifeId>,
    tries: u32,
}

/// A step that a node has not done yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    round: RoundId,
    step: RoundStep,
    is_asked: bool,
}

impl Steps {
    /// A node is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.open.remove(&node);
        self.reported.remove(&node);
    }
}

impl Node {
    /// Has all nodes of a round do its next step.
    fn step_all(&mut self, now: Now, phase: Phase, step: RoundStep, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        let open = Open { round: round.id, step, is_asked: false };
        round.phase = phase;
        round.steps.reported.clear();
        round.steps.open = round.nodes.iter().map(|node| (*node, open)).collect();
        self.go_on_steps(now, out);
    }

    pub(super) fn seal_all(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        self.step_all(now, Phase::Sealing, RoundStep::Seal, out);
    }

    /// All replicas hold the same, as far as was compared; or they don't.
    pub(super) fn prove(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        if !round.report.is_equal() {
            return self.end_round(now, out);
        }
        if round.is_ahead {
            let why = "a node holds records from a clock that was ahead: kvorum repair-clock";
            return self.is_not_proven(now, why, out);
        }
        if self.view.awaits_nodes() {
            return self.is_not_proven(now, "nodes are about to join", out);
        }
        // Who holds something older of a key than its replicas is seen by reading everything only.
        let is_uniform = !round.is_mixed && (round.report.full || round.is_uniform);
        round.is_uniform = is_uniform;
        if is_uniform || round.report.full {
            self.step_all(now, Phase::Readying, RoundStep::Ready, out);
        } else {
            let why = "keys were written with another number of copies: a full round proves it";
            self.is_not_proven(now, why, out);
        }
    }

    /// Asks those that were not asked yet; goes on once all have done the step.
    pub(super) fn go_on_steps(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        let number = round.report.number;
        let own = self.shared.own;
        // The others first: their clocks say whether this node's is right.
        let is_last = round.phase != Phase::Readying && round.steps.open.keys().any(|n| *n != own);
        let due = round.steps.open.iter_mut();
        let due = due.filter(|(node, open)| !(open.is_asked || is_last && **node == own));
        let due: Vec<(NodeId, Request)> = due
            .map(|(node, open)| {
                open.is_asked = true;
                (*node, Request::Round { round: open.round, step: open.step })
            })
            .collect();
        for (node, request) in due {
            self.call(Caller::Step(number, node), node, Class::Repair, request, out);
        }
        let round = self.round.as_ref().expect("one is under way");
        if !round.steps.open.is_empty() {
            return;
        }
        match round.phase {
            Phase::Sealing => self.all_are_sealed(now, out),
            Phase::Readying => self.all_are_ready(now, out),
            Phase::Committing => self.end_round(now, out),
            Phase::Comparing => unreachable!("it has no such steps"),
        }
    }

    /// A node has done a step, or has not.
    pub(super) fn stepped(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(round) = self.round.as_mut().filter(|round| round.report.number == number) else {
            return;
        };
        // Refused by one node, all are asked again: what the others said to that is late.
        let open = round.steps.open.get(&node).copied();
        let Some(Open { round: id, step, is_asked: true }) = open else { return };
        let Ok(Reply::Round(state)) = result else {
            return self.step_failed(now, node, result, out);
        };
        let does = match step {
            RoundStep::Seal => state.proof.seal == id,
            RoundStep::Ready => {
                let same = round.steps.lives.get(&node) == Some(&state.life);
                state.proof.ready == id && same
            }
            RoundStep::Commit { .. } => state.proof.proven >= id,
            RoundStep::Ask => true,
        };
        if does {
            round.failures.remove(&node);
            round.steps.open.remove(&node);
            round.steps.reported.insert(node, *state);
            return self.go_on_round(now, out);
        }
        match round.phase {
            Phase::Sealing if matches!(step, RoundStep::Seal) => self.seal_later(now, state, out),
            // It is an older copy of its directory, which it will find out itself.
            Phase::Sealing => {
                round.steps.open.remove(&node);
                self.goes_on_without(now, node, out);
            }
            Phase::Readying => {
                self.is_not_proven(now, "a node was restarted, or nodes are about to join", out);
            }
            Phase::Committing | Phase::Comparing => {
                round.steps.open.remove(&node);
                self.go_on_round(now, out);
            }
        }
    }

    fn step_failed(
        &mut self,
        now: Now,
        node: NodeId,
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let round = self.round.as_mut().expect("one is under way");
        let failures = round.failures.entry(node).or_default();
        *failures += 1;
        let is_busy = matches!(result, Ok(Reply::Busy | Reply::Ahead) | Err(FailureKind::Busy));
        let most = if is_busy { BUSY_RETRIES } else { RETRIES };
        if *failures < most && !matches!(result, Ok(Reply::Absent { .. })) {
            round.steps.open.get_mut(&node).expect("it has not done it").is_asked = false;
            round.not_before = now.mono + RETRY_MICROS;
            return;
        }
        round.steps.open.remove(&node);
        match round.phase {
            Phase::Sealing => self.goes_on_without(now, node, out),
            Phase::Readying => self.is_not_proven(now, "a node did not answer in the end", out),
            // This node's clock has jumped since: nobody could take that over for as long.
            Phase::Committing if matches!(result, Ok(Reply::Ahead)) => {
                round.report.proven = false;
                self.is_not_proven(now, "this node's clock is ahead of the others", out);
            }
            // It will be told when it is back.
            Phase::Committing | Phase::Comparing => self.go_on_round(now, out),
        }
    }

    /// A node is sealed by a later round: if nobody drives that one any more, this one becomes
    /// later.
    fn seal_later(&mut self, now: Now, state: &RoundState, out: &mut Vec<NodeEffect>) {
        let skew = self.config.max_skew_micros;
        let own = self.shared.own;
        let round = self.round.as_mut().expect("one is under way");
        let seal = state.proof.seal;
        round.steps.tries += 1;
        let is_asked_for = round.report.asked_for;
        if !is_asked_for && state.is_active || round.steps.tries >= BUSY_RETRIES {
            round.report.stopped = Some("another node drives a round");
            return self.go_on_round(now, out);
        }
        let time = seal.time + 1;
        let is_driven = state.is_active && seal.node != own;
        if !is_driven && !self.shared.clock.is_ahead(time, now, skew) && time > round.id.time {
            round.id.time = time;
            round.report.until = time;
        }
        // Of two that have sealed some nodes each, the one whose driver comes later lets go.
        let pause = if is_driven && seal.node < own { BACK_OFF_MICROS } else { RETRY_MICROS };
        round.not_before = now.mono + pause;
        let open = Open { round: round.id, step: RoundStep::Seal, is_asked: false };
        round.steps.reported.clear();
        round.steps.open = round.nodes.iter().map(|node| (*node, open)).collect();
    }

    fn all_are_sealed(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        let greatest = round.steps.reported.values().max_by_key(|state| state.proof.proven);
        let Some(greatest) = greatest.map(|state| state.proof) else {
            return self.go_on_round(now, out);
        };
        let lags = |state: &RoundState| state.proof.proven < greatest.proven;
        let lagging = round.steps.reported.iter().filter(|(_, state)| lags(state));
        let lagging: Vec<NodeId> = lagging.map(|(node, _)| *node).collect();
        let (floor, is_uniform) = (greatest.floor, greatest.is_uniform);
        let (missed, step) = (greatest.proven, RoundStep::Commit { floor, is_uniform });
        for node in &lagging {
            let open = Open { round: missed, step, is_asked: false };
            round.steps.open.insert(*node, open);
        }
        if !lagging.is_empty() {
            return self.go_on_steps(now, out);
        }
        let reported = round.steps.reported.iter();
        round.steps.lives = reported.map(|(node, state)| (*node, state.life)).collect();
        round.watermark = greatest.proven.time;
        // What all held the same stays so, for they are sealed since.
        let (mut since, mut is_uniform) = (round.watermark, greatest.is_uniform);
        if self.equal.up_to > since && self.equal.lives == round.steps.lives {
            (since, is_uniform) = (self.equal.up_to, self.equal.is_uniform);
        }
        round.report.full |= since == 0;
        round.report.since = if round.report.full { 0 } else { since };
        round.is_uniform = is_uniform;
        round.phase = Phase::Comparing;
        round.began = now.mono;
        self.shared.rounds.publish(&round.report);
        self.go_on_round(now, out);
    }

    fn all_are_ready(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let skew = self.config.max_skew_micros;
        let round = self.round.as_mut().expect("one is under way");
        let promised = round.steps.reported.values().map(|state| state.promised).max().unwrap_or(0);
        // A home may keep one that follows what it was promised, of which no replica knows.
        let floor = last_following(promised);
        if self.shared.clock.is_ahead(floor, now, skew) {
            // After a start, or of a clock that is wrong: it would stop conditional writes for as
            // long.
            round.steps.tries += 1;
            if round.steps.tries >= BUSY_RETRIES {
                return self.is_not_proven(now, "a node's clock is ahead of the others", out);
            }
            round.not_before = now.mono + RETRY_MICROS;
            let open = Open { round: round.id, step: RoundStep::Ready, is_asked: false };
            round.steps.open = round.nodes.iter().map(|node| (*node, open)).collect();
            return;
        }
        round.report.proven = true;
        let is_uniform = round.is_uniform;
        let step = RoundStep::Commit { floor, is_uniform };
        self.step_all(now, Phase::Committing, step, out);
    }

    fn is_not_proven(&mut self, now: Now, why: &'static str, out: &mut Vec<NodeEffect>) {
        let round = self.round.as_mut().expect("one is under way");
        round.report.unproven = Some(why);
        self.end_round(now, out);
    }

    /// A peer was seen: what it knows of proofs is asked for, where there may be any.
    pub(super) fn ask_for_proof(&mut self, peer: NodeId, out: &mut Vec<NodeEffect>) {
        if self.config.rounds.interval_micros == 0 && self.shared.proofs.seal() == 0 {
            return;
        }
        let request = Request::Round { round: RoundId::default(), step: RoundStep::Ask };
        self.call(Caller::Proof(peer), peer, Class::Repair, request, out);
    }

    /// A node has reported what it knows of proofs.
    pub(super) fn received_proof(&mut self, node: NodeId, result: &Result<Reply, FailureKind>) {
        if node == self.shared.own {
            self.takes_over = false;
        } else if let Ok(Reply::Round(state)) = result {
            self.shared.received_proof(node, state.proof);
        }
    }

    /// Takes over a proof that another node reported, and hands over its own to those that lag.
    pub(super) fn proofs_due(&mut self, out: &mut Vec<NodeEffect>) {
        let proofs = &self.shared.proofs;
        let known = proofs.known();
        let step = RoundStep::Commit { floor: known.floor, is_uniform: known.is_uniform };
        for node in proofs.take_lagging() {
            let request = Request::Round { round: known.proven, step };
            self.call(Caller::Proof(node), node, Class::Repair, request, out);
        }
        let Some(reported) = self.shared.proofs.reported() else { return };
        match self.shared.proofs.missed(reported.proven) {
            Missed::Known => {}
            Missed::TakesOver if self.takes_over => {}
            Missed::TakesOver => {
                self.takes_over = true;
                let own = self.shared.own;
                let step =
                    RoundStep::Commit { floor: reported.floor, is_uniform: reported.is_uniform };
                let request = Request::Round { round: reported.proven, step };
                self.call(Caller::Proof(own), own, Class::Repair, request, out);
            }
            Missed::Outdated => out.push(NodeEffect::Outdated { proven: reported.proven.time }),
        }
    }
}
