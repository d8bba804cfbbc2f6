//! Simulations of a few seeds, as part of the test suite. `.ci/nightly` runs more: the seeds that
//! once found a bug and take seconds, and a sweep by `cargo run --release -p sim -- sweep`.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sim::{Fault, Plan, Report, run};

/// Returns the number of random seeds to run. Each takes half a second. `KVORUM_SEEDS=N` adds N.
fn seeds() -> u64 {
    let more = std::env::var("KVORUM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    12 + more
}

fn short_plan(seed: u64) -> Plan {
    let mut plan = Plan::from_seed(seed);
    plan.seconds = plan.seconds.min(10);
    plan.think_micros = plan.think_micros.max(20_000);
    plan
}

#[test]
fn random_plans_with_faults_violate_no_guarantee() {
    let next = AtomicU64::new(0);
    let run_seeds = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds() {
                return;
            }
            let report = check(&short_plan(seed));
            assert!(report.tally.reads > 0, "seed {seed} asked something");
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run_seeds))));
}

/// Runs a plan and asserts that no check reports an error.
fn check(plan: &Plan) -> Report {
    let report = run(plan);
    assert!(report.wrong.is_empty(), "seed {}: {:#?}", plan.seed, report.wrong);
    report
}

/// Returns the plan of a seed with many changes of members and moves of keys.
fn plan_with_member_changes(seed: u64) -> Plan {
    let mut plan = Plan::from_seed(seed);
    plan.members = 700;
    plan.set_frequent_moves(true);
    plan
}

/// Nodes lose their disks while they are about to leave, and joining nodes receive proofs; a node
/// is removed while its clock is days ahead; and ids must be given only once.
#[test]
#[ignore = "nightly: four long seeds"]
fn membership_changes_complete_although_nodes_are_lost() {
    for seed in [48, 140, 154, 444] {
        let report = check(&plan_with_member_changes(seed));
        assert!(report.joined > 0, "seed {seed}");
    }
}

/// A node starts while its clock is minutes ahead, and an older copy of its directory is restored.
/// The next boot is fenced by the earlier boot, until a restart after the time of the earlier boot.
#[test]
#[ignore = "nightly: a long seed"]
fn an_older_copy_whose_clock_was_ahead_serves_after_a_restart() {
    check(&Plan::from_seed(350_034));
}

/// A bit flips in the only copy of a value. A repair round discards the block with the bit, and a
/// read finds no value before the disk is replaced.
#[test]
fn a_value_lost_with_its_only_disk_is_not_an_error() {
    check(&plan_with_member_changes(940_000));
}

/// A node loses its disk for good, while the cluster decides a layout with a metadata quorum of
/// that node and another node. The simulated operator forces no layout, so the cluster would never
/// recover.
#[test]
#[ignore = "nightly: a long run"]
fn a_proposed_layout_keeps_a_majority_of_its_council() {
    check(&Plan::from_seed(300_155));
}

/// Seed 30245: a node with a full disk holds one of a record's two copies, and a round brings the
/// record to a node that is not a replica; a read must still find the record. Seed 30013: a node
/// that is down, and has lost its disk, would become the only member of the metadata quorum.
#[test]
#[ignore = "nightly: two long runs"]
fn extra_holders_and_down_council_members_do_not_count() {
    for seed in [30_245, 30_013] {
        check(&plan_with_member_changes(seed));
    }
}

/// A node is restored to an earlier copy, becomes the only member of the council (the metadata
/// quorum) during its rebuild, and restarts; then a node that was down returns with outdated
/// knowledge.
#[test]
#[ignore = "nightly: a long run"]
fn a_rebuilt_council_member_keeps_its_seat() {
    check(&Plan::from_seed(130_026));
}

/// A round fences writes up to a time that is ahead of all wall clocks. Meanwhile a client reads a
/// value. Its expiry is below the fence but still ahead of the wall clocks.
#[test]
fn a_watermark_ahead_of_the_clocks_expires_no_value() {
    check(&plan_with_member_changes(151_048));
}

/// One of the two nodes that hold a record is lost. The clock of the other node was once five
/// minutes ahead, and a future record, which no node accepts yet, hides the first record there.
/// Then the other node leaves.
#[test]
fn a_record_hidden_by_a_future_record_survives_a_removed_node() {
    check(&plan_with_member_changes(161_047));
}

/// A removed node loses its disk and starts with its old settings. All nodes in these settings
/// refuse the node or are down. The node must not acknowledge writes alone.
#[test]
fn a_removed_node_that_lost_its_disk_acknowledges_nothing() {
    check(&plan_with_member_changes(410_163));
}

/// A node whose name sorts before all others joins, and the change is reverted before the cluster
/// has an id. The previous founder has already heard from all other nodes, so that no further
/// message reaches it.
#[test]
fn a_founder_still_founds_after_a_reverted_join() {
    check(&Plan::from_seed(20_066));
}

/// A key has two replicas. One of them stores 37 conditional writes of the key that the other
/// replica refuses, because its disk is full and the clocks differ. The record then names only the
/// last eight of these writes, and clients send two of the earlier writes again.
#[test]
#[ignore = "nightly: a long seed"]
fn a_record_names_each_step_until_a_majority_has_noted_it() {
    check(&Plan::from_seed(7_300_089));
}

/// The founder loses its disk right after the first of two other nodes has received the cluster's
/// id. The second node tells the founder that it has no id, and receives the id later. The first
/// node refuses the founder, because the founder has accepted data together with the second node.
#[test]
fn a_founder_with_a_new_disk_gets_an_id_that_a_peer_got_later() {
    check(&Plan::from_seed(7_100_000));
}

#[test]
fn a_seed_repeats_every_event() {
    let mut plan = short_plan(3);
    plan.faults = Fault::ALL.to_vec();
    let (first, second) = (run(&plan), run(&plan));
    assert_eq!((first.hash, first.events), (second.hash, second.events));
    plan.seed += 1;
    assert_ne!(first.hash, run(&plan).hash, "another seed is another run");
}

#[test]
fn without_faults_every_request_succeeds() {
    let mut plan = short_plan(1);
    (plan.faults, plan.skew_micros, plan.page_bytes) = (Vec::new(), 0, 64 << 20);
    let report = run(&plan);
    assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
    assert_eq!((report.tally.failed, report.tally.unknown), (0, 0));
    assert!(report.tally.reads > 100 && report.tally.writes > 100);
}

/// Guards against a protocol that fails every request, which would be linearizable too.
#[test]
fn without_faults_conditional_writes_succeed() {
    for (plain_writes, most_unknown) in [(0, 0), (100, 50)] {
        let mut plan = short_plan(1);
        (plan.faults, plan.skew_micros, plan.page_bytes) = (Vec::new(), 0, 64 << 20);
        (plan.clients, plan.contenders, plan.contended_keys) = (1, 8, 1);
        (plan.plain_writes, plan.think_micros) = (plain_writes, 20_000);
        let report = run(&plan);
        assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
        let outcomes = report.contended;
        let all = outcomes.changed + outcomes.unmet + outcomes.failed + outcomes.unknown;
        assert!(outcomes.changed > 300 && outcomes.unmet > 300, "{outcomes}");
        // Until a clock has a durable bound, its node refuses writes.
        assert!(outcomes.failed * 20 < all, "{outcomes}");
        // A plain write between two attempts of a conditional write hides the outcome of the first
        // attempt.
        assert!(outcomes.unknown * 1000 <= most_unknown * all, "{outcomes}");
        assert_eq!(outcomes.gave_up, 0, "{outcomes}");
    }
}

#[test]
fn a_sweep_without_a_terminal_prints_no_progress() {
    let sim = env!("CARGO_BIN_EXE_sim");
    let words = ["sweep", "--count", "2", "--seconds", "1"];
    let output = std::process::Command::new(sim).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.lines().count() == 1 && !said.contains('\x1b'), "{said:?}");
}
