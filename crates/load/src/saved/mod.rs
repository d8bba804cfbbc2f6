//! Reads run directories, and directories of series.
//!
//! ```text
//!  DIR with run.json      ─▶ a run        timeline.csv ─▶ Timeline   profile/* ─▶ folded stacks
//!  DIR with series.json   ─▶ a series and the runs of its trials
//!  DIR with neither       ─▶ its subdirectories, in the order of names
//! ```

mod saved_timeline;

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::de::DeserializeOwned;

use crate::record::{FORMAT, Profile, Run, Series};
pub(crate) use saved_timeline::SavedTimeline;

/// Maximum size of a file in bytes, about ten times five minutes of stacks or an hour's timeline.
const MAX_FILE: u64 = 64 << 20;

/// Maximum number of runs that are read at once: a hundred searches with a hundred trials each. A
/// run takes about 50 KB of memory.
const MAX_RUNS: usize = 10_000;

/// The reason why runs can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{}: neither it nor a directory in it has a run.json or a series.json; load, search, \
         coldhot and import write them",
        .0.display()
    )]
    Nothing(PathBuf),
    #[error("{0} runs are too many: at most {MAX_RUNS}; give fewer directories")]
    TooMany(usize),
    #[error(
        "{}: its format is {format}, this version reads {FORMAT}: use the version that wrote it",
        directory.display()
    )]
    Format { directory: PathBuf, format: u32 },
    #[error("{}: {by} names {file:?}, which is not in it", directory.display())]
    Elsewhere { directory: PathBuf, by: &'static str, file: String },
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: {length} bytes, at most {MAX_FILE}", file.display())]
    TooLong { file: PathBuf, length: u64 },
    #[error("{}: is not what it should be: {source}", file.display())]
    Malformed { file: PathBuf, source: serde_json::Error },
}

impl Error {
    fn unreadable(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Unreadable { path: path.to_owned(), source }
    }
}

/// One run, read from its directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadedRun {
    /// Name of the run, which is the name of its directory.
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) run: Run,
    pub(crate) timeline: Option<SavedTimeline>,
    /// The script's text.
    pub(crate) script: Option<String>,
    /// The recordings, each with its collapsed stacks.
    pub(crate) profiles: Vec<(Profile, String)>,
}

/// A series with the runs of its trials, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct SavedSeries {
    pub(crate) name: String,
    pub(crate) series: Series,
    pub(crate) runs: Vec<LoadedRun>,
}

/// A run or a series found in a directory.
#[derive(Debug, Clone)]
pub(crate) enum SavedEntry {
    Run(Box<LoadedRun>),
    Series(Box<SavedSeries>),
}

impl SavedEntry {
    /// Returns all runs of the entry.
    pub(crate) fn runs(&self) -> &[LoadedRun] {
        match self {
            Self::Run(saved) => std::slice::from_ref(saved),
            Self::Series(series) => &series.runs,
        }
    }
}

/// Reads all runs and series of `directories`, in order. Returns an error if a directory has none.
pub(crate) fn read(directories: &[PathBuf]) -> Result<Vec<SavedEntry>, Error> {
    let mut found = Vec::new();
    for directory in directories {
        let before = found.len();
        read_one(directory, &mut found)?;
        check_run_count(found.iter().map(|found| found.runs().len()).sum())?;
        if found.len() == before {
            return Err(Error::Nothing(directory.clone()));
        }
    }
    Ok(found)
}

fn check_run_count(runs: usize) -> Result<(), Error> {
    if runs > MAX_RUNS {
        return Err(Error::TooMany(runs));
    }
    Ok(())
}

fn read_one(directory: &Path, found: &mut Vec<SavedEntry>) -> Result<(), Error> {
    if directory.join("series.json").is_file() {
        found.push(SavedEntry::Series(Box::new(series(directory)?)));
    } else if directory.join("run.json").is_file() {
        found.push(SavedEntry::Run(Box::new(run(directory)?)));
    } else {
        for inner in inner(directory)? {
            if inner.join("series.json").is_file() {
                found.push(SavedEntry::Series(Box::new(series(&inner)?)));
            } else if inner.join("run.json").is_file() {
                found.push(SavedEntry::Run(Box::new(run(&inner)?)));
            }
        }
    }
    Ok(())
}

/// Returns the subdirectories of a directory, sorted by name.
fn inner(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = Error::unreadable(directory);
    let mut inner = Vec::new();
    for entry in fs::read_dir(directory).map_err(&failed)? {
        inner.push(entry.map_err(&failed)?.path());
    }
    inner.sort();
    Ok(inner)
}

fn series(directory: &Path) -> Result<SavedSeries, Error> {
    let series: Series = json(&directory.join("series.json"))?;
    let format = series.format;
    check_format(format, directory)?;
    check_run_count(series.trials.len())?;
    let mut runs = Vec::new();
    for trial in &series.trials {
        // A trial whose server did not start has no `run.json`.
        let inner = inside(directory, "series.json", &trial.dir)?;
        let read = inner.join("run.json").is_file();
        let mut saved = if read { run(&inner)? } else { LoadedRun::default() };
        saved.name.clone_from(&trial.dir);
        runs.push(saved);
    }
    Ok(SavedSeries { name: name(directory), series, runs })
}

/// Reads the run in a directory.
pub(crate) fn run(directory: &Path) -> Result<LoadedRun, Error> {
    let run: Run = json(&directory.join("run.json"))?;
    check_format(run.format, directory)?;
    let timeline = directory.join("timeline.csv");
    let timeline =
        timeline.is_file().then(|| text(&timeline).map(|csv| SavedTimeline::parse(&csv)));
    let script = (!run.plan.script.is_empty())
        .then(|| text(&inside(directory, "run.json", &run.plan.script)?));
    let mut profiles = Vec::new();
    for profile in &run.profiles {
        profiles.push((profile.clone(), text(&inside(directory, "run.json", &profile.folded)?)?));
    }
    Ok(LoadedRun {
        name: name(directory),
        dir: directory.to_owned(),
        timeline: timeline.transpose()?,
        script: script.transpose()?,
        profiles,
        run,
    })
}

fn check_format(format: u32, directory: &Path) -> Result<(), Error> {
    if format == FORMAT {
        return Ok(());
    }
    Err(Error::Format { directory: directory.to_owned(), format })
}

/// Returns the path of a file that the record `by` names. Returns an error if the file is outside
/// the directory, because the record may come from an untrusted source.
fn inside(directory: &Path, by: &'static str, file: &str) -> Result<PathBuf, Error> {
    let parts = Path::new(file).components();
    if parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))) {
        return Ok(directory.join(file));
    }
    Err(Error::Elsewhere { directory: directory.to_owned(), by, file: file.to_owned() })
}

fn name(directory: &Path) -> String {
    let full = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    full.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn json<T: DeserializeOwned>(file: &Path) -> Result<T, Error> {
    serde_json::from_str(&text(file)?)
        .map_err(|source| Error::Malformed { file: file.to_owned(), source })
}

fn text(file: &Path) -> Result<String, Error> {
    let failed = Error::unreadable(file);
    let length = fs::metadata(file).map_err(&failed)?.len();
    if length > MAX_FILE {
        return Err(Error::TooLong { file: file.to_owned(), length });
    }
    let bytes = fs::read(file).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, run: &Run) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("run.json"), serde_json::to_string(run).unwrap()).unwrap();
    }

    #[test]
    fn run_directories_are_found_in_subdirectories() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            write(&scratch.path().join(name), &Run { format: FORMAT, ..Run::default() });
        }
        fs::create_dir(scratch.path().join("c")).unwrap();
        let found = read(&[scratch.path().to_owned()]).unwrap();
        let names: Vec<_> = found.iter().map(|found| found.runs()[0].name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let nothing = read(&[scratch.path().join("c")]).unwrap_err().to_string();
        assert!(
            nothing.contains("c: neither it nor a directory in it has a run.json"),
            "{nothing}"
        );
    }

    #[test]
    fn unreadable_records_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("run");
        write(&directory, &Run { format: FORMAT + 1, ..Run::default() });
        assert!(
            run(&directory)
                .unwrap_err()
                .to_string()
                .contains("its format is 2, this version reads 1")
        );
        for elsewhere in ["../secret", "/etc/passwd"] {
            let mut planted = Run { format: FORMAT, ..Run::default() };
            planted.plan.script = elsewhere.to_owned();
            write(&directory, &planted);
            let refused = run(&directory).unwrap_err().to_string();
            assert!(refused.contains("which is not in it"), "{refused}");
        }
        fs::write(directory.join("run.json"), "{").unwrap();
        assert!(run(&directory).unwrap_err().to_string().contains("is not what it should be: EOF"));
    }
}
