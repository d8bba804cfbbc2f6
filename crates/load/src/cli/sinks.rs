//! Outputs written second by second during a run: the run directory, `--hdr-log`, `--csv`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::args::LoadArgs;
use crate::control::Interval;
use crate::hdrlog::HdrLog;
use crate::request::Method;
use crate::rundir::{self, RunDir};
use crate::timeline::Timeline;

/// An output that can't be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SinkError {
    #[error("can't write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("--out: {0}")]
    Out(#[source] rundir::Error),
}

/// All outputs of a run.
pub(super) struct Sinks {
    pub(super) dir: Option<RunDir>,
    hdr: Option<(PathBuf, HdrLog)>,
    csv: Option<(PathBuf, Timeline)>,
    /// The error of the first failed write.
    failed_write: Option<SinkError>,
}

impl Sinks {
    /// Opens all requested outputs, or returns the first error.
    pub(super) fn open(
        args: &LoadArgs,
        started: SystemTime,
        columns: &[String],
    ) -> Result<Self, SinkError> {
        let mut sinks = Self { dir: None, hdr: None, csv: None, failed_write: None };
        if let Some(path) = &args.hdr_log {
            let log = HdrLog::create(path, "Latency from the intended start", started);
            sinks.hdr = Some((path.clone(), log.map_err(sink_error(path))?));
        }
        if let Some(path) = &args.csv {
            let timeline = Timeline::create(path, columns).map_err(sink_error(path))?;
            sinks.csv = Some((path.clone(), timeline));
        }
        // The directory is created last. Otherwise it would remain if another output failed to
        // open.
        if let Some(path) = &args.out {
            let dir = RunDir::create(path, started, columns);
            sinks.dir = Some(dir.map_err(SinkError::Out)?);
        }
        Ok(sinks)
    }

    /// Adds one second of the run and the servers' metrics to all outputs. An output with a failed
    /// write is closed.
    pub(super) fn add_second(&mut self, interval: &Interval, reported: &[Option<f64>]) {
        if let Some(dir) = &mut self.dir {
            dir.add_second(interval, reported);
        }
        if let Some((path, log)) = &mut self.hdr {
            let (start, length) = (interval.start_s as f64, interval.length_s);
            let added = Method::ALL.iter().try_for_each(|method| {
                let Some(latencies) = interval.tally.latencies(*method) else { return Ok(()) };
                log.add(method.name(), start, length, &latencies.intended)
            });
            if let Err(cause) = added.and_then(|()| log.flush()) {
                self.failed_write.get_or_insert(sink_error(path)(cause));
                self.hdr = None;
            }
        }
        if let Some((path, timeline)) = &mut self.csv
            && let Err(cause) = timeline.add(interval, reported)
        {
            self.failed_write.get_or_insert(sink_error(path)(cause));
            self.csv = None;
        }
    }

    /// Returns the message of the first failed write, or `None`.
    pub(super) fn first_error(&mut self) -> Option<String> {
        self.failed_write.take().map(|error| error.to_string())
    }
}

fn sink_error(path: &Path) -> impl Fn(io::Error) -> SinkError {
    move |source| SinkError::Write { path: path.to_owned(), source }
}
