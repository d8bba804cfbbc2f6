//! Rounds of repair with nodes that can't read all they hold, or are restarted: what is healed,
//! what is told, what is compared again.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use cluster::{
    Clock, CompareRequest, Compared, Damage, Detail, Kind, Logs, Membership, MembershipState, Node,
    NodeConfig, NodeEffect, NodeEvent, NodeId, Now, Proof, Rank, Record, Reply, Request,
    RoundConfig, RoundId, RoundReport, RoundState, RoundStep, Shared, Sum, Unhealed, Version,
};

use crate::toy;
use crate::words::BASE;
use crate::world::topology;

const SICK: NodeId = NodeId(1);

const OTHER: NodeId = NodeId(2);

/// Ticks and answers after which a round must be over.
const PATIENCE: usize = 100;

/// A node that drives rounds over three.
struct Driver {
    node: Node,
    shared: Arc<Shared>,
    mono: u64,
}

impl Driver {
    fn new() -> Self {
        let clock = Arc::new(Clock::start(7, BASE, 0));
        clock.persisted(u64::MAX, 0);
        let membership = Membership::new(MembershipState::Member, BASE << 12, false);
        let logs = Arc::new(Logs::first(100));
        let shared = Arc::new(Shared::new(topology(3, 3), NodeId(0), clock, membership, 0, logs));
        let rounds = RoundConfig { full_interval_micros: u64::MAX, ..RoundConfig::NONE };
        let config = NodeConfig { max_skew_micros: 0, rounds, tombstone: toy::tombstone };
        Self { node: Node::new(Arc::clone(&shared), config), shared, mono: 0 }
    }

    /// Drives a round, in which each node answers by `reply`.
    fn round(
        &mut self,
        full: bool,
        mut reply: impl FnMut(NodeId, &Request) -> Reply,
    ) -> RoundReport {
        self.shared.rounds.ask(full);
        let mut events = vec![NodeEvent::Tick];
        for _ in 0..PATIENCE {
            self.mono += 1;
            let now = Now { mono: self.mono, wall: BASE + self.mono };
            let mut effects = Vec::new();
            self.node.handle(now, events.pop().unwrap_or(NodeEvent::Tick), &mut effects);
            for effect in effects {
                match effect {
                    NodeEffect::RoundEnded(report) => return report,
                    NodeEffect::Call { call, node, request, .. } => {
                        let result = Ok(reply(node, &request));
                        events.push(NodeEvent::Returned { call, result });
                    }
                    _ => {}
                }
            }
        }
        panic!("the round does not end: {:?}", self.shared.rounds.status());
    }
}

/// A round of which each node tells by `reply` what it holds; with it, who was asked to give up
/// what.
fn round(
    full: bool,
    mut reply: impl FnMut(NodeId, &CompareRequest) -> Compared,
) -> (RoundReport, Vec<(NodeId, Vec<Damage>)>) {
    let mut given_up = Vec::new();
    let report = Driver::new().round(full, |node, request| match request {
        Request::Compare(request) => Reply::Compared(reply(node, request)),
        Request::Discard(ranges) => {
            given_up.push((node, ranges.clone()));
            Reply::Stored
        }
        Request::Round { round, .. } => Reply::Round(does(*round)),
        _ => Reply::Pong,
    });
    (report, given_up)
}

/// What a node tells that has done all steps of a round.
fn does(round: RoundId) -> RoundState {
    let proof = Proof { seal: round, ready: round, proven: round, ..Proof::default() };
    RoundState { life: 1, proof, promised: 0, is_active: true }
}

fn damage(first: &'static str, last: &'static str) -> Damage {
    Damage { first: first.into(), last: Some(last.into()) }
}

/// A node tells all keys that a damaged block may hold, be they before what it was asked for: such
/// a block is told twice where one part of the keys ends and the next begins. It is healed once.
#[test]
fn damage_across_parts_of_the_keys_is_counted_once() {
    let rotten = damage("k", "p");
    let (report, given_up) = round(true, |node, request| {
        let first = request.start.is_empty() && request.detail == Detail::Sums;
        let next = (node == NodeId(0) && first).then(|| Bytes::from("m"));
        let damaged = if node == SICK { vec![rotten.clone()] } else { Vec::new() };
        Compared { next, damaged, ..Compared::default() }
    });
    assert_eq!((report.damaged, report.healed), (1, 1), "{report:?}");
    assert!(report.is_equal(), "{report:?}");
    assert_eq!(given_up, [(SICK, vec![rotten])]);
}

/// What is old is not looked at until something is to be healed. If another node can't read it
/// either, nothing is given up: the two may have been the only ones that held it.
#[test]
fn damage_that_shows_only_while_another_node_is_healed_keeps_that_from_it() {
    let (here, there) = (damage("k", "p"), damage("m", "r"));
    let (report, given_up) = round(true, |node, request| {
        let is_list = matches!(request.detail, Detail::Outlines { .. });
        let damaged = match node {
            SICK => vec![here.clone()],
            OTHER if is_list => vec![there.clone()],
            _ => Vec::new(),
        };
        Compared { damaged, ..Compared::default() }
    });
    assert_eq!(given_up, []);
    assert_eq!((report.damaged, report.healed), (2, 0), "{report:?}");
    let expected = [(OTHER, there, Unhealed::Both), (SICK, here, Unhealed::Both)];
    assert_eq!(report.unhealed, expected);
    assert!(!report.is_equal());
}

/// What a round has brought is gone if its node is restarted before that is durable: it is compared
/// again by the next one, also if that looks at new records only.
#[test]
fn what_was_equal_is_compared_again_after_a_restart() {
    let proven = RoundId { time: 5, node: OTHER };
    let since = |restarts: bool| {
        let (mut driver, mut life, mut since) = (Driver::new(), 1, BTreeSet::new());
        let mut rounds = Vec::new();
        for full in [true, false] {
            since.clear();
            rounds.push(driver.round(full, |node, request| match request {
                Request::Compare(request) => {
                    since.insert(request.since);
                    Reply::Compared(Compared::default())
                }
                Request::Round { round, step } => {
                    let is_ready = *step == RoundStep::Ready;
                    // Without one, the first round is not proven by what nodes say of it.
                    life += u64::from(restarts && is_ready && node == SICK && life == 1);
                    let ready = if full && is_ready && !restarts { proven } else { *round };
                    let is_committed = matches!(step, RoundStep::Commit { .. });
                    let proven = if is_committed { *round } else { proven };
                    let is_uniform = true;
                    let proof =
                        Proof { seal: *round, ready, proven, is_uniform, ..Proof::default() };
                    let life = if node == SICK { life } else { 1 };
                    Reply::Round(RoundState { life, proof, promised: 0, is_active: true })
                }
                _ => Reply::Pong,
            }));
        }
        let [first, second] = &rounds[..] else { panic!("{rounds:?}") };
        assert!(first.is_equal() && !first.proven && second.proven, "{rounds:?}");
        (since.into_iter().collect::<Vec<u64>>(), first.until)
    };
    let (compared, until) = since(false);
    assert_eq!(compared, [until], "all are what they were, and sealed since");
    assert_eq!(since(true).0, [proven.time]);
}

/// A conditional write's record that one node holds is read at a majority, which need not be of
/// those that hold it. What is older is no reason to call all equal.
#[test]
fn what_is_read_of_a_minority_and_older_is_not_taken_for_it() {
    let key = Bytes::from("k");
    let version = Version { time: 3, origin: 7 };
    let put = toy::record(&key, Kind::Value, "put", version, 0);
    let changed = Record { rank: Rank { ballot: 4, ..put.rank }, ..put.clone() };
    let mut brought = Vec::new();
    let report = Driver::new().round(true, |node, request| match request {
        Request::Compare(request) => {
            let record = if node == SICK { &changed } else { &put };
            let sum = u128::from(record.rank.ballot + 1);
            let bucket = topology(3, 3).buckets().of(&key);
            let place = node.0 as u8;
            let mut compared = Compared::default();
            match request.detail {
                Detail::Sums => compared.sums.push(Sum { bucket, place, copies: 3, sum }),
                Detail::Outlines { .. } => compared.outlines.push((key.clone(), record.outline())),
            }
            Reply::Compared(compared)
        }
        Request::ReadQuorum { .. } => Reply::Found { record: put.clone(), authoritative: true },
        Request::Bring { record, .. } => {
            brought.push((node, record.rank));
            Reply::Stored
        }
        Request::Round { round, .. } => Reply::Round(does(*round)),
        _ => Reply::Pong,
    });
    assert_eq!(brought, [], "they hold it already");
    assert_eq!((report.differing, report.repaired, report.failed), (1, 0, 1), "{report:?}");
    assert!(!report.proven);
}
