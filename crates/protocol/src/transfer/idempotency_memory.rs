//! Replicas' memory of writes with an idempotency key, and the part of it that a node adopts when
//! it becomes a replica of a partition, or after it lost its own memory.
//!
//! ```text
//!  the previous replicas' traces of a write       the node adopts
//!  ──────────────────────────────────────────────────────────────────────────────────────────
//!  a majority accepted it under one ballot        `Chosen`: the write is done
//!  else, a majority may hold a trace of it;       `Replica`: a trace for which the node answers
//!    replicas that were not asked count as        neither "done" nor "never"
//!    holders
//!  else                                           nothing: no majority accepted the write
//! ```
//!
//! Before and after each move, a majority of the replicas has a trace of each chosen write. So if
//! so many replicas answer "never" that no majority with a trace is left, the write was not chosen.

use xxhash_rust::xxh3::xxh3_64;

use crate::clock::is_following_ballot;
use crate::node_id::NodeId;
use crate::paxos::accepted_ballots::AcceptedBallots;
use crate::paxos::operation::{Done, Tag, has_idempotency_key};
use crate::paxos::recent::{OpLookup, Via, WriteIdentity};
use record::{Operation, Record, Version};

/// A replica's memory of a write with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// A hash of the key; its first bits are the partition.
    pub key_hash: u64,
    /// The id of the write.
    pub id: u64,
    /// The version time that gives the write's age. Of two traces of one write, the trace with the
    /// greater time counts; at equal times, the trace with the greater `via`.
    pub time: u64,
    /// The way in which this replica learned of the write.
    pub via: Via,
    /// The ballots under which this replica accepted the write, or the ballot under which the write
    /// was chosen; none = the trace came from a replica.
    pub ballots: AcceptedBallots,
    /// The base version of the write's record.
    pub family: Version,
    /// The write's step number since the base version.
    pub step: u32,
    /// The sum, if the write was an addition.
    pub result: Option<i64>,
    /// The digest of the client's request; 0 = unknown.
    pub digest: u64,
}

impl Remembered {
    /// Returns the traces of a record's conditional writes with an idempotency key. The node adds
    /// them to its stored traces ([`Remembered::merge_into`]) when it stores the record. A trace
    /// for which `is_stored` returns true is left out.
    ///
    /// The record's last such write gets a trace under each ballot, the earlier ones only once: a
    /// coordinator begins the next such write once a majority holds the record, and so has a trace
    /// of the last one under one ballot. A record under a following ballot is no new evidence: its
    /// coordinator has based it on a chosen one.
    pub(crate) fn of_record(
        (key, record): (&[u8], &Record),
        via: Via,
        is_stored: impl Fn(&Operation) -> bool,
    ) -> Vec<Self> {
        let (ballot, family, key_hash) = (record.ballot(), record.version(), xxh3_64(key));
        if ballot == 0 {
            return Vec::new();
        }
        let is_copy = via == Via::Replica;
        let ballots = AcceptedBallots::one(if is_copy { 0 } else { ballot });
        // The later acceptance of a record replaces the trace that came with a page of it.
        let time = if is_copy { ballot - 1 } else { ballot };
        let mut is_noted_again = via == Via::Accept && !is_following_ballot(ballot);
        let steps = record.op_history();
        let mut traces = Vec::new();
        for (step, operation) in steps.with_step_numbers() {
            let Operation { id, result, digest } = *operation;
            if has_idempotency_key(id)
                && (std::mem::take(&mut is_noted_again) || !is_stored(operation))
            {
                traces.push(Self {
                    key_hash,
                    id,
                    time,
                    via,
                    ballots,
                    family,
                    step,
                    result,
                    digest,
                });
            }
        }
        traces
    }

    /// Returns the trace's name, by which traces are ordered.
    pub fn name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.key_hash.to_be_bytes());
        name[8..].copy_from_slice(&self.id.to_be_bytes());
        name
    }

    /// Returns the partition of the write's key.
    pub fn partition(&self) -> u16 {
        (self.key_hash >> 48) as u16
    }

    /// Adds the stored trace of the same write to this trace, which comes with a record. Returns
    /// the trace to store in place of `stored`; `None` = `stored` stays, because it proves as much.
    /// Replicas that accepted one record must keep its ballot in their traces, or they no longer
    /// form the majority that proves the write.
    pub fn merge_into(self, stored: &Self) -> Option<Self> {
        let outcome = |it: &Self| (it.family, it.step, it.result, it.digest);
        // Of several outcomes, only the latest can be chosen.
        if outcome(stored) != outcome(&self) {
            return Some(self);
        }
        let time = self.time.max(stored.time);
        match (self.via, stored.via) {
            (Via::Accept, Via::Accept) => {
                let ballots = self.ballots.iter().fold(stored.ballots, AcceptedBallots::with);
                (ballots != stored.ballots).then_some(Self { ballots, time, ..self })
            }
            (Via::Accept, Via::Replica) => Some(self),
            (Via::Replica, _) | (_, Via::Chosen) => None,
            // A `Chosen` trace of one replica answers a repeat, so the accepted ballots are no
            // longer needed. At equal times the store keeps the trace with the greater `via`.
            (Via::Chosen, Via::Accept | Via::Replica) => Some(Self { time, ..self }),
        }
    }

    /// Returns the answer to a query about the trace's write.
    pub fn answer_to(&self, asked: WriteIdentity) -> OpLookup {
        let Self { via, ballots, family, step, result, digest, .. } = *self;
        let tag = Tag { version: family, last: Some((step, asked.id)) };
        let done = Done::Changed { tag, result, expiry_ms: 0, fence: 0 };
        let lookup = match via {
            Via::Chosen => OpLookup::Chosen { done },
            Via::Accept | Via::Replica => OpLookup::Stored { ballots, done },
        };
        asked.lookup_unless_reused(digest, lookup)
    }

    /// True if the other trace has the same outcome, and `ballot` among its ballots.
    fn is_under(&self, ballot: u64, other: &Self) -> bool {
        let outcome = |it: &Self| (it.family, it.step, it.result);
        other.ballots.has(ballot) && outcome(self) == outcome(other)
    }

    /// Fills in the digest of the client's request from a matching trace, if this trace has none.
    fn with_digest(self, mut traces: impl Iterator<Item = Remembered>) -> Self {
        let is_same = |other: &Self| self.ballots.iter().any(|it| self.is_under(it, other));
        let knows = |other: &Self| other.digest != 0 && is_same(other);
        match self.digest {
            0 => traces.find(knows).map_or(self, |other| Self { digest: other.digest, ..self }),
            _ => self,
        }
    }

    fn as_of_replica(self, time: u64) -> Self {
        Self { time, via: Via::Replica, ballots: AcceptedBallots::NONE, ..self }
    }
}

/// Input for combining several nodes' memory of writes in one partition.
#[derive(Debug, Clone, Copy)]
pub struct Recollections<'a> {
    /// The node that combines the traces.
    pub own: NodeId,
    /// The scope of the node's own traces.
    pub until: OwnTraces,
    /// The previous replicas of the partition.
    pub before: &'a [NodeId],
    /// The number of previous replicas that could not be asked.
    pub unasked: usize,
}

/// The scope of the traces that a node has itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnTraces {
    /// Writes accepted up to this repair fence count as accepted before the current transition.
    Seal(u64),
    /// The node lost its earlier traces. It accepted all later writes as one of these replicas.
    Lost,
}

impl Recollections<'_> {
    fn majority(&self) -> usize {
        self.before.len() / 2 + 1
    }

    /// True if the replicas that could not be asked are a majority, and so may remember a write
    /// that no other replica remembers.
    pub(crate) fn are_too_few(&self) -> bool {
        self.unasked >= self.majority()
    }

    /// Returns the trace that the node must store for a write, given the traces of the write on
    /// this and other nodes; `None` = the node needs no new trace.
    pub fn remember(&self, traces: &[(NodeId, Remembered)]) -> Option<Remembered> {
        let own = traces.iter().find(|(node, _)| *node == self.own).map(|(_, own)| *own);
        if own.is_some_and(|own| own.via == Via::Chosen) {
            return None;
        }
        let all = || traces.iter().map(|(_, trace)| trace);
        let of_before = || traces.iter().filter(|(node, _)| self.before.contains(node));
        let accepted_by_majority = |trace: &Remembered| {
            let is_shared = |ballot: &u64| {
                let accepts = |(_, other): &&(NodeId, Remembered)| {
                    other.via == Via::Accept && trace.is_under(*ballot, other)
                };
                of_before().filter(accepts).count() >= self.majority()
            };
            let ballot = trace.ballots.iter().find(is_shared)?;
            Some(Remembered { ballots: AcceptedBallots::one(ballot), ..*trace })
        };
        let chosen = all().filter(|trace| trace.via == Via::Chosen);
        let chosen = chosen.min_by_key(|trace| trace.ballots.greatest()).copied();
        if let Some(chosen) = chosen.or_else(|| all().find_map(accepted_by_majority)) {
            let time = chosen.time.max(own.map_or(0, |own| own.time));
            let chosen = chosen.with_digest(all().copied());
            return Some(Remembered { via: Via::Chosen, time, ..chosen });
        }
        match own {
            // A write that this node accepted among the previous replicas, or before the
            // transition, must not count as accepted among the next replicas: perhaps only a
            // minority accepted it.
            Some(own) if own.via == Via::Accept => {
                let is_of_before = match self.until {
                    OwnTraces::Seal(seal) => {
                        self.before.contains(&self.own) || own.ballots.iter().any(|it| it <= seal)
                    }
                    OwnTraces::Lost => false,
                };
                is_of_before.then(|| own.as_of_replica(own.time))
            }
            Some(_) => None,
            None if of_before().count() + self.unasked >= self.majority() => {
                let latest = all().max_by_key(|trace| trace.time)?;
                Some(latest.as_of_replica(latest.time))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::{Fields, Kind};

    const OWN: NodeId = NodeId(9);
    const BEFORE: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

    fn trace(via: Via, ballot: u64) -> Remembered {
        let family = Version { time: 7, origin: 1 };
        let (key_hash, id) = (0x0102_0304_0506_0708, 5);
        let ballots = AcceptedBallots::one(if via == Via::Replica { 0 } else { ballot });
        let (step, result, digest) = (2, None, 0);
        Remembered { key_hash, id, time: ballot, via, ballots, family, step, result, digest }
    }

    fn accepted_trace(ballot: u64) -> Remembered {
        trace(Via::Accept, ballot)
    }

    fn recollections(before: &[NodeId], unasked: usize) -> Recollections<'_> {
        Recollections { own: OWN, until: OwnTraces::Seal(50), before, unasked }
    }

    fn remember(unasked: usize, traces: &[(u16, Remembered)]) -> Option<Remembered> {
        let traces: Vec<_> = traces.iter().map(|(node, trace)| (NodeId(*node), *trace)).collect();
        recollections(&BEFORE, unasked).remember(&traces)
    }

    /// The last bits of a ballot tell whether it follows another one without new promises.
    const FRESH: u64 = 64;

    /// Returns the traces of a record that names the operations `ids`, as operation and ballots.
    /// The node has stored traces of the operations `stored`.
    fn of_record(ballot: u64, ids: &[u64], via: Via, stored: &[u64]) -> Vec<(u64, Vec<u64>)> {
        let operation = |id: &u64| Operation { id: *id, result: None, digest: 0 };
        let operations: Vec<_> = ids.iter().map(operation).collect();
        let plain = Fields::new(Kind::Value, Version { time: 7, origin: 1 });
        let fields = Fields { ballot, step: 9, operations: &operations, ..plain };
        let record = Record::new(b"k", &fields, b"v");
        let is_stored = |operation: &Operation| stored.contains(&operation.id);
        let traces = Remembered::of_record((b"k", &record), via, is_stored);
        traces.into_iter().map(|trace| (trace.id, trace.ballots.iter().collect())).collect()
    }

    #[test]
    fn a_records_last_write_is_noted_under_each_ballot_and_earlier_ones_once() {
        let accepted =
            |ballot, ids: &[u64], stored: &[u64]| of_record(ballot, ids, Via::Accept, stored);
        let under = |id, ballot| (id, vec![ballot]);
        assert_eq!(accepted(FRESH, &[5, 6], &[]), [under(5, FRESH)], "6 has no idempotency key");
        assert_eq!(accepted(FRESH + 1, &[5, 6, 8], &[5]), [], "it follows a chosen record");
        assert_eq!(accepted(FRESH + 1, &[5], &[]), [under(5, FRESH + 1)]);
        assert_eq!(accepted(2 * FRESH, &[5, 6, 8], &[5]), [under(5, 2 * FRESH)]);
        assert_eq!(accepted(2 * FRESH, &[5, 7], &[5, 7]), [under(7, 2 * FRESH)]);
        let both = [under(7, 2 * FRESH), under(5, 2 * FRESH)];
        assert_eq!(accepted(2 * FRESH, &[5, 7], &[]), both);
        assert_eq!(of_record(FRESH, &[5, 7], Via::Replica, &[5]), [(7, vec![])]);
        let hinted = of_record(FRESH, &[5, 7], Via::Chosen, &[]);
        assert_eq!(hinted, [under(7, FRESH), under(5, FRESH)]);
    }

    #[test]
    fn a_chosen_write_is_answered_as_chosen_and_another_request_with_its_key_as_reused() {
        let answer = |via, digest| {
            let stored = Remembered { digest: 3, ..trace(via, 6) };
            stored.answer_to(WriteIdentity { id: 5, digest })
        };
        assert!(matches!(answer(Via::Chosen, 3), OpLookup::Chosen { .. }));
        assert!(matches!(answer(Via::Accept, 3), OpLookup::Stored { .. }));
        assert_eq!(answer(Via::Chosen, 4), OpLookup::Reused);
    }

    #[test]
    fn a_later_trace_has_the_ballots_of_the_stored_one() {
        let both = Remembered { ballots: AcceptedBallots::one(6).with(8), ..accepted_trace(8) };
        assert_eq!(accepted_trace(8).merge_into(&accepted_trace(6)), Some(both));
        assert_eq!(
            accepted_trace(6).merge_into(&accepted_trace(8)),
            Some(both),
            "it keeps the later time"
        );
        assert_eq!(accepted_trace(6).merge_into(&both), None);
        assert_eq!(accepted_trace(8).merge_into(&trace(Via::Replica, 9)), Some(accepted_trace(8)));
        assert_eq!(accepted_trace(8).merge_into(&trace(Via::Chosen, 6)), None, "it proves more");
        let hint = trace(Via::Chosen, 8);
        assert_eq!(hint.merge_into(&accepted_trace(6)), Some(hint), "one replica suffices");
        let hint = Remembered { time: 9, ..hint };
        assert_eq!(trace(Via::Chosen, 8).merge_into(&accepted_trace(9)), Some(hint));
        let later = Remembered { time: 9, ..trace(Via::Chosen, 8) };
        assert_eq!(trace(Via::Chosen, 8).merge_into(&trace(Via::Replica, 9)), Some(later));
        assert_eq!(trace(Via::Chosen, 8).merge_into(&trace(Via::Chosen, 6)), None);
        assert_eq!(trace(Via::Replica, 9).merge_into(&accepted_trace(8)), None);
        let other = Remembered { step: 3, ..accepted_trace(8) };
        assert_eq!(other.merge_into(&accepted_trace(6)), Some(other), "the earlier try was lost");
    }

    #[test]
    fn a_write_that_a_majority_accepted_under_one_ballot_is_chosen() {
        let chosen = Some(trace(Via::Chosen, 8));
        assert_eq!(remember(0, &[(1, accepted_trace(8)), (3, accepted_trace(8))]), chosen);
        let twice = [(1, accepted_trace(6)), (2, accepted_trace(8)), (3, accepted_trace(8))];
        assert_eq!(remember(0, &twice), chosen);
        let under = |ballots: &[u64]| Remembered {
            ballots: ballots.iter().copied().collect(),
            ..accepted_trace(9)
        };
        let shared = [(1, under(&[9, 8])), (2, under(&[7])), (3, under(&[8, 6]))];
        let chosen_later = Some(Remembered { time: 9, ..trace(Via::Chosen, 8) });
        assert_eq!(remember(0, &shared), chosen_later);
        let none = [(1, under(&[9, 8])), (2, under(&[7])), (3, under(&[6]))];
        assert_eq!(remember(0, &none).map(|it| it.via), Some(Via::Replica));
        let other = Remembered { step: 3, ..accepted_trace(8) };
        let unclear = remember(0, &[(1, accepted_trace(8)), (2, other)]).unwrap();
        assert_eq!((unclear.via, unclear.ballots), (Via::Replica, AcceptedBallots::NONE));
    }

    #[test]
    fn a_digest_that_one_of_those_knows_is_kept() {
        let known = Remembered { digest: 77, ..accepted_trace(8) };
        let chosen = Some(Remembered { digest: 77, ..trace(Via::Chosen, 8) });
        assert_eq!(remember(0, &[(1, accepted_trace(8)), (3, known)]), chosen);
        let told = Remembered { digest: 77, ..trace(Via::Chosen, 8) };
        assert_eq!(remember(0, &[(2, told)]), chosen);
        let other = Remembered { digest: 77, ..accepted_trace(6) };
        let unclear = remember(0, &[(1, accepted_trace(8)), (2, other)]).unwrap();
        assert_eq!((unclear.via, unclear.digest), (Via::Replica, 0), "it may be another request");
    }

    #[test]
    fn a_write_that_one_replica_reports_as_chosen_is_chosen() {
        let chosen = trace(Via::Chosen, 8);
        assert_eq!(remember(0, &[(2, chosen)]), Some(chosen));
        assert_eq!(remember(0, &[(2, chosen), (9, chosen)]), None, "it is known");
        let earlier = trace(Via::Chosen, 6);
        assert_eq!(remember(0, &[(2, chosen), (3, earlier)]), Some(earlier));
    }

    #[test]
    fn a_trace_of_a_majority_is_kept_and_one_of_fewer_is_not() {
        let replica = |ballot| Some(trace(Via::Replica, ballot));
        assert_eq!(remember(0, &[(1, accepted_trace(6)), (2, accepted_trace(8))]), replica(8));
        assert_eq!(remember(0, &[(1, accepted_trace(6)), (2, trace(Via::Replica, 9))]), replica(9));
        assert_eq!(remember(0, &[(1, accepted_trace(6))]), None);
        assert_eq!(
            remember(1, &[(1, accepted_trace(6))]),
            replica(6),
            "another may have accepted it"
        );
        assert_eq!(
            remember(0, &[(1, accepted_trace(6)), (4, accepted_trace(6))]),
            None,
            "no replica"
        );
    }

    #[test]
    fn reports_are_too_few_if_a_majority_was_not_asked() {
        assert!(!recollections(&BEFORE, 1).are_too_few());
        assert!(recollections(&BEFORE, 2).are_too_few());
        assert!(recollections(&BEFORE[..1], 1).are_too_few());
    }

    #[test]
    fn a_chosen_write_replaces_the_nodes_own_trace() {
        let both = [(1, accepted_trace(6)), (2, accepted_trace(6)), (9, trace(Via::Replica, 30))];
        let chosen = Remembered { time: 30, ..trace(Via::Chosen, 6) };
        assert_eq!(remember(0, &both), Some(chosen));
    }

    #[test]
    fn a_node_that_lost_its_traces_counts_as_a_holder_of_each() {
        let own = NodeId(1);
        let lost = Recollections { own, until: OwnTraces::Lost, ..recollections(&BEFORE, 1) };
        let remember = |traces: &[(u16, Remembered)]| {
            let traces: Vec<_> = traces.iter().map(|(node, it)| (NodeId(*node), *it)).collect();
            lost.remember(&traces)
        };
        assert_eq!(
            remember(&[(2, accepted_trace(8))]),
            Some(trace(Via::Replica, 8)),
            "with its own"
        );
        let both = [(2, accepted_trace(8)), (3, accepted_trace(8))];
        assert_eq!(remember(&both), Some(trace(Via::Chosen, 8)));
        assert_eq!(remember(&[(1, accepted_trace(9))]), None, "its own is of now, and stays");
        assert_eq!(
            remember(&[(1, accepted_trace(9)), (2, accepted_trace(9))]),
            Some(trace(Via::Chosen, 9))
        );
        assert!(!lost.are_too_few());
        assert!(Recollections { unasked: 2, ..lost }.are_too_few(), "another one can't tell");
    }

    #[test]
    fn an_accepted_trace_from_before_the_transition_is_demoted() {
        let replica = |ballot| Some(trace(Via::Replica, ballot));
        assert_eq!(remember(0, &[(9, accepted_trace(40))]), replica(40));
        assert_eq!(remember(0, &[(9, accepted_trace(60))]), None, "it is of this transition");
        let both = Remembered { ballots: AcceptedBallots::one(40).with(60), ..accepted_trace(60) };
        assert_eq!(remember(0, &[(9, both)]), replica(60), "it has a ballot from before");
        assert_eq!(remember(0, &[(9, trace(Via::Replica, 40))]), None);
        let stays = Recollections { own: NodeId(1), ..recollections(&BEFORE, 0) };
        assert_eq!(stays.remember(&[(NodeId(1), accepted_trace(60))]), replica(60));
        let both = [(NodeId(1), accepted_trace(60)), (NodeId(2), accepted_trace(60))];
        assert_eq!(stays.remember(&both), Some(trace(Via::Chosen, 60)));
    }
}
