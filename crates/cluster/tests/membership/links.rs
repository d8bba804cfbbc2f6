//! Tests of the chain of layouts.

use stateright::{Checker, HasDiscoveries, Model, UniformChooser};

use crate::chain::{CHAIN, CHAIN_RULES, CHANGED, CONVERGED, Chain, ChainRules, Fault, Wish};
use crate::wanted;

/// How long it is looked for a rule that is left out.
const MOST_STATES: usize = 500_000;

fn chain(wishes: Vec<Wish>, faults: &[Fault]) -> Chain {
    let (nodes, first, faults) = (6, vec![0, 1, 2], faults.to_vec());
    Chain { rules: CHAIN_RULES, nodes, first, wishes, faults }
}

/// One wants three other councillors, another one wants one other.
fn two_wishes() -> Vec<Wish> {
    vec![(0, vec![3, 4, 5], 2), (1, vec![1, 2, 3], 2)]
}

fn worlds() -> Vec<(&'static str, Chain)> {
    use Fault::{Restart, Retire, Wipe};
    let from_outside = vec![(3, vec![3, 4, 5], 2), (4, vec![2, 3, 4], 2)];
    vec![
        ("two plans", chain(two_wishes(), &[])),
        ("two plans, the old council goes", chain(two_wishes(), &[Retire])),
        ("two plans, a restart", chain(two_wishes(), &[Restart])),
        ("two plans, a lost disk", chain(from_outside.clone(), &[Wipe])),
        ("two plans, all of it", chain(from_outside, &[Wipe, Restart, Retire])),
    ]
}

#[test]
fn there_is_one_chain_and_all_come_to_its_end() {
    for (name, world) in worlds() {
        let failures = HasDiscoveries::AnyFailures;
        let checker = world.clone().checker().target_state_count(wanted());
        let looked = checker.finish_when(failures.clone()).spawn_bfs().join();
        let checker = world.checker().target_state_count(wanted()).finish_when(failures);
        let walked = checker.spawn_simulation(1, UniformChooser).join();
        let (states, depth) = (looked.unique_state_count(), looked.max_depth() - 1);
        let (steps, length) = (walked.state_count(), walked.max_depth() - 1);
        println!("{name}: {states} states up to {depth} steps; {steps} by chance, up to {length}");
        for property in [CHAIN, CONVERGED] {
            for path in [looked.discovery(property), walked.discovery(property)] {
                let trace = path.map(|path| path.into_actions());
                assert_eq!(trace, None, "{name}: not {property}");
            }
        }
        assert!(walked.discovery(CHANGED).is_some(), "{name} does not come to its end");
    }
}

macro_rules! without {
    ($rule:ident, $world:expr, $property:expr) => {
        (
            stringify!($rule),
            Chain { rules: ChainRules { $rule: false, ..CHAIN_RULES }, ..$world },
            $property,
        )
    };
}

#[test]
fn a_rule_of_the_chain_that_is_left_out_is_missed() {
    use Fault::{Restart, Retire, Wipe};
    let two = || chain(two_wishes(), &[]);
    let lost = vec![(3, vec![3, 4, 5], 2), (4, vec![3, 4, 5], 2)];
    let few = Chain { nodes: 5, ..chain(vec![(3, vec![3], 1), (4, vec![4], 2)], &[Restart]) };
    let left_out = [
        without!(council_of_base, two(), CHAIN),
        without!(promise_is_durable, chain(two_wishes(), &[Restart]), CHAIN),
        without!(accept_is_durable, few, CHAIN),
        without!(accepted_goes_first, two(), CHAIN),
        without!(seats_name_lives, chain(lost, &[Wipe]), CHAIN),
        without!(decided_before_known, two(), CHAIN),
        without!(plan_has_one_base, two(), CHAIN),
        without!(accepted_is_completed, chain(two_wishes(), &[Retire]), CONVERGED),
        without!(done_is_known, chain(two_wishes(), &[Retire]), CONVERGED),
    ];
    for (name, world, property) in left_out {
        let until = HasDiscoveries::AnyOf([property].into());
        let checker = world.checker().target_state_count(MOST_STATES).finish_when(until);
        let path = checker.spawn_simulation(1, UniformChooser).join().discovery(property);
        let steps = path.map(|path| path.into_actions().len());
        println!("{name}: not {property} after {steps:?} steps");
        assert!(steps.is_some(), "{name}: not found");
    }
}
