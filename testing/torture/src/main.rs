//! Runs rows of faults in full length, and prints a line of results for each: `cargo run --release
//! -p torture -- [ROW…]`.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{Parser, ValueEnum};
use kit::Failure;
use torture::clients::{crowd, fuzz, slow, steady};
use torture::clock::{clocks, expiry, wrong_clock};
use torture::combined::{converge, histories, mixed};
use torture::crash::{counters, kill, lives, pause, scans};
use torture::disk::{blackout, corrupt, disk_full, power_cut, slow_replica, sync_error, wiped};
use torture::limits::{descriptors, memory, overload, real_input, stderr, unread};
use torture::network::{partition, stranger};
use torture::old_copy::{outdated, rollback, set_aside};
use torture::replicas::{hints, purge, repair, strikes, tombstones};
use torture::restart::{finalize, restarts, settings, upgrade};
use torture::{Setup, members};

/// Break a running node on purpose. Exit code 1: something that must hold did not.
#[derive(Debug, Parser)]
struct Args {
    /// What to break
    #[arg(value_enum, default_value = "all")]
    rows: Vec<Row>,
    /// How often; each row has its own default
    #[arg(long)]
    rounds: Option<u32>,
    /// Sizes and times as in `cargo test`
    #[arg(long)]
    quick: bool,
    /// The seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A directory for the curves of the row overload, as CSV and SVG
    #[arg(long)]
    curves: Option<PathBuf>,
    /// The node's binary; without it, it is built and target/release/kvorum is taken
    #[arg(long)]
    binary: Option<PathBuf>,
    /// The binary of an earlier release, for the rows upgrade and finalize
    #[arg(long)]
    earlier: Option<PathBuf>,
    /// The binary of a later release, for the row finalize
    #[arg(long)]
    later: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    All,
    /// Row 1: kill -9 with sync=always
    Kill,
    /// Row 2: kill -9 with sync=interval, and with changing modes
    Interval,
    /// Row 4: power cuts (root, loop devices)
    Powercut,
    /// Row 9: a full disk (root)
    Diskfull,
    /// Row 10: failing writes and syncs (injected by strace; root for a real EIO)
    Fsync,
    /// Row 12: too few file descriptors
    Fds,
    /// Row 13: too little memory
    Memory,
    /// Row 13: hundreds of clients that ask for large values and do not read them
    Unread,
    /// Rows 15 to 17: partitions, lost packets, a slow link (root)
    Partition,
    /// Row 18: nodes that stand still
    Pause,
    /// Row 19: one replica with a slow disk (strace)
    Slowreplica,
    /// Row 20: a wiped data directory
    Wiped,
    /// Row 21: nodes join, leave and are replaced, and one of each role is killed at each stage
    Members,
    /// Row 21, a node whose disk is full: it joins, and has no room for what moves to it
    Fulljoiner,
    /// Row 22: rolling restarts
    Restarts,
    /// Nodes of an earlier release (--earlier) are upgraded one after the other
    Upgrade,
    /// Nodes are upgraded, taken back and finalized: run testing/torture/finalize.sh
    Finalize,
    /// A node killed and back
    Killed,
    /// Starts and ends of a process: new directories, stops and kills in a row, a full disk, a
    /// removed directory
    Lives,
    /// Ranges while nodes are killed
    Scans,
    /// Ranges over a million tombstones
    Tombstones,
    /// Settings changed over restarts, unequal nodes
    Settings,
    /// Row 23: clocks that are wrong and jump (libfaketime)
    Clocks,
    /// Row 23: a clock that is off by a day, also from the start (libfaketime)
    Wrongclock,
    /// Quorums of every size on shared keys: if two overlap, the later one answers no older version
    /// (libfaketime)
    Mixed,
    /// Row 24: a power cut at all replicas (root, loop devices)
    Blackout,
    /// Row 25: a replica whose disk rots
    Corrupt,
    /// Row 26: a million hints
    Hints,
    /// Row 27: repair of what one replica lost and another one can't read
    Repair,
    /// Row 28: deletes that a node misses for longer than hints are kept (root for a cut link)
    Purge,
    /// Row 28: faults of nodes during repair rounds (root for a full disk, libfaketime for a wrong
    /// clock)
    Strikes,
    /// Row 28: faults of nodes between two steps of a repair round (strace)
    Between,
    /// Rows 15 to 18, 20, 22, 23 and 30: histories of keys with conditional writes (root,
    /// libfaketime for the clocks)
    Histories,
    /// Row 30: additions to a few counters while nodes are killed and stand still
    Counters,
    /// Row 37: values that expire, while clocks step and nodes are killed (libfaketime)
    Ttl,
    /// Row 38: an older copy of a directory put back, twins, a lost interval (root for the last)
    Rollback,
    /// Replicas that missed writes: a full disk (root), overload, a pause
    Converge,
    /// Row 29: ten times the load, from clients that try again
    Overload,
    /// Row 36: strangers who want to pass for a node
    Stranger,
    /// Row 32: requests with changed bytes
    Fuzz,
    /// Row 33: 2,000 slow clients
    Slow,
    /// Clients that read slowly but steadily, and clients that stop reading
    Steady,
    /// Idle clients that take all places while nodes come and go
    Crowd,
    /// Nodes whose stderr is closed, full or stalled
    Stderr,
    /// 3 M keys by wrk, and 2 GiB of data in 128 MiB of memory
    Load,
}

impl Row {
    const EACH: [Self; 45] = [
        Self::Kill,
        Self::Interval,
        Self::Powercut,
        Self::Diskfull,
        Self::Fsync,
        Self::Fds,
        Self::Memory,
        Self::Unread,
        Self::Partition,
        Self::Pause,
        Self::Slowreplica,
        Self::Wiped,
        Self::Members,
        Self::Fulljoiner,
        Self::Restarts,
        Self::Upgrade,
        Self::Finalize,
        Self::Killed,
        Self::Lives,
        Self::Scans,
        Self::Tombstones,
        Self::Settings,
        Self::Clocks,
        Self::Wrongclock,
        Self::Mixed,
        Self::Blackout,
        Self::Corrupt,
        Self::Hints,
        Self::Repair,
        Self::Purge,
        Self::Strikes,
        Self::Between,
        Self::Counters,
        Self::Histories,
        Self::Ttl,
        Self::Rollback,
        Self::Converge,
        Self::Overload,
        Self::Stranger,
        Self::Fuzz,
        Self::Slow,
        Self::Steady,
        Self::Crowd,
        Self::Stderr,
        Self::Load,
    ];

    fn rounds(self) -> u32 {
        match self {
            Self::Kill | Self::Interval => 60,
            Self::Powercut => 12,
            Self::Fsync => 15,
            Self::Diskfull => 4,
            Self::Fds | Self::Stderr | Self::Tombstones | Self::Repair => 3,
            Self::Memory => 2,
            Self::Partition => 3,
            Self::Pause | Self::Lives => 16,
            Self::Restarts | Self::Blackout | Self::Mixed => 10,
            Self::Histories | Self::Strikes => 40,
            Self::Between => 30,
            Self::Ttl => 60,
            Self::Killed | Self::Counters | Self::Scans | Self::Clocks | Self::Crowd => 20,
            Self::Wrongclock | Self::Settings => 12,
            Self::Corrupt => 50,
            Self::Stranger => 100,
            Self::Rollback | Self::Converge => 2,
            Self::Purge
            | Self::Slowreplica
            | Self::Wiped
            | Self::Members
            | Self::Fulljoiner
            | Self::Upgrade
            | Self::Finalize
            | Self::Hints
            | Self::Unread
            | Self::Overload => 1,
            Self::Fuzz | Self::Slow | Self::Steady | Self::Load | Self::All => 1,
        }
    }

    fn run(self, setup: &Setup) -> Result<String, Failure> {
        match self {
            Self::Kill => kill::run(setup, "always", false),
            Self::Interval => {
                let interval = kill::run(setup, "interval", false)?;
                Ok(format!("{interval}; modes mixed: {}", kill::run(setup, "", true)?))
            }
            Self::Powercut => power_cut::run(setup),
            Self::Diskfull => disk_full::run(setup),
            Self::Fsync => sync_error::run(setup),
            Self::Fds => descriptors::run(setup),
            Self::Memory => memory::run(setup),
            Self::Unread => unread::run(setup),
            Self::Partition => partition::run(setup),
            Self::Pause => pause::run(setup),
            Self::Slowreplica => slow_replica::run(setup),
            Self::Wiped => wiped::run(setup),
            Self::Members => members::run(setup),
            Self::Fulljoiner => members::run_full(setup),
            Self::Restarts => restarts::run(setup),
            Self::Upgrade => upgrade::run(setup),
            Self::Finalize => finalize::run(setup),
            Self::Killed => restarts::kill_nodes(setup),
            Self::Lives => lives::run(setup),
            Self::Scans => scans::run(setup),
            Self::Tombstones => tombstones::run(setup),
            Self::Settings => settings::run(setup),
            Self::Clocks => clocks::run(setup),
            Self::Wrongclock => wrong_clock::run(setup),
            Self::Mixed => mixed::run(setup),
            Self::Blackout => blackout::run(setup),
            Self::Corrupt => corrupt::run(setup),
            Self::Hints => hints::run(setup),
            Self::Repair => repair::run(setup),
            Self::Purge => purge::run(setup),
            Self::Strikes => strikes::run(setup),
            Self::Between => strikes::between_steps(setup),
            Self::Histories => histories::run(setup),
            Self::Counters => counters::run(setup),
            Self::Ttl => expiry::run(setup),
            Self::Rollback => {
                Ok(rollback::run(setup)? + &outdated::run(setup)? + &set_aside::run(setup)?)
            }
            Self::Converge => converge::run(setup),
            Self::Overload => overload::run(setup),
            Self::Stranger => stranger::run(setup),
            Self::Fuzz => fuzz::run(setup),
            Self::Slow => slow::run(setup),
            Self::Steady => steady::run(setup),
            Self::Crowd => crowd::run(setup),
            Self::Stderr => stderr::run(setup),
            Self::Load => real_input::run(setup),
            Self::All => Ok(String::new()),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let binary = match args.binary.clone().map_or_else(build, Ok) {
        Ok(binary) => binary,
        Err(error) => {
            eprintln!("torture: {error}");
            return ExitCode::FAILURE;
        }
    };
    let rows = if args.rows.contains(&Row::All) { &Row::EACH[..] } else { &args.rows };
    let mut sound = true;
    for row in rows {
        let rounds = args.rounds.unwrap_or_else(|| row.rounds());
        let (binary, curves) = (binary.clone(), args.curves.clone());
        let (earlier, later) = (args.earlier.clone(), args.later.clone());
        let (quick, seed) = (args.quick, args.seed);
        let setup = Setup { binary, rounds, quick, seed, earlier, later, curves };
        let begun = Instant::now();
        let figures = row.run(&setup).unwrap_or_else(|failure| {
            sound &= matches!(failure, Failure::Skipped(_));
            failure.to_string()
        });
        let name = format!("{row:?}").to_lowercase();
        println!("{name}: {figures} [{rounds} rounds, {:.0} s]", begun.elapsed().as_secs_f64());
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds the node in release mode.
fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(cargo)
        .args(["build", "--release", "--package", "kvorum"])
        .current_dir(&workspace)
        .status();
    match status {
        Ok(status) if status.success() => Ok(workspace.join("target/release/kvorum")),
        Ok(status) => Err(format!("the node could not be built: cargo ended with {status}")),
        Err(error) => Err(format!("cargo could not be run: {error}")),
    }
}
