//! The journal of a run: one line for each event. The hash of all lines shows whether two runs are
//! equal. The lines are printed on request.

use std::fmt::{self, Write};

use xxhash_rust::xxh3::Xxh3;

/// The journal of a run, with the hash of the lines so far.
pub(crate) struct Journal {
    hash: Xxh3,
    print: bool,
    lines: u64,
}

impl Journal {
    pub(crate) fn new(print: bool) -> Self {
        Self { hash: Xxh3::new(), print, lines: 0 }
    }

    /// Adds a line for an event at `now` microseconds.
    pub(crate) fn line(&mut self, now: u64, what: fmt::Arguments<'_>) {
        self.lines += 1;
        self.hash.update(&now.to_le_bytes());
        // Hashing can't fail.
        let _ = self.write_fmt(what);
        if self.print {
            println!("{:>10}.{:06} {what}", now / 1_000_000, now % 1_000_000);
        }
    }

    /// Returns the hash of all lines so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.digest()
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }
}

impl Write for Journal {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.hash.update(part.as_bytes());
        Ok(())
    }
}
