//! The measuring kit, told what it may know of kvorum.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use load::Known;
use load::cli::{Ended, Failed, LoadArgs};
use load::record::Series;
use load::search::Error;

use crate::operations::stderr;

/// Exit code for a warning under `--strict`.
const WARNED: u8 = 3;

/// Exit code after ctrl-C, as shells have it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// What the measuring kit, which knows no store, is told of this one.
pub(crate) const KNOWN: Known = Known {
    tool: concat!("kvorum ", env!("KVORUM_VERSION")),
    key_path: "/v0/entity?id={key}",
    metrics_path: "/metrics",
    idle: &["kvorum_immutable_memtables", "kvorum_compaction_debt_bytes"],
    held_back: &["kvorum_slowed_writes", "kvorum_refused_writes"],
    timeline: &[
        "kvorum_cpu_seconds",
        "kvorum_resident_bytes",
        "kvorum_memtable_bytes",
        "kvorum_immutable_memtables",
        "kvorum_flushes",
        "kvorum_flush_bytes",
        "kvorum_compactions",
        "kvorum_compaction_write_bytes",
        "kvorum_compaction_debt_bytes",
        "kvorum_slowed_writes",
        "kvorum_refused_writes",
        "kvorum_write_slowdown_seconds",
        "kvorum_wal_syncs",
        "kvorum_cache_hits",
        "kvorum_cache_misses",
        "kvorum_bloom_skips",
    ],
    profile_path: "/admin/profile?event={events}&seconds={seconds}&format=json",
    token_variable: crate::settings::secret::ADMIN.variable,
    about_path: "/v0/status",
};

/// `kvorum load`.
pub(crate) fn load(args: &LoadArgs) -> ExitCode {
    let (code, line) = match load::cli::load(args, &KNOWN) {
        Ok(Ended::Fine) => return ExitCode::SUCCESS,
        Ok(Ended::Warned) => return ExitCode::from(WARNED),
        Ok(Ended::Interrupted) => return ExitCode::from(INTERRUPTED),
        Err(Failed::Usage(line)) => (crate::USAGE, line),
        Err(Failed::Run(line)) => (1, line),
    };
    stderr::say(format_args!("kvorum: {line}"));
    ExitCode::from(code)
}

/// `kvorum search`.
pub(crate) fn search(args: &load::search::Args) -> ExitCode {
    series(|stop| load::search::run(args, &KNOWN, stop))
}

/// `kvorum coldhot`.
pub(crate) fn coldhot(args: &load::coldhot::Args) -> ExitCode {
    series(|stop| load::coldhot::run(args, &KNOWN, stop))
}

fn series(run: impl FnOnce(&Arc<AtomicBool>) -> Result<Series, Error>) -> ExitCode {
    let stop = load::until_interrupted().map_err(|error| format!("signals: {error}"));
    match stop.and_then(|stop| run(&stop).map_err(|error| error.to_string())) {
        Ok(series) if series.interrupted => ExitCode::from(INTERRUPTED),
        Ok(_) => ExitCode::SUCCESS,
        Err(line) => {
            stderr::say(format_args!("kvorum: {line}"));
            ExitCode::FAILURE
        }
    }
}
