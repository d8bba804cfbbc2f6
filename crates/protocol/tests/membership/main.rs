//! Model of membership changes: the chain of layouts, each decided by the metadata quorum of its
//! predecessor, and one key, whose partition moves from an old set of nodes to a new set. The model
//! was written before the code; `docs/design/membership.md` has its findings.
//!
//! ```text
//!  settled, with the old set ◀──────────────────────────── abort ─┐
//!    ─▶ both sets are written and the old set is read, while      │
//!       receivers pull the old set's records ─────────────────────┘
//!    ─▶ both sets are written and the new set is read
//!    ─▶ settled, with the new set
//! ```
//!
//! `cargo test -p protocol --test membership` visits the first 2,000 states in each world, and
//! 2,000 more on random walks, each of which ends in a state without further actions.
//! `MODEL_STATES=1000000 cargo test --release -p protocol --test membership -- --nocapture
//! --test-threads 1` runs for minutes and reports its progress.

mod chain;
mod client;
mod disks;
mod layout;
mod left_out;
mod links;
#[path = "../register/mod.rs"]
mod register;
mod replica;
mod rules;
mod scenes;
#[path = "../search/mod.rs"]
mod search;
mod voter;
mod world;
mod worlds;

use left_out::{
    LeftOut, without_coordinator_rules, without_move_rules, without_promise_rules,
    without_stage_rules,
};
use scenes::{calm, faulty};
use search::{can_end, search_breadth_first, states_from_env, steps_to, walk_randomly};
use worlds::World;

/// The number of states, with repeated states, that a test visits in each world, unless
/// `MODEL_STATES` is set.
pub(crate) const STATES: usize = 2_000;

#[test]
fn with_all_rules_nothing_is_lost_and_nothing_rises() {
    for (name, world) in calm().into_iter().chain(faulty()) {
        let seen = search_breadth_first(name, &world, states_from_env().unwrap_or(STATES));
        assert_eq!(seen.broken, None, "{name}");
    }
}

#[test]
fn random_walks_find_nothing() {
    for (name, world) in calm().into_iter().chain(faulty()) {
        let seen = walk_randomly(name, &world, states_from_env().unwrap_or(STATES), None);
        assert_eq!(seen.broken, None, "{name}");
    }
}

fn assert_failures_are_found(left_out: Vec<LeftOut>) {
    for (name, world, property) in left_out {
        let steps = steps_to(property, &world);
        println!("{name}: not {property} after {steps:?} steps");
        assert!(steps.is_some(), "{name}: not found");
    }
}

#[test]
fn each_coordinator_rule_prevents_a_failure() {
    assert_failures_are_found(without_coordinator_rules());
}

#[test]
#[ignore = "nightly: each is found after some 100,000 states"]
fn each_promise_rule_prevents_a_failure() {
    assert_failures_are_found(without_promise_rules());
}

#[test]
fn each_move_rule_prevents_a_failure() {
    assert_failures_are_found(without_move_rules());
}

#[test]
fn each_stage_rule_prevents_a_failure() {
    assert_failures_are_found(without_stage_rules());
}

#[test]
fn some_path_reaches_the_end() {
    let (name, world) = calm().swap_remove(0);
    assert!(can_end(name, &World { ops: Vec::new(), ..world }));
}
