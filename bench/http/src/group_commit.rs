//! Lower bound on the latency of `sync = always`: one loop writes records that are due into a
//! preallocated file of zeros and calls `fdatasync`, while another thread writes tables at a given
//! rate.
//!
//! ```text
//!  records that are due ─▶ at most 64 in a group ─▶ one write ─▶ one fdatasync ─▶ all 64 done
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::process::SERVER_CPU;

/// Maximum number of records in a group, as many as the compared row has connections.
const WAITERS: u64 = 64;

/// Length in bytes of one log record, which has a key of 16 bytes, a value of 64 bytes, and
/// overhead.
const RECORD_LEN: u64 = 112;

/// Overhead of a group in bytes.
const GROUP_LEN: u64 = 32;

/// Length in bytes of a table of the background writer, which syncs a table before it begins the
/// next one.
const TABLE_LEN: u64 = 8 << 20;

/// Length in bytes of one write of the background writer.
const CHUNK_LEN: u64 = 64 << 10;

/// The figures of the loop.
pub(crate) struct LoopFigures {
    /// Time from the planned moment of a record to the end of its sync, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Bytes per second that this process wrote to the disk.
    pub(crate) bytes_per_second: f64,
}

/// Runs the loop for `duration` at `rate` records per second on the server's CPU, while a thread
/// writes `background` bytes of tables per second.
pub(crate) fn run(
    dir: &Path,
    rate: u64,
    duration: Duration,
    background: f64,
) -> io::Result<LoopFigures> {
    let slots = rate * duration.as_secs();
    let path = dir.join("bare-log");
    let log = create_zeroed(&path, slots * (RECORD_LEN + GROUP_LEN))?;
    let done = AtomicBool::new(false);
    let before = own_bytes_written();
    let latency = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_tables(dir, background, &done));
        let latency = scope.spawn(|| commit_groups(&log, rate, slots)).join();
        done.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| io::Error::other("the background writer panicked"))??;
        latency.map_err(|_| io::Error::other("the commit loop panicked"))?
    })?;
    let bytes_per_second = (own_bytes_written() - before) as f64 / duration.as_secs_f64();
    fs::remove_file(path)?;
    Ok(LoopFigures { latency, bytes_per_second })
}

fn create_zeroed(path: &Path, len: u64) -> io::Result<File> {
    let file = File::create(path)?;
    let zeros = vec![0; 1 << 20];
    for at in (0..len).step_by(zeros.len()) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn pin() -> io::Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(SERVER_CPU);
    Ok(rustix::thread::sched_setaffinity(None, &cpus)?)
}

fn commit_groups(log: &File, rate: u64, slots: u64) -> io::Result<Histogram<u64>> {
    pin()?;
    let mut latency = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
        .map_err(|error| io::Error::other(format!("{error:?}")))?;
    let group = vec![0xA5; (GROUP_LEN + WAITERS * RECORD_LEN) as usize];
    let at = |slot: u64| Duration::from_nanos(slot * 1_000_000_000 / rate);
    let start = Instant::now();
    let (mut next, mut offset) = (0, 0);
    while next < slots {
        let now = start.elapsed();
        if at(next) > now {
            std::thread::sleep(at(next) - now);
            continue;
        }
        let due = (now.as_nanos() as u64 * rate / 1_000_000_000 + 1).min(slots);
        let count = (due - next).min(WAITERS);
        let len = GROUP_LEN + count * RECORD_LEN;
        log.write_all_at(&group[..len as usize], offset)?;
        log.sync_data()?;
        offset += len;
        let now = start.elapsed();
        for slot in next..next + count {
            latency.saturating_record((now - at(slot)).as_nanos() as u64);
        }
        next += count;
    }
    Ok(latency)
}

/// Writes and syncs one table after another until `done`, and removes each table after its sync.
fn write_tables(dir: &Path, rate: f64, done: &AtomicBool) -> io::Result<()> {
    if rate < 1.0 {
        return Ok(());
    }
    pin()?;
    let chunk = vec![0x5A; CHUNK_LEN as usize];
    let start = Instant::now();
    let mut written = 0;
    let mut table = 0;
    while !done.load(Ordering::Relaxed) {
        let path = dir.join(format!("bare-table-{table}"));
        let file = File::create(&path)?;
        for at in (0..TABLE_LEN).step_by(CHUNK_LEN as usize) {
            if done.load(Ordering::Relaxed) {
                break;
            }
            file.write_all_at(&chunk, at)?;
            written += CHUNK_LEN;
            let due = Duration::from_secs_f64(written as f64 / rate);
            // At most one second, because at a low rate the sleep after one chunk would outlast the
            // run.
            std::thread::sleep(due.saturating_sub(start.elapsed()).min(Duration::from_secs(1)));
        }
        file.sync_data()?;
        fs::remove_file(path)?;
        table += 1;
    }
    Ok(())
}

fn own_bytes_written() -> u64 {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
}
