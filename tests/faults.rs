//! The rows of `docs/reliability.md` that need a real process, in their short form. The long one:
//! `cargo run --release -p torture`.

use std::path::PathBuf;

use torture::{
    Failure, Setup, descriptors, disk_full, kill, memory, power_cut, real_input, slow, sync_error,
};

fn setup(rounds: u32) -> Setup {
    Setup { binary: PathBuf::from(env!("CARGO_BIN_EXE_kvorum")), rounds, quick: true, seed: 1 }
}

/// Prints figures, or why there are none; fails when something that must hold did not.
fn row(number: &str, outcome: Result<String, Failure>) {
    match outcome {
        Ok(figures) => println!("row {number}: {figures}"),
        Err(Failure::Skipped(why)) => println!("row {number}: skipped: {why}"),
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
fn row_13_too_little_memory() {
    row("13", memory::run(&setup(1)));
}

#[test]
fn real_input() {
    row("load", real_input::run(&setup(1)));
}

#[test]
fn row_33_slow_clients() {
    row("33", slow::run(&setup(1)));
}
