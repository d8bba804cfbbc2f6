//! Flags that all series share: what is sent, where, to which server.

use std::path::PathBuf;

use clap::Args;

use super::{Error, Keeping, Workload};
use crate::Known;
use crate::cli::RequestArgs;
use crate::keys::{KeyOrder, Keys};
use crate::plan::{Plan, Target};
use crate::server::Command;
use crate::url::Url;

/// What is sent, and to which server.
#[derive(Debug, Clone, Args)]
pub(crate) struct SeriesArgs {
    /// What is sent.
    #[command(flatten)]
    pub(crate) request: RequestArgs,

    /// Starts the server: a command line, split as a shell does, without one. {data} in it stands
    /// for a data directory that is fresh at each start, and removed after it
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,

    /// Where fresh data directories are made [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) fresh: Option<PathBuf>,

    /// Where the series is kept: an empty directory, or one to be made [default: named after the
    /// time, in the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Print series.json in the end instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

impl SeriesArgs {
    pub(crate) fn command(&self) -> Result<Option<Command>, Error> {
        Ok(self.server.as_deref().map(Command::parse).transpose()?)
    }

    pub(crate) fn keeping(&self, command: Option<Command>, restart: bool) -> Keeping {
        Keeping { command, restart, fresh_in: self.fresh.clone() }
    }

    /// What is sent: the requests as they are given, or `also` in place of their mix.
    pub(crate) fn workload(&self, also: Option<&str>, known: &Known) -> Result<Workload, Error> {
        let asked = |error: crate::url::Error| Error::Asked(error.to_string());
        let args = &self.request;
        let mix = also.or(args.mix.as_deref()).unwrap_or("get=100");
        let url = Url::parse(&args.urls[0]).map_err(asked)?;
        let addresses = url.resolve().map_err(asked)?;
        let path = if url.has_path { url.path.as_str() } else { known.key_path };
        let keys = Keys {
            order: KeyOrder::Uniform,
            count: args.key_count.map_or(200_000, |count| count.0),
            len: args.key_len.map_or(16, |len| len.0 as usize),
        };
        let target = Target { name: url.authority(), addresses, path: path.to_owned() };
        let plan = Plan {
            threads: args.threads.map_or(1, |threads| threads.0 as usize),
            connections: args.connections.0 as usize,
            put_percent: puts(mix)?,
            keys,
            value_len: args.value_len.map_or(64, |len| len.0 as usize),
            seed: args.seed,
            ..Plan::new(target)
        };
        Ok(Workload { name: mix.to_owned(), plan })
    }
}

fn puts(mix: &str) -> Result<u8, Error> {
    let wrong = || Error::Asked(format!("--mix {mix}: say percentages, as in put=50,get=50"));
    let put = mix.split(',').find_map(|part| part.strip_prefix("put="));
    put.map_or(Ok(0), |percent| percent.parse().map_err(|_| wrong()))
}
