//! Description of the client's machine, and times in RFC 3339 format.

use std::fs;
use std::time::SystemTime;

use crate::record::Machine;

/// Describes this machine. Values that the system does not give are empty or 0.
pub fn machine() -> Machine {
    let uname = rustix::system::uname();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&meminfo, "MemTotal").split(' ').next().unwrap_or_default().parse();
    Machine {
        host: uname.nodename().to_string_lossy().into_owned(),
        cpu: field(&cpuinfo, "model name").to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        memory: kilobytes.unwrap_or(0_u64) * 1024,
        kernel: uname.release().to_string_lossy().into_owned(),
    }
}

/// Returns the value of the first line `NAME : VALUE`, or an empty text without such a line.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
}

/// Formats a time in UTC, to the second: `2026-11-22T04:05:06Z`.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{field, machine, rfc3339};

    #[test]
    fn this_machine_has_a_name_processors_and_memory() {
        let machine = machine();
        assert!(!machine.host.is_empty() && !machine.kernel.is_empty());
        assert!(machine.cpus > 0 && machine.memory > 1 << 20, "{machine:?}");
        assert_eq!(field("a b\t: c : d\nx: y", "a b"), "c : d");
        assert_eq!(field("x: y", "z"), "");
    }

    #[test]
    fn times_are_in_utc() {
        let time = UNIX_EPOCH + Duration::from_millis(1_795_320_306_789);
        assert_eq!(rfc3339(time), "2026-11-22T04:05:06Z");
    }
}
