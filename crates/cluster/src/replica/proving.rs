//! The replica's side of rounds that prove something: seals, watermarks, and what a round brings.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::clock::{Clock, Now};
use crate::event::{Demand, Effect, OpId, StoreError};
use crate::message::Reply;
use crate::paxos::acceptor::Acceptor;
use crate::placement::view::View;
use crate::protocol::core::{Core, Cx};
use crate::repair::watermark::{MissedRound, Proof, RoundId, RoundStep};
use record::Record;

/// Steps of rounds of which something is being stored.
#[derive(Debug, Default)]
pub(crate) struct Proving {
    storing: BTreeSet<OpId>,
}

impl Proving {
    /// A step of a round.
    pub(crate) fn step_of_round(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        (round, step): (RoundId, RoundStep),
    ) {
        let shared = &cx.core.shared;
        let known = shared.repair.proofs.known();
        let skew = cx.core.config.max_skew_micros;
        // What it does not hold yet must not be taken for what nobody holds.
        let takes_part = shared.membership.state.is_authoritative_for_all();
        let kept = match step {
            RoundStep::Ask if shared.clock.is_ahead(round.time, cx.now, skew) => {
                return cx.done(op, Reply::Ahead);
            }
            RoundStep::Ask => return reply_round_state(cx, op),
            RoundStep::Commit { .. }
                if shared.repair.proofs.missed(round) == MissedRound::Known =>
            {
                return reply_round_state(cx, op);
            }
            RoundStep::Commit { floor, .. } if floor > Clock::limit(cx.now.wall, 2 * skew) => {
                return cx.done(op, Reply::Ahead);
            }
            RoundStep::Commit { floor, is_uniform } => {
                if shared.repair.proofs.missed(round) == MissedRound::Outdated {
                    let proof = Proof { proven: round, floor, is_uniform, ..Proof::default() };
                    shared.received_proof(shared.own, proof);
                    return reply_round_state(cx, op);
                }
                // Who was promised something before must ask again, lest he go on from what is
                // gone.
                if !shared.promise_all(cx.now, floor + 1, u64::MAX) {
                    return cx.done(op, Reply::Busy);
                }
                shared.repair.proofs.to_be_proven(round, floor, is_uniform)
            }
            _ if !takes_part => {
                return cx.done(op, Reply::Absent { authoritative: false });
            }
            RoundStep::Seal
                if round < known.seal || is_driven_by_another(cx.core, cx.now, round) =>
            {
                shared.repair.rounds.yields(cx.now);
                return reply_round_state(cx, op);
            }
            RoundStep::Seal if shared.clock.is_ahead(round.time, cx.now, skew) => {
                return cx.done(op, Reply::Ahead);
            }
            RoundStep::Seal => {
                shared.repair.rounds.works(cx.now);
                let is_visible = shared.repair.proofs.raise_seal(round);
                if !shared.promise_all(cx.now, round.time + 1, u64::MAX) || !is_visible {
                    return cx.done(op, Reply::Busy);
                }
                Proof { seal: round, ..known }
            }
            // Who is about to join takes no part in it, and would be outdated by what it proves.
            RoundStep::Ready if shared.membership.views.with(View::awaits_nodes) => {
                return reply_round_state(cx, op);
            }
            RoundStep::Ready => match shared.repair.proofs.to_be_ready(round) {
                Some(proof) => proof,
                None => return reply_round_state(cx, op),
            },
        };
        self.storing.insert(op);
        cx.out.push(Effect::KeepProof { op, proof: kept });
    }

    /// What was kept of a round's step is durable, or is not.
    pub(crate) fn was_kept(
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
            Err(error) => cx.done(op, super::reply::reply_to_error(error)),
        }
        true
    }

    /// A round brings what another node holds.
    pub(crate) fn bring(
        &self,
        cx: &mut Cx<'_>,
        acceptor: &mut Acceptor,
        op: OpId,
        (round, key, record): (RoundId, Bytes, Record),
        demand: Demand,
    ) {
        let known = cx.core.shared.repair.proofs.known();
        let items = vec![(key, record)];
        let (key, record) = &items[0];
        let refusal = if known.seal != round || known.proven >= round {
            Some(Reply::WrongEpoch)
        } else if cx.core.is_ahead(cx.now, record) {
            Some(Reply::Ahead)
        } else if !record.is_of(key) {
            Some(Reply::Failed)
        } else if would_be_dropped(cx.core, key, record)
            || !acceptor.accepts_page(cx, op, demand.class, &items)
        {
            Some(Reply::Busy)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return cx.done(op, refusal);
        }
        cx.core.must_look(record);
        cx.out.push(Effect::WriteAll { op, items, is_brought: true, demand });
    }
}

fn reply_round_state(cx: &mut Cx<'_>, op: OpId) {
    let state = cx.core.round_state(cx.now);
    cx.done(op, Reply::Round(state));
}

/// Returns whether another node drives the round that is under way: a later one waits for its end.
fn is_driven_by_another(core: &Core, now: Now, round: RoundId) -> bool {
    core.shared.repair.rounds.is_active(now)
        && core.shared.repair.proofs.known().seal.node != round.node
}

/// Returns whether a record is placed elsewhere, and such records are to go: nothing of these is
/// stored meanwhile. What a conditional write made would replace an older one that is placed here,
/// and then go too: nothing would be left of the key.
fn would_be_dropped(core: &Core, key: &[u8], record: &Record) -> bool {
    let is_placed = core.view.places(core.shared.own, key, record.copies());
    !is_placed
        && (core.shared.membership.layouts.has_leftovers()
            || core.shared.transfer.leftovers.wanted())
}
