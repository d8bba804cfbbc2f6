//! A model of repair rounds and of purging by proof: one key on three replicas, and every order of
//! events that a few clients, a round or two, messages from long ago and a fault or two can bring
//! about. It was written before the code: what it found is in `docs/repair-model.md`.
//!
//! ```text
//!  round ─▶ seal up to T, and sum ─▶ exchange until all hold the same ─▶ commit: watermark T
//!           what comes late is refused              tombstones up to T are purged ◀─┘
//! ```
//!
//! `cargo test -p cluster --test repair` looks at the first 20,000 states in each world, and at as
//! many on random walks to the end of it. `MODEL_STATES=2000000 cargo test --release -p cluster
//! --test repair -- --nocapture --test-threads 1` goes on for minutes and says how far it came.

mod client;
mod replica;
mod round;
mod rules;
mod world;
mod worlds;

use std::env;

use client::Op;
use rules::{RULES, Rules};
use stateright::{Checker, HasDiscoveries, Model, Path, UniformChooser};
use world::{AGREED, ALWAYS, ANSWERED, Action, LINEARIZABLE, Message, PROVEN, PURGED, State};
use worlds::*;

/// States that a test comes to in each world, one that it comes to again included, unless
/// `MODEL_STATES` says otherwise.
const STATES: usize = 20_000;

/// The same, until a rule is missed that is left out.
const MOST_STATES: usize = 2_000_000;

/// How long a trace may be that shows it.
const MOST_STEPS: usize = 20;

fn wanted() -> Option<usize> {
    env::var("MODEL_STATES").ok().map(|text| text.parse().expect("MODEL_STATES is a number"))
}

/// The worlds in which all must hold: without faults, …
fn calm() -> Vec<(&'static str, World)> {
    let (get, delete) = (|| client(Op::Get, 2), || client(Op::Delete, 2));
    let append = |id| client(Op::Append(id), 2);
    let slow_put = || slow(Op::Put(3), 1);
    let ops = || vec![delete(), get()];
    let put_and_get = vec![client(Op::Put(3), 1), get()];
    let delete_between = vec![append(5), client(Op::Delete, 1), client(Op::Get, 1)];
    let kept = vec![slow(Op::Delete, 2), keeps(5)];
    vec![
        ("a hint, a delete, a get", world(hinted(missed_by(2)), ops(), &[0])),
        ("a late put, two gets, two rounds", world(late_put(), vec![get(), get()], &[0, 0])),
        (
            "a missed deletion, a hint, two rounds",
            world(hinted(missed_deletion()), vec![get()], &[0, 0]).purging_late(),
        ),
        (
            "a put by a slow clock, two rounds",
            world(hinted(deleted()), vec![slow_put(), get()], &[0, 0]),
        ),
        ("a put during two rounds", world(unacknowledged(0), put_and_get, &[0, 1])),
        ("an append, a delete, a get", world(put(), delete_between, &[0])),
        ("an append to what was purged", world(proven(&[0]), vec![append(5)], &[]).answering_all()),
        ("an append that one replica stored", world(unchosen(), vec![append(6), get()], &[0])),
        ("two appends to what was purged", world(proven(&[0]), vec![append(5), append(6)], &[0])),
        ("a kept promise, a delete by a slow clock", world(ahead(put()), kept, &[1])),
        ("a kept promise after a delete", world(ahead(deleted()), vec![keeps(5), get()], &[1])),
        (
            "a conditional hint, a delete by a slow clock",
            world(chosen(), vec![slow(Op::Delete, 2), get()], &[1]),
        ),
    ]
}

/// … and with some.
fn faulty() -> Vec<(&'static str, World)> {
    use Fault::{Rollback, Rot, Wipe};
    let get = || client(Op::Get, 2);
    let ops = || vec![client(Op::Delete, 2), get()];
    let missed = || world(hinted(missed_deletion()), vec![get()], &[0]);
    let put_and_get = vec![client(Op::Put(3), 1), get()];
    vec![
        ("a lost disk", missed().with_fault(Wipe)),
        ("a lost disk, and a delete", world(hinted(put()), ops(), &[0]).with_fault(Wipe)),
        (
            "a lost disk after a commit",
            world(hinted(proven(&[0])), vec![get()], &[0]).with_fault(Wipe).purging_late(),
        ),
        ("a lost disk, two rounds", world(unacknowledged(2), ops(), &[0, 0]).with_fault(Wipe)),
        ("an old copy", world(copied(deleted()), put_and_get, &[0]).with_fault(Rollback)),
        ("an old copy, and a delete", world(put(), ops(), &[0]).with_fault(Rollback)),
        ("an old copy and a lost disk", missed().with_fault(Wipe).with_fault(Rollback)),
        ("a rotten block", world(hinted(missed_by(1)), ops(), &[0]).with_fault(Rot)),
        ("a rotten block after a commit", world(proven_put(), ops(), &[0]).with_fault(Rot)),
        ("a rotten block and a lost disk", missed().with_fault(Rot).with_fault(Wipe)),
    ]
}

/// Takes steps in a world; what does not hold, and whether it comes to its end.
fn look(name: &str, world: World, most: usize) -> (Option<&'static str>, bool) {
    let failures = HasDiscoveries::AnyFailures;
    let checker = world.checker().target_state_count(most).finish_when(failures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth() - 1);
    let all = if checker.state_count() < most { "all " } else { "" };
    let broken = ALWAYS.into_iter().find(|property| checker.discovery(property).is_some());
    let found = broken.unwrap_or("nothing");
    println!("{name}: {all}{states} states up to {depth} steps, broken: {found}");
    if let Some(path) = broken.and_then(|property| checker.discovery(property)) {
        show(path);
    }
    (broken, checker.discovery(ANSWERED).is_some())
}

fn show(path: Path<State, Action>) {
    path.into_actions().iter().for_each(|action| println!("    {action:?}"));
}

/// How many steps it takes in a world, at least, until a property does not hold.
fn steps_to(property: &'static str, name: &str, world: impl Fn() -> World) -> Option<usize> {
    // The first trace that is found need not be the shortest.
    for steps in 1..=MOST_STEPS {
        let until = HasDiscoveries::AnyOf([property].into());
        let checker = world().checker().target_max_depth(steps + 2).finish_when(until);
        let checker = checker.target_state_count(MOST_STATES).spawn_bfs().join();
        if let Some(path) = checker.discovery(property) {
            println!("{name}: not {property} after {steps} steps");
            if env::var("MODEL_TRACES").is_ok() {
                show(path);
            }
            return Some(steps);
        }
    }
    None
}

#[test]
fn with_all_rules_nothing_is_lost_and_nothing_rises() {
    for (name, world) in calm().into_iter().chain(faulty()) {
        let (broken, _) = look(name, world, wanted().unwrap_or(STATES));
        assert_eq!(broken, None, "{name}");
    }
}

/// A rule that is left out, a world that misses it, and what does not hold there.
type LeftOut = (&'static str, Rules, World, &'static str);

macro_rules! without {
    ($rule:ident, $world:expr, $property:expr) => {
        (stringify!($rule), Rules { $rule: false, ..RULES }, $world, $property)
    };
}

fn rules_of_seals() -> Vec<LeftOut> {
    let get = || client(Op::Get, 2);
    let late_put = || world(late_put(), vec![], &[0]);
    let late_repair = with(deleted(), Message::Repair(value()));
    let slow_put = vec![slow(Op::Put(3), 1), get()];
    vec![
        without!(seal_is_durable, late_put().with_fault(Fault::PowerCut), AGREED),
        without!(seal_refuses_writes, late_put(), AGREED),
        without!(seal_refuses_hints, world(only_hint(), vec![], &[0]), AGREED),
        without!(seal_refuses_repair, world(late_repair, vec![get()], &[0]), LINEARIZABLE),
        without!(seal_refuses_ballots, world(ahead(put()), vec![keeps(5)], &[0]), AGREED),
        without!(refused_is_reissued, world(deleted(), slow_put, &[0]), LINEARIZABLE),
    ]
}

fn rules_of_rounds() -> Vec<LeftOut> {
    use Fault::{PowerCut, Rollback, Rot, Wipe};
    let get = || vec![client(Op::Get, 2)];
    let put_3 = || vec![client(Op::Put(3), 1)];
    let missed = || world(missed_deletion(), get(), &[0]);
    let purged = || world(copied(proven(&[0, 1, 2])), get(), &[]);
    let kept = vec![keeps(5)];
    let unchosen_ops = vec![client(Op::Append(6), 1), client(Op::Get, 1)];
    let rot = |before| world(before, get(), &[0]).with_fault(Rot);
    vec![
        without!(all_agree, missed(), AGREED),
        without!(later_round_ends_earlier, world(unacknowledged(0), put_3(), &[0, 1]), AGREED),
        without!(commit_names_lives, world(only_hint(), vec![], &[0]).with_fault(Wipe), AGREED),
        without!(purge_waits_for_commit, missed(), LINEARIZABLE),
        without!(
            commit_is_durable,
            purged().with_fault(PowerCut).with_fault(Rollback),
            LINEARIZABLE
        ),
        without!(exchange_is_durable, missed().with_fault(PowerCut), LINEARIZABLE),
        without!(exchange_brings_newest, world(missed_by(2), put_3(), &[1]), PROVEN),
        without!(lagging_takes_over, world(proven(&[0, 1]), vec![], &[0]).purging_late(), PURGED),
        without!(sums_skip_purgeable, world(partly_purged(), vec![], &[0]).purging_late(), PURGED),
        without!(damage_is_told, rot(proven_put()), LINEARIZABLE),
        without!(healing_waits, rot(missed_by(1)), LINEARIZABLE),
        without!(minority_is_completed, world(unchosen(), unchosen_ops, &[0]), LINEARIZABLE),
        without!(commit_raises_promises, world(ahead(deleted()), kept, &[1]), LINEARIZABLE),
        without!(hints_obey_commit, world(ended(), get(), &[]), LINEARIZABLE),
    ]
}

fn rules_of_directories() -> Vec<LeftOut> {
    use Fault::{Rollback, Wipe};
    let get = || client(Op::Get, 2);
    let purged = || world(copied(proven(&[0, 1, 2])), vec![get()], &[]).with_fault(Rollback);
    let missed = world(missed_deletion(), vec![get()], &[0]).with_fault(Rollback);
    let lost = world(put(), vec![client(Op::Delete, 1), get()], &[]).with_fault(Wipe);
    let lags = world(proven(&[0]), vec![], &[]).with_fault(Wipe).purging_late();
    let rebuilt = world(proven(&[0]), vec![], &[0]).with_fault(Wipe).purging_late();
    vec![
        without!(lost_votes_are_dropped, lost, LINEARIZABLE),
        without!(rollback_is_noticed, purged(), AGREED),
        without!(rebuilt_does_not_count, rebuilt, PURGED),
        without!(rebuilt_takes_watermark, purged(), AGREED),
        without!(watermark_drops, purged(), AGREED),
        without!(watermark_refuses_stream, lags, PURGED),
        without!(reads_heed_watermark, missed, LINEARIZABLE),
    ]
}

#[test]
fn a_rule_that_is_left_out_is_missed() {
    let left_out = [rules_of_seals(), rules_of_rounds(), rules_of_directories()];
    for (name, rules, world, property) in left_out.into_iter().flatten() {
        let world = World { rules, ..world };
        let steps = steps_to(property, name, || world.clone());
        assert!(steps.is_some(), "{name}: not found");
    }
}

/// Follows so many random traces to their ends; what does not hold, after how many steps.
fn walk(name: &str, world: World, most: usize) -> Option<(&'static str, usize)> {
    let failures = HasDiscoveries::AnyFailures;
    let checker = world.checker().target_state_count(most).finish_when(failures);
    let checker = checker.spawn_simulation(1, UniformChooser).join();
    let found = ALWAYS.into_iter().find_map(|property| {
        let path = checker.discovery(property)?;
        if env::var("MODEL_TRACES").is_ok() {
            show(path.clone());
        }
        Some((property, path.into_actions().len()))
    });
    let (states, depth) = (checker.state_count(), checker.max_depth() - 1);
    println!("{name}: {states} states by chance, up to {depth} steps, broken: {found:?}");
    found
}

#[test]
fn random_walks_find_nothing() {
    for (name, world) in calm().into_iter().chain(faulty()) {
        assert_eq!(walk(name, world, wanted().unwrap_or(STATES)), None, "{name}");
    }
}

/// These need longer traces than all of which can be followed.
#[test]
fn a_rule_that_is_left_out_is_missed_by_chance() {
    let (delete, get) = (client(Op::Delete, 2), client(Op::Get, 2));
    let lost = world(unacknowledged(2), vec![delete, get], &[0, 0]).with_fault(Fault::Wipe);
    let appends = [5, 6].map(|id| client(Op::Append(id), 2)).to_vec();
    let appends = world(proven(&[0]), appends, &[0]);
    let left_out = [
        without!(promises_of_one_watermark, appends.clone(), LINEARIZABLE),
        without!(what_ended_goes_on_in_another, appends.clone(), LINEARIZABLE),
        without!(absent_is_watermark, appends, LINEARIZABLE),
        without!(rebuilt_joins_round, lost.clone(), PURGED),
        without!(later_life_ends_sum, lost, AGREED),
    ];
    for (name, rules, world, property) in left_out {
        let found = walk(name, World { rules, ..world }, MOST_STATES);
        assert_eq!(found.map(|(property, _)| property), Some(property), "{name}");
    }
}

#[test]
fn all_can_come_to_their_end() {
    let world = world(missed_deletion(), vec![client(Op::Get, 2)], &[0]).purging_late();
    let (_, comes_to_its_end) = look("a missed deletion", world, MOST_STATES);
    assert!(comes_to_its_end);
}
