//! The flag `--profile`: lets each server record a profile of itself during the run.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::Deserialize;

use super::args::ProfileEvent;
use crate::plan::Target;
use crate::record::{self, Run};
use crate::rundir::{self, RunDir};
use crate::server::{AskError, Endpoint, ask};
use crate::server_profile::ServerProfile;

/// Maximum length of a recording in seconds. The servers have the same limit.
const MAX_SECONDS: u64 = 300;

/// Time that a server has to assemble its recording, after the recording has ended.
const GRACE: Duration = Duration::from_secs(15);

/// Maximum size of a recording in bytes: twenty times the collapsed stacks of five minutes.
const MAX_LEN: usize = 64 << 20;

/// A recording is missing, or can't be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordingError {
    #[error("it is not known how to ask this server")]
    Unknown,
    #[error("{url}: {source}")]
    Ask { url: String, source: AskError },
    #[error("{url}: {status} {why}")]
    Status { url: String, status: u16, why: String },
    #[error("{url}: its answer is not a recording of itself ({source})")]
    Malformed { url: String, source: serde_json::Error },
    #[error("the run ended before it was there")]
    Ended,
    #[error(transparent)]
    NotStored(#[from] rundir::Error),
}

/// A recording, or the reason for its absence.
pub(crate) struct Recording {
    /// The server that was recorded, as `HOST:PORT`.
    pub(crate) server: String,
    /// `http://HOST:PORT`, or `https://…`.
    pub(crate) origin: String,
    /// Collapsed stacks by event.
    pub(crate) folded: Result<BTreeMap<String, String>, RecordingError>,
}

/// Recordings in progress.
pub(crate) struct Recordings {
    /// Names and origins of the servers.
    servers: Vec<(String, String)>,
    results: Receiver<Recording>,
    wait: Duration,
    /// Senders for the start of recordings. Their drop cancels the recordings that have not begun
    /// yet.
    _begin: Vec<SyncSender<()>>,
}

#[derive(Deserialize)]
struct Answer {
    events: BTreeMap<String, Event>,
}

#[derive(Deserialize)]
struct Event {
    folded: String,
}

/// Starts a recording of `duration` on every target, after `delay`. The duration is rounded to
/// whole seconds, from 1 to [`MAX_SECONDS`]. Returns `None` if `events` is empty.
pub(crate) fn start(
    known: &ServerProfile,
    targets: &[Target],
    events: &[ProfileEvent],
    delay: Duration,
    duration: Duration,
) -> Option<Recordings> {
    if events.is_empty() {
        return None;
    }
    let seconds = (duration.as_secs_f64().round() as u64).clamp(1, MAX_SECONDS);
    let names: Vec<_> = events.iter().map(|event| event.name()).collect();
    let path = known
        .profile_path
        .replace("{events}", &names.join(","))
        .replace("{seconds}", &seconds.to_string());
    let shown = known.authorization();
    let wait = Duration::from_secs(seconds) + GRACE;
    let (done, results) = sync_channel(targets.len());
    let mut begin = Vec::new();
    for target in targets {
        let Some(&address) = target.addresses.first() else { continue };
        let (mut endpoint, origin) = (target.endpoint(address), target.origin());
        endpoint.authorization = shown.clone().or(endpoint.authorization);
        let (end, ended) = sync_channel::<()>(1);
        begin.push(end);
        let (server, path, done) = (target.name.clone(), path.clone(), done.clone());
        // If the thread can't be started, its recording counts as missing.
        let _ = std::thread::Builder::new().name("load-profile".to_owned()).spawn(move || {
            if ended.recv_timeout(delay) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let folded = record(&endpoint, &path, wait);
                // After an interrupt, the receiver is gone.
                let _ = done.send(Recording { server, origin, folded });
            }
        });
    }
    let servers = targets.iter().map(|target| (target.name.clone(), target.origin())).collect();
    Some(Recordings { servers, results, wait, _begin: begin })
}

impl Recordings {
    /// Waits for all recordings. Returns each recording, or the reason for its absence. With `now`,
    /// recordings in progress count as absent.
    pub(crate) fn finish(self, now: bool) -> Vec<Recording> {
        let wait = if now { Duration::ZERO } else { self.wait };
        let mut all: Vec<Recording> = Vec::new();
        while all.len() < self.servers.len()
            && let Ok(recording) = self.results.recv_timeout(wait)
        {
            all.push(recording);
        }
        let missing =
            self.servers.iter().filter(|(name, _)| !all.iter().any(|r| r.server == *name));
        let missing: Vec<_> = missing
            .map(|(server, origin)| Recording {
                server: server.clone(),
                origin: origin.clone(),
                folded: Err(RecordingError::Ended),
            })
            .collect();
        all.extend(missing);
        all
    }
}

/// Stores recordings in the directory, if there is one. A missing recording becomes a warning.
pub(crate) fn keep(run: &mut Run, dir: Option<&mut RunDir>, recordings: Vec<Recording>) {
    let mut dir = dir;
    for Recording { server, origin, folded } in recordings {
        let kept = folded.and_then(|events| {
            let Some(dir) = &mut dir else { return Ok(()) };
            for (event, stacks) in events {
                let name = format!("profile/{}-{event}.folded", server.replace(':', "-"));
                dir.file(&name, stacks.as_bytes())?;
                let url = origin.clone();
                run.profiles.push(record::Profile { url, event, folded: name });
            }
            Ok(())
        });
        if let Err(why) = kept {
            let text = format!("no profile of {server}: {why}");
            run.warnings.push(record::Warning { code: "no-profile".to_owned(), text });
        }
    }
}

fn record(
    endpoint: &Endpoint,
    path: &str,
    limit: Duration,
) -> Result<BTreeMap<String, String>, RecordingError> {
    if path.is_empty() {
        return Err(RecordingError::Unknown);
    }
    let url = endpoint.url(path);
    let (status, text) = match ask(endpoint, path, limit, MAX_LEN) {
        Ok(answer) => answer,
        Err(source) => return Err(RecordingError::Ask { url, source }),
    };
    if status != 200 {
        let why = text.lines().next().unwrap_or_default().to_owned();
        return Err(RecordingError::Status { url, status, why });
    }
    let answer: Answer =
        serde_json::from_str(&text).map_err(|source| RecordingError::Malformed { url, source })?;
    Ok(answer.events.into_iter().map(|(name, event)| (name, event.folded)).collect())
}
