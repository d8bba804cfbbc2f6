use protocol::{BootId, Clock, Incarnation, LogPosition, Reported, RoundConfig};

use super::*;
use crate::Store;
use crate::driver::{Delivered, WriteError, WritePurpose};
use crate::test_node::{Done, TestNode, WALL, value};

const B: NodeId = NodeId(1);

fn task(stage: &TestNode) -> Task {
    let rounds = RoundConfig::NONE;
    let config = BackgroundConfig {
        deadline_micros: 0,
        syncs_always: true,
        max_skew_micros: 500_000,
        rounds,
        stream_rate: None,
        remembered: crate::idempotency::decode_entry,
    };
    Task::new(Arc::clone(&stage.shared), Arc::clone(&stage.identity), config)
}

fn no_space_error() -> lsm::Error {
    lsm::Error::NoSpace { what: "log" }
}

/// Executes an effect; returns the batch that it passes to the driver to store, or `None` if it
/// stores nothing.
fn batch_of_effect(
    stage: &mut TestNode,
    task: &Task,
    effect: BackgroundEffect,
) -> Option<(lsm::Batch, OwnRecords)> {
    task.perform(stage, effect);
    match stage.take().pop() {
        Some(Done::Keep(None, batch, keeps)) => Some((batch, keeps)),
        _ => None,
    }
}

#[test]
fn a_failed_hint_read_is_retried() {
    let mut stage = TestNode::new();
    let mut task = task(&stage);
    let (call, after) = (CallId(4), Some(Bytes::from_static(b"k")));
    let wanted = HintQuery { call, peer: B, after, max_bytes: 9 };
    task.handle(&mut stage, TaskEvent::HintsRead(wanted, Err(no_space_error())));
    let Some(Done::After(RETRY_DELAY_MICROS, again)) = stage.take().pop() else { panic!() };
    task.handle(&mut stage, again);
    let Some(Done::ReadHints(wanted)) = stage.take().pop() else { panic!() };
    assert_eq!((wanted.peer, &wanted.after.unwrap()[..]), (B, &b"k"[..]));
}

#[test]
fn a_membership_state_takes_effect_once_it_is_durable_and_is_retried() {
    let mut stage = TestNode::new();
    let mut task = task(&stage);
    let store_rebuilding = || BackgroundEffect::StoreState(MembershipState::Rebuilding);
    let (_, keeps) = batch_of_effect(&mut stage, &task, store_rebuilding()).unwrap();
    task.handle(&mut stage, TaskEvent::Kept(keeps, Err(no_space_error())));
    assert_eq!(stage.identity.state(), MembershipState::Member);
    let done = stage.take();
    let [
        Done::After(
            RETRY_DELAY_MICROS,
            TaskEvent::Node(BackgroundEvent::StateStored { kept: false, .. }),
        ),
    ] = done[..]
    else {
        panic!("{done:?}")
    };
    let (batch, keeps) = batch_of_effect(&mut stage, &task, store_rebuilding()).unwrap();
    assert_eq!(stage.identity.state(), MembershipState::Member, "not before it is durable");
    let result = Store::commit(&stage.engine, batch);
    task.handle(&mut stage, TaskEvent::Kept(keeps, result));
    assert_eq!(stage.identity.state(), MembershipState::Rebuilding);
}

/// Returns B's claim of its disk.
fn claim(incarnation: u64, position: u64) -> Claim {
    let (life, position) = (Some(BootId(1)), LogPosition(position));
    let reported = Reported { life, position, late: LogPosition::START };
    Claim { incarnation: Incarnation(incarnation), reported }
}

#[test]
fn a_claim_is_known_once_it_is_kept_and_not_written_twice() {
    let mut stage = TestNode::new();
    let mut task = task(&stage);
    let claim = claim(5, 2);
    let remember = || BackgroundEffect::StoreClaim { peer: B, claim };
    let (_, keeps) = batch_of_effect(&mut stage, &task, remember()).unwrap();
    task.handle(&mut stage, TaskEvent::Kept(keeps, Err(no_space_error())));
    assert_eq!(stage.shared.membership.logs.incarnation(B), None);
    let (batch, keeps) = batch_of_effect(&mut stage, &task, remember()).unwrap();
    let result = Store::commit(&stage.engine, batch);
    task.handle(&mut stage, TaskEvent::Kept(keeps, result));
    assert_eq!(stage.shared.membership.logs.incarnation(B), Some(Incarnation(5)));
    assert!(batch_of_effect(&mut stage, &task, remember()).is_none());
}

/// A peer returns with a new disk while the claim of its old disk is being stored.
#[test]
fn the_newer_of_two_concurrent_claims_takes_effect_in_any_order_of_storing() {
    for order in [[0, 1], [1, 0]] {
        let mut stage = TestNode::new();
        let mut task = task(&stage);
        let claims = [claim(5, 5), claim(6, 6)];
        let kept: Vec<_> = claims
            .iter()
            .filter_map(|claim| {
                batch_of_effect(
                    &mut stage,
                    &task,
                    BackgroundEffect::StoreClaim { peer: B, claim: *claim },
                )
            })
            .collect();
        for at in order {
            let (batch, keeps) = kept[at].clone();
            let result = Store::commit(&stage.engine, batch);
            task.handle(&mut stage, TaskEvent::Kept(keeps, result));
        }
        assert_eq!(stage.shared.membership.logs.incarnation(B), Some(Incarnation(6)), "{order:?}");
        assert_eq!(stage.identity.known_claim("b"), Some(claims[1]), "{order:?}");
        let again = batch_of_effect(
            &mut stage,
            &task,
            BackgroundEffect::StoreClaim { peer: B, claim: claims[1] },
        );
        assert!(again.is_none(), "{order:?}");
    }
}

/// Stores a hint for B.
fn keep(stage: &mut TestNode, key: &'static [u8], age: u64) {
    let record = value(key, age, 1);
    let hint = hints::Hint::of(protocol::HintId(0), B, Bytes::from_static(key), &record);
    let shared = Arc::clone(&stage.shared);
    shared.transfer.hints.count_found(B, 1, hint_bytes(key, &record));
    let put = |batch: &mut lsm::Batch| hints::put(&shared, batch, &hint, &record);
    crate::WriteBatcher::write(stage, 0, WritePurpose::Hint(hint.clone()), put).unwrap();
    stage.commit();
}

fn hints_of(stage: &TestNode) -> Vec<(Bytes, Record)> {
    hints::read(&stage.engine, &stage.shared, B, None, 1000).unwrap()
}

#[test]
fn delivered_hints_are_removed_but_newer_hints_remain() {
    let mut stage = TestNode::new();
    let task = task(&stage);
    keep(&mut stage, b"k", 20);
    keep(&mut stage, b"l", 20);
    let items = hints_of(&stage);
    assert_eq!(items.len(), 2);
    keep(&mut stage, b"l", 10);
    task.perform(&mut stage, BackgroundEffect::DropHints { peer: B, items });
    stage.commit();
    assert_eq!(hints_of(&stage), [(Bytes::from_static(b"l"), value(b"l", 10, 1))]);
}

/// Runs a delivery pass of the hints for B, if one is due; B stores all hints. Returns whether
/// there was a pass.
fn deliver(stage: &mut TestNode, task: &mut Task) -> bool {
    task.handle(stage, BackgroundEvent::Tick.into());
    let wanted = |done| match done {
        Done::ReadHints(wanted) => Some(wanted),
        _ => None,
    };
    let mut next = stage.take().into_iter().find_map(wanted);
    let any = next.is_some();
    while let Some(wanted) = next {
        let (peer, after) = (wanted.peer, wanted.after.clone());
        let read = hints::read(&stage.engine, &stage.shared, peer, after.as_deref(), 1000);
        task.handle(stage, TaskEvent::HintsRead(wanted, read));
        if let Some(Done::Call(call)) = stage.take().pop() {
            let result = Ok(protocol::Reply::Stored);
            task.handle(stage, BackgroundEvent::CallReturned { call, result }.into());
            stage.commit();
        }
        next = stage.take().into_iter().find_map(|done| match done {
            Done::ReadHints(wanted) => Some(wanted),
            _ => None,
        });
    }
    any
}

#[test]
fn a_hint_with_a_failed_removal_is_delivered_again_and_other_hints_too() {
    let mut stage = TestNode::new();
    let mut task = task(&stage);
    let waiting = |stage: &TestNode| stage.shared.transfer.hints.waiting_hints(B).0;
    keep(&mut stage, b"k", 20);
    stage.refusal = Some(WriteError::Busy);
    assert!(deliver(&mut stage, &mut task));
    assert_eq!((waiting(&stage), hints_of(&stage).len()), (1, 1), "it is there still");
    stage.refusal = None;
    keep(&mut stage, b"a", 10);
    stage.mono += 250_000;
    assert!(!deliver(&mut stage, &mut task), "not at once: the store is overloaded");
    stage.mono += 4_000_000;
    assert!(deliver(&mut stage, &mut task));
    assert_eq!((waiting(&stage), hints_of(&stage).len()), (0, 0));
}

#[test]
fn a_hint_with_a_failed_removal_waits_again_unless_the_store_has_failed() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let delivered = Delivered { peer: B, hints: 2, bytes: 300 };
    let for_good = lsm::Error::Failed { cause: "sync".into(), outcome_unknown: true };
    for (error, waiting) in [(for_good, (0, 0)), (no_space_error(), (2, 300))] {
        let purpose = WritePurpose::Delivered(delivered);
        own.on_write_result(&mut stage, purpose, &Err(WriteError::Store(error)));
        assert_eq!(stage.shared.transfer.hints.waiting_hints(B), waiting);
    }
}

#[test]
fn idempotency_entries_are_reported_as_stored_once_durable_and_as_refused_after_a_delay() {
    let mut stage = TestNode::new();
    let task = task(&stage);
    let family = protocol::Version { time: 1, origin: 1 };
    let (key_hash, id, time, step, result) = (5, 7, 9, 1, None);
    let ballots = protocol::AcceptedBallots::one(8);
    let via = protocol::Via::Chosen;
    let entry = Remembered { key_hash, id, time, via, ballots, family, step, result, digest: 0 };
    let (call, remembered) = (CallId(3), vec![entry]);
    let returned = |stage: &mut TestNode| match stage.take().pop() {
        Some(Done::ToTask(event) | Done::After(_, event)) => match event {
            TaskEvent::Node(BackgroundEvent::CallReturned { call: CallId(3), result }) => {
                Some(result)
            }
            other => panic!("{other:?}"),
        },
        _ => None,
    };
    let effect = BackgroundEffect::StoreRemembered { call, remembered };
    stage.refusal = Some(WriteError::Busy);
    task.perform(&mut stage, effect.clone());
    assert_eq!(returned(&mut stage), Some(Err(FailureKind::Busy)));
    stage.refusal = None;
    task.perform(&mut stage, effect);
    assert_eq!(returned(&mut stage), None, "it is not stored yet");
    let mut own = stage.event_loop();
    stage.write(&mut own);
    assert_eq!(returned(&mut stage), Some(Ok(protocol::Reply::Stored)));
    let read = stage
        .engine
        .get(lsm::Space::Idempotency, &entry.name(), lsm::ReadMode::NonBlocking)
        .unwrap();
    let lsm::Lookup::Found(read) = read else { panic!("it was stored") };
    assert_eq!(crate::idempotency::decode_entry(&entry.name(), &read), Some(entry));
}

/// Returns a node and the keys of its records. The layout places only some of the keys on that
/// node, as after a membership change.
fn node_with_orphans() -> (TestNode, Vec<[u8; 2]>) {
    let mut stage = TestNode::of(&["a", "b", "c", "d", "e", "f"]);
    let keys: Vec<[u8; 2]> = (0..200u16).map(u16::to_be_bytes).collect();
    for (n, key) in keys.iter().enumerate() {
        let kind = if n % 3 == 0 { lsm::Kind::Tombstone } else { lsm::Kind::Value };
        let version = lsm::Version { time: 5 << 12, origin: 1 };
        let fields = lsm::Fields { copies: (n % 5) as u8, ..lsm::Fields::new(kind, version) };
        let record = lsm::Record::new(key, &fields, b"");
        let put = |batch: &mut lsm::Batch| batch.record(lsm::Space::Data, key, &record);
        let delivered = WritePurpose::Delivered(Delivered { peer: B, hints: 0, bytes: 0 });
        crate::WriteBatcher::write(&mut stage, 0, delivered, put).unwrap();
    }
    stage.commit();
    (stage, keys)
}

#[test]
fn orphans_are_dropped_until_a_compaction_of_the_whole_store_is_done() {
    let (mut stage, keys) = node_with_orphans();
    let mut task = task(&stage);
    let shared = Arc::clone(&stage.shared);
    let compaction = |stage: &mut TestNode| {
        let found = stage.take().into_iter().find_map(|done| match done {
            Done::After(NODE_TICK_MICROS, TaskEvent::Compacted(number)) => Some(number),
            _ => None,
        });
        found.map(TaskEvent::Compacted)
    };
    task.handle(&mut stage, BackgroundEvent::Tick.into());
    assert!(compaction(&mut stage).is_none() && !stage.engine.purge_rule().is_dropping());
    shared.transfer.orphan_drops.request();
    task.handle(&mut stage, BackgroundEvent::Tick.into());
    let first = compaction(&mut stage).unwrap();
    assert!(stage.engine.purge_rule().is_dropping());
    task.handle(&mut stage, first);
    let next_check = compaction(&mut stage).expect("it has not ended");

    stage.compaction.1 = Some(false);
    task.handle(&mut stage, next_check);
    assert!(compaction(&mut stage).is_none());
    assert!(shared.transfer.orphan_drops.is_pending() && stage.engine.purge_rule().is_dropping());
    task.handle(&mut stage, BackgroundEvent::Tick.into());
    assert!(compaction(&mut stage).is_none(), "a full disk is given some time");
    stage.mono += 5_000_000;
    task.handle(&mut stage, BackgroundEvent::Tick.into());
    let second = compaction(&mut stage).unwrap();

    stage.engine.rotate_all();
    while stage.engine.flush_one().unwrap() == lsm::StepOutcome::Done {}
    stage.engine.compact_all().unwrap();
    stage.compaction.1 = Some(true);
    task.handle(&mut stage, second);
    assert!(compaction(&mut stage).is_none());
    assert!(!shared.transfer.orphan_drops.is_pending() && !stage.engine.purge_rule().is_dropping());

    let topology = shared.view().topology.clone();
    let (mut replicas, mut gone) = (Vec::new(), 0);
    for (n, key) in keys.iter().enumerate() {
        let copies = if n % 5 == 0 { 3 } else { (n % 5) as u8 };
        topology.replicas(protocol::partition_of(key), copies, &mut replicas);
        let held = stage.engine.read(lsm::Space::Data, key).unwrap();
        assert_eq!(held.is_some(), replicas.contains(&shared.own), "{n}");
        gone += u32::from(held.is_none());
    }
    assert!((20..180).contains(&gone), "{gone} of 200");
}

/// The wall clock is years ahead of the latest time that the node knows from before its start.
#[test]
fn idempotency_keys_of_a_node_alone_age_no_faster_than_its_uptime() {
    const HOUR: u64 = 3_600_000_000;
    let mut stage = TestNode::of(&["a"]);
    let mut task = task(&stage);
    let version = lsm::Version { time: Clock::time_of(HOUR), origin: 0 };
    let fields = lsm::Fields::new(lsm::Kind::Value, version);
    let entry = lsm::Record::new(b"k", &fields, b"");
    let mut may_go_after = |passed: u64| {
        stage.mono += passed;
        task.handle(&mut stage, TaskEvent::Node(BackgroundEvent::Tick));
        stage.engine.purge_rule().may_purge(lsm::Space::Idempotency, entry.view())
    };
    assert!(!may_go_after(0), "no time has passed");
    assert!(!may_go_after(24 * HOUR), "nor has a day since it was written");
    assert!(may_go_after(2 * HOUR));
}

#[test]
fn idempotency_keys_age_by_the_time_of_most_other_clocks() {
    let mut stage = TestNode::new();
    let mut task = task(&stage);
    let time = Clock::time_of(WALL - protocol::IDEMPOTENCY_RETENTION_MICROS - 2_000_000);
    let fields = lsm::Fields::new(lsm::Kind::Value, lsm::Version { time, origin: 0 });
    let entry = lsm::Record::new(b"k", &fields, b"");
    let mut may_go = |limit: Option<u64>| {
        stage.shared.clock.note_comparison(limit.map(|limit| (limit - stage.mono) as i64), 2);
        task.handle(&mut stage, TaskEvent::Node(BackgroundEvent::Tick));
        stage.engine.purge_rule().may_purge(lsm::Space::Idempotency, entry.view())
    };
    assert!(!may_go(Some(WALL - 3_000_000)), "this clock is ahead of most others'");
    assert!(may_go(Some(WALL)));
}
