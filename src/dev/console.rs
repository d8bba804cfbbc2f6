//! One terminal for all nodes: whose line it is stands before it.

use std::io::{self, IsTerminal, Write};

/// Colours of the nodes' names, in turn: none of them is red, which is for what went wrong.
const COLOURS: [&str; 5] = ["\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[34m"];
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Where the lines go: stdout, whole lines at a time.
#[derive(Debug)]
pub(super) struct Console {
    coloured: bool,
    width: usize,
}

impl Console {
    /// For names of at most `width` columns. Colours are for terminals, unless `NO_COLOR` is set.
    pub(super) fn new(width: usize) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { coloured: io::stdout().is_terminal() && !unwanted, width }
    }

    /// A line that a node logged.
    pub(super) fn logged(&self, number: usize, name: &str, line: &str) {
        let width = self.width;
        self.print(&match self.coloured {
            true => format!("{}{name:width$} |{PLAIN} {line}\n", COLOURS[number % COLOURS.len()]),
            false => format!("{name:width$} | {line}\n"),
        });
    }

    /// A node's new state.
    pub(super) fn state(&self, number: usize, name: &str, state: &str) {
        let width = self.width;
        self.print(&match self.coloured {
            true => {
                let colour = COLOURS[number % COLOURS.len()];
                format!("{colour}{name:width$} ={PLAIN} {BOLD}{state}{PLAIN}\n")
            }
            false => format!("{name:width$} = {state}\n"),
        });
    }

    /// Lines that are no node's.
    pub(super) fn print(&self, text: &str) {
        // Nobody reading it is no reason to leave the nodes alone.
        let _ = io::stdout().lock().write_all(text.as_bytes());
    }
}
