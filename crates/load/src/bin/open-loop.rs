//! Sends load by plan and prints what came of it.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use load::{KeyOrder, Keys, Pace, Plan, Target};

/// Open-loop load against `GET` and `PUT /v0/entity`.
#[derive(Parser)]
struct Args {
    /// The server.
    #[arg(default_value = "127.0.0.1:8080")]
    target: SocketAddr,
    /// Threads.
    #[arg(short, default_value_t = 1)]
    threads: usize,
    /// Connections.
    #[arg(short, default_value_t = 64)]
    connections: usize,
    /// Seconds.
    #[arg(short, default_value_t = 10.0)]
    duration: f64,
    /// Requests a second by plan; without it, a closed loop.
    #[arg(short = 'R', long)]
    rate: Option<f64>,
    /// Percent of `PUT`s.
    #[arg(long, default_value_t = 0)]
    put: u8,
    /// Number of different keys.
    #[arg(long, default_value_t = 200_000)]
    keys: u64,
    /// Each key once, scattered, instead of at random: for filling a store.
    #[arg(long)]
    scattered: bool,
    /// Stop after this many requests.
    #[arg(long)]
    limit: Option<u64>,
    /// Bytes of a key.
    #[arg(long, default_value_t = 16)]
    key_len: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 64)]
    value_len: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let order = if args.scattered { KeyOrder::Scattered } else { KeyOrder::Uniform };
    let plan = Plan {
        threads: args.threads,
        connections: args.connections,
        pace: args.rate.map_or(Pace::Closed, Pace::Open),
        duration: Duration::try_from_secs_f64(args.duration).unwrap_or(Duration::ZERO),
        limit: args.limit.unwrap_or(u64::MAX),
        put_percent: args.put,
        keys: Keys { order, count: args.keys, len: args.key_len },
        value_len: args.value_len,
        ..Plan::new(Target::new(args.target, "/v0/entity?id={key}"))
    };
    match load::run(&plan) {
        Ok(outcome) => {
            print!("{outcome}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
