//! The directory of a series: `series.json`, and a directory for each run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Error;
use crate::ServerProfile;
use crate::machine::{machine, rfc3339};
use crate::record::{FORMAT, Finding, Series, Trial};

/// File name of the series' record.
const SERIES: &str = "series.json";

/// A series on disk. The record of the series is rewritten after each run, so a crash loses no
/// finished run.
#[derive(Debug)]
pub(crate) struct SeriesWriter {
    dir: PathBuf,
    /// True if the directory existed before the series.
    existed_before: bool,
    series: Series,
}

impl SeriesWriter {
    /// Creates the series in `dir`, or in a directory named after `kind` and the time. The
    /// directory must be empty or not exist.
    pub(crate) fn create(
        dir: Option<&Path>,
        kind: &str,
        known: &ServerProfile,
        server: &[String],
    ) -> Result<Self, Error> {
        let started = rfc3339(SystemTime::now());
        let named = || PathBuf::from(format!("{kind}-{}", started.replace([':', 'Z'], "")));
        let dir = dir.map_or_else(named, Path::to_owned);
        let existed_before = dir.exists();
        std::fs::create_dir_all(&dir).map_err(Error::write(&dir))?;
        let mut files = std::fs::read_dir(&dir).map_err(Error::write(&dir))?;
        if files.next().is_some() {
            let dir = dir.display();
            return Err(Error::Usage(format!(
                "--out {dir}: it is not empty, and nothing there is overwritten"
            )));
        }
        let series = Series {
            format: FORMAT,
            kind: kind.to_owned(),
            tool: known.tool.to_owned(),
            argv: std::env::args().collect(),
            started,
            machine: machine(),
            server: server.to_vec(),
            ..Series::default()
        };
        let kept = Self { dir, existed_before, series };
        kept.save()?;
        Ok(kept)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn series(&self) -> &Series {
        &self.series
    }

    pub(crate) fn set_slo(&mut self, slo: String) {
        self.series.slo = slo;
    }

    pub(crate) fn set_interrupted(&mut self) {
        self.series.interrupted = true;
    }

    /// Returns the name of the next run's directory.
    pub(crate) fn next_dir(&self, role: &str, rate: Option<u64>) -> String {
        let rate = rate.map_or("closed".to_owned(), |rate| rate.to_string());
        format!("{:03}-{role}-{rate}", self.series.trials.len() + 1)
    }

    pub(crate) fn add_trial(&mut self, trial: Trial) -> Result<(), Error> {
        self.series.trials.push(trial);
        self.save()
    }

    pub(crate) fn add_finding(&mut self, finding: Finding) -> Result<(), Error> {
        self.series.findings.push(finding);
        self.save()
    }

    /// Removes the directory if the series has no trials. Returns true if there are none.
    pub(crate) fn discard_if_empty(&self) -> bool {
        if !self.series.trials.is_empty() {
            return false;
        }
        let _ = std::fs::remove_file(self.dir.join(SERIES));
        if !self.existed_before {
            // A directory with other files cannot be removed, and stays.
            let _ = std::fs::remove_dir(&self.dir);
        }
        true
    }

    /// Writes the record atomically, so that a reader never sees an incomplete record.
    pub(crate) fn save(&self) -> Result<(), Error> {
        let path = self.dir.join(SERIES);
        let text = serde_json::to_vec_pretty(&self.series).expect("all of it is plain data");
        let unfinished = self.dir.join("series.json.new");
        std::fs::write(&unfinished, text).map_err(Error::write(&unfinished))?;
        std::fs::rename(&unfinished, &path).map_err(Error::write(&path))
    }
}
