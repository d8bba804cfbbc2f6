//! The `import` command: turns outputs of wrk2 and wrk, and pages that quote them, into run
//! directories.
//!
//! ```text
//!  FILE ─▶ output: find ─▶ imported_run: convert ──▶ DIR/FILE-1-put-35000-c64/run.json, output.txt
//!       imported_command: find ─┘  │
//!                           warn ──┘
//! ```
//!
//! Outputs may be indented, truncated or incomplete. The import lists the missing parts, and warns
//! of problems in the figures, such as refusals, a backlog, or the limit of one connection.

mod imported_command;
mod imported_figures;
mod imported_run;
mod output;
mod warn;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::record::Run;
use imported_command::ImportedCommand;
use imported_run::Context;
use output::Output;

/// Maximum size of a file in bytes, about a thousand times the longest known page with outputs.
const MAX_FILE: u64 = 64 << 20;

/// HTTP methods that a text may mention.
const METHODS: [&str; 5] = ["PUT", "GET", "DELETE", "POST", "HEAD"];

/// Everything after `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files with outputs of wrk2 or wrk, alone or within a page of text or Markdown, up to 64 MiB;
    /// "-" is stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Directory for the run directories, created if missing; none in it is overwritten
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
}

/// Message for files that contain no output.
const NOTHING: &str = "no output of wrk2 or wrk is in it; one has lines as \"Thread Stats\" and \
                       \"Requests/sec: 100.00\"";

/// The reason why an import failed, or stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is longer than 64 MiB.
    #[error("{}: longer than 64 MiB: cut out the outputs", .0.display())]
    TooLong(PathBuf),
    /// A run directory exists and is not overwritten.
    #[error(
        "{}: is there already and was left as it is; remove it or give another --out",
        .0.display()
    )]
    Exists(PathBuf),
    /// A run directory can't be written.
    #[error("{}: cannot be written: {source}", directory.display())]
    Write {
        /// Path of the directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// None of these files contains an output.
    #[error("{}", lines(.0))]
    Nothing(Vec<PathBuf>),
}

fn lines(files: &[PathBuf]) -> String {
    files.iter().map(|file| no_output_message(file)).collect::<Vec<_>>().join("\n")
}

fn no_output_message(file: &Path) -> String {
    format!("{}: {NOTHING}", file.display())
}

/// An imported run.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedOutput {
    /// Name of the run's directory.
    pub name: String,
    /// Line of the file on which the output begins, from 1.
    pub line: usize,
    /// Text of the output.
    pub output: String,
    /// The run read from the output.
    pub run: Run,
}

/// Reads all outputs in `text`. The names of the runs begin with `stem`, the file's name without
/// its extension.
pub fn read(text: &str, stem: &str) -> Vec<ImportedOutput> {
    read_with_skipped(text, stem).0
}

/// Reads all outputs. Also returns the skipped outputs, which are single quoted lines: the line
/// number and the first line of each.
fn read_with_skipped(text: &str, stem: &str) -> (Vec<ImportedOutput>, Vec<(usize, String)>) {
    let mut mentioned_method = None;
    let mut runs: Vec<ImportedOutput> = Vec::new();
    let mut left = Vec::new();
    for output in output::find(text) {
        if !output.is_output() {
            let first = output.text.lines().next().unwrap_or_default();
            left.push((output.line, first.trim().to_owned()));
            continue;
        }
        let command = imported_command::find(&output.before);
        mentioned_method = last_method(&output.before).or(mentioned_method);
        let context = Context { command: command.as_ref(), mentioned_method };
        let run = imported_run::convert(&output, context);
        let name = name(stem, runs.len() + 1, &output, command.as_ref(), mentioned_method, &run);
        runs.push(ImportedOutput { name, line: output.line, output: output.text, run });
    }
    (runs, left)
}

/// Writes a run directory for each output in the files. Returns the text to print, or the error
/// that stopped the import. Returns [`Error::Nothing`] if no file contains an output.
pub fn import(args: &ImportArgs) -> Result<String, Error> {
    let mut printed = String::new();
    let mut found = 0;
    for file in &args.files {
        let text = contents(file)?;
        let stem = file.file_stem().map_or("stdin".into(), |stem| stem.to_string_lossy());
        let stem = if stem == "-" { "stdin" } else { &stem };
        let (runs, left) = read_with_skipped(&text, stem);
        found += runs.len();
        if runs.is_empty() {
            printed.push_str(&format!("{}\n", no_output_message(file)));
        }
        for imported in &runs {
            let directory = args.out.join(&imported.name);
            save(&directory, imported)?;
            printed.push_str(&summary(file, &directory, imported));
        }
        for (line, text) in left {
            let file = file.display();
            printed
                .push_str(&format!("{file}:{line}: not imported, for it stands alone: {text}\n"));
        }
    }
    if found == 0 { Err(Error::Nothing(args.files.clone())) } else { Ok(printed) }
}

fn contents(file: &Path) -> Result<String, Error> {
    let failed = |source| Error::Unreadable { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(fs::File::open(file).map_err(failed)?)
    };
    source.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::TooLong(file.to_owned()));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn save(directory: &Path, imported: &ImportedOutput) -> Result<(), Error> {
    let failed = |source| Error::Write { directory: directory.to_owned(), source };
    if directory.exists() {
        return Err(Error::Exists(directory.to_owned()));
    }
    fs::create_dir_all(directory).map_err(failed)?;
    let mut json = serde_json::to_string_pretty(&imported.run).map_err(|e| failed(e.into()))?;
    json.push('\n');
    fs::write(directory.join("run.json"), json).map_err(failed)?;
    fs::write(directory.join("output.txt"), &imported.output).map_err(failed)
}

/// Formats `FILE:LINE -> DIR`, then the warnings and the missing parts, one per line.
fn summary(file: &Path, directory: &Path, imported: &ImportedOutput) -> String {
    let mut printed = format!("{}:{} -> {}\n", file.display(), imported.line, directory.display());
    for warning in &imported.run.warnings {
        printed.push_str(&format!("  WARNING {}: {}\n", warning.code, warning.text));
    }
    for missing in &imported.run.missing {
        printed.push_str(&format!("  missing: {missing}\n"));
    }
    printed
}

/// Names a run by its parameters, as in `FILE-2-get-25000-c64-19234`.
fn name(
    stem: &str,
    number: usize,
    output: &Output,
    command: Option<&ImportedCommand>,
    mentioned_method: Option<&str>,
    run: &Run,
) -> String {
    let script = command.and_then(|command| command.script.as_deref());
    let script = script.and_then(|script| Path::new(script).file_stem()?.to_str());
    let mut parts = vec![stem.to_owned(), number.to_string()];
    parts.extend(script.map(str::to_owned).or(mentioned_method.map(str::to_lowercase)));
    parts.extend(run.plan.rate.map(|rate| rate.to_string()));
    parts.extend(output.connections.map(|connections| format!("c{connections}")));
    let host = output.url.as_deref().and_then(|url| url.split("://").nth(1)?.split('/').next());
    parts.extend(host.and_then(|host| host.rsplit_once(':')).map(|(_, port)| port.to_owned()));
    let name = parts.join("-");
    name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

/// Returns the last HTTP method that a text mentions, or `None` if it mentions none.
fn last_method(text: &str) -> Option<&'static str> {
    let words = text.split(|c: char| !c.is_alphanumeric()).rev();
    words.map(str::to_uppercase).find_map(|word| METHODS.into_iter().find(|is| *is == word))
}
