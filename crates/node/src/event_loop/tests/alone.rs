//! Reads that this node's store decides alone.

use cluster::Clock;
use lsm::{Batch, Fields, Kind, Version};

use super::*;
use crate::store::Store;

const ONE_OF_THREE: AskedQuorum = AskedQuorum { ack: Some(1), from: Some(3) };

/// Returns a node of this cluster with a value, a tombstone, and a value from a clock that is
/// ahead.
fn filled(names: &[&str]) -> Stage {
    let stage = Stage::of(names);
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

/// Returns the answer to a read by event.
fn by_event(stage: &mut Stage, own: &mut Loop, key: &'static [u8], quorum: AskedQuorum) -> Answer {
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
        let mut stage = filled(names);
        let mut own = stage.event_loop();
        for key in [&b"value"[..], b"deleted", b"absent"] {
            let Some(alone) = own.get_alone(&mut stage, key, quorum) else {
                let topology = &stage.shared.view().topology;
                assert!(!topology.holds(stage.shared.own, cluster::partition_of(key), 3));
                continue;
            };
            assert_eq!(alone, by_event(&mut stage, &mut own, key, quorum), "{key:?} of {names:?}");
        }
        let ahead = own.get_alone(&mut stage, b"ahead", quorum);
        assert_eq!(ahead, None, "a future record does not count by itself");
    }
}

#[test]
fn what_one_store_does_not_decide_takes_an_event() {
    let usual = AskedQuorum::default();
    let alone = |stage: &mut Stage, quorum| {
        let mut own = stage.event_loop();
        own.get_alone(stage, b"value", quorum)
    };
    assert_eq!(alone(&mut filled(&["a", "b", "c"]), usual), None, "two must reply");
    let mut stage = filled(&["a"]);
    assert!(alone(&mut stage, usual).is_some());
    stage.cold = true;
    assert_eq!(alone(&mut stage, usual), None, "the disk has to be read");
    (stage.cold, stage.unreadable) = (false, true);
    assert_eq!(alone(&mut stage, usual), None, "the event tells what is wrong");
    stage.unreadable = false;
    stage.shared.membership.state.outdated();
    assert_eq!(alone(&mut stage, usual), None, "its directory is an older copy");
    let mut stage = filled(&["a"]);
    assert!(stage.shared.membership.state.fence());
    assert_eq!(alone(&mut stage, usual), None, "another process serves in its place");
}

#[test]
fn all_replicas_are_asked_once_in_a_while() {
    let mut stage = filled(&["a", "b", "c"]);
    let mut own = stage.event_loop();
    let answered = (0..64).filter(|_| own.get_alone(&mut stage, b"value", ONE_OF_THREE).is_some());
    assert_eq!(answered.count(), 63);
    by_event(&mut stage, &mut own, b"value", ONE_OF_THREE);
    assert!(own.get_alone(&mut stage, b"value", ONE_OF_THREE).is_some(), "and then not again");
}
