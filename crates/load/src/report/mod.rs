//! The `report` command: renders runs and series as one self-contained HTML file, which can be read
//! without network and without scripts.
//!
//! ```text
//!  DIR… ─▶ saved ─▶ shown ─┬─ overview      verdict and warnings first, then the figures
//!                          ├─ percentiles   the curves of all runs
//!                          ├─ series_page   searches and sweeps
//!                          ├─ pairs         cold runs beside hot runs
//!                          ├─ details       each run: time line, servers, command, script
//!                          └─ flames        flame graphs side by side, and their differences
//!       page.css, page.js: style and interaction
//! ```
//!
//! All text read from a directory goes through maud, which escapes it.

mod chart;
mod details;
mod flames;
mod key_figures;
mod overview;
mod pairs;
mod percentiles;
mod run_view;
mod series_page;
mod timelines;

use std::path::PathBuf;
use std::{fs, io};

use clap::Args;
use maud::{DOCTYPE, PreEscaped, html};

use crate::saved::{self, SavedEntry};
use run_view::{MAX_FULL, RunView};
use series_page::SeriesView;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Everything after `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories, series of a search, sweep or coldhot, or directories of these. Up to 200
    /// runs are shown in full; of more, series show those at their edges, and all in their tables
    #[arg(required = true, value_name = "DIR")]
    pub directories: Vec<PathBuf>,

    /// File to write; one that is there is replaced
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,

    /// Heading of the page [default: the names of the directories]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

/// The reason why a report can't be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directories can't be read.
    #[error(transparent)]
    Saved(#[from] saved::Error),
    /// The runs outside of series outnumber the runs that a report shows in full.
    #[error(
        "{0} runs that are of no series are too many: at most {MAX_FULL}; give fewer directories"
    )]
    TooMany(usize),
    /// A recording is not in the collapsed-stack format.
    #[error("{}: {source}", file.display())]
    Profile {
        /// File of the stacks.
        file: PathBuf,
        /// The format error.
        source: profile::NotFolded,
    },
    /// The page can't be written.
    #[error("{}: cannot be written: {source}", file.display())]
    Write {
        /// Path of the page.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Writes the report and returns the text to print. `tool` is the name and version of the program.
pub fn report(args: &ReportArgs, tool: &str) -> Result<String, Error> {
    let found = saved::read(&args.directories)?;
    let single = found.iter().filter(|found| matches!(found, SavedEntry::Run(_))).count();
    if single > MAX_FULL {
        return Err(Error::TooMany(single));
    }
    let names: Vec<_> = found.iter().map(name).collect();
    let title = args.title.clone().unwrap_or_else(|| match names.as_slice() {
        [one] => (*one).to_owned(),
        [first, second] => format!("{first} and {second}"),
        more => format!("{} runs and series", more.len()),
    });
    let html = page(&title, tool, &found)?;
    fs::write(&args.out, &html)
        .map_err(|source| Error::Write { file: args.out.clone(), source })?;
    let runs: usize = found.iter().map(|found| found.runs().len()).sum();
    let size = key_figures::bytes(html.len() as f64);
    Ok(format!("{}: {runs} runs, {size}\n", args.out.display()))
}

fn name(found: &SavedEntry) -> &str {
    match found {
        SavedEntry::Run(saved) => &saved.name,
        SavedEntry::Series(series) => &series.name,
    }
}

/// Renders the whole page.
fn page(title: &str, tool: &str, found: &[SavedEntry]) -> Result<String, Error> {
    let runs = run_view::all(found);
    let full: Vec<_> = runs.iter().copied().filter(|run| run.full).collect();
    let parts = parts(found, &runs);
    let objectives: Vec<_> =
        parts.iter().flat_map(|part| series_page::objectives(&part.saved.series.slo)).collect();
    let body = html! {
        header {
            h1 { (title) }
            p.hint { (subtitle(&runs)) }
        }
        main {
            @for part in &parts { (part.verdict()) }
            (overview::validity(&runs, parts.iter().any(SeriesView::is_doubted)))
            section #figures {
                h2 { "Figures" }
                @if full.len() < runs.len() {
                    p.hint { (full.len()) " of " (runs.len()) " runs are shown in full: of series "
                        "those at their edges first. The tables of trials have all; a report over "
                        "the directory of a trial shows it in full." }
                }
                (overview::table(&full))
                @if let Some(chart) = percentiles::chart(&full, &objectives) { (chart.markup()) }
            }
            @for part in &parts { (part.section()) }
            section #runs {
                h2 { "Runs" }
                (details::all(&full))
            }
            (flames::section(&full)?)
        }
        footer { "Made by " (tool) " from "
            (runs.len()) @if runs.len() == 1 { " run." } @else { " runs." } }
    };
    let whole = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // With an empty icon, browsers do not request one.
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) script { (PreEscaped(SCRIPT)) } }
        }
    };
    Ok(whole.into_string())
}

/// Formats the tools, the processors and the dates of the runs.
fn subtitle(runs: &[RunView<'_>]) -> String {
    let all = |of: fn(&crate::record::Run) -> String| {
        let mut all: Vec<_> = runs.iter().map(|run| of(run.run())).collect();
        all.retain(|text| !text.is_empty());
        all.sort();
        all.dedup();
        all
    };
    let tools = all(|run| run.tool.clone());
    let hosts = all(|run| {
        let machine = &run.machine;
        if machine.cpu.is_empty() { String::new() } else { machine.cpu.clone() }
    });
    let began = all(|run| run.started.clone());
    let mut said = vec![tools.join(", ")];
    said.extend(hosts);
    if let (Some(first), Some(last)) = (began.first(), began.last()) {
        said.push(if first == last { first.clone() } else { format!("{first} to {last}") });
    }
    said.retain(|text| !text.is_empty());
    said.join(" · ")
}

/// Returns the series among the directories, each with its runs.
fn parts<'a>(found: &'a [SavedEntry], runs: &'a [RunView<'a>]) -> Vec<SeriesView<'a>> {
    let mut rest = runs;
    let mut parts: Vec<SeriesView<'_>> = Vec::new();
    for found in found {
        let (own, others) = rest.split_at(found.runs().len());
        rest = others;
        if let SavedEntry::Series(saved) = found {
            parts.push(SeriesView { saved, runs: own, number: parts.len() });
        }
    }
    parts
}
