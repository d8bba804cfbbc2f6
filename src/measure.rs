//! The measuring kit, told what it may know of kvorum.

use load::Known;

/// What the measuring kit, which knows no store, is told of this one.
const KNOWN: Known = Known {
    tool: concat!("kvorum ", env!("CARGO_PKG_VERSION")),
    key_path: "/v0/entity?id={key}",
    metrics_path: "/metrics",
    idle: &["kvorum_immutable_memtables", "kvorum_compaction_debt_bytes"],
    held_back: &["kvorum_slowed_writes", "kvorum_refused_writes"],
    timeline: &[],
    profile_path: "",
    about_path: "",
};

/// `kvorum search`.
pub(crate) fn search(args: &load::search::Args) -> Result<(), String> {
    let stop = load::until_interrupted().map_err(|error| format!("signals: {error}"))?;
    load::search::run(args, &KNOWN, &stop).map(drop).map_err(|error| error.to_string())
}

/// `kvorum coldhot`.
pub(crate) fn coldhot(args: &load::coldhot::Args) -> Result<(), String> {
    let stop = load::until_interrupted().map_err(|error| format!("signals: {error}"))?;
    load::coldhot::run(args, &KNOWN, &stop).map(drop).map_err(|error| error.to_string())
}
