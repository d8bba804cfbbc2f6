//! Resource usage of a process and its descendants: CPU, memory and disk between two snapshots, and
//! the machine's idle CPU.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// A snapshot of a process tree and the machine.
#[derive(Debug, Clone)]
pub struct ServerSnapshot {
    at: Instant,
    /// CPU ticks of the process tree.
    ticks: u64,
    threads: HashMap<u32, ThreadSnapshot>,
    resident: u64,
    written: u64,
    read: u64,
    cpus: usize,
    machine: MachineSnapshot,
}

#[derive(Debug, Clone)]
struct ThreadSnapshot {
    name: String,
    ticks: u64,
    /// Nanoseconds in which the thread was runnable without a CPU, if the kernel counts them.
    waited: Option<u64>,
}

/// CPU ticks of the machine, and microseconds in which any task waited for a disk.
#[derive(Debug, Clone, Copy, Default)]
struct MachineSnapshot {
    all: u64,
    idle: u64,
    io_stalled: Option<u64>,
}

/// Resource usage between two snapshots.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Usage {
    /// Seconds between the snapshots.
    pub seconds: f64,
    /// CPU seconds of the process tree.
    pub cpu_s: f64,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// Share of the time, 0–1, in which the thread that waited most was runnable without a CPU.
    /// `None` if the kernel does not count it (`schedstat`).
    pub waited: Option<f64>,
    /// The thread with the most CPU time.
    pub busiest: Option<Busiest>,
    /// Resident memory at the end, in bytes.
    pub rss: u64,
    /// Bytes written to the disk per second.
    pub written_per_s: f64,
    /// Bytes read from the disk per second.
    pub read_per_s: f64,
    /// Idle share of the machine's CPU time, 0–1. Waiting for a disk counts as idle.
    pub idle: f64,
    /// CPUs of the machine in use, by any process.
    pub machine_cpus: f64,
    /// Share of the time, 0–1, in which some task of the machine waited for a disk. `None` if the
    /// kernel does not count it (`/proc/pressure/io`).
    pub io_stalled: Option<f64>,
}

/// A thread and its share of a CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Busiest {
    /// Name of the thread.
    pub name: String,
    /// Share of the time that the thread was on a CPU, 0–1.
    pub share: f64,
}

impl ServerSnapshot {
    /// Takes a snapshot of `pid` and all its descendants. Returns `None` if the process is gone.
    pub fn at(pid: u32) -> Option<Self> {
        let mut snapshot = Self {
            at: Instant::now(),
            ticks: 0,
            threads: HashMap::new(),
            resident: 0,
            written: 0,
            read: 0,
            cpus: cpus(pid)?,
            machine: MachineSnapshot::now(),
        };
        for pid in tree(pid) {
            snapshot.add(pid);
        }
        Some(snapshot)
    }

    fn add(&mut self, pid: u32) {
        let Some(stat) = Stat::read(format!("/proc/{pid}/stat").as_ref()) else { return };
        self.ticks += stat.ticks;
        self.resident += stat.resident;
        // The file is unreadable for other users' processes.
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let counted: BTreeMap<&str, u64> = io
            .lines()
            .filter_map(|line| line.split_once(": "))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect();
        self.written += counted.get("write_bytes").copied().unwrap_or(0);
        self.read += counted.get("read_bytes").copied().unwrap_or(0);
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for task in tasks.flatten() {
            let name = task.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(Stat { name, ticks, .. }) = Stat::read(&task.path().join("stat")) {
                let waited = fs::read_to_string(task.path().join("schedstat")).ok();
                let waited = waited.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
                self.threads.insert(id, ThreadSnapshot { name, ticks, waited });
            }
        }
    }

    /// Returns the usage from the snapshot `before` to this one.
    pub fn since(&self, before: &Self) -> Usage {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let used = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let busiest = self
            .threads
            .iter()
            .map(|(id, thread)| {
                let then = before.threads.get(id).map_or(0, |thread| thread.ticks);
                (used(thread.ticks, then) / per_second / seconds, &thread.name)
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(share, name)| Busiest { name: name.clone(), share });
        let waits = self.threads.iter().filter_map(|(id, thread)| {
            let then = before.threads.get(id).map_or(Some(0), |thread| thread.waited);
            // The kernel adds a wait once it ends, so the first one may have begun before.
            Some((used(thread.waited?, then?) / 1e9 / seconds).min(1.0))
        });
        let waited = waits.reduce(f64::max);
        let all = used(self.machine.all, before.machine.all);
        let stalled = self.machine.io_stalled.zip(before.machine.io_stalled);
        Usage {
            seconds,
            cpu_s: used(self.ticks, before.ticks) / per_second,
            cpus: self.cpus,
            waited,
            busiest,
            rss: self.resident,
            written_per_s: used(self.written, before.written) / seconds,
            read_per_s: used(self.read, before.read) / seconds,
            machine_cpus: (all - used(self.machine.idle, before.machine.idle))
                / per_second
                / seconds,
            idle: used(self.machine.idle, before.machine.idle) / all.max(1.0),
            io_stalled: stalled.map(|(now, then)| used(now, then) / 1e6 / seconds),
        }
    }
}

impl Usage {
    /// Returns the used share, 0–1, of the CPUs that the process may use.
    pub fn cpu_share(&self) -> f64 {
        self.cpu_s / self.seconds.max(1e-9) / self.cpus.max(1) as f64
    }
}

impl MachineSnapshot {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpu = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            cpu.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let pressure = fs::read_to_string("/proc/pressure/io").unwrap_or_default();
        let some = pressure.lines().find(|line| line.starts_with("some "));
        let total = some.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
        Self {
            // The fields are user nice system idle iowait irq softirq steal. Guests are part of
            // user.
            all: ticks.iter().take(8).sum(),
            idle: ticks.iter().skip(3).take(2).sum(),
            io_stalled: total,
        }
    }
}

/// The fields of `/proc/PID/stat` that are used.
struct Stat {
    name: String,
    parent: u32,
    ticks: u64,
    resident: u64,
}

impl Stat {
    fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// Parses a line. A name may contain blanks and brackets, so the last bracket ends the name.
    fn parse(line: &str) -> Option<Self> {
        let (head, rest) = line.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        Some(Self {
            name,
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            resident: number(21)? * rustix::param::page_size() as u64,
        })
    }
}

/// Returns `root` and all its descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(stat) = Stat::read(&entry.path().join("stat")) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        found.extend(children.remove(&found[at]).unwrap_or_default());
        at += 1;
    }
    found
}

/// Returns the number of CPUs that `pid` may use, or `None` if the process is gone.
fn cpus(pid: u32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(count(list.trim()))
}

/// Returns the number of CPUs in a list: `0-2,5` has 4.
fn count(list: &str) -> usize {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some(last.saturating_sub(first) + 1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{ServerSnapshot, Stat, count};

    #[test]
    fn the_cpu_time_of_a_process_is_measured() {
        let pid = std::process::id();
        let before = ServerSnapshot::at(pid).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let usage = loop {
            std::hint::black_box((0..1_000_000u64).sum::<u64>());
            let usage = ServerSnapshot::at(pid).unwrap().since(&before);
            // Long enough for the kernel's tick counts to be accurate.
            let is_long = usage.cpu_s >= 0.1 && usage.seconds >= 0.5;
            if is_long || Instant::now() > deadline {
                break usage;
            }
        };
        assert!(usage.cpu_s >= 0.1, "{usage:?}");
        assert!(usage.rss > 100_000 && usage.cpus >= 1, "{usage:?}");
        assert!(usage.busiest.as_ref().is_some_and(|busiest| busiest.share > 0.0), "{usage:?}");
        assert!((0.0..=1.0).contains(&usage.idle), "{usage:?}");
        // Kernels without scheduler statistics yield nothing.
        let tells = std::fs::read_to_string("/proc/self/schedstat").is_ok();
        assert_eq!(usage.waited.is_some(), tells, "{usage:?}");
        assert!(usage.waited.is_none_or(|share| (0.0..=1.0).contains(&share)), "{usage:?}");
        assert!(ServerSnapshot::at(u32::MAX - 1).is_none());
    }

    #[test]
    fn process_names_may_contain_any_character() {
        let line = "7 (a) (b c) S 3 7 7 0 -1 4194560 1 0 0 0 11 22 0 0 20 0 1 0 5 1000 9 1 2";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.ticks), ("a) (b c", 3, 33));
        assert_eq!(stat.resident, 9 * rustix::param::page_size() as u64);
    }

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0-1"), 2);
        assert_eq!(count("0-2,5"), 4);
        assert_eq!(count("3"), 1);
    }
}
