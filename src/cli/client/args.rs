//! What `put`, `get`, `del`, `scan` and `status` take on the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::settings::members;
use crate::settings::units::Time;

/// What `--timeout` allows: a wait of more than an hour is no wait but a mistake.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Where to ask, and how to answer.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// Any node of the cluster
    #[arg(long, env = "KVORUM_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    #[arg(value_parser = node_url)]
    pub(crate) url: String,

    /// Longest wait to connect, and for each part of the answer, as 500ms or 30s: more than the
    /// node's --deadline [default: 10s; of status: 15s]
    #[arg(long, value_name = "TIME", value_parser = waiting_time)]
    pub(crate) timeout: Option<Time>,

    /// Print JSON. Bytes that are no UTF-8 are in `key_base64` and `value_base64` instead of `key`
    /// and `value`; problems go to stderr as the node told them
    #[arg(long)]
    pub(crate) json: bool,
}

/// How many replicas must do their part.
#[derive(Debug, Args)]
pub(crate) struct Votes {
    /// Replicas that must answer, 1..from [default: more than half of from]
    #[arg(long, value_name = "N")]
    pub(crate) ack: Option<u32>,

    /// Replicas that hold the key, 1..nodes [default: the cluster's --replicas]
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u32>,
}

/// Everything after `put`.
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The key: these very bytes
    pub(crate) key: OsString,

    /// The value: these very bytes; "-" reads them from stdin
    #[arg(required_unless_present = "file")]
    pub(crate) value: Option<OsString>,

    /// File with the value
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,

    /// Keys are written as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    /// How many.
    #[command(flatten)]
    pub(crate) votes: Votes,

    /// Where.
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// Everything after `get` and `del`.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key: these very bytes
    pub(crate) key: OsString,

    /// Keys are written as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    /// How many.
    #[command(flatten)]
    pub(crate) votes: Votes,

    /// Where.
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// Everything after `scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// The first key, or what would come after it [default: the very first]
    pub(crate) start: Option<OsString>,

    /// The first key that is out [default: none, to the last]
    #[arg(long, value_name = "KEY")]
    pub(crate) end: Option<OsString>,

    /// Items after which to stop
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Only what this node holds itself
    #[arg(long)]
    pub(crate) local: bool,

    /// Keys are written as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    /// How many.
    #[command(flatten)]
    pub(crate) votes: Votes,

    /// Where.
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// Everything after `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Ask again every second, until ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,

    /// Where.
    #[command(flatten)]
    pub(crate) ask: Ask,
}

fn waiting_time(text: &str) -> Result<Time, String> {
    let time: Time = text.parse()?;
    let allowed = Duration::from_millis(1)..=LONGEST_WAIT;
    allowed
        .contains(&time.0)
        .then_some(time)
        .ok_or_else(|| format!("{text} is out of range: 1ms to {}", Time(LONGEST_WAIT)))
}

pub(super) fn node_url(text: &str) -> Result<String, String> {
    members::node_url(text).map(str::to_owned)
}
