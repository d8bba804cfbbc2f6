//! Writes a run's directory, as described in [`crate::record`], during the run.
//!
//! If a write of a log fails, for example on a full disk, all logs are given up. The run continues,
//! because its figures matter more. [`RunDir::finish`] returns the first error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::control::Interval;
use crate::hdrlog::HdrLog;
use crate::record::Run;
use crate::request::Method;
use crate::tally::Latencies;
use crate::timeline::Timeline;

/// Names of the log files, as in [`crate::record::Latency::from`], and their descriptions.
const LOGS: [(&str, &str); 3] = [
    ("intended", "Latency from the intended start"),
    ("written", "Latency from writing the request"),
    ("late", "How late requests were sent, by the client's own fault"),
];

/// The reason why a run's directory can't be created, or is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is not empty.
    #[error("{0} is not empty: name another directory, what is there is not overwritten")]
    NotEmpty(String),
    /// The operating system refused a write.
    #[error("can't write {path}: {cause}")]
    Write {
        /// Path of the file or directory.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::Write { path: path.display().to_string(), cause }
}

/// The directory of a run in progress.
pub struct RunDir {
    path: PathBuf,
    logs: Vec<HdrLog>,
    timeline: Option<Timeline>,
    /// The first error of any write.
    first_error: Option<Error>,
}

impl RunDir {
    /// Creates the directory, or uses an existing empty one. `reported` lists the names of the
    /// servers' metrics, which are further columns of the timeline.
    pub fn create(path: &Path, started: SystemTime, reported: &[String]) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(write_error(path))?;
        if fs::read_dir(path).map_err(write_error(path))?.next().is_some() {
            return Err(Error::NotEmpty(path.display().to_string()));
        }
        let mut logs = Vec::new();
        for (name, what) in LOGS {
            let file = path.join(format!("{name}.hdr"));
            logs.push(HdrLog::create(&file, what, started).map_err(write_error(&file))?);
        }
        let file = path.join("timeline.csv");
        let timeline = Timeline::create(&file, reported).map_err(write_error(&file))?;
        Ok(Self { path: path.to_owned(), logs, timeline: Some(timeline), first_error: None })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds one second of the run, and the servers' metrics, to the logs and the timeline.
    pub fn add_second(&mut self, interval: &Interval, reported: &[Option<f64>]) {
        for method in Method::ALL {
            let Some(latencies) = interval.tally.latencies(method) else { continue };
            let Latencies { intended, written, late } = latencies;
            let (start, length) = (interval.start_s as f64, interval.length_s);
            let mut kept = self.logs.iter_mut().zip([intended, written, late]).zip(LOGS);
            let added = kept.try_for_each(|((log, histogram), (name, _))| {
                let added = log.add(method.name(), start, length, histogram);
                added.and_then(|()| log.flush()).map_err(|cause| (name, cause))
            });
            if let Err((name, cause)) = added {
                self.give_up(&format!("{name}.hdr"), cause);
            }
        }
        if let Some(Err(cause)) =
            self.timeline.as_mut().map(|timeline| timeline.add(interval, reported))
        {
            self.give_up("timeline.csv", cause);
        }
    }

    fn give_up(&mut self, file: &str, cause: io::Error) {
        self.logs.clear();
        self.timeline = None;
        self.first_error.get_or_insert_with(|| write_error(&self.path.join(file))(cause));
    }

    /// Writes a further file, such as a recording.
    pub fn file(&mut self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.path.join(name);
        let parent = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, content))
            .map_err(write_error(&path))
    }

    /// Removes the logs and the directory of a run that did not start.
    pub fn discard(self) {
        for (name, _) in LOGS {
            let _ = fs::remove_file(self.path.join(format!("{name}.hdr")));
        }
        let _ = fs::remove_file(self.path.join("timeline.csv"));
        // A directory with other files cannot be removed, and stays.
        let _ = fs::remove_dir(&self.path);
    }

    /// Writes the files with the results. Returns the first error of the whole run.
    pub fn finish(mut self, run: &Run, output: &str) -> Result<(), Error> {
        let json = serde_json::to_vec_pretty(run).expect("all of it is plain data");
        // These two files are written even if a log is incomplete, because they contain the main
        // results.
        let output = self.file("output.txt", output.as_bytes());
        let json = self.file("run.json", &json);
        match self.first_error.take() {
            Some(first_error) => Err(first_error),
            None => output.and(json),
        }
    }
}
