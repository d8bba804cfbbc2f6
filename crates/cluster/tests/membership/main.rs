//! A model of members that come and go: the chain of layouts, each decided by the council of the
//! one before, and what becomes of one key while its partition moves from an old set of nodes to a
//! new one. It was written before the code: what it found is in `docs/membership-model.md`.
//!
//! ```text
//!  settled ─▶ both are written, the old set is read ─▶ both are written, the new one is read ─▶
//!      ▲       │         receivers take what is held                      settled, the new one
//!      └─abort─┘
//! ```
//!
//! `cargo test -p cluster --test membership` looks at the first 10,000 states in each world, and at
//! as many on random walks to the end of it. `MODEL_STATES=1000000 cargo test --release -p cluster
//! --test membership -- --nocapture --test-threads 1` goes on for minutes and says how far it came.

mod chain;
mod client;
mod layout;
mod left_out;
mod links;
mod replica;
mod rules;
mod scenes;
mod world;
mod worlds;

use std::env;

use stateright::{Checker, HasDiscoveries, Model, Path, UniformChooser};

use left_out::{LeftOut, rules_of_coordinators, rules_of_moves, rules_of_stages};
use scenes::{calm, faulty};
use world::{ALWAYS, Action, CHANGED, State};
use worlds::World;

/// States that a test comes to in each world, one that it comes to again included, unless
/// `MODEL_STATES` says otherwise.
const STATES: usize = 10_000;

/// The same, until a rule is missed that is left out.
const MOST_STATES: usize = 2_000_000;

/// How long a trace may be that shows it.
const MOST_STEPS: usize = 20;

pub(crate) fn wanted() -> usize {
    let text = env::var("MODEL_STATES").ok();
    text.map_or(STATES, |text| text.parse().expect("MODEL_STATES is a number"))
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
    (broken, checker.discovery(CHANGED).is_some())
}

fn show(path: Path<State, Action>) {
    path.into_actions().iter().for_each(|action| println!("    {action:?}"));
}

/// How many steps it takes in a world, at least, until a property does not hold.
fn steps_to(property: &'static str, name: &str, world: &World) -> Option<usize> {
    // The first trace that is found need not be the shortest.
    for steps in 1..=MOST_STEPS {
        let until = HasDiscoveries::AnyOf([property].into());
        let checker = world.clone().checker().target_max_depth(steps + 2).finish_when(until);
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
        let (broken, _) = look(name, world, wanted());
        assert_eq!(broken, None, "{name}");
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
        assert_eq!(walk(name, world, wanted()), None, "{name}");
    }
}

fn are_missed(left_out: Vec<LeftOut>) {
    for (name, world, property) in left_out {
        assert!(steps_to(property, name, &world).is_some(), "{name}: not found");
    }
}

#[test]
fn a_rule_of_coordinators_that_is_left_out_is_missed() {
    are_missed(rules_of_coordinators());
}

#[test]
fn a_rule_of_moves_that_is_left_out_is_missed() {
    are_missed(rules_of_moves());
}

#[test]
fn a_rule_of_stages_that_is_left_out_is_missed() {
    are_missed(rules_of_stages());
}

#[test]
fn all_can_come_to_their_end() {
    let (name, world) = calm().swap_remove(0);
    let (_, comes_to_its_end) = look(name, World { ops: Vec::new(), ..world }, MOST_STATES);
    assert!(comes_to_its_end);
}
