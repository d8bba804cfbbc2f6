//! One run of a series: on a server that is ready for it, looked at from both sides, left on disk.
//!
//! ```text
//!  ground.rs    the server: started or there, prepared, idle; looked at before and after
//!  workload.rs  what is sent
//!  prepare.rs   what is written before
//!  figures.rs   what came of it, as verdicts and limits look at it
//!  series.rs    the directory that all of it is left in
//!  args.rs      the flags that say all this
//! ```

pub(crate) mod args;
pub(crate) mod figures;
mod ground;
mod prepare;
pub(crate) mod series;
mod workload;

use std::path::Path;
use std::time::Duration;

pub(crate) use figures::Figures;
pub(crate) use ground::{Ground, Keeping};
use indicatif::{ProgressBar, ProgressStyle};
pub(crate) use prepare::{Preparation, Prepare};
pub(crate) use workload::Workload;

use crate::cli::{self, ProfileEvent};
use crate::{Error as LoadError, rundir, script, server};

/// Between two moves of the sign that something goes on.
const TICK: Duration = Duration::from_millis(200);

/// Why a series can't go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Asked(String),
    /// What is to be sent makes no sense, or can't be sent.
    #[error(transparent)]
    Requests(#[from] cli::Error),
    /// A sweep has more values than anybody waits for.
    #[error("--sweep makes {searches} searches, at most {most}")]
    Sweep {
        /// How many it would be.
        searches: usize,
        /// How many it may be.
        most: usize,
    },
    /// The server can't be started or looked at.
    #[error(transparent)]
    Server(#[from] server::Error),
    /// The load could not be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What must be there before the trials could not be written.
    #[error("can't prepare the data: {0}; nothing was measured on them")]
    Prepare(String),
    /// The script does not work.
    #[error(transparent)]
    Script(#[from] script::Error),
    /// A run's directory.
    #[error(transparent)]
    RunDir(#[from] rundir::Error),
    /// What came of it could not be kept.
    #[error("can't write {path}: {cause}; what is there of the series stays")]
    Write {
        /// Which file or directory.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl Error {
    /// For `map_err` on a file.
    pub(crate) fn write(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |cause| Self::Write { path: path.display().to_string(), cause }
    }

    /// Whether it is somebody's wish to end, and no failure.
    pub(crate) fn is_interrupt(&self) -> bool {
        matches!(self, Self::Server(server::Error::Interrupted))
    }
}

/// What a trial is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Requests a second; none in a closed loop.
    pub(crate) rate: Option<u64>,
    pub(crate) warmup: Duration,
    pub(crate) duration: Duration,
    /// What the servers record of themselves.
    pub(crate) profile: &'a [ProfileEvent],
}

/// Runs `ask` on `ground`, which is ready, and leaves it in `dir`.
pub(crate) fn run(
    ground: &mut Ground<'_>,
    workload: &Workload,
    ask: &Ask<'_>,
    dir: &Path,
) -> Result<Figures, Error> {
    warm_up(ground, workload, ask)?;
    let before = ground.look();
    let sent = workload.send(ask, dir, ground.known(), ground.stop_flag());
    let (servers, metrics) = ground.used_since(&before);
    let died = ground.died();
    match sent {
        Ok(outcome) => Ok(Figures { servers, metrics, died, ..workload.figures(&outcome) }),
        Err(Error::Load(_)) if died.is_some() => Ok(Figures { died, ..workload.nothing() }),
        Err(error) => Err(error),
    }
}

/// A run of its own, so that what it leaves unanswered is not part of the trial: a server that was
/// started a moment ago stumbles over its first requests at a rate that it holds later.
fn warm_up(ground: &Ground<'_>, workload: &Workload, ask: &Ask<'_>) -> Result<(), Error> {
    if ask.warmup.is_zero() {
        return Ok(());
    }
    match workload.rehearse(&Ask { duration: ask.warmup, ..*ask }, ground.stop_flag()) {
        // A server that died of it fails the trial.
        Ok(()) | Err(Error::Load(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What goes on, on stderr if that is a terminal; with a bar if it is known how long it takes.
pub(crate) fn progress(what: &str, length: Option<Duration>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Some(length) = length {
        let template =
            format!("{{spinner}} {{msg}} {{elapsed}} of {}", humantime::format_duration(length));
        let style = ProgressStyle::with_template(&template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}

/// This program's name, for commands that people are told to type.
pub(crate) fn program() -> String {
    let first = std::env::args().next().unwrap_or_default();
    Path::new(&first).file_name().map_or(first.clone(), |name| name.to_string_lossy().into_owned())
}
