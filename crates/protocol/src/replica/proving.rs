//! The replica side of repair rounds that advance the watermark: repair fences (seals), watermarks,
//! and the records that a round brings.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::clock::{Clock, Now};
use crate::dispatch::core::{Core, Cx};
use crate::event::{Demand, Effect, OpId, StoreError};
use crate::message::Reply;
use crate::paxos::acceptor::Acceptor;
use crate::paxos::recent::Via;
use crate::placement::view::View;
use crate::repair::watermark::{MissedRound, Proof, RoundId, RoundStep};
use record::Record;

/// The steps whose proof state is being stored.
#[derive(Debug, Default)]
pub(crate) struct PendingProofs {
    storing: BTreeSet<OpId>,
}

impl PendingProofs {
    /// Carries out a step of a round.
    pub(crate) fn step_of_round(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        (round, step): (RoundId, RoundStep),
    ) {
        let shared = &cx.core.shared;
        let known = shared.repair.proofs.known_proof();
        let skew = cx.core.config.max_skew_micros;
        // A node that still lacks records must not take part: they would look like records that no
        // node holds.
        let takes_part = shared.membership.state.is_authoritative_for_all();
        let kept = match step {
            RoundStep::Ask if shared.clock.is_ahead(round.time, cx.now, skew) => {
                return cx.reply_as_replica(op, Reply::Ahead);
            }
            RoundStep::Ask => return reply_round_state(cx, op),
            RoundStep::Commit { .. }
                if shared.repair.proofs.classify_proof(round) == MissedRound::Known =>
            {
                return reply_round_state(cx, op);
            }
            RoundStep::Commit { floor, .. } if floor > Clock::limit(cx.now.wall, 2 * skew) => {
                return cx.reply_as_replica(op, Reply::Ahead);
            }
            RoundStep::Commit { floor, is_uniform } => {
                if shared.repair.proofs.classify_proof(round) == MissedRound::Outdated {
                    let proof = Proof { proven: round, floor, is_uniform, ..Proof::default() };
                    shared.note_proof(shared.own, proof);
                    return reply_round_state(cx, op);
                }
                // A coordinator with earlier promises must request new ones, because it could
                // otherwise continue from a purged record.
                if !shared.promise_all(cx.now, floor + 1, u64::MAX) {
                    return cx.reply_as_replica(op, Reply::Busy);
                }
                shared.repair.proofs.proof_if_proven(round, floor, is_uniform)
            }
            _ if !takes_part => {
                return cx.reply_as_replica(op, Reply::Absent { authoritative: false });
            }
            RoundStep::Seal
                if round < known.seal || is_driven_by_another(cx.core, cx.now, round) =>
            {
                shared.repair.rounds.note_yield(cx.now);
                return reply_round_state(cx, op);
            }
            RoundStep::Seal if shared.clock.is_ahead(round.time, cx.now, skew) => {
                return cx.reply_as_replica(op, Reply::Ahead);
            }
            // Behind the fence, hints from before the fence count as brought by the round, and
            // their senders drop them. The round could not bring these records to a full disk.
            RoundStep::Seal if shared.replica.lack_of_space.is_recent(cx.now) => {
                return cx.reply_as_replica(op, Reply::NoSpace);
            }
            RoundStep::Seal => {
                shared.repair.rounds.note_work(cx.now);
                let is_visible = shared.repair.proofs.raise_seal(round);
                if !shared.promise_all(cx.now, round.time + 1, u64::MAX) || !is_visible {
                    return cx.reply_as_replica(op, Reply::Busy);
                }
                Proof { seal: round, ..known }
            }
            // A node that is about to join takes no part in rounds, so a proof would make its
            // directory outdated.
            RoundStep::Ready if shared.membership.views.with(View::has_joining_nodes) => {
                return reply_round_state(cx, op);
            }
            RoundStep::Ready => match shared.repair.proofs.proof_if_ready(round) {
                Some(proof) => proof,
                None => return reply_round_state(cx, op),
            },
        };
        self.storing.insert(op);
        cx.out.push(Effect::StoreProof { op, proof: kept });
    }

    /// Handles the result of storing a step's proof state, and replies. Returns `false` if the
    /// operation belongs to no step.
    pub(crate) fn on_stored(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
    ) -> bool {
        if !self.storing.remove(&op) {
            return false;
        }
        match result {
            Ok(_) => reply_round_state(cx, op),
            Err(error) => cx.reply_as_replica(op, super::reply::reply_to_error(error)),
        }
        true
    }

    /// Stores a record that a round brings from another node, unless a check refuses it.
    pub(crate) fn bring(
        &self,
        cx: &mut Cx<'_>,
        acceptor: &mut Acceptor,
        op: OpId,
        (round, key, record): (RoundId, Bytes, Record),
        demand: Demand,
    ) {
        let known = cx.core.shared.repair.proofs.known_proof();
        let (items, via) = (vec![(key, record)], Via::Replica);
        let (key, record) = &items[0];
        let refusal = if known.seal != round || known.proven >= round {
            Some(Reply::TopologyMismatch)
        } else if cx.core.is_ahead(cx.now, record) {
            Some(Reply::Ahead)
        } else if !record.is_intact(key) {
            Some(Reply::Failed)
        } else if would_be_dropped(cx.core, key, record)
            || !acceptor.on_page(cx, op, (demand.class, via), &items)
        {
            Some(Reply::Busy)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return cx.reply_as_replica(op, refusal);
        }
        cx.core.note_and_check(record);
        cx.out.push(Effect::WriteAll { op, items, via, ignores_fences: true, demand });
    }
}

fn reply_round_state(cx: &mut Cx<'_>, op: OpId) {
    let state = cx.core.round_state(cx.now);
    cx.reply_as_replica(op, Reply::Round(state));
}

/// True if another node drives the unfinished round. A later round then waits for its end.
fn is_driven_by_another(core: &Core, now: Now, round: RoundId) -> bool {
    core.shared.repair.rounds.is_active(now)
        && core.shared.repair.proofs.known_proof().seal.node != round.node
}

/// True if a record is placed only on other nodes while orphaned records are being dropped: the
/// record must not be stored then. A conditional write's record would replace an older record that
/// is placed here, and would itself be dropped, so that no record of the key would remain.
fn would_be_dropped(core: &Core, key: &[u8], record: &Record) -> bool {
    let is_placed = core.view.is_replica(core.shared.own, key, record.copies());
    !is_placed
        && (core.shared.membership.layouts.has_orphans()
            || core.shared.transfer.orphan_drops.is_pending())
}
