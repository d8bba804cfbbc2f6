//! Description of the machine on which a benchmark runs.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Describes the origin of figures: CPU, memory, kernel, file system of `dir`, version of the
/// sources, and command line. An unknown part is described as unknown, or left empty.
pub fn describe(dir: &Path) -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = output("git", &["describe", "--always", "--dirty"]);
    let disk = output("df", &["--output=fstype,source", &dir.display().to_string()]);
    let disk = disk.lines().next_back().unwrap_or("unknown").split_whitespace();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "* machine: {model}, {cpus} CPUs, {memory}, Linux {}, data on {}\n* when: {}, load average \
         before {}\n* sources: {version}\n* command: `{}`\n",
        kernel.trim(),
        disk.collect::<Vec<_>>().join(" "),
        output("date", &["-u", "+%F %T UTC"]),
        load.split(' ').take(3).collect::<Vec<_>>().join(" "),
        std::env::args().collect::<Vec<_>>().join(" "),
    )
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, args: &[&str]) -> String {
    Command::new(program).args(args).output().map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
