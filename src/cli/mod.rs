//! The command line: declares all commands. A module for each command implements it.

pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod dev;
#[cfg(test)]
#[path = "../../packaging/pages.rs"]
mod pages;
mod recover;
pub(crate) mod repair_clock;
mod shell;
pub(crate) mod variables;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use lsm::STORE_FORMATS;
use protocol::handshake::VERSIONS;
use protocol::{Member, TopologyError};

use crate::settings::list::{ClockSkew, ServeArgs};

/// A distributed key-value store over plain HTTP in which each request chooses its quorum.
#[derive(Debug, Parser)]
#[command(version = env!("KVORUM_VERSION"), long_version = long_version())]
#[command(about, max_term_width = 100)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Returns the text of `--version`. The store formats decide from which releases a node can be
/// upgraded; the peer protocols decide beside which releases it can run.
fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (oldest, newest) = VERSIONS;
        format!(
            "{}\nstore format {}, opens {STORE_FORMATS}\npeer protocol {newest}, speaks {oldest} \
             to {newest}",
            env!("KVORUM_VERSION"),
            STORE_FORMATS.last
        )
    });
    &TEXT
}

impl Cli {
    /// Parses a command line whose first word is the program's name.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::read_without(&[], words)
    }

    /// Parses a command line without the values of the variables `ignored`.
    fn read_without(
        ignored: &'static [&'static str],
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let command = variables::ignore_variables(Self::command(), ignored);
        let mut command = variables::ignore_empty_variables(command);
        let words: Vec<OsString> = words.into_iter().collect();
        let matches = command.try_get_matches_from_mut(&words);
        let matches = matches.map_err(|error| {
            variables::name_variable(variables::shorten_usage(error, &words), &words)
        })?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// A command of the command line.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Serve(Box<ServeArgs>),
    /// Run a local test cluster on this machine
    ///
    /// While it runs, `kvorum dev add` and `kvorum dev remove` in another terminal change its
    /// members. A later start with the same data directory runs the same nodes again.
    Dev(DevArgs),
    /// Remove records with timestamps far ahead of the clock from a stopped node's data
    ///
    /// A node whose clock ran ahead writes such records; the other nodes refuse them. Without
    /// --yes, only counts them.
    RepairClock(RepairClockArgs),
    // The hidden aliases are the names that users of other stores and of shells try first.
    /// Write a value. Exit code 1 if a condition (--if-match, --if-none-match) is not met
    #[command(alias = "set")]
    Put(client::PutArgs),
    /// Read a value and print it unchanged. Exit code 1 if a key is not found
    ///
    /// On a terminal a line break follows the value. Of several keys, prints one line each, in the
    /// order of the command line, as `kvorum scan` does: KEY, tab, VALUE, escaped; with --json one
    /// object each. A key that is not found has no line on stdout and one on stderr.
    Get(client::KeyArgs),
    /// Delete keys; succeeds also if they do not exist, unless --if-match is given
    ///
    /// Several keys are deleted one after the other, in the order of the command line. The command
    /// stops at the first failure, and says how many keys were deleted.
    #[command(alias = "rm")]
    Del(client::DelArgs),
    /// Add to a decimal number and print the sum; a key without a value counts as 0
    #[command(alias = "incr")]
    Add(client::AddArgs),
    /// Print keys and values in order
    ///
    /// One item per line: KEY, tab, VALUE. Backslashes, control characters and bytes that are not
    /// UTF-8 are escaped as \n, \t, \\, \xNN. `kvorum scan --prefix shop/` prints the keys that
    /// begin with shop/, `kvorum scan shop/` all keys from shop/ on. Exit code 2 if the range was
    /// interrupted; then the last line on stderr has the command that prints the rest.
    #[command(alias = "ls")]
    Scan(client::ScanArgs),
    /// Show the state of every node, as the node reports it. Exit code 1 if a node is down or does
    /// not serve
    Status(client::StatusArgs),
    /// Compare the replicas of all keys and make them equal
    ///
    /// One node compares the records of all nodes, copies records to the nodes that lack them, and
    /// has damaged blocks rewritten from other replicas. If all nodes took part and hold the same
    /// records, deleted keys may be purged. The round covers everything written before the command;
    /// it first waits for writes of the last seconds. Nodes also run such rounds by themselves,
    /// slowly: `kvorum serve --repair-interval`. Exit code 1 with --wait if not all replicas are
    /// known to hold the same.
    Repair(client::RepairArgs),
    /// Show the cluster's members and its council, and plan changes
    Cluster(client::ClusterArgs),
    /// Create, list and revoke tokens, which authorize requests
    ///
    /// Requests from another machine need a token; with `kvorum serve --require-auth` those from
    /// this machine too. The council decides about tokens; every node knows the tokens, also while
    /// the council is down.
    Token(client::TokenArgs),
    /// Set, list and remove quotas: how much clients may store under a prefix
    Quota(client::QuotaArgs),
    /// Make a CA, and certificates for nodes and clients
    ///
    /// For users without a CA of their own. Nodes with --tls-cert speak TLS.
    #[command(subcommand)]
    Cert(cert::CertCommand),
    /// Compact the whole store of one node now
    ///
    /// Nodes compact by themselves when a compaction is due. This command frees as much disk space
    /// as possible on the node at --url: it removes older versions, and the tombstones and expired
    /// values that may be purged; in a cluster these are the ones that a repair round has proven to
    /// be on all nodes (`kvorum repair`). The node continues to serve requests. Exit code 1 with
    /// --wait if the compaction failed.
    Compact(client::CompactArgs),
    /// Record flame graphs of running nodes, and compare them
    Profile(client::ProfileArgs),
    /// Measure an HTTP server: load, search, coldhot, compare, import, report
    ///
    /// Runs kvorum-bench, from this program's directory or from PATH. See `kvorum bench help`.
    #[command(disable_help_flag = true)]
    Bench(bench::BenchArgs),
}

/// Default data directory of `dev`.
const DEV_DATA: &str = "./kvorum-data/dev";

/// A change of a running `kvorum dev`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum DevCommand {
    /// Add a node to the cluster of the `kvorum dev` that runs
    ///
    /// Starts the next node, makes and applies a plan that adds it, and waits until its share of
    /// the keys has moved to it.
    Add(DevAddArgs),
    /// Remove a node from the cluster of the `kvorum dev` that runs
    ///
    /// Makes and applies a plan without the node, waits until all keys that the node held have
    /// moved, and stops its process. Its directory is kept.
    Remove(DevRemoveArgs),
}

/// Arguments of `kvorum dev add`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DevAddArgs {
    /// The node's zone: replicas of a key are placed in different ones first
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    pub(crate) zone: Option<String>,

    /// The node's weight, 1..1000: a node of weight 2 holds twice as many keys [default: 1]
    #[arg(long, value_name = "W")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) weight: Option<u32>,

    #[command(flatten)]
    pub(crate) running: DevRunning,
}

fn parse_zone(zone: &str) -> Result<String, TopologyError> {
    Member { name: "n".to_owned(), zone: zone.to_owned(), weight: 1 }.check()?;
    Ok(zone.to_owned())
}

/// Arguments of `kvorum dev remove`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DevRemoveArgs {
    /// The node's name, as in node-3
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    /// New number of replicas of a key, 1..255, in the same change; at most the number of remaining
    /// nodes
    #[arg(long, value_name = "N")]
    pub(crate) replicas: Option<u8>,

    #[command(flatten)]
    pub(crate) running: DevRunning,
}

/// The running `kvorum dev` to change, and the token for the change.
#[derive(Debug, Clone, Args)]
pub(crate) struct DevRunning {
    /// Data directory of the `kvorum dev` that runs
    #[arg(long, value_name = "DIR", default_value = DEV_DATA)]
    pub(crate) data: PathBuf,

    /// File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the
    /// token instead
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// Arguments of `kvorum dev`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DevArgs {
    /// A change of a running `kvorum dev`; without one, `dev` starts the cluster.
    #[command(subcommand)]
    pub(crate) command: Option<DevCommand>,

    /// Number of nodes to start with, 1..16; no effect if the data directory has nodes [default: 3]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) nodes: Option<u16>,

    /// Port of the first node on 127.0.0.1; the other nodes use the following ports. No effect if
    /// nodes were added or removed before [default: 8080]
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub(crate) port: Option<u16>,

    /// Serve over TLS, with a CA in the data directory and a certificate for this machine, both
    /// made at the first start
    #[arg(long)]
    pub(crate) tls: bool,

    /// Data directory, with a subdirectory per node; kept after exit
    #[arg(long, value_name = "DIR", default_value = DEV_DATA)]
    pub(crate) data: PathBuf,

    /// Flags of `kvorum serve` for every node, after "--". The default for --memory is 256MiB here
    #[arg(last = true, value_name = "SERVE FLAGS")]
    pub(crate) serve: Vec<OsString>,
}

/// Arguments of `kvorum repair-clock`.
#[derive(Debug, Args)]
pub(crate) struct RepairClockArgs {
    /// Data directory of the node, which must be stopped
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,

    /// Maximum clock skew, as configured for the cluster, 1ms..60s
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub(crate) max_clock_skew: ClockSkew,

    /// Remove the records that were found
    #[arg(long)]
    pub(crate) yes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn man_pages_and_completions_match_the_command_line() {
        pages::hold(Cli::command());
    }
}
