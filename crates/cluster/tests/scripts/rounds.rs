//! Rounds of repair with nodes that can't read all they hold: what is healed, what is told.

use std::sync::Arc;

use bytes::Bytes;
use cluster::{
    Clock, CompareRequest, Compared, Damage, Detail, Logs, Membership, MembershipState, Node,
    NodeConfig, NodeEffect, NodeEvent, NodeId, Now, Proof, Reply, Request, RoundConfig, RoundId,
    RoundReport, RoundState, Shared, Unhealed,
};

use crate::toy;
use crate::words::BASE;
use crate::world::topology;

const SICK: NodeId = NodeId(1);

const OTHER: NodeId = NodeId(2);

/// Ticks and answers after which a round must be over.
const PATIENCE: usize = 100;

/// A round that a node drives over three, of which each answers by `reply`; with it, who was asked
/// to give up what.
fn round(
    full: bool,
    mut reply: impl FnMut(NodeId, &CompareRequest) -> Compared,
) -> (RoundReport, Vec<(NodeId, Vec<Damage>)>) {
    let clock = Arc::new(Clock::start(7, BASE, 0));
    clock.persisted(u64::MAX, 0);
    let membership = Membership::new(MembershipState::Member, BASE << 12, false);
    let logs = Arc::new(Logs::first(100));
    let shared = Arc::new(Shared::new(topology(3, 3), NodeId(0), clock, membership, 0, logs));
    let rounds = RoundConfig { full_interval_micros: u64::MAX, ..RoundConfig::NONE };
    let config = NodeConfig { max_skew_micros: 0, rounds, tombstone: toy::tombstone };
    let mut node = Node::new(Arc::clone(&shared), config);
    shared.rounds.ask(full);
    let (mut events, mut given_up) = (vec![NodeEvent::Tick], Vec::new());
    for mono in 1..PATIENCE as u64 {
        let now = Now { mono, wall: BASE + mono };
        let mut effects = Vec::new();
        node.handle(now, events.pop().unwrap_or(NodeEvent::Tick), &mut effects);
        for effect in effects {
            match effect {
                NodeEffect::RoundEnded(report) => return (report, given_up),
                NodeEffect::Call { call, node, request, .. } => {
                    let answer = match request {
                        Request::Compare(request) => Reply::Compared(reply(node, &request)),
                        Request::Discard(ranges) => {
                            given_up.push((node, ranges));
                            Reply::Stored
                        }
                        Request::Round { round, .. } => Reply::Round(does(round)),
                        _ => Reply::Pong,
                    };
                    events.push(NodeEvent::Returned { call, result: Ok(answer) });
                }
                _ => {}
            }
        }
    }
    panic!("the round does not end: {:?}", shared.rounds.status());
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
