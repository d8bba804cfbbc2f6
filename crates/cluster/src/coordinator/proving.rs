//! The replica's side of rounds that prove something: seals, watermarks, and what a round brings.

use bytes::Bytes;

use super::Coordinator;
use super::read::state::Reported;
use crate::clock::{Clock, Now};
use crate::event::{Demand, Effect, OpId, StoreError};
use crate::message::{NodeId, Reply};
use crate::proof::{Missed, Proof, RoundId, RoundState, RoundStep};
use crate::view::View;
use record::{Kind, Record};

impl Coordinator {
    /// A step of a round.
    pub(super) fn step_of_round(
        &mut self,
        now: Now,
        op: OpId,
        (round, step): (RoundId, RoundStep),
        out: &mut Vec<Effect>,
    ) {
        let shared = &self.shared;
        let known = shared.proofs.known();
        let skew = self.config.max_skew_micros;
        // What it does not hold yet must not be taken for what nobody holds.
        let takes_part = shared.membership.is_authoritative_for_all();
        let kept = match step {
            RoundStep::Ask if shared.clock.is_ahead(round.time, now, skew) => {
                return self.done(op, Reply::Ahead, out);
            }
            RoundStep::Ask => return self.reply_round_state(now, op, out),
            RoundStep::Commit { .. } if shared.proofs.missed(round) == Missed::Known => {
                return self.reply_round_state(now, op, out);
            }
            RoundStep::Commit { floor, .. } if floor > Clock::limit(now.wall, 2 * skew) => {
                return self.done(op, Reply::Ahead, out);
            }
            RoundStep::Commit { floor, is_uniform } => {
                if shared.proofs.missed(round) == Missed::Outdated {
                    let proof = Proof { proven: round, floor, is_uniform, ..Proof::default() };
                    shared.received_proof(shared.own, proof);
                    return self.reply_round_state(now, op, out);
                }
                // Who was promised something before must ask again, lest he go on from what is
                // gone.
                if !shared.promise_all(now, floor + 1, u64::MAX) {
                    return self.done(op, Reply::Busy, out);
                }
                shared.proofs.to_be_proven(round, floor, is_uniform)
            }
            _ if !takes_part => {
                return self.done(op, Reply::Absent { authoritative: false }, out);
            }
            RoundStep::Seal if round < known.seal || self.is_driven_by_another(now, round) => {
                shared.rounds.yields(now);
                return self.reply_round_state(now, op, out);
            }
            RoundStep::Seal if shared.clock.is_ahead(round.time, now, skew) => {
                return self.done(op, Reply::Ahead, out);
            }
            RoundStep::Seal => {
                shared.rounds.works(now);
                let is_visible = shared.proofs.raise_seal(round);
                if !shared.promise_all(now, round.time + 1, u64::MAX) || !is_visible {
                    return self.done(op, Reply::Busy, out);
                }
                Proof { seal: round, ..known }
            }
            // Who is about to join takes no part in it, and would be outdated by what it proves.
            RoundStep::Ready if shared.views.with(View::awaits_nodes) => {
                return self.reply_round_state(now, op, out);
            }
            RoundStep::Ready => match shared.proofs.to_be_ready(round) {
                Some(proof) => proof,
                None => return self.reply_round_state(now, op, out),
            },
        };
        self.proving.insert(op);
        out.push(Effect::KeepProof { op, proof: kept });
    }

    /// What was kept of a round's step is durable, or is not.
    pub(super) fn proof_was_kept(
        &mut self,
        now: Now,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) -> bool {
        if !self.proving.remove(&op) {
            return false;
        }
        match result {
            Ok(_) => self.reply_round_state(now, op, out),
            Err(error) => self.done(op, super::replica::reply_to_error(error), out),
        }
        true
    }

    fn reply_round_state(&mut self, now: Now, op: OpId, out: &mut Vec<Effect>) {
        let state = self.round_state(now);
        self.done(op, Reply::Round(state), out);
    }

    pub(super) fn round_state(&self, now: Now) -> RoundState {
        let shared = &self.shared;
        RoundState {
            life: shared.logs.life(),
            proof: shared.proofs.known(),
            promised: shared.promises.greatest(),
            is_active: shared.rounds.is_active(now),
        }
    }

    /// Whether that was another node's: a later one waits for its end.
    fn is_driven_by_another(&self, now: Now, round: RoundId) -> bool {
        self.shared.rounds.is_active(now) && self.shared.proofs.known().seal.node != round.node
    }

    /// A round brings what another node holds.
    pub(super) fn bring(
        &mut self,
        now: Now,
        op: OpId,
        (round, key, record): (RoundId, Bytes, Record),
        demand: Demand,
        out: &mut Vec<Effect>,
    ) {
        let known = self.shared.proofs.known();
        let items = vec![(key, record)];
        let (key, record) = &items[0];
        let refusal = if known.seal != round || known.proven >= round {
            Some(Reply::WrongEpoch)
        } else if self.is_ahead(now, record) {
            Some(Reply::Ahead)
        } else if !record.is_of(key) {
            Some(Reply::Failed)
        } else if self.would_be_dropped(key, record)
            || !self.accepts_page(now, op, demand.class, &items)
        {
            Some(Reply::Busy)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.done(op, refusal, out);
        }
        self.must_look(record);
        out.push(Effect::WriteAll { op, items, is_brought: true, demand });
    }

    /// Whether a record is placed elsewhere, and such are to go: nothing of these is stored
    /// meanwhile. What a conditional write made would replace an older one that is placed here, and
    /// then go too: nothing would be left of the key.
    fn would_be_dropped(&self, key: &[u8], record: &Record) -> bool {
        let is_placed = self.view.places(self.shared.own, key, record.copies());
        !is_placed && (self.shared.layouts.has_leftovers() || self.shared.leftovers.wanted())
    }

    /// Whether a record that a replica reported is as good as none: it may be purged on others, and
    /// they need not be brought it. Of one that is not authoritative, as this node may be itself,
    /// that it was written before any watermark suffices: its directory may be an older copy.
    ///
    /// A watermark is a time of versions, whose clock may be ahead of all wall clocks: that alone
    /// ends no value.
    pub(super) fn is_gone(&self, now: Now, reported: &Reported, authoritative: bool) -> bool {
        let greatest = self.shared.proofs.reported_watermark();
        if greatest == 0 {
            return false;
        }
        let watermark = self.shared.proofs.watermark();
        let rank = reported.rank();
        let has_expired = || {
            // Of a long one that is known once it is fetched.
            let Some(record) = reported.whole() else { return false };
            let expiry_ms = record.expiry_ms();
            let latest = rank.version.time.max(rank.ballot);
            expiry_ms != 0
                && latest <= watermark
                && record::has_expired(expiry_ms, self.time_of_expiries(now))
                && Clock::time_of(expiry_ms.saturating_mul(1000).min(Clock::micros(u64::MAX)))
                    < watermark
        };
        !authoritative && rank.when() <= greatest
            || self.shared.proofs.is_gone(rank)
            || rank.kind == Kind::Value && has_expired()
    }

    /// Another node has another watermark than this one: one of the two lags behind.
    pub(super) fn has_other_watermark(&self, node: NodeId, state: &RoundState) {
        self.shared.received_proof(node, state.proof);
    }
}
