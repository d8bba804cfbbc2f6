//! Tests of a replica in repair rounds: the writes for which a repair fence (seal) waits, the
//! writes that the fence refuses, and the rise of the watermark.

use protocol::{RoundId, RoundStep};

use super::*;
use crate::test_node::conditional;

/// A round up to ten microseconds before the node's time.
const ROUND: RoundId = RoundId { time: (WALL - 10) << 12, node: NodeId(1) };

/// Ages in microseconds of a write before the round's time, and of one after it.
const OLD: u64 = 20;
const NEW: u64 = 5;

fn step(id: u64, step: RoundStep) -> Event {
    request_event(id, Request::Round { round: ROUND, step })
}

/// Commits the batch of a `Done::Keep`, then reports the success to the loop.
fn keep(stage: &mut TestNode, own: &mut Loop) {
    let done = stage.take();
    let [Done::Keep(Some(op), batch, keeps)] = &done[..] else { panic!("{done:?}") };
    stage.engine.commit(std::iter::once(batch)).unwrap();
    own.on_own_record_stored(stage, *op, keeps, Ok(()));
}

/// Sends a step of the round, and checks that the loop replies only once the step is durable.
fn do_step(stage: &mut TestNode, own: &mut Loop, id: u64, what: RoundStep) {
    own.handle(stage, step(id, what));
    keep(stage, own);
    let replies = stage.replies();
    assert!(matches!(&replies[..], [(of, Reply::Round(_))] if *of == id), "{replies:?}");
}

fn loop_with_repair_fence(stage: &mut TestNode) -> Loop {
    stage.shared.clock.mark_durable(u64::MAX, 0);
    let mut own = stage.event_loop();
    do_step(stage, &mut own, 1, RoundStep::Seal);
    own
}

fn hint(id: u64, items: Vec<(Bytes, Record)>) -> Event {
    let (connection, class, remaining_ms) = (ConnectionId(1), Class::Hint, 1000);
    let (under, request) = (test_node::under(), Request::Writes { items });
    Event::Request { connection, id, class, remaining_ms, under, request }
}

fn holds(stage: &TestNode, key: &[u8]) -> bool {
    stage.engine.read(Space::Data, key).unwrap().is_some()
}

#[test]
fn a_repair_fence_waits_for_writes_admitted_before_it() {
    let old = || (Bytes::from_static(b"k"), value(b"k", OLD, 1));
    for event in [write(1, b"k", old().1), hint(1, vec![old()])] {
        let mut stage = TestNode::new();
        stage.shared.clock.mark_durable(u64::MAX, 0);
        let mut own = stage.event_loop();
        own.handle(&mut stage, event);
        own.handle(&mut stage, step(2, RoundStep::Seal));
        assert_eq!(stage.replies(), [(2, Reply::Busy)], "one is not in the store yet");
        stage.write(&mut own);
        assert_eq!(stage.replies(), [(1, Reply::Stored)]);
        do_step(&mut stage, &mut own, 3, RoundStep::Seal);
    }
}

#[test]
fn a_repair_fence_refuses_older_writes() {
    let mut stage = TestNode::new();
    let mut own = loop_with_repair_fence(&mut stage);
    own.handle(&mut stage, write(2, b"old", value(b"old", OLD, 1)));
    assert_eq!(
        stage.replies(),
        [(2, Reply::BallotRefused { promise: ROUND.time })],
        "it goes above that"
    );
    own.handle(&mut stage, write(3, b"new", value(b"new", NEW, 1)));
    stage.write(&mut own);
    assert_eq!(stage.replies(), [(3, Reply::Stored)]);
    let items = [("older", OLD), ("newer", NEW)];
    let items = items.map(|(key, age)| (Bytes::from(key), value(key.as_bytes(), age, 1)));
    own.handle(&mut stage, hint(4, items.to_vec()));
    stage.write(&mut own);
    assert_eq!(stage.replies(), [(4, Reply::Stored)], "its sender need not keep them");
    let held = [&b"old"[..], b"new", b"older", b"newer"].map(|key| holds(&stage, key));
    assert_eq!(held, [false, true, false, true]);
}

#[test]
fn a_repair_fence_admits_records_of_its_own_round() {
    let mut stage = TestNode::new();
    let mut own = loop_with_repair_fence(&mut stage);
    let (key, record) = (Bytes::from_static(b"k"), value(b"k", OLD, 1));
    let other = RoundId { node: NodeId(2), ..ROUND };
    for (id, round) in [(2, other), (3, ROUND)] {
        let (key, record) = (key.clone(), record.clone());
        own.handle(&mut stage, request_event(id, Request::Bring { round, key, record }));
        stage.write(&mut own);
    }
    assert_eq!(stage.replies(), [(2, Reply::TopologyMismatch), (3, Reply::Stored)]);
    assert!(holds(&stage, b"k"));
}

/// The record in a conditional write's hint was chosen, so no promise refuses it. But a later
/// tombstone of its base version may already be proven and purged. So the node refuses a hint whose
/// ballot is not above the floor of the round's commit.
#[test]
fn a_conditional_hint_below_the_floor_of_a_commit_is_refused() {
    let mut stage = TestNode::new();
    let mut own = loop_with_repair_fence(&mut stage);
    do_step(&mut stage, &mut own, 2, RoundStep::Ready);
    let floor = ROUND.time + 100;
    do_step(&mut stage, &mut own, 3, RoundStep::Commit { floor, is_uniform: true });
    let hinted = [("below", floor), ("above", floor + 1)];
    let items =
        hinted.map(|(key, ballot)| (Bytes::from(key), conditional(key.as_bytes(), OLD, ballot)));
    own.handle(&mut stage, hint(4, items.to_vec()));
    stage.write(&mut own);
    assert_eq!([&b"below"[..], b"above"].map(|key| holds(&stage, key)), [false, true]);
}

#[test]
fn the_watermark_rises_once_it_is_durable() {
    let mut stage = TestNode::new();
    let mut own = loop_with_repair_fence(&mut stage);
    do_step(&mut stage, &mut own, 2, RoundStep::Ready);
    let watermark = |stage: &TestNode| stage.engine.purge_rule().watermark();
    own.handle(&mut stage, step(3, RoundStep::Commit { floor: 0, is_uniform: true }));
    assert_eq!(watermark(&stage), 0);
    keep(&mut stage, &mut own);
    assert_eq!(watermark(&stage), ROUND.time);
}
