//! The server under trial: its starts and stops between trials, and its observation.
//!
//! ```text
//!  before a trial:   (stop) ─▶ (start with fresh data) ─▶ (prepare) ─▶ wait until idle
//!                    steps in brackets: only if needed
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Error, Preparation};
use crate::ServerProfile;
use crate::server::{
    self, Data, Endpoint, Idle, Metrics, ServerCommand, ServerProcess, ServerSnapshot, Usage,
    listens, wait_until_idle,
};

/// Time limit of a scrape. A server at its limit answers slowly.
const SCRAPE_LIMIT: Duration = Duration::from_secs(10);

/// Parameters of the starts and restarts of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartConfig {
    /// The command that starts the server. Without a command, the server must be running already.
    pub(crate) command: Option<ServerCommand>,
    /// True if the server is restarted for each trial.
    pub(crate) restart: bool,
    /// Parent directory of fresh data directories.
    pub(crate) fresh_in: Option<PathBuf>,
}

/// The server under trial.
#[derive(Debug)]
pub(crate) struct ServerUnderTest<'a> {
    known: &'a ServerProfile,
    endpoints: Vec<Endpoint>,
    config: StartConfig,
    stop: Arc<AtomicBool>,
    server: Option<ServerProcess>,
    prepared: bool,
}

/// State of the servers before a trial.
pub(crate) struct UsageBefore {
    snapshots: Vec<(u32, ServerSnapshot)>,
    metrics: Vec<Option<Metrics>>,
}

impl<'a> ServerUnderTest<'a> {
    pub(crate) fn new(
        known: &'a ServerProfile,
        endpoints: Vec<Endpoint>,
        config: StartConfig,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self { known, endpoints, config, stop, server: None, prepared: false }
    }

    pub(crate) fn server_profile(&self) -> &ServerProfile {
        self.known
    }

    /// Returns the flag that asks for an early end.
    pub(crate) fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Prepares the server for a trial. Returns a note about the server, if any. `prepare` writes
    /// the data that the trial needs: once, and again for each fresh data directory.
    pub(crate) fn ready(&mut self, prepare: Option<&Preparation>) -> Result<Option<String>, Error> {
        let gone = self.describe_server_end().is_some();
        if self.config.restart || gone {
            self.stop();
        }
        self.start(None)?;
        if let Some(preparation) = prepare.filter(|_| !self.prepared) {
            preparation.carry_out(&self.stop)?;
            self.prepared = true;
        }
        self.idle()
    }

    /// Starts the server, if there is a command and the server is not running.
    pub(crate) fn start(&mut self, data: Option<Data>) -> Result<(), Error> {
        let Some(command) = self.config.command.as_ref().filter(|_| self.server.is_none()) else {
            return Ok(());
        };
        if data.is_none() && command.has_data() {
            self.prepared = false;
        }
        let fresh_in = self.config.fresh_in.as_deref();
        let addresses: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.address).collect();
        let server = ServerProcess::start(command, data, fresh_in, &addresses, &self.stop)?;
        self.server = Some(server);
        Ok(())
    }

    /// Stops the server and returns its data, if this process started the server.
    pub(crate) fn stop(&mut self) -> Option<Data> {
        self.server.take().and_then(ServerProcess::stop)
    }

    /// Waits until the server has no background work. Returns a note if the wait took too long.
    pub(crate) fn idle(&self) -> Result<Option<String>, Error> {
        let pids = self.pids();
        match wait_until_idle(&self.endpoints, &pids, self.known, &self.stop)? {
            Idle::Busy { with } => Ok(Some(format!("the server was still busy: {with}"))),
            Idle::Yes { .. } | Idle::Unknown => Ok(None),
        }
    }

    /// Returns a description of the server's end, with the last lines of its output. Returns `None`
    /// if the server runs, or was not started here.
    pub(crate) fn describe_server_end(&mut self) -> Option<String> {
        let server = self.server.as_mut()?;
        let how = server.describe_exit()?;
        Some(format!("{how}; it said: {}", server.last_lines()))
    }

    /// Returns true if the data are on a file system in memory, where no access waits for a disk.
    pub(crate) fn in_memory(&self) -> bool {
        let data = self.server.as_ref().and_then(ServerProcess::data);
        data.is_some_and(Data::in_memory)
    }

    /// Returns the server processes that are on this machine.
    fn pids(&self) -> Vec<u32> {
        match &self.server {
            Some(server) => vec![server.pid()],
            None => {
                let listen = self.endpoints.iter().filter_map(|endpoint| listens(endpoint.address));
                let mut pids: Vec<u32> = listen.collect();
                pids.sort_unstable();
                pids.dedup();
                pids
            }
        }
    }

    pub(crate) fn snapshot(&self) -> UsageBefore {
        let snapshots = self
            .pids()
            .into_iter()
            .filter_map(|pid| Some((pid, ServerSnapshot::at(pid)?)))
            .collect();
        UsageBefore { snapshots, metrics: self.scrape() }
    }

    /// Returns the servers' usage since `before`, and their metrics: the growth of counters, and
    /// the current values of gauges.
    pub(crate) fn usage_since(&self, before: &UsageBefore) -> (Vec<Usage>, Vec<Metrics>) {
        let used = before
            .snapshots
            .iter()
            .filter_map(|(pid, then)| Some(ServerSnapshot::at(*pid)?.since(then)));
        let used = used.collect();
        let pairs = self.scrape().into_iter().zip(&before.metrics);
        let pairs = pairs.filter_map(|(now, then)| Some(now?.since(then.as_ref()?)));
        (used, pairs.collect())
    }

    /// Scrapes each server. Returns `None` for a server without metrics.
    fn scrape(&self) -> Vec<Option<Metrics>> {
        let path = self.known.metrics_path;
        let scrape = |endpoint: &Endpoint| {
            server::Metrics::scrape(endpoint, path, SCRAPE_LIMIT).ok().filter(|_| !path.is_empty())
        };
        self.endpoints.iter().map(scrape).collect()
    }
}
