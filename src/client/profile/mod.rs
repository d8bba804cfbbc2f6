//! `kvorum profile`: records nodes, compares recordings, and says what time goes to.
//!
//! ```text
//!  URL… ─▶ /admin/profile of each, all at once ─▶ HOST-PORT-EVENT.EXT, one for each event
//!  diff A B ─▶ one graph of what is different       shares FILE… ─▶ a table
//! ```

mod args;
mod record;
mod shares;

use std::fs;
use std::path::Path;

use profile::Folded;
use profile::graph::{self, Tab, Unit};

pub(crate) use args::ProfileArgs;
use args::{Action, DiffArgs};

use super::{Unable, fail, print};

/// What gzip files begin with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Does what is asked for.
pub(crate) fn profile(args: &ProfileArgs) -> Result<(), Unable> {
    match &args.action {
        Some(Action::Diff(diff)) => compare(diff),
        Some(Action::Shares(shares)) => shares::shares(shares),
        None => record::record(&args.record),
    }
}

/// Reads collapsed stacks, or a pprof profile.
fn read(path: &Path) -> Result<Folded, Unable> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| fail(format!("{shown}: {error}")))?;
    if bytes.starts_with(&GZIP) {
        return profile::pprof::decode(&bytes).map_err(|why| fail(format!("{shown}: {why}")));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| fail(format!("{shown} is neither collapsed stacks nor pprof")))?;
    Folded::parse(&text).map_err(|error| fail(format!("{shown}: {error}")))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Unable> {
    fs::write(path, bytes).map_err(|error| fail(format!("{}: {error}", path.display())))?;
    print(&format!("{}\n", path.display()))
}

/// What the weights of a recording are, by the name that `kvorum profile` gave it.
fn unit_of(path: &Path) -> Unit {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let event = name.rsplit('-').next().and_then(|event| event.parse().ok());
    event.map_or(Unit::Count, profile::Event::unit)
}

fn compare(args: &DiffArgs) -> Result<(), Unable> {
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    let (name, unit) = ([&args.first, &args.second], unit_of(&args.second));
    let title = format!("{} → {}", name[0].display(), name[1].display());
    let is_svg = args.output.extension().is_some_and(|extension| extension == "svg");
    if is_svg {
        let picture = graph::svg(&title, unit, &second, Some(&first));
        return write(&args.output, &picture.map_err(fail)?);
    }
    let note = "Red: a greater share in the second. Blue: a smaller one. Each as shares of its own \
                total.";
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
