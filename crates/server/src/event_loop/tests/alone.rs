//! Tests of requests that this node's store decides alone.

use lsm::{Batch, Fields, Kind, Version};
use protocol::{Clock, Topology, View};

use super::*;
use crate::store::Store;

const ONE_OF_THREE: AskedQuorum = AskedQuorum { ack: Some(1), from: Some(3) };

/// Returns the first node of this cluster, with a value, a tombstone, and a future record.
fn node_with_records(names: &[&str]) -> TestNode {
    let stage = TestNode::of(names);
    let mut batch = Batch::new();
    for (key, kind, wall) in [
        (&b"value"[..], Kind::Value, WALL - 20),
        (b"deleted", Kind::Tombstone, WALL - 20),
        (b"ahead", Kind::Value, WALL + 10_000_000),
    ] {
        let version = Version { time: Clock::time_of(wall), origin: 7 };
        let record = Record::new(key, &Fields::new(kind, version), b"");
        batch.record(Space::Data, key, &record).unwrap();
    }
    Store::commit(&stage.engine, batch).unwrap();
    stage
}

/// Reads a key by an [`Event::Get`], and returns the answer.
fn read_by_event(
    stage: &mut TestNode,
    own: &mut Loop,
    key: &'static [u8],
    quorum: AskedQuorum,
) -> Answer {
    let key = Bytes::from_static(key);
    own.handle(stage, Event::Get { client: ClientId(1), key, quorum });
    match stage.take().pop() {
        Some(Done::Answer(answer)) => answer,
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn a_read_alone_is_answered_as_by_an_event() {
    for (names, quorum) in [
        (&["a"][..], AskedQuorum::default()),
        (&["a", "b", "c"], ONE_OF_THREE),
        (&["a", "b", "c", "d"], ONE_OF_THREE),
    ] {
        let mut stage = node_with_records(names);
        let mut own = stage.event_loop();
        for key in [&b"value"[..], b"deleted", b"absent"] {
            let Some(alone) = own.get_alone(&mut stage, key, quorum) else {
                let topology = &stage.shared.view().topology;
                assert!(!topology.holds(stage.shared.own, protocol::partition_of(key), 3));
                continue;
            };
            assert_eq!(
                alone,
                read_by_event(&mut stage, &mut own, key, quorum),
                "{key:?} of {names:?}"
            );
        }
        let ahead = own.get_alone(&mut stage, b"ahead", quorum);
        assert_eq!(ahead, None, "a future record does not count by itself");
    }
}

#[test]
fn a_read_that_one_store_does_not_decide_needs_an_event() {
    let usual = AskedQuorum::default();
    let alone = |stage: &mut TestNode, quorum| {
        let mut own = stage.event_loop();
        own.get_alone(stage, b"value", quorum)
    };
    assert_eq!(alone(&mut node_with_records(&["a", "b", "c"]), usual), None, "two must reply");
    let mut stage = node_with_records(&["a"]);
    assert!(alone(&mut stage, usual).is_some());
    stage.cold = true;
    assert_eq!(alone(&mut stage, usual), None, "the disk has to be read");
    (stage.cold, stage.unreadable) = (false, true);
    assert_eq!(alone(&mut stage, usual), None, "the event tells what is wrong");
    stage.unreadable = false;
    stage.shared.membership.state.mark_outdated();
    assert_eq!(alone(&mut stage, usual), None, "its directory is an older copy");
    let mut stage = node_with_records(&["a"]);
    assert!(stage.shared.membership.state.fence());
    assert_eq!(alone(&mut stage, usual), None, "another process serves in its place");
}

#[test]
fn one_in_64_reads_alone_asks_all_replicas() {
    let mut stage = node_with_records(&["a", "b", "c"]);
    let mut own = stage.event_loop();
    let answered = (0..64).filter(|_| own.get_alone(&mut stage, b"value", ONE_OF_THREE).is_some());
    assert_eq!(answered.count(), 63);
    read_by_event(&mut stage, &mut own, b"value", ONE_OF_THREE);
    assert!(own.get_alone(&mut stage, b"value", ONE_OF_THREE).is_some(), "and then not again");
}

const ONE: AskedQuorum = AskedQuorum { ack: Some(1), from: Some(1) };

/// Returns a key whose first replica is node `a` of three.
fn own_key(stage: &TestNode) -> Bytes {
    let topology = &stage.shared.view().topology;
    let mut keys = (0..).map(|number: u32| Bytes::from(number.to_string()));
    keys.find(|key| topology.holds(stage.shared.own, protocol::partition_of(key), 1)).unwrap()
}

/// Writes a value of a key that is newer than all records of the node. Returns the record.
fn put(stage: &mut TestNode, own: &mut Loop, key: &Bytes, quorum: AskedQuorum) -> Record {
    let time = stage.shared.replica.newest.time() + 1;
    let version = Version { time, origin: stage.shared.clock.origin() };
    let record = Record::new(key, &Fields::new(Kind::Value, version), b"v");
    own.write(stage, ClientId(1), (key.clone(), record.clone()), quorum);
    record
}

/// Returns the answers since the last call.
fn answers(stage: &mut TestNode) -> Vec<Answer> {
    let answer = |done| match done {
        Done::Answer(answer) => Some(answer),
        _ => None,
    };
    stage.take().into_iter().filter_map(answer).collect()
}

fn is_alone(purposes: &[WritePurpose]) -> bool {
    matches!(purposes, [WritePurpose::Alone(..)])
}

#[test]
fn a_write_alone_is_answered_as_by_an_event() {
    for (names, quorum) in [(&["a"][..], AskedQuorum::default()), (&["a", "b", "c"], ONE)] {
        let (mut stage, mut other) = (TestNode::of(names), TestNode::of(names));
        let (mut own, mut others) = (stage.event_loop(), other.event_loop());
        let key = own_key(&stage);
        let record = put(&mut stage, &mut own, &key, quorum);
        assert_eq!(own.len(), 1, "a node that stops waits for it");
        let purposes = stage.commit();
        assert!(is_alone(&purposes), "{names:?}: {purposes:?}");
        assert_eq!(answers(&mut stage), [], "it is not stored");
        for purpose in purposes {
            own.on_write_result(&mut stage, purpose, &Ok(()));
        }
        let event = Event::Write { client: ClientId(1), key: key.clone(), record, quorum };
        others.handle(&mut other, event);
        other.write(&mut others);
        let alone = answers(&mut stage);
        assert!(matches!(alone[..], [Answer::Written(..)]));
        assert_eq!(alone, answers(&mut other), "{names:?}");
        assert_eq!(own.len(), 0);
        assert!(stage.engine.get(Space::Data, &key, lsm::ReadMode::Blocking).is_ok());
    }
}

#[test]
fn a_write_of_several_replicas_or_below_a_newer_record_is_not_written_alone() {
    let begun = |stage: &mut TestNode, quorum| {
        let mut own = stage.event_loop();
        let key = own_key(stage);
        put(stage, &mut own, &key, quorum);
        is_alone(&stage.commit())
    };
    assert!(begun(&mut TestNode::new(), ONE));
    assert!(!begun(&mut TestNode::new(), AskedQuorum { ack: Some(1), from: Some(3) }));
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let key = own_key(&stage);
    own.write(&mut stage, ClientId(1), (key.clone(), value(&key, 10, 1)), ONE);
    assert!(!is_alone(&stage.commit()), "a record of the store may be newer");
    let mut stage = TestNode::new();
    assert!(stage.shared.membership.state.fence());
    assert!(!begun(&mut stage, ONE), "another process serves in its place");
}

#[test]
fn a_write_alone_that_the_store_refuses_is_retried_as_an_ordinary_write() {
    let mut stage = TestNode::of(&["a"]);
    let mut own = stage.event_loop();
    let key = Bytes::from_static(b"key");
    stage.refusal = Some(WriteError::Busy);
    put(&mut stage, &mut own, &key, ONE);
    assert_eq!((answers(&mut stage).len(), own.len()), (0, 1), "it waits for room");
    stage.refusal = None;
    stage.mono += DEADLINE / 2;
    own.wake(&mut stage);
    stage.write(&mut own);
    assert!(matches!(answers(&mut stage)[..], [Answer::Written(..)]));

    put(&mut stage, &mut own, &key, ONE);
    let failed = lsm::Error::Busy { what: "test" };
    for purpose in stage.commit() {
        own.on_write_result(&mut stage, purpose, &Err(WriteError::Store(failed.clone())));
    }
    assert_eq!(answers(&mut stage).len(), 0, "it is tried once more");
    for purpose in stage.commit() {
        own.on_write_result(&mut stage, purpose, &Err(WriteError::Store(failed.clone())));
    }
    let answered = answers(&mut stage);
    assert!(matches!(&answered[..], [Answer::Failed(failed)] if !failed.unknown), "{answered:?}");
    assert!(own.is_empty());
}

/// The sync of the log failed, but the write may be durable nevertheless.
#[test]
fn a_write_alone_with_a_failed_sync_has_an_unknown_outcome() {
    let mut stage = TestNode::of(&["a"]);
    let mut own = stage.event_loop();
    put(&mut stage, &mut own, &Bytes::from_static(b"key"), ONE);
    let failed = |outcome_unknown| {
        WriteError::Store(lsm::Error::Failed { cause: "test".into(), outcome_unknown })
    };
    for begun in [true, false] {
        for purpose in stage.commit() {
            own.on_write_result(&mut stage, purpose, &Err(failed(begun)));
        }
    }
    let answered = answers(&mut stage);
    assert!(matches!(&answered[..], [Answer::Failed(failed)] if failed.unknown), "{answered:?}");
}

#[test]
fn a_write_alone_fails_at_its_deadline_and_is_answered_once() {
    let mut stage = TestNode::of(&["a"]);
    let mut own = stage.event_loop();
    put(&mut stage, &mut own, &Bytes::from_static(b"key"), ONE);
    let purposes = stage.commit();
    assert!(own.next_wake().is_some_and(|wake| wake <= stage.mono + DEADLINE));
    stage.mono += DEADLINE;
    own.wake(&mut stage);
    let answered = answers(&mut stage);
    assert!(
        matches!(&answered[..], [Answer::Failed(failed)] if failed.unknown),
        "the store may have it, or get it: {answered:?}"
    );
    for purpose in purposes {
        own.on_write_result(&mut stage, purpose, &Ok(()));
    }
    stage.write(&mut own);
    assert_eq!(answers(&mut stage), []);
    assert!(own.is_empty());
}

/// Before the store has stored the record, a new view moves the record's key to another replica.
#[test]
fn a_write_alone_is_not_answered_by_an_earlier_view() {
    let mut stage = TestNode::of(&["a", "b", "c"]);
    let mut own = stage.event_loop();
    let key = own_key(&stage);
    put(&mut stage, &mut own, &key, ONE);
    let purposes = stage.commit();
    assert!(is_alone(&purposes));
    let before = stage.shared.view().topology.clone();
    let stay = before.ids().filter(|id| *id != stage.shared.own);
    let after = Topology::of(stay.map(|id| (id, before.member(id).clone())).collect(), 2).unwrap();
    stage.shared.membership.views.install(View::new_moving(2, 2, before, after));
    for purpose in purposes {
        own.on_write_result(&mut stage, purpose, &Ok(()));
    }
    let done = stage.take();
    assert!(!done.iter().any(|done| matches!(done, Done::Answer(_))), "{done:?}");
    assert!(done.iter().any(|done| matches!(done, Done::Send)), "the other set is asked too");
}
