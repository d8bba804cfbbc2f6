//! Command-line arguments of `profile`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use profile::{Event, Format};

use crate::cli::client::args::node_url;
use crate::transport::Certificates;

/// Arguments of `kvorum profile`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ProfileArgs {
    /// A subcommand on existing recordings; without one, the command makes a recording.
    #[command(subcommand)]
    pub(super) action: Option<ProfileAction>,

    #[command(flatten)]
    pub(super) record: RecordArgs,
}

/// An action on existing recordings.
#[derive(Debug, Subcommand)]
pub(super) enum ProfileAction {
    /// Draw the difference between two recordings, as shares of each
    Diff(DiffArgs),
    /// Print the share of each part of a node, one column for each recording
    Shares(SharesArgs),
}

/// The nodes and the events to record.
#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// URLs of the nodes, all recorded at the same time, as http://HOST:PORT
    #[arg(value_name = "URL", value_parser = node_url)]
    #[arg(default_value = "http://127.0.0.1:8080")]
    pub(super) urls: Vec<String>,

    /// Events: cpu (time on a CPU), alloc (bytes allocated), live (bytes still allocated at the
    /// end), lock (time waited for locks, queues and files), wall (time of all threads)
    #[arg(short, long, value_name = "LIST", default_value = "cpu,alloc,lock,wall")]
    #[arg(value_parser = profile::event::list)]
    pub(super) events: std::vec::Vec<Event>,

    /// Length of the recording in seconds, 1..300
    #[arg(short, long, value_name = "SECONDS", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=300))]
    pub(super) duration: u64,

    /// Output format: html (an interactive page), svg (a picture), folded (collapsed stacks), pprof
    /// (for `go tool pprof`)
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ProfileOutput::Html)]
    pub(super) output: ProfileOutput,

    /// Directory for the files HOST-PORT-EVENT.EXT, one for each node and event
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) out: PathBuf,

    /// In lock and wall, also show threads that had no work
    #[arg(long)]
    pub(super) idle: bool,

    #[command(flatten)]
    pub(super) certificates: Certificates,

    /// File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the
    /// token instead
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}

/// Arguments of `kvorum profile diff`.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The earlier recording: collapsed stacks (folded) or pprof
    pub(super) first: PathBuf,

    /// The later recording
    pub(super) second: PathBuf,

    /// File for the graph: a picture if it ends in .svg, otherwise an interactive page
    #[arg(short, long, value_name = "FILE", default_value = "diff.html")]
    pub(super) output: PathBuf,
}

/// Arguments of `kvorum profile shares`.
#[derive(Debug, Args)]
pub(super) struct SharesArgs {
    /// Collapsed stacks (folded) or pprof
    #[arg(required = true)]
    pub(super) files: Vec<PathBuf>,
}

/// File formats of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ProfileOutput {
    Html,
    Svg,
    Folded,
    Pprof,
}

impl ProfileOutput {
    pub(super) fn format(self) -> Format {
        match self {
            Self::Html => Format::Html,
            Self::Svg => Format::Svg,
            Self::Folded => Format::Folded,
            Self::Pprof => Format::Pprof,
        }
    }

    /// Returns the extension of the format's files.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Svg => "svg",
            Self::Folded => "folded",
            Self::Pprof => "pb.gz",
        }
    }
}
