//! Tests: histories that a single copy could have made, and wrong histories of each kind.

use super::Change::{Add, Delete, Put};
use super::Condition::{Absent, Any, Exists, OneOf};
use super::Response::{Found, NotANumber, Unmet};
use super::Value::{Number, Text};
use super::*;

const MOST: usize = 100_000;

/// The expiry times of an operation on a value that never expires.
const LASTING: ExpiryTimes = ExpiryTimes { expiry_ms: 0, evaluated_ms: (0, 0) };

/// Returns the tag of a plain write.
fn plain(time: u64) -> Tag {
    Tag { family: (time, 1), last: None }
}

/// Returns the tag of a conditional write.
fn step(time: u64, step: u32) -> Tag {
    Tag { family: (time, 1), last: Some((step, u64::from(step))) }
}

fn changed_to(tag: Tag) -> Response {
    Response::Changed { tag, sum: None }
}

fn sum(tag: Tag, sum: i64) -> Response {
    Response::Changed { tag, sum: Some(sum) }
}

fn found_response(number: i64, tag: Tag) -> Response {
    Found(Some((Number(number), tag)))
}

fn change(condition: Condition, change: Change) -> Request {
    Request::Change(condition, change)
}

fn put(number: i64) -> Request {
    change(Any, Put(Number(number)))
}

/// Makes a history of answered operations: time of the call, time of the answer, request, answer.
fn history<const N: usize>(operations: [(u64, u64, Request, Response); N]) -> History {
    let one = |(number, (call, at, asked, response))| Operation {
        number,
        call,
        asked,
        life: LASTING,
        end: Completion::At(at, response),
    };
    History { operations: (1..).zip(operations).map(one).collect() }
}

/// Adds an operation without an answer.
fn unknown(mut history: History, call: u64, asked: Request) -> History {
    let number = history.operations.len() as u64 + 1;
    let (life, end) = (LASTING, Completion::Unknown);
    history.operations.push(Operation { number, call, asked, life, end });
    history.operations.sort_by_key(|operation| operation.call);
    history
}

#[track_caller]
fn assert_linearizable(history: &History) {
    assert_eq!(history.check(MOST), Verdict::Linearizable);
}

/// Asserts that the check fails at the answer to operation `number`.
#[track_caller]
fn assert_wrong_at(history: &History, number: u64) {
    let Verdict::Wrong(why) = history.check(MOST) else { panic!("it is not wrong") };
    let first = why.lines().next().unwrap();
    assert_eq!(first, format!("not linearizable, as of the answer to {number}:"), "{why}");
}

#[test]
fn a_sequential_history_is_linearizable() {
    assert_linearizable(&history([
        (0, 1, Request::Get, Found(None)),
        (2, 3, change(Exists, Delete), Unmet(None)),
        (4, 5, change(Absent, Put(Number(10))), changed_to(step(0, 1))),
        (6, 7, change(Absent, Put(Number(11))), Unmet(Some(step(0, 1)))),
        (8, 9, change(Any, Add(5)), sum(step(0, 2), 15)),
        (10, 11, change(OneOf(vec![step(0, 1)]), Delete), Unmet(Some(step(0, 2)))),
        (12, 13, change(OneOf(vec![plain(9), step(0, 2)]), Put(Text(3))), changed_to(step(0, 3))),
        (14, 15, change(Any, Add(1)), NotANumber),
        (16, 17, Request::Get, Found(Some((Text(3), step(0, 3))))),
        (18, 19, put(20), changed_to(plain(18))),
        (20, 21, Request::Get, found_response(20, plain(18))),
        (22, 23, change(Any, Delete), changed_to(plain(22))),
        (24, 25, change(Any, Add(-4)), sum(step(22, 1), -4)),
    ]));
}

#[test]
fn concurrent_operations_may_take_effect_in_either_order() {
    for (first, second) in [(10, 11), (11, 10)] {
        assert_linearizable(&history([
            (0, 9, put(10), changed_to(plain(1))),
            (1, 9, put(11), changed_to(plain(2))),
            (2, 5, Request::Get, found_response(first, plain(first as u64 - 9))),
            (6, 8, Request::Get, found_response(second, plain(second as u64 - 9))),
        ]));
    }
}

#[test]
fn an_unanswered_write_may_take_effect_late_or_never() {
    let lost = |rest| unknown(rest, 0, put(10));
    assert_linearizable(&lost(history([(2, 3, Request::Get, Found(None))])));
    assert_linearizable(&lost(history([
        (2, 3, Request::Get, Found(None)),
        (4, 5, Request::Get, found_response(10, plain(1))),
        (6, 7, change(OneOf(vec![plain(1)]), Delete), changed_to(step(1, 1))),
    ])));
    assert_linearizable(&unknown(
        history([(2, 3, put(11), changed_to(plain(2)))]),
        0,
        change(Any, Delete),
    ));
}

#[test]
fn a_reissued_write_may_be_seen_earlier_under_its_first_version() {
    let first =
        Operation { number: 9, call: 2, asked: put(10), life: LASTING, end: Completion::Before(9) };
    let with_first = |rest: History| {
        let operations = [vec![first.clone()], rest.operations].concat();
        History { operations }
    };
    let write = (2, 9, put(10), changed_to(plain(7)));
    let seen = |at, response| (at, at + 1, Request::Get, response);
    let between = (4, 5, put(11), changed_to(plain(6)));
    let twice = history([write.clone(), seen(3, found_response(10, plain(5))), between.clone()]);
    assert_linearizable(&with_first(twice));
    let tags = [(5, 7), (7, 5)].map(|(one, other)| {
        with_first(history([
            write.clone(),
            seen(3, found_response(10, plain(one))),
            seen(6, found_response(10, plain(other))),
        ]))
    });
    assert_linearizable(&tags[0]);
    assert_wrong_at(&tags[1], 3);
    let late = [write.clone(), (10, 11, Request::Get, found_response(10, plain(5)))];
    assert_wrong_at(&with_first(history(late)), 2);
}

#[test]
fn a_lost_update_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 5, change(Any, Add(1)), sum(step(1, 1), 11)),
            (3, 6, change(Any, Add(2)), sum(step(1, 2), 12)),
        ]),
        3,
    );
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 5, change(OneOf(vec![plain(1)]), Put(Number(11))), changed_to(step(1, 1))),
            (3, 6, change(OneOf(vec![plain(1)]), Put(Number(12))), changed_to(step(1, 2))),
        ]),
        3,
    );
}

#[test]
fn a_stale_read_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, put(11), changed_to(plain(2))),
            (4, 5, Request::Get, found_response(10, plain(1))),
        ]),
        3,
    );
}

#[test]
fn a_change_made_twice_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, change(Any, Add(1)), sum(step(1, 1), 11)),
            (4, 5, Request::Get, found_response(12, step(1, 2))),
        ]),
        3,
    );
    let twice = history([
        (2, 3, Request::Get, found_response(1, step(0, 1))),
        (4, 5, Request::Get, found_response(2, step(0, 2))),
    ]);
    assert_wrong_at(&unknown(twice, 0, change(Any, Add(1))), 2);
}

#[test]
fn a_condition_wrongly_reported_unmet_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, change(Exists, Put(Number(11))), Unmet(None)),
        ]),
        2,
    );
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, change(OneOf(vec![plain(1)]), Put(Number(11))), Unmet(Some(plain(1)))),
        ]),
        2,
    );
}

#[test]
fn a_condition_wrongly_reported_met_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, change(Absent, Put(Number(11))), changed_to(step(1, 1))),
        ]),
        2,
    );
}

#[test]
fn a_value_that_reappears_after_its_deletion_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, change(Exists, Delete), changed_to(step(1, 1))),
            (4, 5, Request::Get, found_response(10, plain(1))),
        ]),
        3,
    );
}

#[test]
fn a_tag_of_another_state_is_detected() {
    assert_wrong_at(
        &history([
            (0, 1, put(10), changed_to(plain(1))),
            (2, 3, put(11), changed_to(plain(2))),
            (4, 5, Request::Get, found_response(11, plain(1))),
        ]),
        3,
    );
}

#[test]
fn the_failing_prefix_is_explained_in_words() {
    let wrong = unknown(
        history([
            (0, 1_000_001, put(10), changed_to(plain(16))),
            (1_000_002, 1_000_009, Request::Get, Found(None)),
        ]),
        3,
        change(Exists, Add(1)),
    );
    let why = [
        "not linearizable, as of the answer to 2:",
        "       1 0.000000 to 1.000001   put 10: done, \"10-00000001\"",
        "then the key had 10 of 1",
        "under way, or without an answer:",
        "       3 0.000003 to never      add 1 if there is a value: not known",
        "does not fit:",
        "       2 1.000002 to 1.000009   get: nothing",
    ];
    let why = why.join("\n");
    assert_eq!(wrong.check(MOST), Verdict::Wrong(why));
}

#[test]
fn unseen_unanswered_operations_cost_little() {
    let mut long = history([]);
    for n in 0..40 {
        let (call, number) = (10 * n, n as i64);
        long = unknown(long, call, put(1_000 + number));
        let tag = plain(call);
        let answered = [
            (call, call + 5, put(number), changed_to(tag)),
            (call + 6, call + 7, Request::Get, found_response(number, tag)),
        ];
        long.operations.extend(history(answered).operations);
    }
    assert_linearizable(&long);
    let wrong = (500, 501, Request::Get, found_response(3, plain(30)));
    long.operations.extend(history([wrong]).operations);
    assert_wrong_at(&long, 1);
}

#[test]
fn a_search_over_its_limit_gives_up() {
    let mut long = history([(100, 101, Request::Get, found_response(-1, plain(0)))]);
    for n in 0..40 {
        long = unknown(long, 1, change(Any, Add(1 << n)));
    }
    assert_eq!(long.check(MOST), Verdict::GaveUp);
}

/// Sets the operations' expiry times: the expiry of the value, and the two bounds of the time of
/// judgement.
fn with_expiries<const N: usize>(mut history: History, lives: [(u64, u64, u64); N]) -> History {
    for (operation, (expiry_ms, earliest, latest)) in history.operations.iter_mut().zip(lives) {
        operation.life = ExpiryTimes { expiry_ms, evaluated_ms: (earliest, latest) };
    }
    history
}

#[test]
fn an_expired_value_counts_as_absent_for_conditions() {
    let create = change(Absent, Put(Number(2)));
    let created = |life| {
        let operations =
            [(0, 1, put(1), changed_to(plain(1))), (2, 3, create.clone(), changed_to(step(1, 1)))];
        with_expiries(history(operations), [(50, 10, 10), life])
    };
    assert_linearizable(&created((0, 50, 50)));
    assert_linearizable(&created((0, 40, 60)));
    assert_wrong_at(&created((0, 30, 49)), 2);
    let unmet = |life| {
        let operations =
            [(0, 1, put(1), changed_to(plain(1))), (2, 3, create.clone(), Unmet(Some(plain(1))))];
        with_expiries(history(operations), [(50, 10, 10), life])
    };
    assert_linearizable(&unmet((0, 30, 49)));
    assert_linearizable(&unmet((0, 40, 60)));
    assert_wrong_at(&unmet((0, 50, 60)), 2);
    let gone = (2, 3, change(OneOf(vec![plain(1)]), Delete), Unmet(None));
    let gone = history([(0, 1, put(1), changed_to(plain(1))), gone]);
    assert_linearizable(&with_expiries(gone.clone(), [(50, 10, 10), (0, 50, 50)]));
    assert_wrong_at(&with_expiries(gone, [(50, 10, 10), (0, 40, 49)]), 2);
}

/// Conditional writes judge expiry at increasing times; reads do not.
#[test]
fn a_value_found_expired_stays_expired_for_later_conditions() {
    let gone = (2, 3, change(Exists, Delete), Unmet(None));
    let history = |second: (u64, u64, Request, Response)| {
        let operations = [(0, 1, put(1), changed_to(plain(1))), gone.clone(), second];
        history(operations)
    };
    let lives = [(50, 10, 10), (0, 40, 60), (0, 40, 60)];
    let alive = (4, 5, change(Absent, Put(Number(2))), Unmet(Some(plain(1))));
    assert_wrong_at(&with_expiries(history(alive), lives), 3);
    let at_once = (2, 3, change(Absent, Put(Number(2))), Unmet(Some(plain(1))));
    assert_linearizable(&with_expiries(history(at_once), lives));
    let read = (4, 5, Request::Get, found_response(1, plain(1)));
    assert_linearizable(&with_expiries(history(read), [(50, 10, 10), (0, 40, 60), (50, 0, 0)]));
}

#[test]
fn a_read_may_return_or_hide_an_expired_value() {
    let read = |expiry_ms, life| {
        let operations = [
            (0, 1, put(1), changed_to(plain(1))),
            (2, 3, Request::Get, found_response(1, plain(1))),
        ];
        with_expiries(history(operations), [(expiry_ms, 10, 10), life])
    };
    assert_linearizable(&read(50, (50, 90, 90)));
    assert_linearizable(&read(50, (50, 0, 0)));
    assert_wrong_at(&read(50, (51, 0, 0)), 2);
    assert_wrong_at(&read(50, (0, 0, 0)), 2);
    assert_wrong_at(&read(0, (50, 0, 0)), 2);
    let hidden = history([(0, 1, put(1), changed_to(plain(1))), (2, 3, Request::Get, Found(None))]);
    assert_wrong_at(&with_expiries(hidden.clone(), [(50, 10, 10), (0, 49, 49)]), 2);
    // The value may have been purged after its expiry.
    assert_linearizable(&with_expiries(hidden.clone(), [(50, 10, 10), (0, 49, 50)]));
    assert_wrong_at(&with_expiries(hidden, [(0, 10, 10), (0, 90, 90)]), 2);
}

#[test]
fn an_addition_keeps_the_expiry_of_its_value() {
    let added = |total, lives| {
        let operations = [
            (0, 1, put(1), changed_to(plain(1))),
            (2, 3, change(Any, Add(5)), sum(step(1, 1), total)),
            (4, 5, Request::Get, found_response(total, step(1, 1))),
        ];
        with_expiries(history(operations), lives)
    };
    assert_linearizable(&added(6, [(50, 10, 10), (0, 20, 30), (50, 0, 0)]));
    assert_linearizable(&added(6, [(50, 10, 10), (70, 20, 30), (70, 0, 0)]));
    assert_linearizable(&added(5, [(50, 10, 10), (0, 50, 60), (0, 0, 0)]));
    assert_linearizable(&added(5, [(50, 10, 10), (70, 40, 60), (70, 0, 0)]));
    assert_wrong_at(&added(6, [(50, 10, 10), (0, 20, 30), (0, 0, 0)]), 3);
    assert_wrong_at(&added(5, [(50, 10, 10), (0, 40, 60), (50, 0, 0)]), 3);
    assert_wrong_at(&added(5, [(50, 10, 10), (0, 20, 30), (0, 0, 0)]), 2);
    assert_wrong_at(&added(6, [(50, 10, 10), (0, 50, 60), (50, 0, 0)]), 2);
}

/// No client knows whether the addition found a value.
#[test]
fn an_unanswered_addition_may_have_found_the_value_alive_or_expired() {
    for (total, expiry_ms) in [(5, 0), (6, 50)] {
        let operations = [
            (0, 1, put(1), changed_to(plain(1))),
            (4, 5, Request::Get, found_response(total, step(1, 1))),
        ];
        let mut history = unknown(history(operations), 2, change(Any, Add(5)));
        history = with_expiries(history, [(50, 10, 10), (0, 40, 60), (expiry_ms, 0, 0)]);
        assert_linearizable(&history);
    }
}

fn chain_of<const N: usize>(tags: [(u64, u64, Tag); N]) -> Option<String> {
    chain::check(&history(tags.map(|(call, at, tag)| (call, at, put(1), changed_to(tag)))))
}

#[test]
fn steps_are_made_once_each_and_in_order() {
    assert_eq!(chain_of([(0, 9, step(1, 2)), (1, 8, step(1, 1)), (2, 7, plain(2))]), None);
    let twice = Tag { family: (1, 1), last: Some((1, 77)) };
    assert!(chain_of([(0, 1, step(1, 1)), (2, 3, twice)]).unwrap().starts_with("both are step 1"));
    let back = chain_of([(0, 1, step(1, 2)), (2, 3, step(1, 1))]).unwrap();
    assert!(back.starts_with("a later one has a lower step"), "{back}");
    let gap = [(0, 1, step(1, 1)), (2, 3, step(1, 3))];
    assert!(chain_of(gap).unwrap().starts_with("nobody did the 1 steps"));
    let one = |(call, at, tag)| (call, at, put(1), changed_to(tag));
    assert_eq!(chain::check(&unknown(history(gap.map(one)), 0, change(Any, Delete))), None);
}

/// Returns a tag whose base version a repair proof created.
fn proof_tag(step: u32) -> Tag {
    Tag { family: (7, u32::MAX), last: Some((step, u64::from(step))) }
}

/// The writer knows only the tag from before the repair proof.
#[test]
fn a_state_continued_under_a_proof_version_is_the_same_state() {
    let response = [
        (0, 1, put(4), changed_to(step(1, 1))),
        (2, 3, put(5), changed_to(step(1, 2))),
        (4, 5, Request::Get, found_response(5, proof_tag(2))),
        (6, 7, change(OneOf(vec![step(1, 2)]), Put(Number(6))), changed_to(proof_tag(3))),
    ];
    let mut history = history(response);
    assert_ne!(history.check(MOST), Verdict::Linearizable, "they seem to be two states");
    families::unite(&mut history);
    assert_linearizable(&history);
    assert_eq!(chain::check(&history), None);
    assert_eq!(
        chain_of([(0, 1, proof_tag(3)), (2, 3, proof_tag(4))]),
        None,
        "nobody was told of 2"
    );
    assert!(chain_of([(0, 1, proof_tag(3)), (2, 3, proof_tag(5))]).is_some());
}

/// Two base versions that no proof created are different, even if id and step of a write are equal.
#[test]
fn families_without_a_proof_are_not_united() {
    let mut history =
        history([(0, 1, put(4), changed_to(step(1, 1))), (2, 3, put(5), changed_to(step(2, 1)))]);
    let before = history.operations.clone();
    families::unite(&mut history);
    assert_eq!(history.operations, before);
}
