//! The command line: one command a module, all of them declared here.

pub(crate) mod client;
pub(crate) mod dev;
pub(crate) mod measure;
pub(crate) mod repair;
pub(crate) mod variables;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::settings::args::ServeArgs;
use crate::settings::units::Time;

/// A distributed key-value store over plain HTTP where each request picks its quorum.
#[derive(Debug, Parser)]
#[command(version = env!("KVORUM_VERSION"), about, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Takes the words of a command line, the program's name first.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = variables::without_empty(Self::command());
        let matches = command.try_get_matches_from_mut(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Serve(ServeArgs),
    /// Run a whole cluster on this machine, to try and to break
    Dev(DevArgs),
    /// Take out of a stopped node's data what its clock stamped while it was far ahead
    ///
    /// The other nodes refuse such records until their time has come. Without --yes it only says
    /// how many there are.
    RepairClock(RepairClockArgs),
    /// Write a value
    Put(client::PutArgs),
    /// Read a value, onto stdout as it is. Exit code 1: there is none
    Get(client::KeyArgs),
    /// Delete a value, also if there is none
    Del(client::KeyArgs),
    /// Print keys and values in order
    ///
    /// One item a line: KEY, tab, VALUE. Backslashes, control characters and what is no UTF-8 are
    /// written \n, \t, \\, \xNN. Exit code 2 if the range could not be read to its end.
    Scan(client::ScanArgs),
    /// Show the cluster: every node, as it tells itself. Exit code 1: not every node is up
    Status(client::StatusArgs),
    /// Send load to any HTTP server, as wrk2 does, and tell the latencies
    ///
    /// wrk2's flags, scripts and output. Requests go out by plan, and latency counts from the
    /// moment that the plan says. Ctrl-C ends a run early, with the figures up to then.
    ///
    /// Exit code: 0; 1 it failed; 2 the command line makes no sense; 3 a warning, with --strict;
    /// 130 ctrl-C.
    #[command(version, disable_version_flag = true)]
    Load(load::cli::LoadArgs),
    /// Make run directories of outputs of wrk2 and wrk, and of pages that quote them
    ///
    /// What an output lacks is said, and what its figures give away is warned of: refusals, a
    /// backlog, the limit of one connection.
    Import(load::import::ImportArgs),
    /// Find the rate at which a server breaks, any HTTP server
    ///
    /// Sends load at rates chosen so that the highest rate at which the objective is met, and the
    /// lowest at which it is missed, are found and confirmed; prints each trial and what limits.
    Search(load::search::Args),
    /// Compare a server just started with one that has run, for PUT and GET
    ///
    /// Four runs, put-cold, put-hot, get-cold and get-hot, each on a store of its own that has been
    /// through the same before: what differs is one restart.
    Coldhot(load::coldhot::Args),
    /// Say what differs between two runs, or two sets of repeats, and whether it is more than noise
    ///
    /// The last line is "verdict: no difference", "verdict: B differs from A: ..." or "verdict:
    /// cannot be told".
    Compare(load::compare::CompareArgs),
    /// Write one offline HTML page about runs and series
    Report(load::report::ReportArgs),
    /// Record flame graphs of running nodes, and compare them
    Profile(client::ProfileArgs),
}

/// Everything after `dev`.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Nodes, 1..16
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) nodes: u16,

    /// Port of the first node on 127.0.0.1; the others take the next ones
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub(crate) port: u16,

    /// Directory of the data: each node has its own in it, and keeps it
    #[arg(long, value_name = "DIR", default_value = "./kvorum-data/dev")]
    pub(crate) data: PathBuf,

    /// Flags of `kvorum serve` for every node, after "--". Unless said otherwise a node gets
    /// --memory 256MiB
    #[arg(last = true, value_name = "SERVE FLAGS")]
    pub(crate) serve: Vec<OsString>,
}

/// Everything after `repair-clock`.
#[derive(Debug, Args)]
pub(crate) struct RepairClockArgs {
    /// Directory of the node's data; the node must be stopped
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,

    /// How far ahead of this machine's clock a stamp may be, as the cluster has it: 1ms..60s
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub(crate) max_clock_skew: Time,

    /// Remove them
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
}
