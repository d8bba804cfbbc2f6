//! The rows of `docs/results/reliability.md` that need a real process, in their short form. The
//! long form is `cargo run --release -p torture`. Tests start in the order of their names. Tests
//! that mostly wait have names that sort first, so that other tests run while they wait.

use std::io::Write;
use std::path::PathBuf;

use kit::Failure;
use torture::Setup;
use torture::clients::{crowd, fuzz, slow, steady};
use torture::clock::{clocks, expiry, wrong_clock};
use torture::combined::{histories, mixed};
use torture::crash::{counters, kill, lives, pause, scans};
use torture::disk::{blackout, corrupt, disk_full, power_cut, sync_error, wiped};
use torture::limits::{descriptors, memory, real_input, stderr, unread};
use torture::network::{partition, stranger};
use torture::old_copy::{outdated, set_aside};
use torture::replicas::{hints, purge, repair, strikes, tombstones};
use torture::restart::{restarts, settings};

fn setup(rounds: u32) -> Setup {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_kvorum"));
    Setup { binary, rounds, quick: true, seed: 1, earlier: None, later: None, curves: None }
}

/// Prints a row's figures, or the reason why the row was skipped; panics if a guarantee did not
/// hold. The reason goes to stderr directly, because the test harness captures the print macros.
fn row(number: &str, outcome: Result<String, Failure>) {
    match outcome {
        Ok(figures) => println!("row {number}: {figures}"),
        Err(Failure::Skipped(why)) => {
            let _ = writeln!(std::io::stderr(), "row {number}: skipped: {why}");
        }
        Err(failure) => panic!("row {number}: {failure}"),
    }
}

#[test]
fn row_1_kill_with_sync_always() {
    row("1", kill::run(&setup(4), "always", false));
}

#[test]
fn row_2_kill_with_sync_interval_and_with_changing_modes() {
    row("2", kill::run(&setup(2), "interval", false));
    row("2", kill::run(&setup(3), "", true));
}

#[test]
fn row_4_power_cut() {
    row("4", power_cut::run(&setup(2)));
}

#[test]
fn row_9_disk_full() {
    row("9", disk_full::run(&setup(2)));
}

#[test]
fn row_10_io_errors() {
    row("10", sync_error::run(&setup(5)));
}

#[test]
fn row_12_too_few_descriptors() {
    row("12", descriptors::run(&setup(1)));
}

#[test]
fn row_37_values_that_expire_while_clocks_step() {
    row("37", expiry::run(&setup(6)));
}

#[test]
fn a_copy_older_than_was_proven() {
    row("38", outdated::run(&setup(1)));
}

#[test]
fn row_38_a_node_that_is_killed_while_it_sets_an_older_copy_aside() {
    row("38", set_aside::run(&setup(1)));
}

#[test]
fn row_lives_how_they_begin_and_end() {
    row("lives", lives::run(&setup(3)));
}

#[test]
fn row_13_too_little_memory() {
    row("13", memory::run(&setup(1)));
}

#[test]
fn row_13_large_values_that_nobody_reads() {
    row("13", unread::run(&setup(1)));
}

#[test]
fn rows_15_to_17_partitions() {
    row("15", partition::run(&setup(1)));
}

#[test]
fn row_18_nodes_that_stand_still() {
    row("18", pause::run(&setup(2)));
}

#[test]
fn row_20_a_wiped_directory() {
    row("20", wiped::run(&setup(1)));
}

#[test]
fn row_22_rolling_restarts_and_a_killed_node() {
    row("22", restarts::run(&setup(1)));
    row("killed", restarts::kill_nodes(&setup(2)));
}

#[test]
fn ranges_while_nodes_are_killed() {
    row("scans", scans::run(&setup(4)));
}

#[test]
fn row_23_clocks_that_jump() {
    row("23", clocks::run(&setup(2)));
}

#[test]
#[ignore = "nightly: a minute of waiting for clocks"]
fn row_23_a_clock_that_is_off_by_a_day() {
    row("23, by a day", wrong_clock::run(&setup(4)));
}

#[test]
fn quorums_of_every_size_on_shared_keys() {
    row("mixed", mixed::run(&setup(2)));
}

#[test]
fn ranges_over_tombstones() {
    row("tombstones", tombstones::run(&setup(1)));
}

#[test]
#[ignore = "nightly: restarts under six kinds of settings, 40 s"]
fn other_settings_and_unequal_nodes() {
    row("settings", settings::run(&setup(3)));
}

#[test]
fn row_24_a_power_cut_everywhere() {
    row("24", blackout::run(&setup(1)));
}

#[test]
#[ignore = "nightly: rot in each kind of file, a minute"]
fn row_25_a_rotten_replica() {
    row("25", corrupt::run(&setup(20)));
}

#[test]
fn row_26_hints_and_a_holder_that_is_killed() {
    row("26", hints::run(&setup(1)));
}

#[test]
fn row_27_repair_of_what_is_gone_and_of_what_rotted() {
    row("27", repair::run(&setup(1)));
}

#[test]
fn row_28_deletes_that_a_node_missed_past_all_hints() {
    row("28", purge::run(&setup(1)));
}

#[test]
fn row_28_nodes_that_are_struck_in_the_middle_of_a_round() {
    row("28, strikes", strikes::run(&setup(2)));
}

#[test]
fn row_28_nodes_that_are_struck_between_two_steps_of_a_round() {
    row("28, between", strikes::between_steps(&setup(1)));
}

#[test]
fn row_30_additions_while_nodes_are_killed_and_stand_still() {
    row("30", counters::run(&setup(4)));
}

#[test]
fn row_30_histories_while_nodes_are_killed_and_cut_off() {
    row("30, histories", histories::run(&setup(1)));
}

#[test]
fn row_36_strangers() {
    row("36", stranger::run(&setup(10)));
}

#[test]
#[ignore = "nightly: the load of wrk and its check, 30 s"]
fn real_input() {
    row("load", real_input::run(&setup(1)));
}

#[test]
fn row_33_slow_clients() {
    row("33", slow::run(&setup(1)));
}

#[test]
fn a_steady_reader_and_one_that_stops() {
    row("steady", steady::run(&setup(1)));
}

#[test]
#[ignore = "nightly: crowds of connections, 40 s"]
fn a_crowd_of_idle_clients() {
    row("crowd", crowd::run(&setup(3)));
}

#[test]
fn a_closed_stderr() {
    row("stderr", stderr::one(&setup(1), stderr::LogSink::Closed));
}

#[test]
fn a_full_stderr() {
    row("stderr", stderr::one(&setup(1), stderr::LogSink::Full));
}

#[test]
fn a_stalled_stderr() {
    row("stderr", stderr::one(&setup(1), stderr::LogSink::Stalled));
}

#[test]
fn row_32_malformed_requests() {
    row("32", fuzz::run(&setup(1)));
}
