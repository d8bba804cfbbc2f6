//! Terminal output of all nodes: each line begins with its node's name.

use std::io::{self, IsTerminal};

use crate::operations::output::LineWriter;

/// Colours of the nodes' names, in rotation. Red is left out: it marks errors.
const COLOURS: [&str; 5] = ["\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[34m"];
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// The output to stdout. A blocked terminal holds up neither the nodes nor their stop.
#[derive(Debug)]
pub(super) struct Console {
    coloured: bool,
    width: usize,
    output: LineWriter,
}

impl Console {
    /// Opens the output for names of at most `width` columns. Names are coloured on a terminal,
    /// unless `NO_COLOR` is set.
    pub(super) fn new(width: usize) -> io::Result<Self> {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let output = LineWriter::start("stdout", &io::stdout(), |output, lines| {
            output.push(format!("({lines} lines were dropped: stdout was blocked)\n").as_bytes());
        })?;
        Ok(Self { coloured: io::stdout().is_terminal() && !unwanted, width, output })
    }

    /// Prints a line of a node's log.
    pub(super) fn logged(&self, number: u16, name: &str, line: &str) {
        let width = self.width;
        self.print(&match self.coloured {
            true => format!("{}{name:width$} |{PLAIN} {line}\n", colour(number)),
            false => format!("{name:width$} | {line}\n"),
        });
    }

    /// Prints a node's new state.
    pub(super) fn state(&self, number: u16, name: &str, state: &str) {
        let width = self.width;
        self.print(&match self.coloured {
            true => {
                let colour = colour(number);
                format!("{colour}{name:width$} ={PLAIN} {BOLD}{state}{PLAIN}\n")
            }
            false => format!("{name:width$} = {state}\n"),
        });
    }

    /// Prints text without a node's name.
    pub(super) fn print(&self, text: &str) {
        self.output.push(text.as_bytes());
    }

    /// Waits up to a second until the last lines are written.
    pub(super) fn finish(&self) {
        self.output.flush();
    }
}

/// Returns the colour of a node; numbers begin at 1.
fn colour(number: u16) -> &'static str {
    COLOURS[usize::from(number) % COLOURS.len()]
}
