//! Terminal output of all nodes: each line begins with the name of its node.

use std::io::{self, IsTerminal};

use crate::operations::output::LineWriter;

/// Colors of the nodes' names, in rotation, without red, which marks errors.
const COLORS: [&str; 5] = ["\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[34m"];
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// The output to stdout. A blocked terminal delays neither the nodes nor their stop.
#[derive(Debug)]
pub(super) struct Console {
    coloured: bool,
    width: usize,
    output: LineWriter,
}

impl Console {
    /// Opens the output for names of at most `width` columns. On a terminal, names have colors,
    /// unless `NO_COLOR` is set.
    pub(super) fn new(width: usize) -> io::Result<Self> {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let output = LineWriter::start("stdout", &io::stdout(), |output, lines| {
            output.push(format!("({lines} lines were dropped: stdout was blocked)\n").as_bytes());
        })?;
        Ok(Self { coloured: io::stdout().is_terminal() && !unwanted, width, output })
    }

    /// Prints a line of a node's log.
    pub(super) fn print_log_line(&self, number: u16, name: &str, line: &str) {
        let width = self.width;
        self.print(&match self.coloured {
            true => format!("{}{name:width$} |{PLAIN} {line}\n", color(number)),
            false => format!("{name:width$} | {line}\n"),
        });
    }

    /// Prints a node's new state.
    pub(super) fn state(&self, number: u16, name: &str, state: &str) {
        let width = self.width;
        self.print(&match self.coloured {
            true => {
                let color = color(number);
                format!("{color}{name:width$} ={PLAIN} {BOLD}{state}{PLAIN}\n")
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

/// Returns the color of a node; numbers begin at 1.
fn color(number: u16) -> &'static str {
    COLORS[usize::from(number) % COLORS.len()]
}
