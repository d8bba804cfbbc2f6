//! Flags that all series share: what is sent, where, to which server.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Error, Keeping, Workload};
use crate::Known;
use crate::keys::{KeyOrder, Keys};
use crate::plan::Plan;
use crate::server::Command;
use crate::url::Url;

/// What is sent, and to which server.
#[derive(Debug, Clone, Args)]
pub(crate) struct SeriesArgs {
    /// The server
    #[arg(default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,

    /// Connections, 1..20000
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub(crate) connections: usize,

    /// Different keys, 1 or more
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) keys: u64,

    /// Bytes of a key, 2..1024
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub(crate) key_len: usize,

    /// Bytes of a value, 0..16777216
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) value_len: usize,

    /// Seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

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

    /// A workload of this share of `PUT`s, the others being `GET`s.
    pub(crate) fn workload(
        &self,
        name: &str,
        put_percent: u8,
        known: &Known,
    ) -> Result<Workload, Error> {
        let url = Url::parse(&self.url).map_err(|error| Error::Asked(error.to_string()))?;
        let addresses = url.resolve().map_err(|error| Error::Asked(error.to_string()))?;
        let path = if url.has_path { url.path.as_str() } else { known.key_path };
        let plan = Plan {
            others: addresses[1..].to_vec(),
            path: path.replace("{key}", ""),
            connections: self.connections,
            put_percent,
            keys: Keys { order: KeyOrder::Uniform, count: self.keys, len: self.key_len },
            value_len: self.value_len,
            seed: self.seed,
            ..Plan::new(addresses[0])
        };
        Ok(Workload { name: name.to_owned(), plan })
    }
}

/// `10`, `10s`, `3m`, `500ms`: a time above 0 and up to a day.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    let fits = |time: &Duration| *time <= Duration::from_secs(24 * 3600);
    seconds.filter(fits).ok_or_else(|| "a time up to 24 h, as in 500ms, 10s or 3m".to_owned())
}
