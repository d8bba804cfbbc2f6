//! Detects the memory limit of this process: the minimum of the machine's memory, the limits of its
//! cgroup and of the cgroups above, and the process's limits of mapped memory and of data.
//!
//! ```text
//!  /proc/self/cgroup ─┬─ 0::/a/b ────────▶ /sys/fs/cgroup/{a/b, a, .}/memory.{max,high}
//!                     └─ 4:memory:/a/b ──▶ /sys/fs/cgroup/memory/{a/b, a, .}/memory.limit_in_bytes
//!  in a container the path may be that of the host: files that don't exist are passed over
//! ```

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::settings::units::Size;

/// Mount point of cgroups on Linux.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: u64,
    pub(crate) set_by: LimitSource,
}

/// Source of a memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LimitSource {
    /// A cgroup. The file has the limit.
    Cgroup(PathBuf),
    /// The machine's memory.
    Machine,
    /// The process's limit of mapped memory or of data (`RLIMIT_AS`, `RLIMIT_DATA`).
    Process,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The size is in whole MiB, if it is at least one MiB.
        let size = match self.bytes >> 20 {
            0 => Size(self.bytes),
            mib => Size(mib << 20),
        };
        match &self.set_by {
            LimitSource::Cgroup(file) => {
                write!(f, "{size} that its cgroup may take ({})", file.display())
            }
            LimitSource::Machine => write!(f, "{size} that this machine has"),
            LimitSource::Process => {
                write!(f, "{size} that the process may map (ulimit -v, LimitAS=)")
            }
        }
    }
}

/// Returns the lowest memory limit; `None` if the system reports no limit.
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let in_cgroups = of_cgroups(&read("/proc/self/cgroup"), Path::new(CGROUPS));
    let machine = of_machine(&read("/proc/meminfo"));
    let process = [Resource::As, Resource::Data].map(|what| getrlimit(what).current);
    let process = process.into_iter().flatten();
    let process = process.map(|bytes| MemoryLimit { bytes, set_by: LimitSource::Process });
    let all = in_cgroups.into_iter().chain(machine).chain(process);
    all.min_by_key(|limit| limit.bytes)
}

/// Parses the machine's memory from `/proc/meminfo`; `None` if the text is malformed.
fn of_machine(meminfo: &str) -> Option<MemoryLimit> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib = total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(MemoryLimit { bytes: kib.checked_mul(1024)?, set_by: LimitSource::Machine })
}

/// Returns all limits of the cgroups in `/proc/self/cgroup`, and of the cgroups above them. The
/// file may have lines of versions 1 and 2.
fn of_cgroups(membership: &str, root: &Path) -> Vec<MemoryLimit> {
    let mut limits = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, files) = if controllers.is_empty() {
            (root.to_owned(), &["memory.max", "memory.high"][..])
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), &["memory.limit_in_bytes"][..])
        } else {
            continue;
        };
        // A path outside of this process's cgroup namespace begins with "..".
        let below = Path::new(path).components();
        let below: PathBuf = below.filter(|part| matches!(part, Component::Normal(_))).collect();
        for group in below.ancestors() {
            let files = files.iter().map(|file| root.join(group).join(file));
            limits.extend(files.filter_map(|file| {
                // The text "max" is not a number. Version 1 reports a missing limit as a number
                // greater than any machine's memory.
                let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
                Some(MemoryLimit { bytes, set_by: LimitSource::Cgroup(file) })
            }));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn least(membership: &str, root: &Path) -> Option<(u64, String)> {
        let least = of_cgroups(membership, root).into_iter().min_by_key(|limit| limit.bytes)?;
        let LimitSource::Cgroup(file) = least.set_by else {
            unreachable!("it was read from a file")
        };
        Some((least.bytes, file.strip_prefix(root).unwrap().display().to_string()))
    }

    #[test]
    fn the_memory_limit_is_the_minimum_of_a_cgroup_and_its_ancestors() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(least("0::/a/b\n", root), None);
        write(root, "a/b/memory.max", "max\n");
        assert_eq!(least("0::/a/b\n", root), None);
        write(root, "a/memory.max", "268435456\n");
        write(root, "a/memory.high", "max\n");
        assert_eq!(least("0::/a/b\n", root), Some((256 * MIB, "a/memory.max".to_owned())));
        write(root, "a/b/memory.high", "134217728\n");
        assert_eq!(least("0::/a/b\n", root), Some((128 * MIB, "a/b/memory.high".to_owned())));
        assert_eq!(least("0::/c\n", root), None, "another one's");
        write(root, "memory.max", "67108864");
        assert_eq!(least("0::/../../a\n", root), Some((64 * MIB, "memory.max".to_owned())));
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let both = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n";
        write(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
        write(root, "memory/a/b/memory.limit_in_bytes", "268435456\n");
        let found = Some((256 * MIB, "memory/a/b/memory.limit_in_bytes".to_owned()));
        assert_eq!(least(both, root), found);
        let container = least("4:memory:/docker/1\n", root).unwrap();
        assert_eq!(container.1, "memory/memory.limit_in_bytes", "what it sees is its own");
    }

    #[test]
    fn malformed_files_set_no_memory_limit() {
        let root = tempfile::tempdir().unwrap();
        for text in ["", "::", "4:memory", "0", "x\n:::\n"] {
            assert_eq!(of_cgroups(text, root.path()), [], "{text:?}");
        }
        assert_eq!(of_machine("MemFree: 5 kB\n"), None);
        assert_eq!(of_machine("MemTotal: x kB\n"), None);
        let found = of_machine("MemTotal:        8045276 kB\nMemFree: 5 kB\n").unwrap();
        assert_eq!(found.bytes, 8_045_276 * 1024);
    }

    #[test]
    fn this_machine_has_a_memory_limit() {
        assert!(memory_limit().is_some_and(|limit| limit.bytes > 64 * MIB));
    }
}
