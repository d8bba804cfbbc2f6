//! The command line of `load`: wrk2's flags under wrk2's names, plus kvorum's own.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::units::{Count, Rate, Time};

/// Flags that say what is sent and from how many connections; `search` takes them too.
#[derive(Debug, Clone, Args)]
pub struct RequestArgs {
    /// Where requests go, http://HOST:PORT/PATH or https://…; several share connections and rate,
    /// see --target-mode, and each server gets its own URL's path and Host (with -s too: wrk.path,
    /// wrk.host and wrk.port are the ones of the request's server, unless the script has set them).
    /// "{key}" in the path stands for the key (--keys). Words after it that are no URLs, and all
    /// after "--", are what the script's init(args) gets
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,

    /// What the script's init(args) gets
    #[arg(value_name = "SCRIPT ARGS", last = true)]
    pub args: Vec<String>,

    /// Connections to keep open, over all threads, 1..20000, with k, M or G
    #[arg(short, long, value_name = "N", default_value = "10")]
    pub connections: Count,

    /// Threads, 1..256, at most as many as connections [default: 2, or 1 for one connection]
    #[arg(short, long, value_name = "N")]
    pub threads: Option<Count>,

    /// Lua script, as wrk and wrk2 take it: setup, init, request, response, delay, done
    #[arg(short, long, value_name = "FILE")]
    pub script: Option<PathBuf>,

    /// Header for every request, "Name: value"; can be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,

    /// File with a token that every request carries, those for the servers' figures too:
    /// Authorization: Bearer TOKEN
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Later answers count as timeouts; they are still waited for, and their latency counts. s
    /// unless it says ms, m or h
    #[arg(short = 'T', long, value_name = "TIME", default_value = "2s")]
    pub timeout: Time,

    /// What several URLs share: "spread": connections, threads and rate are dealt over them;
    /// "each": every URL gets all of them
    #[arg(long, value_name = "MODE", default_value = "spread")]
    pub target_mode: TargetModeArg,

    /// Makes requests with keys and values here, without a script: methods and their percentages,
    /// as in put=50,get=45,delete=5; together 100 [default: get=100 if any of the following is
    /// given]
    #[arg(long, value_name = "METHOD=%,...", conflicts_with = "script")]
    pub mix: Option<String>,

    /// Which keys: "seq", one after the other; "scattered", each once in an order far from sorted;
    /// "uniform"; "zipf", few of them often (theta 0.99); "latest:N", puts in sequence, and others
    /// among the last N put [default: uniform]
    #[arg(long, value_name = "ORDER", conflicts_with = "script")]
    pub keys: Option<String>,

    /// How many different keys, 1 or more, with k, M or G [default: 200k]
    #[arg(long, value_name = "N", conflicts_with = "script")]
    pub key_count: Option<Count>,

    /// Bytes of each key, up to 1024: "k" and its number with zeros before it [default: 16]
    #[arg(long, value_name = "BYTES", conflicts_with = "script")]
    pub key_len: Option<Count>,

    /// Bytes of each value put, up to 16 MiB; what is in it follows from --seed and the key
    /// [default: 64]
    #[arg(long, value_name = "BYTES", conflicts_with = "script")]
    pub value_len: Option<Count>,

    /// Checks that each value read is the one that this command put, with the same --seed and
    /// --value-len, now or in an earlier run
    #[arg(long, conflicts_with = "script")]
    pub verify: bool,

    /// Seed of all that is random here: keys, values, mix, arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Certificates and key for `https://`.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Flags of `https://`.
#[derive(Debug, Clone, Args)]
pub struct TlsArgs {
    /// CAs of https:// servers, in PEM [default: the file that KVORUM_CA_FILE names, else the CAs
    /// that the system trusts]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// Certificate to show to https:// servers that ask for one, in PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,

    /// Private key of --client-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
}

/// Everything after `load`.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// The requests and their targets.
    #[command(flatten)]
    pub request: RequestArgs,

    /// Length of the run, in s, or with ms, s, m or h; up to 24h
    #[arg(short, long, value_name = "TIME", default_value = "10s")]
    pub duration: Time,

    /// Requests a second over all connections, with k, M or G, sent by plan whatever the server
    /// does
    #[arg(short = 'R', long, value_name = "RATE", conflicts_with = "closed")]
    pub rate: Option<Rate>,

    /// No rate: each connection sends when it has its answer, as wrk does
    #[arg(long)]
    pub closed: bool,

    /// Sends for this long before anything is counted
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub warmup: Time,

    /// How requests lie in time: "even", as wrk2; "poisson", as from many independent users
    #[arg(long, value_name = "HOW", default_value = "even")]
    pub arrival: ArrivalArg,

    /// Print latencies in detail, from the moment that the plan said
    #[arg(short = 'L', long)]
    pub latency: bool,

    /// Print also latencies from the moment that the request was written
    #[arg(short = 'U', long = "u_latency")]
    pub u_latency: bool,

    /// Count a script's pipelined requests as one latency, from when they were due until the last
    /// of them is answered. Changes nothing unless the script pipelines
    #[arg(short = 'B', long = "batch_latency")]
    pub batch_latency: bool,

    /// Interval log of the latencies, one histogram a second and method, for HdrHistogram's tools
    #[arg(long, value_name = "FILE")]
    pub hdr_log: Option<PathBuf>,

    /// Print run.json instead of the text
    #[arg(long)]
    pub json: bool,

    /// Rate, errors, latencies and backlog second by second
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write everything about the run into this directory: run.json, output.txt, the script, logs
    /// of all histograms, timeline.csv, profiles. New or empty; `report` and `compare` read it
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Exit code 3 if there is a warning, or any request failed
    #[arg(long)]
    pub strict: bool,

    /// Records flame graphs on each server during the run, where it can: cpu, alloc, lock, wall
    #[arg(long, value_name = "EVENT,...", value_delimiter = ',')]
    pub profile: Vec<ProfileEvent>,

    /// Print the version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

/// The values of `--arrival`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrivalArg {
    /// At even distances.
    Even,
    /// At random times, as a Poisson process.
    Poisson,
}

/// The values of `--target-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TargetModeArg {
    /// Every URL gets all.
    Each,
    /// The URLs share the load.
    Spread,
}

/// The values of `--profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProfileEvent {
    /// Time on a CPU.
    Cpu,
    /// Bytes that were allocated.
    Alloc,
    /// Time waited for locks and queues.
    Lock,
    /// Time, running or not.
    Wall,
}

impl ProfileEvent {
    /// Returns the event's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Lock => "lock",
            Self::Wall => "wall",
        }
    }
}
