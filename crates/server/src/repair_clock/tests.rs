use bytes::Bytes;
use protocol::{Clock, Incarnation, MembershipState, NodeId};

use super::*;
use crate::identity::{Identity, NewIdentity, NodeSettings};
use crate::test_node::{TestNode, WALL, conditional, value};

/// Returns a record `ahead` microseconds above the limit.
fn future(key: &[u8], ahead: u64) -> protocol::Record {
    let version = protocol::Version { time: Clock::time_of(WALL + ahead), origin: 7 };
    value(key, 0, 1).with_version(key, version)
}

fn put(stage: &TestNode, key: &'static [u8], record: &protocol::Record) {
    let mut batch = Batch::new();
    batch.record(Space::Data, key, record).unwrap();
    Store::commit(&stage.engine, batch).unwrap();
}

fn put_hint(stage: &TestNode, peer: NodeId, key: &'static [u8], record: &protocol::Record) {
    let hint = hints::Hint::of(protocol::HintId(0), peer, Bytes::from_static(key), record);
    let mut batch = Batch::new();
    hints::put(&stage.shared, &mut batch, &hint, record).unwrap();
    Store::commit(&stage.engine, batch).unwrap();
}

#[test]
fn future_records_are_removed_and_the_node_is_rebuilding() {
    let (stage, limit) = (TestNode::new(), Clock::time_of(WALL));
    put(&stage, b"old", &value(b"old", 10, 1));
    let found = Ahead::find(&stage.engine, limit).unwrap().unwrap();
    assert!(!found.is_any());
    put(&stage, b"new", &future(b"new", 5));
    put_hint(&stage, NodeId(2), b"k", &future(b"k", 7));
    put_hint(&stage, NodeId(2), b"l", &value(b"l", 10, 1));
    let found = Ahead::find(&stage.engine, limit).unwrap().unwrap();
    assert_eq!((found.records, found.hints), (1, 1));
    assert_eq!(found.furthest, Clock::time_of(WALL + 7));
    found.remove(&stage.engine).unwrap();

    assert!(!Ahead::find(&stage.engine, limit).unwrap().unwrap().is_any());
    assert!(stage.engine.read(Space::Data, b"old").unwrap().is_some());
    assert!(stage.engine.read(Space::Data, b"new").unwrap().is_none());
    let view = stage.shared.view();
    let named = NodeSettings { topology: &view.topology, own: NodeId(0), named: true, urls: &[] };
    let new = NewIdentity {
        incarnation: Incarnation(1),
        state: MembershipState::Joining,
        lost_before: 0,
    };
    let identity = Identity::open(&stage.engine, named, new).unwrap();
    assert_eq!((identity.state(), identity.lost_before()), (MembershipState::Rebuilding, limit));
    hints::convert_old_marks(&stage.engine, &identity, &stage.shared).unwrap();
    assert_eq!(stage.shared.transfer.missed.partitions(NodeId(2)), 1, "the hint's");
    let hints = hints::read(&stage.engine, &stage.shared, NodeId(2), None, 1000).unwrap();
    assert_eq!(hints.len(), 1, "one of the present stays");
}

/// A record with an old version is ahead of the clock if its ballot is ahead.
#[test]
fn a_record_of_a_conditional_write_is_ahead_by_its_ballot() {
    let (stage, limit) = (TestNode::new(), Clock::time_of(WALL));
    put(&stage, b"old", &conditional(b"old", 10, limit));
    put(&stage, b"new", &conditional(b"new", 10, limit + 5));
    put_hint(&stage, NodeId(2), b"k", &conditional(b"k", 10, limit + 7));
    put_hint(&stage, NodeId(2), b"l", &conditional(b"l", 10, limit));
    let found = Ahead::find(&stage.engine, limit).unwrap().unwrap();
    assert_eq!((found.records, found.hints, found.furthest), (1, 1, limit + 7));
    found.remove(&stage.engine).unwrap();
    assert!(!Ahead::find(&stage.engine, limit).unwrap().unwrap().is_any());
    assert!(stage.engine.read(Space::Data, b"old").unwrap().is_some());
    assert!(stage.engine.read(Space::Data, b"new").unwrap().is_none());
    let hints = hints::read(&stage.engine, &stage.shared, NodeId(2), None, 1000).unwrap();
    assert_eq!(hints.len(), 1, "one of the present stays");
}

#[test]
fn a_single_node_is_not_repaired() {
    let stage = TestNode::of(&["a"]);
    assert!(Ahead::find(&stage.engine, 0).unwrap().is_none());
}
