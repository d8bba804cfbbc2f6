//! The process's threads, as `/proc/self/task` has them.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::{fs, io};

/// Threads that are looked at. Beyond that number the rest is left out, and the profile says so.
pub(crate) const MAX_THREADS: usize = 4096;

/// How a thread was scheduled so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Nanoseconds on a CPU.
    pub(crate) ran: u64,
    /// How often it was put on one.
    pub(crate) turns: u64,
}

/// Ids of the threads there are, at most [`MAX_THREADS`]; and whether that is all.
pub(crate) fn all() -> io::Result<(Vec<i32>, bool)> {
    let entries = fs::read_dir("/proc/self/task")?;
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut ids: Vec<i32> = ids.take(MAX_THREADS + 1).collect();
    let complete = ids.len() <= MAX_THREADS;
    ids.truncate(MAX_THREADS);
    Ok((ids, complete))
}

/// A thread's name; none if it has ended.
pub(crate) fn name(thread: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// How a thread was scheduled; none if it has ended, or the kernel does not say.
pub(crate) fn schedule(thread: i32) -> Option<Schedule> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let mut fields = text.split_whitespace().map(str::parse);
    let (Some(Ok(ran)), Some(Ok(turns))) = (fields.next(), fields.nth(1)) else { return None };
    // A kernel without the figures says 0 for a thread that must have run.
    (turns > 0).then_some(Schedule { ran, turns })
}

/// The calling thread's id.
pub(crate) fn own() -> i32 {
    // SAFETY: it has no arguments and always succeeds.
    unsafe { libc::gettid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_finds_itself() {
        let asked = std::thread::Builder::new().name("someone".to_owned()).spawn(|| {
            assert!(all().unwrap().0.contains(&own()));
            assert!(schedule(own()).is_none_or(|schedule| schedule.turns > 0));
            name(own())
        });
        assert_eq!(asked.unwrap().join().unwrap(), Some("someone".to_owned()));
        assert_eq!(name(-1), None);
    }
}
