//! A model of repair rounds, and of the purges that a proof permits: one key on three replicas, and
//! all orders of events that a few clients, one or two rounds, late messages, and one or two faults
//! permit. The protocol is implemented in `src/repair/` and `src/replica/`; `docs/design/repair.md`
//! lists the model's findings.
//!
//! ```text
//!  Seal ─────▶ all replicas refuse late messages with times up to T
//!  compare ──▶ missing records are brought, and all replicas hold the same records up to T
//!  Ready ────▶ the records are durable on all replicas
//!  Commit ───▶ watermark T: tombstones up to T are purged
//! ```
//!
//! `cargo test -p protocol --test rounds` visits the first 4,000 states in each world (a
//! configuration of the model), and 4,000 more on random walks, each of which ends in a state
//! without further actions. `MODEL_STATES=1000000 cargo test --release -p protocol --test rounds --
//! --nocapture --test-threads 1` runs for minutes and reports its progress.

mod client;
#[path = "../register/mod.rs"]
mod register;
mod replica;
mod round;
mod rules;
#[path = "../search/mod.rs"]
mod search;
mod state;
mod world;
mod worlds;

use register::Op;
use rules::{RULES, Rules};
use search::{
    MOST_STATES, can_end, search_breadth_first, states_from_env, steps_to, walk_randomly,
};
use state::Message;
use world::{AGREED, LINEARIZABLE, PROVEN, PURGED, SETTLED};
use worlds::*;

/// The number of states, with repeated states, that a test visits in each world, unless
/// `MODEL_STATES` is set.
const STATES: usize = 4_000;

/// Returns worlds without faults, in which all properties must hold.
fn calm() -> Vec<(&'static str, World)> {
    let (get, delete) = (|| client(Op::Get, 2).at(1), || client(Op::Delete, 2));
    let append = |id| client(Op::Append(id), 2);
    let ops = || vec![delete(), get()];
    let put_and_get = vec![client(Op::Put(3), 1), get()];
    let delete_between = vec![append(5), client(Op::Delete, 1), client(Op::Get, 1).at(1)];
    let kept = vec![slow(Op::Delete, 2).at(1), append_from_cache(5)];
    let one = [full(0)];
    let from_cache = || vec![append_from_cache(5), get()];
    let settled = [full_without_newest(0)];
    vec![
        ("a hint, a delete, a get", world(with_hint(after_missed_put(2)), ops(), &one)),
        ("a late put, two gets, two rounds", {
            world(late_put(), vec![get(), client(Op::Get, 2)], &[full(0), full(0)])
        }),
        ("a missed deletion, a hint, two rounds", {
            world(with_hint(after_missed_deletion()), vec![get()], &[full(0), partial(0)])
                .with_late_purge()
        }),
        ("a put by a slow clock, two rounds", {
            world(
                with_hint(after_deletion()),
                vec![slow(Op::Put(3), 1), get()],
                &[full(0), full(1)],
            )
        }),
        ("a put during two rounds", {
            world(after_unacknowledged_put(0), put_and_get, &[full(0), full_without_newest(1)])
        }),
        ("two rounds that take turns", {
            world(after_missed_deletion(), vec![], &[full(0), full(1)]).with_turns()
        }),
        (
            "a get behind a seal",
            world(after_fencing(), vec![client(Op::Get, 3)], &[]).with_all_answering(),
        ),
        ("a get where nothing is held", {
            let before = with_another(after_proven_deletion(&[0]), false);
            world(before, vec![client(Op::Get, 2).at(3)], &[full(3)])
        }),
        ("an append, a delete, a get", world(put(), delete_between, &one)),
        ("an append to what was purged", {
            world(after_proven_deletion(&[0]), vec![client(Op::Append(5), 3)], &[])
        }),
        ("an append that one replica stored", {
            world(after_unchosen_append(), vec![append(6), get()], &one)
        }),
        ("two appends to what was purged", {
            world(after_proven_deletion(&[0]), vec![append(5), append(6).at(1)], &one)
        }),
        (
            "a kept promise, a delete by a slow clock",
            world(ahead(put()), kept, &[full_without_newest(0)]),
        ),
        ("a kept promise after a delete", {
            world(ahead(after_deletion()), from_cache(), &settled)
        }),
        ("a kept promise that follows, after a delete", {
            world(follows(after_deletion()), from_cache(), &settled)
        }),
        ("a conditional hint, a delete by a slow clock", {
            world(after_chosen_append(), vec![slow(Op::Delete, 2), get()], &settled)
        }),
    ]
}

/// Returns worlds with faults, in which all properties must hold.
fn faulty() -> Vec<(&'static str, World)> {
    use Fault::{Driver, PowerCut, Restart, Rollback, Rot, Wipe};
    let get = || client(Op::Get, 2).at(1);
    let ops = || vec![client(Op::Delete, 2), get()];
    let missed = || world(with_hint(after_missed_deletion()), vec![get()], &[full(0)]);
    let put_and_get = vec![client(Op::Put(3), 1), get()];
    let one = [full(0)];
    vec![
        ("a driver that ends, another one", {
            world(after_missed_deletion(), vec![get()], &[full(0), full(1)]).with_fault(Driver)
        }),
        ("a restart, two rounds", {
            let rounds = [partial(0), partial(0)];
            world(after_late_missed_deletion(), vec![get()], &rounds).with_fault(Restart)
        }),
        (
            "a power cut",
            world(with_hint(after_missed_deletion()), ops(), &one).with_fault(PowerCut),
        ),
        ("a lost disk", missed().with_fault(Wipe)),
        ("a lost disk, and a delete", world(with_hint(put()), ops(), &one).with_fault(Wipe)),
        ("a lost disk after a commit", {
            world(with_hint(after_proven_deletion(&[0])), vec![get()], &one)
                .with_fault(Wipe)
                .with_late_purge()
        }),
        ("a lost disk, two rounds", {
            world(after_unacknowledged_put(2), ops(), &[full(0), full(0)]).with_fault(Wipe)
        }),
        ("an old copy", world(with_copy(after_deletion()), put_and_get, &one).with_fault(Rollback)),
        ("an old copy, and a delete", world(put(), ops(), &one).with_fault(Rollback)),
        ("an old copy after a commit", {
            world(with_copy(after_proven_deletion(&[0])), vec![get()], &one).with_fault(Rollback)
        }),
        ("an old copy of a first directory", {
            world(with_first_copy(after_proven_deletion(&[0])), vec![get()], &one)
                .with_fault(Rollback)
        }),
        ("an old copy and a lost disk", missed().with_fault(Wipe).with_fault(Rollback)),
        ("an old copy and a restart", missed().with_fault(Rollback).with_fault(Restart)),
        ("an old copy that nobody has told, a restart", {
            world(untold(), vec![get()], &[full(1)]).with_fault(Restart)
        }),
        (
            "a rotten block",
            world(with_hint(after_missed_put(1)), ops(), &one).with_fault(Rot).with_leave(),
        ),
        ("a rotten block after a commit", world(proven_put(), ops(), &one).with_fault(Rot)),
        ("a rotten block over what was deleted", {
            world(partly_purged(), vec![get()], &one).with_fault(Rot).with_late_purge()
        }),
        ("a rotten block and a lost disk", missed().with_fault(Rot).with_fault(Wipe)),
    ]
}

#[test]
fn with_all_rules_nothing_is_lost_and_nothing_rises() {
    let worlds = calm().into_iter().chain(faulty());
    let broken = worlds.filter_map(|(name, world)| {
        let (broken, _) =
            search_breadth_first(name, &world, states_from_env().unwrap_or(STATES)).broken?;
        Some((name, broken))
    });
    assert_eq!(broken.collect::<Vec<_>>(), []);
}

/// A rule that is switched off, the rules without it, a world in which the failure shows, and the
/// property that fails.
type LeftOut = (&'static str, Rules, World, &'static str);

macro_rules! without {
    ($rule:ident, $world:expr, $property:expr) => {
        (stringify!($rule), Rules { $rule: false, ..RULES }, $world, $property)
    };
}

fn without_fence_rules() -> Vec<LeftOut> {
    let get = || client(Op::Get, 2).at(1);
    let late_put = || world(late_put(), vec![], &[full(0)]);
    let late_repair = with(after_deletion(), Message::Repair(value()));
    let slow_put = vec![slow(Op::Put(3), 1), get()];
    let stuck = vec![client(Op::Get, 3)];
    let two = world(after_missed_deletion(), vec![], &[full(0), full(1)]).with_turns();
    vec![
        without!(seal_refuses_writes, late_put(), AGREED),
        without!(seal_refuses_hints, world(only_hint(), vec![], &[full(0)]), AGREED),
        without!(seal_refuses_repair, world(late_repair, vec![], &[full(0)]), AGREED),
        without!(
            seal_refuses_ballots,
            world(ahead(put()), vec![append_from_cache(5)], &[full(0)]),
            AGREED
        ),
        without!(refused_is_reissued, world(after_deletion(), slow_put, &[full(0)]), LINEARIZABLE),
        without!(
            refused_read_takes_ballot,
            world(after_fencing(), stuck, &[]).with_all_answering(),
            PROVEN
        ),
        without!(greater_id_backs_off, two, PROVEN),
    ]
}

fn without_round_rules() -> Vec<LeftOut> {
    use Fault::{PowerCut, Restart, Rollback, Rot};
    let get = || vec![client(Op::Get, 2).at(1)];
    let one = [full(0)];
    let missed = || world(after_missed_deletion(), get(), &one);
    let purged = || world(with_copy(after_proven_deletion(&[0, 1, 2])), get(), &[]);
    let kept = vec![append_from_cache(5)];
    let rotten = world(young(), get(), &[full_without_newest(0)]).with_fault(Rot);
    let appends = vec![client(Op::Append(5), 2), client(Op::Append(6), 2).at(1)];
    let appends = world(after_proven_deletion(&[0]), appends, &one);
    let unchosen_ops = vec![client(Op::Append(6), 1), client(Op::Get, 1).at(1)];
    let again =
        world(after_late_missed_deletion(), get(), &[partial(0), partial(0)]).with_fault(Restart);
    let two = [full(0), full(1)];
    let lags = world(after_missed_deletion(), vec![], &two).with_turns();
    let untold = world(untold(), vec![], &[full(1)]).with_fault(Restart);
    let late = world(after_unacknowledged_put(0), vec![client(Op::Delete, 1)], &two);
    let sick = world(after_missed_put(1), get(), &[full(1)]).with_fault(Rot).with_leave();
    let risen = world(partly_purged(), get(), &one).with_fault(Rot).with_late_purge();
    vec![
        without!(all_take_part, missed().with_leave(), AGREED),
        without!(later_round_ends_earlier, late, AGREED),
        without!(purge_waits_for_commit, missed(), LINEARIZABLE),
        without!(
            commit_is_durable,
            purged().with_fault(PowerCut).with_fault(Rollback),
            LINEARIZABLE
        ),
        without!(ready_is_durable, missed().with_fault(Restart), AGREED),
        without!(ready_without_restart, untold, AGREED),
        without!(restart_voids_equality, again, AGREED),
        without!(exchange_brings_newest, rotten, LINEARIZABLE),
        without!(lagging_adopts_proofs, lags, PURGED),
        without!(
            sums_skip_purgeable,
            world(partly_purged(), vec![], &one).with_late_purge(),
            PURGED
        ),
        without!(damage_is_told, world(proven_put(), get(), &one).with_fault(Rot), PROVEN),
        without!(healing_waits, sick, LINEARIZABLE),
        without!(resurfaced_is_deleted, risen, PROVEN),
        without!(
            minority_is_completed,
            world(after_unchosen_append(), unchosen_ops, &one),
            LINEARIZABLE
        ),
        without!(read_is_not_older, world(after_unchosen_append(), vec![], &one), AGREED),
        without!(
            commit_raises_promises,
            world(ahead(after_deletion()), kept.clone(), &[full_without_newest(0)]),
            LINEARIZABLE
        ),
        without!(
            commit_outbids_following,
            world(follows(after_deletion()), kept, &[full_without_newest(0)]),
            LINEARIZABLE
        ),
        without!(hints_obey_commit, world(after_purged_append(), get(), &[]), LINEARIZABLE),
        without!(promises_of_one_watermark, appends.clone(), LINEARIZABLE),
        without!(ended_record_changes_base, appends.clone(), LINEARIZABLE),
        without!(absent_is_watermark, appends, LINEARIZABLE),
    ]
}

fn without_directory_rules() -> Vec<LeftOut> {
    use Fault::{Rollback, Wipe};
    let get = || client(Op::Get, 2).at(1);
    let purged = || {
        world(with_copy(after_proven_deletion(&[0, 1, 2])), vec![get()], &[]).with_fault(Rollback)
    };
    let first = world(with_first_copy(after_proven_deletion(&[0, 1, 2])), vec![get()], &[])
        .with_fault(Rollback);
    let lost = world(put(), vec![client(Op::Delete, 1), get()], &[]).with_fault(Wipe);
    let delete = vec![client(Op::Delete, 2), get()];
    let rebuilt = world(with_hint(put()), delete, &[full(0)]).with_fault(Wipe);
    let hint = world(with_hint(after_proven_deletion(&[0])), vec![get()], &[]).with_fault(Wipe);
    let again = world(after_proven_deletion(&[0, 1, 2]), vec![], &[]).with_fault(Wipe);
    let stays = world(with_copy(after_proven_deletion(&[0, 1, 2])), vec![], &[full(0)])
        .with_fault(Rollback);
    let copied = world(put(), vec![client(Op::Delete, 1), get()], &[]).with_fault(Rollback);
    vec![
        without!(lost_votes_are_dropped, lost, LINEARIZABLE),
        without!(rollback_is_noticed, copied, LINEARIZABLE),
        without!(outdated_is_noticed, purged(), AGREED),
        without!(outdated_is_set_aside, stays, PROVEN),
        without!(rebuilt_does_not_count, rebuilt, AGREED),
        without!(new_is_sealed, hint, LINEARIZABLE),
        without!(new_adopts_proofs, again, SETTLED),
        without!(first_forgets_made, first, AGREED),
    ]
}

#[test]
fn each_rule_prevents_a_failure() {
    let left_out = [without_fence_rules(), without_round_rules(), without_directory_rules()];
    let missed = left_out.into_iter().flatten().filter(|(name, rules, world, property)| {
        let world = World { rules: rules.clone(), ..world.clone() };
        let found = walk_randomly(name, &world, MOST_STATES, Some(*property)).broken;
        if states_from_env().is_some() {
            println!("{name}: not {property} after {:?} steps", steps_to(property, &world));
        }
        found.is_none()
    });
    let names: Vec<&str> = missed.map(|(name, ..)| name).collect();
    assert_eq!(names, [""; 0], "these can be left out");
}

#[test]
fn random_walks_find_nothing() {
    let worlds = calm().into_iter().chain(faulty());
    let broken = worlds.filter_map(|(name, world)| {
        let (broken, _) =
            walk_randomly(name, &world, states_from_env().unwrap_or(STATES), None).broken?;
        Some((name, broken))
    });
    assert_eq!(broken.collect::<Vec<_>>(), []);
}

#[test]
fn some_path_reaches_the_end() {
    let get = vec![client(Op::Get, 2)];
    let world = world(after_missed_deletion(), get, &[full(0)]).with_late_purge();
    assert!(can_end("a missed deletion", &world));
}

/// No property fails without these rules. The protocol keeps them because they cost little and have
/// other benefits (`docs/design/repair.md`).
#[test]
fn no_property_needs_these_rules() {
    let left_out = [
        ("lives are compared", Rules { lives_are_compared: false, ..RULES }),
        ("a seal is durable", Rules { seal_is_durable: false, ..RULES }),
        ("reads heed watermarks", Rules { reads_heed_watermark: false, ..RULES }),
    ];
    let most = states_from_env().map_or(STATES, |states| states / 5);
    for (rule, rules) in left_out {
        let broken = faulty().into_iter().filter_map(|(name, world)| {
            let world = World { rules: rules.clone(), ..world };
            let (broken, _) = walk_randomly(name, &world, most, None).broken?;
            Some((name, broken))
        });
        assert_eq!(broken.collect::<Vec<_>>(), [], "{rule}");
    }
}
