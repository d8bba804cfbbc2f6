//! Replays a seed, or goes through many.
//!
//! ```text
//! cargo run --release -p sim -- --seed 7 --log
//! cargo run --release -p sim -- sweep --minutes 10
//! ```

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use sim::{Plan, Report};

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
}

impl Shape {
    fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        plan.nodes = self.nodes.unwrap_or(plan.nodes);
        plan.loops = self.loops.unwrap_or(plan.loops);
        plan.seconds = self.seconds.unwrap_or(plan.seconds);
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
    let mut sum = Sum::default();
    let count = if limit.is_some() { u64::MAX - from } else { count };
    for seed in from..from + count {
        let report = sim::run(&shape.plan(seed));
        sum.add(&report);
        if let Some(wrong) = report.wrong.first() {
            eprint!("\r\x1b[K");
            println!("seed {seed}: {wrong}");
        }
        sum.progress(seed, begun.elapsed());
        if first && sum.failed > 0 || limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    eprint!("\r\x1b[K");
    println!("{}", sum.line(begun.elapsed()));
    sum.failed == 0
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    failed: u64,
    micros: u64,
    faults: u64,
    answered: u64,
    events: u64,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.failed += u64::from(!report.wrong.is_empty());
        self.micros += report.micros;
        self.faults += report.faults;
        self.answered += report.tally.reads + report.tally.writes;
        self.events += report.events;
    }

    fn line(&self, took: Duration) -> String {
        format!(
            "{} seeds, {} failed; {:.1} simulated hours, {} faults, {} requests answered, \
             {:.1} M events in {:.0} s",
            self.seeds,
            self.failed,
            self.micros as f64 / 3.6e9,
            self.faults,
            self.answered,
            self.events as f64 / 1e6,
            took.as_secs_f64()
        )
    }

    fn progress(&self, seed: u64, took: Duration) {
        eprint!("\r\x1b[Kseed {seed}: {}", self.line(took));
        // Who can't see the progress misses nothing else.
        let _ = std::io::stderr().flush();
    }
}
