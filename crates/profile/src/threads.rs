//! The process's threads, from `/proc/self/task`.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::{fs, io};

/// Maximum number of sampled threads. Further threads are left out, with a note in the profile.
pub(crate) const MAX_THREADS: usize = 4096;

/// Scheduling statistics of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Time on a CPU, in nanoseconds.
    pub(crate) cpu_nanos: u64,
    /// Number of timeslices in which the thread cpu_nanos.
    pub(crate) timeslices: u64,
}

/// Returns the ids of the process's threads, at most [`MAX_THREADS`], and true if these are all.
pub(crate) fn all() -> io::Result<(Vec<i32>, bool)> {
    let entries = fs::read_dir("/proc/self/task")?;
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut ids: Vec<i32> = ids.take(MAX_THREADS + 1).collect();
    let complete = ids.len() <= MAX_THREADS;
    ids.truncate(MAX_THREADS);
    Ok((ids, complete))
}

/// Returns a thread's name; `None` if the thread has ended.
pub(crate) fn name(thread: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Returns a thread's scheduling statistics; `None` if the thread has ended or the kernel provides
/// none.
pub(crate) fn schedule(thread: i32) -> Option<Schedule> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let mut fields = text.split_whitespace().map(str::parse);
    let (Some(Ok(cpu_nanos)), Some(Ok(timeslices))) = (fields.next(), fields.nth(1)) else {
        return None;
    };
    // A kernel without statistics reports 0 for a thread that must have run.
    (timeslices > 0).then_some(Schedule { cpu_nanos, timeslices })
}

/// Returns the calling thread's id.
pub(crate) fn own() -> i32 {
    // SAFETY: the call has no arguments and always succeeds.
    unsafe { libc::gettid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_finds_itself() {
        let asked = std::thread::Builder::new().name("someone".to_owned()).spawn(|| {
            assert!(all().unwrap().0.contains(&own()));
            assert!(schedule(own()).is_none_or(|schedule| schedule.timeslices > 0));
            name(own())
        });
        assert_eq!(asked.unwrap().join().unwrap(), Some("someone".to_owned()));
        assert_eq!(name(-1), None);
    }
}
