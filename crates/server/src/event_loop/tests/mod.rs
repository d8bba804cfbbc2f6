//! Tests of a loop between the protocol and the store, event by event.

mod alone;
mod council;
mod rounds;

use protocol::{
    Answer, Class, ClientId, ConnectionId, LogPosition, Mark, NodeId, Quorum, Reply, Request,
};

use super::*;
use crate::test_node::{self, BRIEF, DEADLINE, Done, TestNode, WALL, value};

fn request_event(id: u64, request: Request) -> Event {
    let (connection, class, remaining_ms) = (ConnectionId(1), Class::Client, 1000);
    Event::Request { connection, id, class, remaining_ms, under: test_node::under(), request }
}

fn write(id: u64, key: &'static [u8], record: Record) -> Event {
    request_event(id, Request::Write { key: Bytes::from_static(key), record })
}

fn read(id: u64, key: &'static [u8]) -> Event {
    request_event(id, Request::Read { key: Bytes::from_static(key), most: BRIEF })
}

#[test]
fn a_replica_answers_once_a_write_is_stored_and_reports_newer_records() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    own.handle(&mut stage, write(1, b"k", value(b"k", 10, 1)));
    assert_eq!(stage.replies(), [], "not before it is durable");
    stage.write(&mut own);
    assert_eq!(stage.replies(), [(1, Reply::Stored)]);
    own.handle(&mut stage, write(2, b"k", value(b"k", 20, 1)));
    stage.write(&mut own);
    let newer = value(b"k", 10, 1).version().time;
    assert_eq!(stage.replies(), [(2, Reply::Newer { time: newer })]);
    let logs = &stage.shared.membership.logs;
    logs.settle(NodeId(1));
    let end = LogPosition(stage.engine.sequence());
    assert_eq!(logs.position_for(NodeId(1)), end, "its log reaches that far");
}

/// The requester decides whether a record has expired, so that replicas with different clocks send
/// the same record.
#[test]
fn a_replica_sends_expired_records_like_other_records() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let version = lsm::Version { time: protocol::Clock::time_of(WALL - 10_000_000), origin: 7 };
    for (id, expiry_ms) in [(1, 1), (3, WALL / 1000 - 1), (5, WALL / 1000 + 1)] {
        let fields = lsm::Fields {
            expiry_ms,
            ..lsm::Fields::new(lsm::Kind::Value, lsm::Version { origin: id as u32, ..version })
        };
        let record = Record::new(b"k", &fields, b"v");
        own.handle(&mut stage, write(id, b"k", record.clone()));
        stage.write(&mut own);
        own.handle(&mut stage, read(id + 1, b"k"));
        let found = Reply::Found { record, authoritative: true };
        assert_eq!(stage.replies(), [(id, Reply::Stored), (id + 1, found)]);
    }
}

#[test]
fn waiting_writes_are_stored_in_order() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    stage.refusal = Some(WriteError::Busy);
    own.handle(&mut stage, write(1, b"k", value(b"k", 20, 1)));
    stage.refusal = None;
    own.handle(&mut stage, write(2, b"k", value(b"k", 10, 1)));
    assert!(stage.commit().is_empty(), "the second does not overtake the first");
    stage.mono = own.next_wake().unwrap();
    own.wake(&mut stage);
    stage.write(&mut own);
    assert_eq!(stage.replies(), [(1, Reply::Stored), (2, Reply::Stored)]);
    assert_eq!(own.next_wake(), None);
}

#[test]
fn a_write_that_finds_no_room_is_refused_shortly_before_its_deadline() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    stage.refusal = Some(WriteError::Busy);
    own.handle(&mut stage, write(1, b"k", value(b"k", 20, 1)));
    stage.mono += DEADLINE / 2;
    own.wake(&mut stage);
    assert_eq!(stage.replies(), []);
    stage.mono += DEADLINE * 3 / 8;
    own.wake(&mut stage);
    assert_eq!(stage.replies(), [(1, Reply::Busy)]);
}

#[test]
fn a_full_disk_refuses_a_write_at_once() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    stage.refusal = Some(WriteError::Store(lsm::Error::NoSpace { what: "tables" }));
    own.handle(&mut stage, write(1, b"k", value(b"k", 20, 1)));
    assert_eq!(stage.replies(), [(1, Reply::NoSpace)]);
}

#[test]
fn an_unreadable_record_is_a_failure_and_not_an_absence() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    stage.unreadable = true;
    own.handle(&mut stage, read(1, b"k"));
    assert_eq!(stage.replies(), [(1, Reply::Failed)]);
}

#[test]
fn several_records_are_stored_as_one_or_refused() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let items = || [b"k", b"l"].map(|key| (Bytes::from_static(key), value(key, 9, 1))).to_vec();
    stage.refusal = Some(WriteError::Busy);
    own.handle(&mut stage, request_event(1, Request::Writes { items: items() }));
    assert_eq!(stage.replies(), [(1, Reply::Busy)], "its node asks again");
    stage.refusal = None;
    own.handle(&mut stage, request_event(2, Request::Writes { items: items() }));
    stage.write(&mut own);
    assert_eq!(stage.replies(), [(2, Reply::Stored)]);
    assert!(stage.engine.read(Space::Data, b"l").unwrap().is_some());
}

#[test]
fn a_long_record_is_answered_by_its_outline_and_a_cold_record_after_its_read() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let record = value(b"k", 10, BRIEF as usize);
    own.handle(&mut stage, write(1, b"k", record.clone()));
    stage.write(&mut own);
    stage.take();
    own.handle(&mut stage, read(2, b"k"));
    let outline = record.outline();
    assert_eq!(stage.replies(), [(2, Reply::Long { outline, authoritative: true })]);
    own.handle(&mut stage, read(3, b"absent"));
    assert_eq!(stage.replies(), [(3, Reply::Absent { authoritative: true })]);
    stage.cold = true;
    own.handle(&mut stage, read(4, b"k"));
    let done = stage.take();
    let [Done::Read(op, wanted)] = &done[..] else { panic!("{done:?}") };
    own.was_read(&mut stage, *op, wanted, Ok(Some(record)));
    assert_eq!(stage.replies(), [(4, Reply::Long { outline, authoritative: true })]);
}

/// The node's newest record is so far ahead that no write can get a greater version. So the node
/// reads the key before it replies that it has a newer record.
#[test]
fn a_write_waits_for_the_disk_if_no_version_can_exceed_the_newest_record() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let [old, new] = [20, 10].map(|age| value(b"k", age, 1));
    own.handle(&mut stage, write(1, b"k", old.clone()));
    // This record makes the table's greatest version exceed that of write 3 below. Otherwise the
    // node would know without a read that the table has no newer record.
    own.handle(&mut stage, write(2, b"later", value(b"later", 1, 1)));
    stage.write(&mut own);
    stage.engine.rotate_all();
    stage.engine.flush_one().unwrap();
    stage.disk.set_cold(true);
    stage.take();

    own.handle(&mut stage, write(3, b"k", new.clone()));
    stage.write(&mut own);
    let newest = protocol::Clock::time_of(WALL);
    assert_eq!(stage.replies(), [(3, Reply::Newer { time: newest })], "its coordinator goes above");

    let future = protocol::Clock::time_of(WALL + 3_600_000_000);
    stage.shared.replica.newest.note_and_check(
        protocol::Version { time: future, origin: 0 },
        1,
        false,
    );
    for (id, found, reply) in [
        (4, Ok(Some(old)), Reply::Stored),
        (5, Ok(None), Reply::Stored),
        (5, Ok(Some(value(b"k", 5, 1))), Reply::Newer { time: value(b"k", 5, 1).version().time }),
        (7, Err(StoreError::Busy("full")), Reply::Newer { time: future }),
    ] {
        own.handle(&mut stage, write(id, b"k", new.clone()));
        let done = stage.take();
        let [Done::Read(op, wanted)] = &done[..] else { panic!("{done:?}") };
        own.was_read(&mut stage, *op, wanted, found);
        stage.write(&mut own);
        assert_eq!(stage.replies(), [(id, reply)]);
    }
}

/// Sends a client's write to three nodes, of which the other two are unreachable.
fn write_alone(stage: &mut TestNode, own: &mut Loop) {
    let quorum = Quorum { ack: 1, from: 3 };
    let (client, key) = (ClientId(1), Bytes::from_static(b"k"));
    let record = value(b"k", 10, 1);
    own.handle(stage, Event::Write { client, key, record, quorum: quorum.into() });
    for peer in [NodeId(1), NodeId(2)] {
        own.handle(stage, Event::Unreachable(peer));
    }
    stage.write(own);
}

#[test]
fn writes_that_others_missed_are_stored_as_hints() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    write_alone(&mut stage, &mut own);
    // The next turn stores the hints.
    stage.write(&mut own);
    let done = stage.take();
    assert!(done.iter().any(|done| matches!(done, Done::Answer(Answer::Written(..)))), "{done:?}");
    for peer in [NodeId(1), NodeId(2)] {
        assert_eq!(stage.shared.transfer.hints.waiting_hints(peer).0, 1);
        let hints = hints::read(&stage.engine, &stage.shared, peer, None, 1000).unwrap();
        assert_eq!(hints, [(Bytes::from_static(b"k"), value(b"k", 10, 1))]);
        assert_eq!(stage.shared.transfer.missed.partitions(peer), 0);
    }
}

#[test]
fn a_hint_that_was_not_stored_marks_its_partition() {
    for refused in [false, true] {
        let mut stage = TestNode::new();
        let mut own = stage.event_loop();
        stage.refuses_hints = refused;
        write_alone(&mut stage, &mut own);
        for purpose in stage.commit() {
            assert!(matches!(purpose, WritePurpose::Hint(_)) && !refused, "{purpose:?}");
            let failed = lsm::Error::Failed { cause: "sync".into(), outcome_unknown: true };
            own.on_write_result(&mut stage, purpose, &Err(WriteError::Store(failed)));
        }
        for peer in [NodeId(1), NodeId(2)] {
            let marks = stage.shared.transfer.missed.of(peer);
            let partition = Some(protocol::partition_of(b"k"));
            let since = value(b"k", 10, 1).version().time;
            let marks: Vec<Mark> = marks.iter().map(|marked| marked.mark).collect();
            assert_eq!(marks, [Mark { partition, since }]);
            assert_eq!(stage.shared.transfer.hints.waiting_hints(peer), (0, 0));
        }
    }
}

#[test]
fn marks_are_durable_before_they_are_reported() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let marks = vec![Mark { partition: Some(3), since: 1 }];
    let missed = |id| request_event(id, Request::Missed { node: NodeId(2), marks: marks.clone() });
    for (id, fails) in [(1, false), (2, true)] {
        own.handle(&mut stage, missed(id));
        let mut done = stage.take();
        let Some(Done::Keep(Some(op), batch, keeps)) = done.pop() else { panic!("{done:?}") };
        assert!(done.is_empty(), "{done:?}");
        let result = if fails {
            Err(lsm::Error::NoSpace { what: "log" })
        } else {
            crate::Store::commit(&stage.engine, batch)
        };
        own.on_own_record_stored(&mut stage, op, &keeps, result);
        let expected = if fails { Reply::NoSpace } else { Reply::Stored };
        assert_eq!(stage.replies(), [(id, expected)]);
        assert_eq!(stage.shared.transfer.missed.is_unsaved(NodeId(2)), fails);
    }
}
