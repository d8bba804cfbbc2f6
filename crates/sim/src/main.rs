//! Replays one seed, or runs many.
//!
//! ```text
//! cargo run --release -p sim -- --seed 7 --log
//! cargo run --release -p sim -- sweep --minutes 10
//! ```

#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write, stderr};
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use protocol::Topology;
use sim::{ContendedTally, Plan, Report, Scale, Traffic};

/// Whole kvorum clusters in one thread, from one seed.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// The seed to replay.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    shape: Shape,
    /// Prints every event.
    #[arg(long)]
    log: bool,
}

/// What is not left to the seed.
#[derive(Debug, Clone, Args)]
struct Shape {
    /// Nodes, 1 to 255.
    #[arg(long, global = true)]
    nodes: Option<usize>,
    /// Event loops of each node, 1 to 16.
    #[arg(long, global = true)]
    loops: Option<usize>,
    /// Simulated seconds with faults.
    #[arg(long, global = true)]
    seconds: Option<u64>,
    /// Changes of the layout of a thousand that are of nodes which join, leave or are lost; if it
    /// is not 0, keys move in every run.
    #[arg(long, global = true)]
    members: Option<u64>,
    /// Ticks of a node of a thousand before which it drops one of its background tasks.
    #[arg(long, global = true)]
    task_drops: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Goes through seeds; prints those that fail, and how much was simulated.
    Sweep {
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many seeds.
        #[arg(long, default_value_t = 1000)]
        count: u64,
        /// Stops after this long.
        #[arg(long)]
        minutes: Option<u64>,
        /// Stops at the first seed that fails.
        #[arg(long)]
        first: bool,
    },
    /// How costs grow with the number of nodes, as a table.
    Scale {
        /// Numbers of nodes.
        #[arg(value_delimiter = ',', default_values_t = [3, 10, 100, 1000])]
        sizes: Vec<usize>,
        /// How many nodes join a cluster of how many: instead, what that takes of messages.
        #[arg(long, num_args = 2)]
        grow: Vec<usize>,
    },
}

impl Shape {
    fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::from_seed(seed);
        plan.nodes = self.nodes.unwrap_or(plan.nodes);
        plan.loops = self.loops.unwrap_or(plan.loops);
        plan.seconds = self.seconds.unwrap_or(plan.seconds);
        plan.task_drops = self.task_drops.unwrap_or(plan.task_drops);
        if let Some(members) = self.members {
            plan.members = members;
            plan.set_frequent_moves(members > 0);
        }
        plan
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let good = match cli.command {
        None => {
            let mut plan = cli.shape.plan(cli.seed);
            plan.log = cli.log;
            replay(&plan)
        }
        Some(Command::Sweep { from, count, minutes, first }) => {
            let limit = minutes.map(|minutes| Duration::from_secs(60 * minutes));
            sweep(&cli.shape, from, count, limit, first)
        }
        Some(Command::Scale { grow, .. }) if !grow.is_empty() => {
            print_growth(grow[0], grow[1], cli.shape.loops.unwrap_or(LOOPS), cli.seed);
            true
        }
        Some(Command::Scale { sizes, .. }) => {
            scale(&sizes, cli.seed);
            true
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(plan: &Plan) -> bool {
    println!("{plan:#?}");
    let report = sim::run(plan);
    println!("{report:#?}");
    report.wrong.is_empty()
}

fn sweep(shape: &Shape, from: u64, count: u64, limit: Option<Duration>, first: bool) -> bool {
    let begun = Instant::now();
    let mut sum = SweepTotals::default();
    let count = if limit.is_some() { u64::MAX - from } else { count };
    for seed in from..from + count {
        // The assertion has printed its message on stderr; other seeds may find more.
        let run = catch_unwind(|| sim::run(&shape.plan(seed)));
        let report = run.unwrap_or_else(|_| Report {
            wrong: vec!["at 0: a failed assertion: a bug in kvorum or the simulator".to_owned()],
            ..Report::default()
        });
        sum.add(&report);
        if let Some(wrong) = report.wrong.first() {
            clear_progress();
            println!("seed {seed}: {wrong}");
        }
        sum.progress(seed, begun.elapsed());
        if first && sum.failed > 0 || limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    clear_progress();
    println!("{}", sum.line(begun.elapsed()));
    sum.failed == 0
}

/// Loops of a node whose memory is measured, and number of nodes measured at once.
const LOOPS: usize = 2;
const SETS: usize = 64;

fn scale(sizes: &[usize], seed: u64) {
    println!(
        "| nodes | placement, ms | its table, KiB | protocol's memory a node, KiB | messages a \
         request | connections a node | hints | kept by nodes | delivered after, s |\n\
         |---|---|---|---|---|---|---|---|---|"
    );
    for nodes in sizes {
        let members = Scale::members(*nodes);
        let (before, begun) = (resident(), Instant::now());
        let topology = Topology::new(members, 3).expect("the names are in order");
        let placed = begun.elapsed();
        let table = resident().saturating_sub(before);
        let before = resident();
        let parts = sim::protocol_instances(&topology, LOOPS, SETS);
        let memory = resident().saturating_sub(before) / SETS as u64;
        drop(parts);
        let counted = sim::measure(*nodes, seed);
        println!(
            "| {nodes} | {:.1} | {} | {} | {:.2} | {:.1} | {} | {} | {:.2} |",
            placed.as_secs_f64() * 1e3,
            table / 1024,
            memory / 1024,
            counted.messages as f64 / counted.answered as f64,
            counted.connections as f64 / *nodes as f64,
            counted.hints,
            counted.holders,
            counted.hint_micros as f64 / 1e6,
        );
    }
}

fn print_growth(nodes: usize, joiners: usize, loops: usize, seed: u64) {
    let grown = sim::measure_join_traffic(nodes, joiners, loops, seed);
    println!(
        "| nodes | | seconds | messages a node and second | bytes a node and second |\n\
         |---|---|---|---|---|"
    );
    let row = |what: &str, nodes: usize, traffic: Traffic| {
        let seconds = traffic.micros as f64 / 1e6;
        let each = |of: u64| of as f64 / seconds / nodes as f64;
        let (messages, bytes) = (each(traffic.messages), each(traffic.bytes));
        println!("| {nodes} | {what} | {seconds:.2} | {messages:.1} | {bytes:.0} |");
    };
    row("at rest before", nodes, grown.before);
    row("until all go by the last layout", nodes + joiners, grown.change);
    row("at rest after", nodes + joiners, grown.after);
}

/// Returns the resident memory of this process in bytes; 0 if unknown.
fn resident() -> u64 {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

#[derive(Default)]
struct SweepTotals {
    seeds: u64,
    failed: u64,
    micros: u64,
    faults: u64,
    changes: u64,
    moves: u64,
    joined: u64,
    left: u64,
    answered: u64,
    events: u64,
    contended: ContendedTally,
}

impl SweepTotals {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.failed += u64::from(!report.wrong.is_empty());
        self.micros += report.micros;
        self.faults += report.faults;
        self.changes += report.changes;
        self.moves += report.moves;
        self.joined += report.joined;
        self.left += report.left;
        self.answered += report.tally.reads + report.tally.writes;
        self.events += report.events;
        self.contended.add(&report.contended);
    }

    fn line(&self, took: Duration) -> String {
        format!(
            "{} seeds, {} failed; {:.1} simulated hours, {} faults, {} changes of the layout, {} \
             moves, {} nodes joined, {} left, {} requests answered, {:.1} M events in {:.0} s; {}",
            self.seeds,
            self.failed,
            self.micros as f64 / 3.6e9,
            self.faults,
            self.changes,
            self.moves,
            self.joined,
            self.left,
            self.answered,
            self.events as f64 / 1e6,
            took.as_secs_f64(),
            self.contended
        )
    }

    fn progress(&self, seed: u64, took: Duration) {
        if !stderr().is_terminal() {
            return;
        }
        eprint!("\r\x1b[Kseed {seed}: {}", self.line(took));
        // A failed progress line must not end the run.
        let _ = stderr().flush();
    }
}

/// Clears the progress line, which exists only on a terminal.
fn clear_progress() {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}
