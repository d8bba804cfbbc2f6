//! Tests with sources that hold future records (from a clock that is ahead). No other node accepts
//! such a record before its time. Until then the future record hides, on the source, an earlier
//! record that the source may have acknowledged.

use super::*;
use crate::transfer::MAX_FUTURE_PAUSE_MICROS;

/// Microseconds by which a record is ahead of what this node accepts.
const AHEAD: u64 = 3 * MAX_FUTURE_PAUSE_MICROS;

/// Returns a key that moves to this node and that the source held before; `keeps` is true if the
/// source also holds the key afterwards.
fn moving_key(own: &Own, source: u16, keeps: bool) -> &'static str {
    let view = own.shared.view();
    let after = view.other.as_ref().unwrap();
    let is_one = |key: &&str| {
        let (partition, source) = (partition_of(key.as_bytes()), NodeId(source));
        let comes = after.holds(NodeId(0), partition, 0);
        let is_new = comes && !view.topology.holds(NodeId(0), partition, 0);
        is_new
            && view.topology.holds(source, partition, 0)
            && after.holds(source, partition, 0) == keeps
    };
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    keys.into_iter().find(is_one).expect("there is one of both kinds")
}

/// Returns a record of this key whose timestamp is `micros` beyond the maximum clock skew.
fn future(own: &Own, key: &'static str, micros: u64) -> (Bytes, Record) {
    let time = Clock::time_of(1_000_000 + own.mono + 500_000 + micros);
    let fields = Fields::new(Kind::Value, Version { time, origin: 1 });
    (Bytes::from(key), Record::new(key.as_bytes(), &fields, b"value"))
}

/// Runs both passes. In the second pass, the first source sends these records.
fn second_pass(own: &mut Own, sends: Vec<(Bytes, Record)>) {
    for (call, _) in own.raise_fence() {
        own.reply(call, page(Vec::new(), None));
    }
    let call = own.only(page_of(0, false, ""));
    own.reply(call, page(Vec::new(), None));
    let second = own.take_requests();
    let sends = [sends, Vec::new(), Vec::new()];
    for ((call, _), sends) in second.into_iter().zip(sends) {
        own.reply(call, page(sends, None));
    }
}

fn finished_nodes(own: &Own) -> Vec<u16> {
    own.shared.membership.layouts.pull_progress().1.into_iter().map(|node| node.0).collect()
}

/// Expects one more request to the first source, and lets that source send these records.
fn reply_to_next_request(own: &mut Own, sends: Vec<(Bytes, Record)>) {
    let call = own.only(page_of(0, false, ""));
    own.reply(call, page(Vec::new(), None));
    let call = own.only(page_of(1, false, ""));
    own.reply(call, page(sends, None));
}

#[test]
fn a_future_record_that_its_holder_will_not_keep_is_waited_for() {
    let mut own = Own::new();
    let key = moving_key(&own, 1, false);
    let record = future(&own, key, AHEAD);
    let until = Clock::micros(record.1.write_time());
    second_pass(&mut own, vec![record.clone()]);
    assert_eq!(finished_nodes(&own), [2, 3], "else the change drops it, and what it hides");
    let waits = Waits { source: NodeId(1), until };
    assert_eq!((own.state().waits, &own.told[..]), (Some(waits), &[waits][..]));

    // The record may be repaired, so the source is asked again periodically.
    own.after(MAX_FUTURE_PAUSE_MICROS - 1);
    assert_eq!(own.take_requests(), [], "not all the time");
    own.after(1);
    reply_to_next_request(&mut own, vec![record.clone()]);
    assert_eq!(own.take_requests(), []);
    assert_eq!((finished_nodes(&own), own.told.len()), (vec![2, 3], 1), "it is said once");

    // The record's time has come.
    own.after(AHEAD);
    reply_to_next_request(&mut own, vec![record]);
    let call = own.only(ObservedRequest::Write(vec![key.to_owned()]));
    assert_eq!(finished_nodes(&own), [2, 3]);
    own.reply(call, Reply::Stored);
    assert_eq!((finished_nodes(&own), own.state().waits), (vec![1, 2, 3], None));
}

#[test]
fn after_a_repair_no_future_record_is_awaited() {
    let mut own = Own::new();
    let record = future(&own, moving_key(&own, 1, false), AHEAD);
    second_pass(&mut own, vec![record]);
    own.after(MAX_FUTURE_PAUSE_MICROS);
    reply_to_next_request(&mut own, Vec::new());
    assert_eq!((finished_nodes(&own), own.state().waits), (vec![1, 2, 3], None));
}

/// The record is marked on this node and requested again when its time has come, which may be years
/// later.
#[test]
fn a_future_record_that_its_holder_keeps_delays_nothing() {
    let mut own = Own::new();
    let key = moving_key(&own, 1, true);
    let record = future(&own, key, AHEAD);
    second_pass(&mut own, vec![record]);
    assert_eq!((finished_nodes(&own), own.state().waits), (vec![1, 2, 3], None));
    assert!(own.shared.transfer.missed.since(NodeId(0), partition_of(key.as_bytes())) > 0);
}

/// Two of three replicas are a majority, but two of four are not: a majority of the four may lack a
/// record that the future record hides.
#[test]
fn a_future_record_whose_key_gets_more_replicas_is_waited_for() {
    let mut own = Own::new_settled(MembershipState::Member, None);
    let change = PlanChange { replicas: Some(4), ..PlanChange::default() };
    let known = own.shared.membership.layouts.known_layout();
    let prepared = known.plan_change(&change, |_| Some(VoterId(5))).unwrap();
    own.learns(prepared.clone());
    own.learns(prepared.next_stage().unwrap());
    let record = future(&own, moving_key(&own, 1, true), AHEAD);
    second_pass(&mut own, vec![record]);
    assert_eq!(finished_nodes(&own), [2, 3]);
    assert_eq!(own.state().waits.map(|waits| waits.source), Some(NodeId(1)));
}

/// For a conditional write's record, the record that a majority holds counts.
#[test]
fn a_future_record_that_a_majority_holds_is_awaited() {
    let mut own = Own::new();
    let key = moving_key(&own, 1, false);
    let ballot = future(&own, key, AHEAD).1.write_time();
    let fields = Fields { ballot, ..Fields::new(Kind::Value, Version { time: 5, origin: 1 }) };
    let held = Record::new(key.as_bytes(), &fields, b"value");
    second_pass(&mut own, vec![record(key, 9)]);
    let call = own.only(ObservedRequest::Settle(1, key.to_owned(), 0));
    own.reply(call, Reply::Found { record: held, authoritative: true });
    assert_eq!(finished_nodes(&own), [2, 3]);
    assert_eq!(own.state().waits.map(|waits| waits.source), Some(NodeId(1)));
}

#[test]
fn an_aborted_change_waits_for_no_future_record() {
    let mut own = Own::new();
    let record = future(&own, moving_key(&own, 1, false), AHEAD);
    second_pass(&mut own, vec![record]);
    let back =
        own.shared.membership.layouts.known_layout().plan_abort(|_| Some(VoterId(5))).unwrap();
    own.learns(back);
    assert_eq!(own.state().waits, None);
    own.after(MAX_FUTURE_PAUSE_MICROS);
    assert_eq!(own.take_requests(), []);
}
