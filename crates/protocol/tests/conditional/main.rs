//! A model of conditional writes: one key on three replicas, and all orders of events that a few
//! clients and one fault permit. The model was written before the code;
//! `docs/design/conditional-writes.md` lists its findings.
//!
//! ```text
//!  client ─▶ prepare ─▶ a majority promises ─▶ accept ─▶ a majority stores ─▶ answer
//!              ▲                                 │
//!              └─────────────────────────────────┘ outbid: retry with a greater ballot;
//!                                                  a plain write in between: look for the outcome
//! ```
//!
//! `cargo test -p protocol --test conditional` checks the first 15,000 states of each world.
//! `MODEL_STATES=40000000 cargo test --release -p protocol --test conditional -- --nocapture
//! --test-threads 1` runs for minutes and prints the number of checked states.

mod client;
mod replica;
mod rules;
mod world;

use std::env;

use client::Op;
use rules::{RULES, Rules};
use stateright::{Checker, HasDiscoveries, Model};
use world::{ANSWERED, Fault, First, LINEARIZABLE, World};

/// The number of states that a test checks, unless `MODEL_STATES` is set.
const STATES: usize = 15_000;

fn states_from_env() -> Option<usize> {
    env::var("MODEL_STATES").ok().map(|text| text.parse().expect("MODEL_STATES is a number"))
}

/// The rules with short histories.
const SHORT: Rules = Rules { short_history: true, ..RULES };

/// True if no violation is found in the first `most` states of a world.
fn is_linearizable(name: &str, world: World, most: usize) -> bool {
    let (is_broken, seen) = look(world, most, LINEARIZABLE);
    println!("{name}: {seen}: {}linearizable", if is_broken { "NOT " } else { "" });
    !is_broken
}

/// Checks the first states of a world until one violates an `always` property or satisfies a
/// `sometimes` property. Returns whether there was such a state, and a text with the number of
/// checked states.
fn look(world: World, most: usize, property: &'static str) -> (bool, String) {
    let until = HasDiscoveries::AnyOf([property].into());
    let checker = world.checker().target_state_count(most).finish_when(until).spawn_bfs().join();
    let (unique, depth) = (checker.unique_state_count(), checker.max_depth());
    (checker.discovery(property).is_some(), format!("{unique} states up to {depth} steps"))
}

fn world(rules: Rules, ops: Vec<(Op, u8)>, fault: Fault) -> World {
    World { rules, ops, fault, lost_replies: false, goes_on: false, first: Vec::new() }
}

fn appends(tries: u8) -> Vec<(Op, u8)> {
    vec![(Op::Append(1), tries), (Op::Append(2), tries)]
}

#[test]
fn with_all_rules_every_order_is_linearizable() {
    let and = |mut ops: Vec<(Op, u8)>, more: (Op, u8)| {
        ops.push(more);
        ops
    };
    let one = vec![(Op::Append(1), 2)];
    let unknown = Rules { keep_displaced: false, ended_is_unknown: true, ..RULES };
    let worlds = [
        ("two appends, answers lost", World { lost_replies: true, ..calm(appends(2)) }),
        ("two appends, a get", calm(and(appends(1), (Op::Get, 1)))),
        ("an append, a put, a get", calm(and(and(one, (Op::Put(9), 1)), (Op::Get, 1)))),
        ("two appends, a put", calm(vec![(Op::Append(1), 2), (Op::Append(2), 1), (Op::Put(9), 1)])),
        ("two appends of two tries, a put", calm(and(appends(2), (Op::Put(9), 1)))),
        (
            "the same, its end unknown",
            world(unknown, and(appends(2), (Op::Put(9), 1)), Fault::Nothing),
        ),
        ("two appends, a get, short histories", world(SHORT, again(), Fault::Nothing)),
        ("a put, two that find it expired or not", calm(put_and_expiry_checks())),
        ("the same, a restart", world(RULES, put_and_expiry_checks(), Fault::Restart)),
        ("two appends, a lost disk", world(RULES, appends(2), Fault::Wipe)),
        (
            "two appends, a get, a lost disk",
            world(RULES, and(appends(2), (Op::Get, 1)), Fault::Wipe),
        ),
        ("two appends, a get, a mark", world(RULES, and(appends(2), (Op::Get, 1)), Fault::Mark)),
        ("two appends, a restart", world(RULES, appends(2), Fault::Restart)),
        (
            "an append between two of one coordinator",
            on(RULES, between(Op::Append(3), 2), Fault::Nothing),
        ),
        (
            "a put between two appends of one coordinator",
            on(RULES, between(Op::Put(9), 1), Fault::Nothing),
        ),
        ("the same, a lost disk", on(RULES, between(Op::Put(9), 1), Fault::Wipe)),
        (
            "an append between two of one coordinator, a lost disk",
            on(RULES, between(Op::Append(3), 2), Fault::Wipe),
        ),
        (
            "an append between two of one coordinator, a restart",
            on(RULES, between(Op::Append(3), 2), Fault::Restart),
        ),
    ];
    for (name, world) in worlds {
        assert!(is_linearizable(name, world, states_from_env().unwrap_or(STATES)), "{name}");
    }
}

/// Makes a world in which one coordinator runs the first and the last operation.
fn on(rules: Rules, ops: Vec<(Op, u8)>, fault: Fault) -> World {
    World { goes_on: true, ..world(rules, ops, fault) }
}

/// Returns a put and two operations that judge its expiry, one of them by a clock that is past it.
fn put_and_expiry_checks() -> Vec<(Op, u8)> {
    let extend = |id, is_past| (Op::Extend { id, is_past }, 2);
    vec![(Op::Put(9), 1), extend(1, true), extend(2, false)]
}

fn between(op: Op, tries: u8) -> Vec<(Op, u8)> {
    vec![(Op::Append(1), 1), (op, tries), (Op::Append(2), tries)]
}

fn calm(ops: Vec<(Op, u8)>) -> World {
    world(RULES, ops, Fault::Nothing)
}

/// Returns two appends of two tries each, and a read that shows a repeated append.
fn again() -> Vec<(Op, u8)> {
    vec![(Op::Append(1), 2), (Op::Append(2), 2), (Op::Get, 1)]
}

#[test]
fn all_clients_can_come_to_their_end() {
    assert!(look(calm(appends(2)), 400_000, ANSWERED).0);
}

#[test]
fn each_rule_prevents_a_failure() {
    let with_get = || vec![(Op::Append(1), 1), (Op::Append(2), 1), (Op::Get, 1)];
    let unheeded = Rules { repair_obeys_promise: false, ..RULES };
    let forgotten = Rules { promise_outlives_restart: false, ..RULES };
    let wiped = Rules { promise_outlives_disk: false, ..RULES };
    let worlds = [
        ("repair does not obey promises", world(unheeded, with_get(), Fault::Nothing)),
        ("a restart forgets promises", world(forgotten, appends(2), Fault::Restart)),
        ("a lost disk forgets promises", world(wiped, appends(2), Fault::Wipe)),
    ];
    for (name, world) in worlds {
        assert!(!is_linearizable(name, world, 20_000_000), "{name}: not found");
    }
}

#[test]
#[ignore = "nightly: it is found after 650,000 states"]
fn each_expiry_rule_prevents_a_failure() {
    let ended = Rules { end_is_stored: false, ..RULES };
    let name = "that a value has expired is not stored";
    let world = world(ended, put_and_expiry_checks(), Fault::Nothing);
    assert!(!is_linearizable(name, world, 20_000_000), "{name}: not found");
}

#[test]
#[ignore = "nightly: it is found after 2,400,000 states"]
fn each_history_rule_prevents_a_failure() {
    let unnoted = Rules { noted_before_forgotten: false, ..SHORT };
    let name = "an operation leaves a history unnoted";
    assert!(!is_linearizable(name, world(unnoted, again(), Fault::Nothing), 20_000_000), "{name}");
    assert!(is_linearizable("with all rules", world(SHORT, again(), Fault::Nothing), 5_000_000));
}

/// Only replica 0 holds the first append. The other two replicas have promised a higher ballot to
/// the second append. Then replica 0 streams its record to the last replica, and a client reads.
#[test]
fn a_record_that_is_sent_on_is_no_majority() {
    let sent = Rules { streamed_is_not_held: false, ..RULES };
    let any = Rules { members_accept_only_chosen: false, ..RULES };
    let ops = || vec![(Op::Append(1), 1), (Op::Append(2), 2), (Op::Get, 1)];
    let first = |lost: &[First]| {
        use First::{Begins, Reaches, Sent};
        let one = [Begins(0), Reaches(0, 0), Reaches(0, 1), Reaches(0, 0)];
        let two = [Begins(1), Reaches(1, 1), Reaches(1, 2)];
        [&one[..], &two, lost, &[Sent { from: 0, to: 2 }, Begins(2)]].concat()
    };
    let lost = first(&[First::Wiped(2)]);
    let marked = first(&[]);
    for (name, rules, fault, first) in [
        ("what was sent counts as held", sent, Fault::Wipe, lost),
        ("a member takes what is not chosen", any, Fault::Mark, marked),
    ] {
        let from = |rules| World { first: first.clone(), ..world(rules, ops(), fault) };
        assert!(!is_linearizable(name, from(rules), 20_000_000), "{name}: not found");
        assert!(
            is_linearizable("with all rules", from(RULES), states_from_env().unwrap_or(STATES)),
            "{name}"
        );
    }
}

/// Checks rules whose effect shows only after too many states for a normal test.
#[test]
fn more_rules_that_are_missed() {
    let Some(most) = states_from_env() else { return };
    let put = || vec![(Op::Append(1), 2), (Op::Append(2), 1), (Op::Put(9), 1)];
    let with_get = vec![(Op::Append(1), 2), (Op::Put(9), 2), (Op::Get, 2)];
    let no_descendant = Rules { descendant_is_stored: false, ..RULES };
    let displaced = Rules { keep_displaced: false, ..RULES };
    let back = Rules { no_way_back: false, ..RULES };
    let with_put = || vec![(Op::Append(1), 2), (Op::Append(2), 2), (Op::Put(9), 1), (Op::Get, 1)];
    let not_rebuilt = Rules { rebuilt_before_promising: false, ..RULES };
    let no_room = Rules { room_to_go_on: false, ..RULES };
    let unseen = Rules { rebuilt_before_going_on: false, ..RULES };
    let unknown = Rules { loss_known_before_storing: false, ..RULES };
    let newer = Rules { newer_is_not_held: false, ..RULES };
    let sources = Rules { sources_promise: false, ..RULES };
    let worlds = [
        (
            "a plain write refused by what continues it",
            world(no_descendant, with_get, Fault::Nothing),
        ),
        ("what a plain write displaced is forgotten", world(displaced, put(), Fault::Nothing)),
        ("a replica promises before it is rebuilt", world(not_rebuilt, appends(2), Fault::Wipe)),
        (
            "others have the ballot to go on under",
            on(no_room, between(Op::Append(3), 1), Fault::Nothing),
        ),
        (
            "what goes on is stored before it is rebuilt",
            on(unseen, between(Op::Put(9), 1), Fault::Wipe),
        ),
        ("a record is stored before a loss is known", world(unknown, appends(2), Fault::Wipe)),
        ("who rebuilds promises nothing", world(sources, appends(2), Fault::Wipe)),
        (
            "a newer plain write counts as held",
            world(newer, vec![(Op::Append(1), 2), (Op::Put(9), 1), (Op::Get, 1)], Fault::Nothing),
        ),
        // No violation is found within 30,000,000 states.
        ("a later try goes back behind a plain write", world(back, with_put(), Fault::Nothing)),
    ];
    for (name, world) in worlds {
        assert!(!is_linearizable(name, world, most), "{name}: not found");
    }
}
