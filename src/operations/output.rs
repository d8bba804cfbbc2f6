//! Buffered output lines. A separate thread writes them, so a pipe without a reader, a full disk or
//! a stalled terminal neither blocks nor ends the process.
//!
//! ```text
//!  any thread ─ line ─▶ waiting, up to WAITING_BYTES ─▶ one thread ─ write ─▶ stderr, stdout
//!                └─ limit reached: dropped, counted        └─ error: dropped, counted
//! ```

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Limit on the bytes of waiting lines: 1 MiB, several seconds of a very busy log.
const WAITING_BYTES: usize = 1 << 20;

/// Number of bytes that a pipe accepts atomically (PIPE_BUF). If no write is longer, lines of
/// several processes that share a pipe are not mixed.
const WHOLE_BYTES: usize = 4096;

/// Time limit for the last lines when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A file to which a separate thread writes lines. All clones share the file and the thread.
#[derive(Debug, Clone)]
pub(crate) struct LineWriter(Arc<WriterState>);

#[derive(Debug, Default)]
struct WriterState {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// True while the thread writes lines that it removed from `waiting`.
    busy: bool,
    /// Number of lines dropped.
    dropped: u64,
    /// Number of dropped lines that are not reported yet.
    unreported: u64,
}

impl State {
    fn drop_lines(&mut self, lines: &[u8]) {
        let lost = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.dropped += lost;
        self.unreported += lost;
    }
}

impl LineWriter {
    /// Starts the writer thread `name`. After lines were dropped, `report` is called with their
    /// number as soon as `to` accepts lines again. `report` may log the loss.
    pub(crate) fn start(name: &str, to: &impl AsFd, report: fn(&Self, u64)) -> io::Result<Self> {
        // A duplicate bypasses the standard library's handle. Other threads would wait for the lock
        // of that handle.
        let to = File::from(to.as_fd().try_clone_to_owned()?);
        let output = Self(Arc::default());
        let this = output.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || this.write_lines_to(to, report))?;
        Ok(output)
    }

    /// Queues whole lines. Never waits for the reader.
    pub(crate) fn push(&self, lines: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len() + lines.len() > WAITING_BYTES {
            state.drop_lines(lines);
        } else {
            state.waiting.extend_from_slice(lines);
            self.0.changed.notify_all();
        }
    }

    /// Waits until the queued lines are written, up to `FLUSH_TIMEOUT`.
    pub(crate) fn flush(&self) {
        let is_busy = |state: &mut State| state.busy || !state.waiting.is_empty();
        // A timeout is ignored, because nothing more can be done.
        self.0.changed.wait_while_for(&mut self.lock(), is_busy, FLUSH_TIMEOUT);
    }

    /// Returns the number of lines dropped so far.
    pub(crate) fn dropped_lines(&self) -> u64 {
        self.lock().dropped
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    fn write_lines_to(&self, to: File, report: fn(&Self, u64)) {
        let mut writer = Writer { to, torn: false };
        let mut lines = Vec::new();
        loop {
            let unreported = self.take(&mut lines);
            let written = writer.write(&lines);
            let whole = written == lines.len();
            if whole && unreported > 0 {
                report(self, unreported);
            }
            let mut state = self.lock();
            if !whole {
                state.drop_lines(&lines[written..]);
                state.unreported += unreported;
            }
            state.busy = false;
            self.0.changed.notify_all();
        }
    }

    /// Waits for lines, and moves them into `lines`. Returns the number of lines that were dropped
    /// after them and are not reported yet.
    fn take(&self, lines: &mut Vec<u8>) -> u64 {
        lines.clear();
        let none = |state: &mut State| state.waiting.is_empty();
        let mut state = self.lock();
        self.0.changed.wait_while(&mut state, none);
        std::mem::swap(lines, &mut state.waiting);
        state.busy = true;
        std::mem::take(&mut state.unreported)
    }
}

struct Writer {
    to: File,
    /// True if the last line was written only in part.
    torn: bool,
}

impl Writer {
    /// Writes as much as possible, and waits for a slow reader. Returns the number of bytes
    /// written.
    fn write(&mut self, lines: &[u8]) -> usize {
        if self.torn && self.write_some(b"\n").is_err() {
            return 0;
        }
        self.torn = false;
        let mut written = 0;
        while written < lines.len() {
            match self.write_some(whole_lines(&lines[written..])) {
                Ok(some) => written += some,
                Err(_) => break,
            }
        }
        self.torn = written > 0 && lines[written - 1] != b'\n';
        written
    }

    fn write_some(&self, bytes: &[u8]) -> Result<usize, Errno> {
        loop {
            match rustix::io::write(&self.to, bytes) {
                Ok(0) => return Err(Errno::IO),
                Err(Errno::INTR) => {}
                // Another process that shares the file may have made it non-blocking.
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&self.to, PollFlags::OUT)], None)?;
                }
                result => return result,
            }
        }
    }
}

/// Returns as many whole lines as fit into an atomic write, or one line that is longer.
fn whole_lines(lines: &[u8]) -> &[u8] {
    let (within, beyond) = lines.split_at(lines.len().min(WHOLE_BYTES));
    if beyond.is_empty() {
        return lines;
    }
    let newline = |byte: &u8| *byte == b'\n';
    let end = within.iter().rposition(newline);
    let end = end.or_else(|| beyond.iter().position(newline).map(|more| within.len() + more));
    end.map_or(lines, |end| &lines[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_a_line() {
        let short = "x".repeat(99) + "\n";
        let (many, long) = (short.repeat(50), "y".repeat(5000) + "\n");
        assert_eq!(whole_lines(many.as_bytes()).len(), 4000);
        assert_eq!(whole_lines((long.clone() + &many).as_bytes()), long.as_bytes());
        assert_eq!(whole_lines((short.clone() + &long).as_bytes()), short.as_bytes());
        assert_eq!(whole_lines(short.as_bytes()), short.as_bytes());
        assert_eq!(whole_lines(long.trim_end().as_bytes()).len(), 5000, "a line without an end");
    }
}
