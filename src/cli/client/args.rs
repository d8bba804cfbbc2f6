//! Command-line arguments of `put`, `get`, `del`, `add`, `scan`, `status`, `repair` and `compact`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::shell::word;
use crate::settings::members::{self, NodeError};
use crate::settings::units::{Time, Ttl, UnitError};
use crate::transport::Certificates;

/// Upper limit of `--timeout`: a longer wait than an hour is most likely a mistake.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The node to ask, the credentials, and the form of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// URL of any node of the cluster
    #[arg(long, env = "KVORUM_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    #[arg(value_parser = node_url)]
    pub(crate) url: String,

    /// File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the
    /// token instead
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) certificates: Certificates,

    /// Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed
    /// the node's --deadline [default: 10s; status: 15s]
    #[arg(long, value_name = "TIME", value_parser = waiting_time)]
    pub(crate) timeout: Option<Time>,

    /// Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and
    /// `value_base64`; the node's errors go to stderr as JSON
    #[arg(long, help_heading = None::<&'static str>)]
    pub(crate) json: bool,
}

impl ConnectionArgs {
    /// Returns the flags of the connection for a printed command, so that it asks the same node
    /// with the same credentials.
    pub(super) fn flags(&self) -> String {
        let mut flags = format!(" --url {}", self.url);
        let token_file = self.token_file.iter().map(|file| ("--token-file", file.as_path()));
        for (flag, file) in token_file.chain(self.certificates.flags()) {
            flags += &format!(" {flag} {}", word(file));
        }
        if let Some(timeout) = self.timeout {
            flags += &format!(" --timeout {timeout}");
        }
        flags
    }
}

/// The quorum of a request.
#[derive(Debug, Args)]
pub(crate) struct VoteArgs {
    /// Number of replicas that must answer, 1..from [default: a majority of from]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) ack: Option<u32>,

    /// Number of replicas of the key, 1..nodes [default: the cluster's --replicas]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) from: Option<u32>,
}

/// The condition of a write: versions, one of which the key's value must have.
#[derive(Debug, Args)]
pub(crate) struct IfMatch {
    /// Write only if the value has this version, as `get --json` prints it; "*": only if there is a
    /// value. Can be given several times: one of the versions must match
    #[arg(long, value_name = "VERSION")]
    pub(crate) if_match: Vec<String>,
}

/// The idempotency key of a write.
#[derive(Debug, Args)]
pub(crate) struct IdempotencyArgs {
    /// Word of 1 to 64 bytes, a new one for each write: a write that is sent again within a day
    /// with the same word is done once; another write of the same key with this word is refused
    #[arg(long, value_name = "WORD")]
    pub(crate) idempotency_key: Option<String>,
}

/// The time to live of a value.
#[derive(Debug, Args)]
pub(crate) struct TtlArgs {
    /// Time to live, in s, m, h or d, as in 90s or 30d, up to the node's --max-ttl; after it the
    /// value counts as deleted [default: put: the value never expires; add: the value's expiry
    /// stays]
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Ttl>,
}

/// Arguments of `kvorum repair`.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Compare everything and read every block, not only what was written since the last round that
    /// ended equal. Only a full round finds damage on disks. Takes as long as reading the whole
    /// store
    #[arg(long)]
    pub(crate) full: bool,

    /// Wait for the end of the round, and show its progress. Exit code 1 if not all replicas are
    /// known to hold the same
    #[arg(long)]
    pub(crate) wait: bool,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// Arguments of `kvorum compact`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// Wait for the end of the compaction, and show its progress. Exit code 1 if it failed
    #[arg(long)]
    pub(crate) wait: bool,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// The option to print a receipt.
#[derive(Debug, Args)]
pub(crate) struct WantReceipt {
    /// Print which replicas had acknowledged the write when it was answered
    #[arg(long)]
    pub(crate) receipt: bool,
}

/// Arguments of `kvorum put`.
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The key, taken as raw bytes
    pub(crate) key: OsString,

    /// The value, taken as raw bytes; "-" reads it from stdin
    #[arg(required_unless_present = "file")]
    pub(crate) value: Option<OsString>,

    /// File with the value
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,

    /// Keys are escaped as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    #[command(flatten)]
    pub(crate) condition: IfMatch,

    /// Write only if there is no value: "*"
    #[arg(long, value_name = "*", value_parser = ["*"], conflicts_with = "if_match")]
    pub(crate) if_none_match: Option<String>,

    #[command(flatten)]
    pub(crate) life: TtlArgs,

    #[command(flatten)]
    pub(crate) known: IdempotencyArgs,

    #[command(flatten)]
    pub(crate) receipt: WantReceipt,

    #[command(flatten)]
    pub(crate) votes: VoteArgs,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// Arguments of `kvorum del`.
#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) condition: IfMatch,

    #[command(flatten)]
    pub(crate) known: IdempotencyArgs,

    #[command(flatten)]
    pub(crate) receipt: WantReceipt,

    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// Arguments of `kvorum add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The key, taken as raw bytes
    pub(crate) key: OsString,

    /// Number to add, decimal, as in 1 or -20
    #[arg(allow_hyphen_values = true, default_value_t = 1, value_parser = addend)]
    pub(crate) number: i64,

    /// Keys are escaped as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    #[command(flatten)]
    pub(crate) votes: VoteArgs,

    #[command(flatten)]
    pub(crate) life: TtlArgs,

    #[command(flatten)]
    pub(crate) known: IdempotencyArgs,

    #[command(flatten)]
    pub(crate) receipt: WantReceipt,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// Arguments of `kvorum get`; `kvorum del` has them too.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The keys, taken as raw bytes
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,

    /// Keys are escaped as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    #[command(flatten)]
    pub(crate) votes: VoteArgs,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// Arguments of `kvorum scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// First key of the range, inclusive; it need not exist [default: the first key]. For the keys
    /// that begin with a text use --prefix
    pub(crate) start: Option<OsString>,

    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<OsString>,

    /// End of the range, exclusive [default: to the last key]
    #[arg(long, value_name = "KEY")]
    pub(crate) end: Option<OsString>,

    /// Maximum number of items, 1 or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,

    /// Only records stored on the node itself
    #[arg(long, conflicts_with_all = ["ack", "from"])]
    pub(crate) local: bool,

    /// Keys are escaped as `scan` prints them: \n, \t, \\, \xNN
    #[arg(long)]
    pub(crate) escaped: bool,

    #[command(flatten)]
    pub(crate) votes: VoteArgs,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// Arguments of `kvorum status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Refresh every second, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,

    /// Ask only whether this node itself serves, whatever the other nodes do: exit code 0 or 1, as
    /// for a container's health check
    #[arg(long, conflicts_with = "watch")]
    pub(crate) ready: bool,

    #[command(flatten)]
    pub(crate) ask: ConnectionArgs,
}

/// Reason why a text is not a valid value of a flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArgError {
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("{0} is out of range: 1ms to {most}", most = Time(LONGEST_WAIT))]
    Wait(String),
    #[error("{0:?} is not a valid rate: write a number, as in 1000/s")]
    Requests(String),
    #[error("the rate must not be 0")]
    NoBytes,
    #[error("{0:?} is not a decimal number of 64 bits, such as 12 or -3")]
    Addend(String),
    #[error("{0:?} is not a number of replicas, such as 2")]
    Count(String),
}

fn addend(text: &str) -> Result<i64, ArgError> {
    protocol::decimal(text.as_bytes()).ok_or_else(|| ArgError::Addend(text.to_owned()))
}

fn count(text: &str) -> Result<u32, ArgError> {
    text.parse().map_err(|_| ArgError::Count(text.to_owned()))
}

fn waiting_time(text: &str) -> Result<Time, ArgError> {
    let time: Time = text.parse()?;
    let allowed = Duration::from_millis(1)..=LONGEST_WAIT;
    allowed.contains(&time.0).then_some(time).ok_or_else(|| ArgError::Wait(text.to_owned()))
}

pub(super) fn node_url(text: &str) -> Result<String, NodeError> {
    members::node_url(text).map(str::to_owned)
}
