//! Flags shared by all series: requests, targets and server.

use std::path::PathBuf;

use clap::Args;

use super::prepare::without_keys;
use super::{Error, Preparation, Prepare, StartConfig, Workload};
use crate::ServerProfile;
use crate::cli::{ProfileEvent, RequestArgs};
use crate::server::ServerCommand;

/// What is sent, and to which server.
#[derive(Debug, Clone, Args)]
pub(crate) struct SeriesArgs {
    /// The requests and their targets.
    #[command(flatten)]
    pub(crate) request: RequestArgs,

    /// Starts the server: a command line, split as a shell does, without one. {data} in it stands
    /// for a data directory that is fresh at each start, and removed after it
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,

    /// Where fresh data directories are made [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) fresh: Option<PathBuf>,

    /// Has each server record itself, where it can: cpu, alloc, lock, wall. The folded stacks are
    /// kept with the run
    #[arg(long, value_name = "EVENT,...", value_delimiter = ',')]
    pub(crate) profile: Vec<ProfileEvent>,

    /// Where the series is kept: an empty directory, or one to be made [default: named after the
    /// time, in the current one]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Print series.json in the end instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

impl SeriesArgs {
    pub(crate) fn command(&self) -> Result<Option<ServerCommand>, Error> {
        Ok(self.server.as_deref().map(ServerCommand::parse).transpose()?)
    }

    pub(crate) fn start_config(
        &self,
        command: Option<ServerCommand>,
        restart: bool,
    ) -> StartConfig {
        StartConfig { command, restart, fresh_in: self.fresh.clone() }
    }

    /// Returns the workload: the requests of the flags, or those of `instead`, which is a mix or a
    /// script's file.
    pub(crate) fn workload(
        &self,
        instead: Option<&str>,
        known: &ServerProfile,
    ) -> Result<Workload, Error> {
        let args = self.request.clone();
        let args = match instead {
            None => args,
            // A mix contains equals signs, as in `put=50,get=50`.
            Some(mix) if mix.contains('=') => {
                RequestArgs { mix: Some(mix.to_owned()), script: None, ..args }
            }
            Some(file) => RequestArgs { script: Some(file.into()), ..without_keys(args) },
        };
        Workload::new(&args, known)
    }

    pub(crate) fn preparation(
        &self,
        prepare: Option<&Prepare>,
        known: &ServerProfile,
    ) -> Result<Option<Preparation>, Error> {
        prepare.map(|prepare| Preparation::new(prepare, &self.request, known)).transpose()
    }
}
