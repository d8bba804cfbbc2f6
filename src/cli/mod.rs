//! The command line: one command a module, all of them declared here.

pub(crate) mod bench;
pub(crate) mod client;
pub(crate) mod dev;
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
    /// Record flame graphs of running nodes, and compare them
    Profile(client::ProfileArgs),
    /// Measure a server: load, search, coldhot, compare, import, report
    ///
    /// Runs kvorum-bench, which lies beside this program or in PATH: `kvorum bench help` says more.
    #[command(disable_help_flag = true)]
    Bench(bench::BenchArgs),
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
