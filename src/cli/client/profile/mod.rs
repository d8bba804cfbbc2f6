//! `kvorum profile`: records nodes, compares recordings, and divides a recording into shares of the
//! parts of a node.
//!
//! ```text
//!  URL… ─▶ /admin/profile of all nodes at once ─▶ HOST-PORT-EVENT.EXT, one file per event
//!  diff A B ─▶ one graph of the differences         shares FILE… ─▶ a table
//! ```

mod args;
mod record;
mod shares;

use std::fs;
use std::path::Path;

use profile::graph::{self, Tab, Unit};
use profile::{Event, Folded};

pub(crate) use args::ProfileArgs;
use args::{DiffArgs, ProfileAction};

use super::{CommandFailure, fail, print};

/// First bytes of gzip files.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// First characters of an HTML page that `kvorum profile` wrote.
const PAGE: &str = "<!doctype html>";

/// Runs the command.
pub(crate) fn profile(args: &ProfileArgs) -> Result<(), CommandFailure> {
    match &args.action {
        Some(ProfileAction::Diff(diff)) => compare(diff),
        Some(ProfileAction::Shares(shares)) => shares::shares(shares),
        None => record::record(&args.record),
    }
}

/// Reads a recording in the format of collapsed stacks or pprof; a recording without samples is an
/// error.
fn read(path: &Path) -> Result<Folded, CommandFailure> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| fail(format!("{shown}: {error}")))?;
    if bytes.starts_with(&GZIP) {
        return profile::pprof::decode(&bytes).map_err(|why| fail(format!("{shown}: {why}")));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| {
        fail(format!(
            "{shown} is neither in collapsed-stack nor in pprof \
        format"
        ))
    })?;
    if text.starts_with(PAGE) {
        let why = "is an HTML page: to compare or summarize, record with -o folded or -o pprof";
        return Err(fail(format!("{shown} {why}")));
    }
    let folded = Folded::parse(&text).map_err(|error| fail(format!("{shown}: {error}")))?;
    if folded.total() == 0 {
        return Err(fail(format!("{shown} has no samples")));
    }
    Ok(folded)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CommandFailure> {
    fs::write(path, bytes).map_err(|error| fail(format!("{}: {error}", path.display())))?;
    print(&format!("{}\n", path.display()))
}

/// Returns the event of a recording, from a file name that `kvorum profile` chose; `None` for
/// another name.
fn event_of(path: &Path) -> Option<Event> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    name.rsplit('-').next().and_then(|event| event.parse().ok())
}

fn compare(args: &DiffArgs) -> Result<(), CommandFailure> {
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    let name = [&args.first, &args.second];
    if let (Some(first), Some(second)) = (event_of(&args.first), event_of(&args.second))
        && first != second
    {
        let why = "only recordings of the same event can be compared";
        return Err(fail(format!(
            "{} recorded {first}, {} recorded {second}: {why}",
            name[0].display(),
            name[1].display()
        )));
    }
    let unit = event_of(&args.second).map_or(Unit::Count, Event::unit);
    let title = format!("{} → {}", name[0].display(), name[1].display());
    let is_svg = args.output.extension().is_some_and(|extension| extension == "svg");
    if is_svg {
        let picture = graph::svg(&title, "", unit, &second, Some(&first));
        return write(&args.output, &picture.map_err(fail)?);
    }
    let note = "Red: a larger share in the second profile. Blue: a smaller share. Shares are \
        relative to each profile's own total.";
    let tab = Tab {
        name: "difference".to_owned(),
        unit,
        note: note.to_owned(),
        folded: &second,
        counts: None,
        base: Some(&first),
    };
    write(&args.output, graph::page(&title, &[], &[tab]).as_bytes())
}
