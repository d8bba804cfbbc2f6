//! `kvorum profile URL…`: requests a recording of all events from all nodes at once, and writes the
//! files.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use profile::Profile;

use super::args::RecordArgs;
use super::write;
use crate::cli::client::connection::ClientConnection;
use crate::cli::client::problem::ProblemDetails;
use crate::cli::client::{CommandFailure, fail, token_of, unreachable_text};
use crate::operations::stderr;
use crate::settings::members::authority_of;

/// Timeout of an answer in addition to the length of the recording: a busy node resolves symbols
/// slowly.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of updates of the progress bar.
const STEP: Duration = Duration::from_millis(100);

pub(super) fn record(args: &RecordArgs) -> Result<(), CommandFailure> {
    let token = token_of(args.token_file.as_deref())?;
    let token = token.as_deref();
    std::fs::create_dir_all(&args.out)
        .map_err(|error| fail(format!("{}: {error}", args.out.display())))?;
    let outcomes: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> =
            args.urls.iter().map(|url| (url, scope.spawn(move || ask(url, args, token)))).collect();
        wait(args.duration, || asked.iter().all(|(_, thread)| thread.is_finished()));
        asked
            .into_iter()
            .map(|(url, thread)| (url, thread.join().unwrap_or(Err(CommandFailure::Failed))))
            .collect()
    });
    let mut outcome = Ok(());
    for (url, profile) in outcomes {
        match profile {
            Ok(profile) => save(url, &profile, args)?,
            // The error has already been printed. The files of the other nodes are written
            // nevertheless.
            Err(unable) => outcome = Err(unable),
        }
    }
    outcome
}

/// Shows the progress on a terminal until `done` returns true.
fn wait(seconds: u64, done: impl Fn() -> bool) {
    if !io::stderr().is_terminal() {
        return;
    }
    let (begun, bar) = (Instant::now(), ProgressBar::new(seconds * 10));
    bar.set_style(indicatif::ProgressStyle::default_bar());
    while !done() {
        bar.set_position((begun.elapsed().as_millis() / 100) as u64);
        thread::sleep(STEP);
    }
    bar.finish_and_clear();
}

fn ask(url: &str, args: &RecordArgs, token: Option<&str>) -> Result<Profile, CommandFailure> {
    let patience = Duration::from_secs(args.duration) + TIMEOUT;
    let lost = |error: &io::Error| fail(unreachable_text(url, error, ""));
    let connection = ClientConnection::open(url, &args.certificates, patience, token);
    let mut connection = connection.map_err(|error| lost(&error))?;
    let (events, seconds) = (profile::event::names(&args.events), args.duration);
    let idle = args.idle;
    let target = format!("/admin/profile?event={events}&seconds={seconds}&format=json&idle={idle}");
    let head = connection.request("GET", &target, None, |_| {}).map_err(|error| lost(&error))?;
    let body = connection.body(&head).map_err(|error| lost(&error))?;
    if head.status != 200 {
        return Err(ProblemDetails::report_node(head.status, &body, url));
    }
    let profile = Profile::from_json(&body);
    profile.map_err(|why| fail(format!("{url}: the response is not a profile: {why}")))
}

fn save(url: &str, profile: &Profile, args: &RecordArgs) -> Result<(), CommandFailure> {
    for note in &profile.notes {
        stderr::say(format_args!("kvorum: {url}: {note}"));
    }
    let host = authority_of(url);
    let place = host.replace([':', '/', '[', ']'], "-");
    for (event, _) in &profile.events {
        let file = format!("{}-{event}.{}", place.trim_matches('-'), args.output.extension());
        let path: PathBuf = args.out.join(file);
        let bytes = profile.write_one(*event, args.output.format(), host).map_err(fail)?;
        write(&path, &bytes)?;
    }
    Ok(())
}
