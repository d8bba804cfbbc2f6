//! The report of a benchmark: Markdown and raw figures, which are printed and saved.

use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::path::Path;

/// A Markdown table.
#[derive(Debug, Clone)]
pub struct Table {
    columns: usize,
    lines: Vec<String>,
}

impl Table {
    /// Creates a table with these columns. The first is left-aligned, and the others, which have
    /// numbers, are right-aligned.
    pub fn new(columns: &[&str]) -> Self {
        let rule = format!("|---|{}", "---:|".repeat(columns.len() - 1));
        Self { columns: columns.len(), lines: vec![format!("| {} |", columns.join(" | ")), rule] }
    }

    /// Adds a row. An absent cell is shown as a dash.
    pub fn row(&mut self, cells: Vec<Option<String>>) {
        assert_eq!(cells.len(), self.columns, "a row has a cell for each column");
        let cells: Vec<String> =
            cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned())).collect();
        self.lines.push(format!("| {} |", cells.join(" | ")));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The report of a run.
#[derive(Debug, Default)]
pub struct Report {
    markdown: String,
    raw: String,
}

impl Report {
    /// Creates an empty report.
    pub fn new() -> Self {
        Self { markdown: String::new(), raw: "section,row,repeat,figure,value\n".to_owned() }
    }

    /// Prints a paragraph, list or table, and adds it to the report.
    pub fn say(&mut self, text: &str) {
        println!("{}\n", text.trim_end());
        self.markdown.push_str(text.trim_end());
        self.markdown.push_str("\n\n");
    }

    /// Adds one raw figure: the value of `figure` in one repeat of a row.
    pub fn figure(&mut self, section: &str, row: &str, repeat: usize, figure: &str, value: f64) {
        let row = row.replace(',', ";");
        writeln!(self.raw, "{section},{row},{repeat},{figure},{value}")
            .expect("writing to a String cannot fail");
    }

    /// Writes the Markdown to `out`, and the raw figures beside it with the extension `csv`.
    pub fn save(&self, out: &Path) -> io::Result<()> {
        fs::write(out, &self.markdown)?;
        fs::write(out.with_extension("csv"), &self.raw)
    }
}
