//! The command line of `kvorum-bench`.

use clap::{Parser, Subcommand};
use load::cli::LoadArgs;

/// Measure kvorum, or any other HTTP server.
#[derive(Debug, Parser)]
#[command(version = env!("KVORUM_VERSION"), about, max_term_width = 100)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A command of the command line.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send load to any HTTP server, like wrk2, and report latencies
    ///
    /// Compatible with wrk2's flags, scripts and output. Requests are sent on a fixed schedule, and
    /// latency is measured from the scheduled time. Ctrl-C ends a run early and prints the results
    /// so far.
    ///
    /// Exit codes: 0 success; 1 failure; 2 invalid command line; 3 a warning or a failed request,
    /// with --strict; 130 Ctrl-C; N if the script's done() calls os.exit(N).
    #[command(version, disable_version_flag = true, args_override_self = true)]
    Load(LoadArgs),
    /// Find the highest rate that an HTTP server sustains
    ///
    /// Finds and confirms the highest rate that meets the objective and the lowest rate that misses
    /// it; prints each trial and the limiting resource.
    Search(load::search::SearchArgs),
    /// Compare a freshly started server with a warm one, for PUT and GET
    ///
    /// Four runs, put-cold, put-hot, get-cold and get-hot, each on its own store with the same
    /// history: they differ only by one restart.
    Coldhot(load::coldhot::ColdHotArgs),
    /// Compare two runs, or two sets of repeats, and tell differences from noise
    ///
    /// The last line is "verdict: no difference", "verdict: B differs from A: ..." or "verdict:
    /// cannot be told".
    Compare(load::compare::CompareArgs),
    /// Convert outputs of wrk2 and wrk, or pages that quote them, into run directories
    ///
    /// Reports what an output lacks, and warns of what its figures indicate: errors, a backlog, the
    /// limit of one connection.
    Import(load::import::ImportArgs),
    /// Write a self-contained HTML report about runs and series
    Report(load::report::ReportArgs),
}
