//! Tests: histories that a single copy could have made, and wrong histories of each kind.

use super::Change::{Add, Delete, Put};
use super::Condition::{Absent, Any, Exists, OneOf};
use super::Response::{Found, NotANumber, Unmet};
use super::Value::{Number, Text};
use super::*;

const MOST: usize = 100_000;

/// The expiry of a value that never expires.
const LASTING: Life = Life { expiry_ms: 0, evaluated_ms: (0, 0) };

/// Returns the tag of a plain write.
fn plain(time: u64) -> Tag {
    Tag { family: (time, 1), last: None }
}

/// Returns the tag of a conditional write.
fn step(time: u64, step: u32) -> Tag {
    Tag { family: (time, 1), last: Some((step, u64::from(step))) }
}

fn done(tag: Tag) -> Response {
    Response::Changed { tag, sum: None }
}

fn sum(tag: Tag, sum: i64) -> Response {
    Response::Changed { tag, sum: Some(sum) }
}

fn found(number: i64, tag: Tag) -> Response {
    Found(Some((Number(number), tag)))
}

fn change(condition: Condition, change: Change) -> Asked {
    Asked::Change(condition, change)
}

fn put(number: i64) -> Asked {
    change(Any, Put(Number(number)))
}

/// Creates a history of operations with the times of their calls and answers.
fn history<const N: usize>(operations: [(u64, u64, Asked, Response); N]) -> History {
    let one = |(number, (call, at, asked, response))| Operation {
        number,
        call,
        asked,
        life: LASTING,
        end: End::At(at, response),
    };
    History { operations: (1..).zip(operations).map(one).collect() }
}

/// Adds an operation without an answer.
fn unknown(mut history: History, call: u64, asked: Asked) -> History {
    let number = history.operations.len() as u64 + 1;
    let (life, end) = (LASTING, End::Unknown);
    history.operations.push(Operation { number, call, asked, life, end });
    history.operations.sort_by_key(|operation| operation.call);
    history
}

#[track_caller]
fn is_right(history: &History) {
    assert_eq!(history.check(MOST), Verdict::Linearizable);
}

/// Asserts that the history is found wrong at the answer to an operation.
#[track_caller]
fn is_wrong(history: &History, number: u64) {
    let Verdict::Wrong(why) = history.check(MOST) else { panic!("it is not wrong") };
    let first = why.lines().next().unwrap();
    assert_eq!(first, format!("not linearizable, as of the answer to {number}:"), "{why}");
}

#[test]
fn what_one_copy_does_is_right() {
    is_right(&history([
        (0, 1, Asked::Get, Found(None)),
        (2, 3, change(Exists, Delete), Unmet(None)),
        (4, 5, change(Absent, Put(Number(10))), done(step(0, 1))),
        (6, 7, change(Absent, Put(Number(11))), Unmet(Some(step(0, 1)))),
        (8, 9, change(Any, Add(5)), sum(step(0, 2), 15)),
        (10, 11, change(OneOf(vec![step(0, 1)]), Delete), Unmet(Some(step(0, 2)))),
        (12, 13, change(OneOf(vec![plain(9), step(0, 2)]), Put(Text(3))), done(step(0, 3))),
        (14, 15, change(Any, Add(1)), NotANumber),
        (16, 17, Asked::Get, Found(Some((Text(3), step(0, 3))))),
        (18, 19, put(20), done(plain(18))),
        (20, 21, Asked::Get, found(20, plain(18))),
        (22, 23, change(Any, Delete), done(plain(22))),
        (24, 25, change(Any, Add(-4)), sum(step(22, 1), -4)),
    ]));
}

#[test]
fn operations_at_one_time_are_ordered_either_way() {
    for (first, second) in [(10, 11), (11, 10)] {
        is_right(&history([
            (0, 9, put(10), done(plain(1))),
            (1, 9, put(11), done(plain(2))),
            (2, 5, Asked::Get, found(first, plain(first as u64 - 9))),
            (6, 8, Asked::Get, found(second, plain(second as u64 - 9))),
        ]));
    }
}

#[test]
fn what_was_never_answered_may_be_done_late_or_never() {
    let lost = |rest| unknown(rest, 0, put(10));
    is_right(&lost(history([(2, 3, Asked::Get, Found(None))])));
    is_right(&lost(history([
        (2, 3, Asked::Get, Found(None)),
        (4, 5, Asked::Get, found(10, plain(1))),
        (6, 7, change(OneOf(vec![plain(1)]), Delete), done(step(1, 1))),
    ])));
    is_right(&unknown(history([(2, 3, put(11), done(plain(2)))]), 0, change(Any, Delete)));
}

#[test]
fn a_write_with_another_version_may_be_seen_before_under_its_first() {
    let first =
        Operation { number: 9, call: 2, asked: put(10), life: LASTING, end: End::Before(9) };
    let with_first = |rest: History| {
        let operations = [vec![first.clone()], rest.operations].concat();
        History { operations }
    };
    let write = (2, 9, put(10), done(plain(7)));
    let seen = |at, response| (at, at + 1, Asked::Get, response);
    let between = (4, 5, put(11), done(plain(6)));
    let twice = history([write.clone(), seen(3, found(10, plain(5))), between.clone()]);
    is_right(&with_first(twice));
    let tags = [(5, 7), (7, 5)].map(|(one, other)| {
        with_first(history([
            write.clone(),
            seen(3, found(10, plain(one))),
            seen(6, found(10, plain(other))),
        ]))
    });
    is_right(&tags[0]);
    is_wrong(&tags[1], 3);
    let late = [write.clone(), (10, 11, Asked::Get, found(10, plain(5)))];
    is_wrong(&with_first(history(late)), 2);
}

#[test]
fn a_lost_update_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 5, change(Any, Add(1)), sum(step(1, 1), 11)),
            (3, 6, change(Any, Add(2)), sum(step(1, 2), 12)),
        ]),
        3,
    );
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 5, change(OneOf(vec![plain(1)]), Put(Number(11))), done(step(1, 1))),
            (3, 6, change(OneOf(vec![plain(1)]), Put(Number(12))), done(step(1, 2))),
        ]),
        3,
    );
}

#[test]
fn a_stale_read_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, put(11), done(plain(2))),
            (4, 5, Asked::Get, found(10, plain(1))),
        ]),
        3,
    );
}

#[test]
fn what_is_done_twice_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, change(Any, Add(1)), sum(step(1, 1), 11)),
            (4, 5, Asked::Get, found(12, step(1, 2))),
        ]),
        3,
    );
    let twice = history([
        (2, 3, Asked::Get, found(1, step(0, 1))),
        (4, 5, Asked::Get, found(2, step(0, 2))),
    ]);
    is_wrong(&unknown(twice, 0, change(Any, Add(1))), 2);
}

#[test]
fn a_condition_that_was_true_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, change(Exists, Put(Number(11))), Unmet(None)),
        ]),
        2,
    );
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, change(OneOf(vec![plain(1)]), Put(Number(11))), Unmet(Some(plain(1)))),
        ]),
        2,
    );
}

#[test]
fn a_condition_that_was_not_true_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, change(Absent, Put(Number(11))), done(step(1, 1))),
        ]),
        2,
    );
}

#[test]
fn what_comes_back_after_it_was_deleted_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, change(Exists, Delete), done(step(1, 1))),
            (4, 5, Asked::Get, found(10, plain(1))),
        ]),
        3,
    );
}

#[test]
fn a_tag_of_another_state_is_found() {
    is_wrong(
        &history([
            (0, 1, put(10), done(plain(1))),
            (2, 3, put(11), done(plain(2))),
            (4, 5, Asked::Get, found(11, plain(1))),
        ]),
        3,
    );
}

#[test]
fn a_prefix_is_told_so_that_people_can_read_it() {
    let wrong = unknown(
        history([
            (0, 1_000_001, put(10), done(plain(16))),
            (1_000_002, 1_000_009, Asked::Get, Found(None)),
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
fn operations_that_nobody_saw_cost_little() {
    let mut long = history([]);
    for n in 0..40 {
        let (call, number) = (10 * n, n as i64);
        long = unknown(long, call, put(1_000 + number));
        let tag = plain(call);
        let answered = [
            (call, call + 5, put(number), done(tag)),
            (call + 6, call + 7, Asked::Get, found(number, tag)),
        ];
        long.operations.extend(history(answered).operations);
    }
    is_right(&long);
    let wrong = (500, 501, Asked::Get, found(3, plain(30)));
    long.operations.extend(history([wrong]).operations);
    is_wrong(&long, 1);
}

#[test]
fn a_search_that_takes_too_long_is_given_up() {
    let mut long = history([(100, 101, Asked::Get, found(-1, plain(0)))]);
    for n in 0..40 {
        long = unknown(long, 1, change(Any, Add(1 << n)));
    }
    assert_eq!(long.check(MOST), Verdict::GaveUp);
}

/// Sets the operations' lives: expiry of the value written or found, and bounds of the time of
/// evaluation.
fn with_lives<const N: usize>(mut history: History, lives: [(u64, u64, u64); N]) -> History {
    for (operation, (expiry_ms, earliest, latest)) in history.operations.iter_mut().zip(lives) {
        operation.life = Life { expiry_ms, evaluated_ms: (earliest, latest) };
    }
    history
}

#[test]
fn what_has_expired_is_none_to_a_condition() {
    let create = change(Absent, Put(Number(2)));
    let created = |life| {
        let operations = [(0, 1, put(1), done(plain(1))), (2, 3, create.clone(), done(step(1, 1)))];
        with_lives(history(operations), [(50, 10, 10), life])
    };
    is_right(&created((0, 50, 50)));
    is_right(&created((0, 40, 60)));
    is_wrong(&created((0, 30, 49)), 2);
    let unmet = |life| {
        let operations =
            [(0, 1, put(1), done(plain(1))), (2, 3, create.clone(), Unmet(Some(plain(1))))];
        with_lives(history(operations), [(50, 10, 10), life])
    };
    is_right(&unmet((0, 30, 49)));
    is_right(&unmet((0, 40, 60)));
    is_wrong(&unmet((0, 50, 60)), 2);
    let gone = (2, 3, change(OneOf(vec![plain(1)]), Delete), Unmet(None));
    let gone = history([(0, 1, put(1), done(plain(1))), gone]);
    is_right(&with_lives(gone.clone(), [(50, 10, 10), (0, 50, 50)]));
    is_wrong(&with_lives(gone, [(50, 10, 10), (0, 40, 49)]), 2);
}

/// Conditional writes are evaluated at increasing times; reads are not.
#[test]
fn what_one_found_expired_is_not_alive_to_the_next() {
    let gone = (2, 3, change(Exists, Delete), Unmet(None));
    let history = |second: (u64, u64, Asked, Response)| {
        let operations = [(0, 1, put(1), done(plain(1))), gone.clone(), second];
        history(operations)
    };
    let lives = [(50, 10, 10), (0, 40, 60), (0, 40, 60)];
    let alive = (4, 5, change(Absent, Put(Number(2))), Unmet(Some(plain(1))));
    is_wrong(&with_lives(history(alive), lives), 3);
    let at_once = (2, 3, change(Absent, Put(Number(2))), Unmet(Some(plain(1))));
    is_right(&with_lives(history(at_once), lives));
    let read = (4, 5, Asked::Get, found(1, plain(1)));
    is_right(&with_lives(history(read), [(50, 10, 10), (0, 40, 60), (50, 0, 0)]));
}

#[test]
fn a_read_shows_what_has_expired_and_when() {
    let read = |expiry_ms, life| {
        let operations = [(0, 1, put(1), done(plain(1))), (2, 3, Asked::Get, found(1, plain(1)))];
        with_lives(history(operations), [(expiry_ms, 10, 10), life])
    };
    is_right(&read(50, (50, 90, 90)));
    is_right(&read(50, (50, 0, 0)));
    is_wrong(&read(50, (51, 0, 0)), 2);
    is_wrong(&read(50, (0, 0, 0)), 2);
    is_wrong(&read(0, (50, 0, 0)), 2);
    let hidden = history([(0, 1, put(1), done(plain(1))), (2, 3, Asked::Get, Found(None))]);
    is_wrong(&with_lives(hidden.clone(), [(50, 10, 10), (0, 49, 49)]), 2);
    // The expired value may be purged.
    is_right(&with_lives(hidden.clone(), [(50, 10, 10), (0, 49, 50)]));
    is_wrong(&with_lives(hidden, [(0, 10, 10), (0, 90, 90)]), 2);
}

#[test]
fn a_sum_expires_when_what_was_added_to_would_have() {
    let added = |total, lives| {
        let operations = [
            (0, 1, put(1), done(plain(1))),
            (2, 3, change(Any, Add(5)), sum(step(1, 1), total)),
            (4, 5, Asked::Get, found(total, step(1, 1))),
        ];
        with_lives(history(operations), lives)
    };
    is_right(&added(6, [(50, 10, 10), (0, 20, 30), (50, 0, 0)]));
    is_right(&added(6, [(50, 10, 10), (70, 20, 30), (70, 0, 0)]));
    is_right(&added(5, [(50, 10, 10), (0, 50, 60), (0, 0, 0)]));
    is_right(&added(5, [(50, 10, 10), (70, 40, 60), (70, 0, 0)]));
    is_wrong(&added(6, [(50, 10, 10), (0, 20, 30), (0, 0, 0)]), 3);
    is_wrong(&added(5, [(50, 10, 10), (0, 40, 60), (50, 0, 0)]), 3);
    is_wrong(&added(5, [(50, 10, 10), (0, 20, 30), (0, 0, 0)]), 2);
    is_wrong(&added(6, [(50, 10, 10), (0, 50, 60), (50, 0, 0)]), 2);
}

/// No client was told whether the addition found a value.
#[test]
fn an_addition_without_an_answer_may_have_found_either() {
    for (total, expiry_ms) in [(5, 0), (6, 50)] {
        let operations =
            [(0, 1, put(1), done(plain(1))), (4, 5, Asked::Get, found(total, step(1, 1)))];
        let mut history = unknown(history(operations), 2, change(Any, Add(5)));
        history = with_lives(history, [(50, 10, 10), (0, 40, 60), (expiry_ms, 0, 0)]);
        is_right(&history);
    }
}

fn chain_of<const N: usize>(tags: [(u64, u64, Tag); N]) -> Option<String> {
    chain::check(&history(tags.map(|(call, at, tag)| (call, at, put(1), done(tag)))))
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
    let one = |(call, at, tag)| (call, at, put(1), done(tag));
    assert_eq!(chain::check(&unknown(history(gap.map(one)), 0, change(Any, Delete))), None);
}

/// Returns a tag whose base version a repair proof created.
fn gone_on(step: u32) -> Tag {
    Tag { family: (7, u32::MAX), last: Some((step, u64::from(step))) }
}

/// The writer was told the tag that the state had before the repair proof.
#[test]
fn what_goes_on_in_another_family_is_the_same_state() {
    let response = [
        (0, 1, put(4), done(step(1, 1))),
        (2, 3, put(5), done(step(1, 2))),
        (4, 5, Asked::Get, found(5, gone_on(2))),
        (6, 7, change(OneOf(vec![step(1, 2)]), Put(Number(6))), done(gone_on(3))),
    ];
    let mut history = history(response);
    assert_ne!(history.check(MOST), Verdict::Linearizable, "they seem to be two states");
    families::unite(&mut history);
    is_right(&history);
    assert_eq!(chain::check(&history), None);
    assert_eq!(chain_of([(0, 1, gone_on(3)), (2, 3, gone_on(4))]), None, "nobody was told of 2");
    assert!(chain_of([(0, 1, gone_on(3)), (2, 3, gone_on(5))]).is_some());
}

/// A base version that no proof created is a different base version, even with the same id and
/// step.
#[test]
fn other_families_stay_apart() {
    let mut history = history([(0, 1, put(4), done(step(1, 1))), (2, 3, put(5), done(step(2, 1)))]);
    let before = history.operations.clone();
    families::unite(&mut history);
    assert_eq!(history.operations, before);
}
