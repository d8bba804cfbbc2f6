//! A trial: a run of a series, which sends requests to a prepared server, observes client and
//! server, and stores the results on disk.
//!
//! ```text
//!   server_under_test.rs  the server: its start, unless it runs already; its preparation; the wait
//!                         until it is idle; its observation during the trial
//!   workload.rs           the requests
//!   prepare.rs            the data written before the trial
//!   trial_figures.rs      the results, as used by verdicts and limits
//!   series.rs             the directory of the results
//!   trial_args.rs         the flags shared by all series
//! ```

mod prepare;
pub(crate) mod series;
mod server_under_test;
pub(crate) mod trial_args;
pub(crate) mod trial_figures;
mod workload;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
pub(crate) use prepare::{Preparation, Prepare};
pub(crate) use server_under_test::{ServerUnderTest, StartConfig};
pub(crate) use trial_figures::TrialFigures;
pub(crate) use workload::Workload;

use crate::cli::{self, ProfileEvent};
use crate::{Error as LoadError, rundir, script, server};

/// Interval between two moves of the spinner.
const TICK: Duration = Duration::from_millis(200);

/// The reason why a series can't continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The requests are invalid or can't be sent.
    #[error(transparent)]
    Requests(#[from] cli::Error),
    /// A sweep has too many combinations.
    #[error("--sweep makes {searches} searches, at most {most}")]
    Sweep {
        /// Number of combinations.
        searches: usize,
        /// Maximum number of combinations of a sweep.
        most: usize,
    },
    /// The server can't be started or observed.
    #[error(transparent)]
    Server(#[from] server::Error),
    /// The load could not be generated.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The data of `--prepare` could not be written.
    #[error("can't prepare the data: {0}; nothing was measured on them")]
    Prepare(String),
    /// The script does not work.
    #[error(transparent)]
    Script(#[from] script::Error),
    /// A run's directory can't be written.
    #[error(transparent)]
    RunDir(#[from] rundir::Error),
    /// The results could not be stored.
    #[error("can't write {path}: {cause}; what is there of the series stays")]
    Write {
        /// Path of the file or directory.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The results are stored, and could not be printed.
    #[error("stdout: {cause}; the results are in {dir}")]
    Print {
        /// Directory of the results.
        dir: String,
        /// The system's error.
        cause: io::Error,
    },
}

impl Error {
    /// Converts the error of a file operation, for `map_err`.
    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::Write { path: path.display().to_string(), cause }
    }

    /// Returns true if the user ended the series. This is not a failure.
    pub(crate) fn is_interrupt(&self) -> bool {
        matches!(self, Self::Server(server::Error::Interrupted))
    }
}

/// Parameters of a trial.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrialParams<'a> {
    /// Requests per second; `None` in a closed loop.
    pub(crate) rate: Option<u64>,
    pub(crate) warmup: Duration,
    pub(crate) duration: Duration,
    /// Events that the servers record during the trial.
    pub(crate) profile: &'a [ProfileEvent],
}

/// Runs the trial on a prepared server, and stores it in `dir`.
pub(crate) fn run(
    server: &mut ServerUnderTest<'_>,
    workload: &Workload,
    params: &TrialParams<'_>,
    dir: &Path,
) -> Result<TrialFigures, Error> {
    warm_up(server, workload, params)?;
    let before = server.snapshot();
    let sent = workload.send(params, dir, server.server_profile(), server.stop_flag());
    let (servers, metrics) = server.usage_since(&before);
    let died = server.describe_server_end();
    match sent {
        Ok(outcome) => Ok(TrialFigures { servers, metrics, died, ..workload.figures(&outcome) }),
        Err(Error::Load(_)) if died.is_some() => Ok(TrialFigures { died, ..workload.nothing() }),
        Err(error) => Err(error),
    }
}

/// Warms the server up by a separate run, whose unanswered requests are not part of the trial. A
/// server that has just started may fail its first requests at a rate that it can sustain later.
fn warm_up(
    server: &ServerUnderTest<'_>,
    workload: &Workload,
    params: &TrialParams<'_>,
) -> Result<(), Error> {
    if params.warmup.is_zero() {
        return Ok(());
    }
    match workload.rehearse(&TrialParams { duration: params.warmup, ..*params }, server.stop_flag())
    {
        // If the server died during the warm-up, the trial will fail.
        Ok(()) | Err(Error::Load(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Shows progress on stderr if stderr is a terminal. With `length`, shows a bar.
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

/// Returns this program's name, for commands shown to users.
pub(crate) fn program() -> String {
    let first = std::env::args().next().unwrap_or_default();
    Path::new(&first).file_name().map_or(first.clone(), |name| name.to_string_lossy().into_owned())
}

/// Prints a line about the progress of a series; on stderr if stdout is for JSON. A closed output
/// ends no series, because all results are stored too.
pub(crate) fn print_progress(line: &str, is_json: bool) {
    let _ = match is_json {
        true => writeln!(io::stderr(), "{line}"),
        false => writeln!(io::stdout(), "{line}"),
    };
}

/// Prints results, which are also in the directory `dir`.
pub(crate) fn print_results(text: &str, dir: &Path) -> Result<(), Error> {
    let printed = writeln!(io::stdout(), "{text}").and_then(|()| io::stdout().flush());
    printed.map_err(|cause| Error::Print { dir: dir.display().to_string(), cause })
}
