//! Runs the phases of this benchmark ([`Phase`]) with RocksDB's `db_bench`, and parses its output.
//! `bench/engine/rocksdb` builds it in release mode.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::config::{BESIDE_RATE, BLOCK_LEN, BLOOM_BITS, Config, Phase, SEEK_NEXTS, SYNC_THREADS};
use crate::values::{COMPRESSION_RATIO, KEY_LEN, VALUE_LEN};

/// Returns the path of `db_bench`: that in the environment variable `DB_BENCH`, which
/// `bench/engine.sh` sets. The error tells how to build it.
pub(crate) fn find() -> Result<PathBuf, String> {
    let built = std::env::var_os("DB_BENCH").filter(|path| !path.is_empty());
    built.map(PathBuf::from).ok_or_else(|| {
        "there is no db_bench: run bench/engine.sh, which builds it, and see what it said; it \
         needs apt-get install cmake g++ make libgflags-dev liblz4-dev"
            .to_owned()
    })
}

/// Returns the version that `db_bench` prints in a short run. A build with assertions, without
/// optimization or without LZ4 is an error, because the comparison would be unfair.
pub(crate) fn version(program: &Path, dir: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .args(["--benchmarks=fillseq", "--num=1", "--compression_type=lz4"])
        .arg(format!("--db={}", dir.display()))
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let said = [output.stdout, output.stderr].concat();
    let _ = fs::remove_dir_all(dir);
    version_of(&String::from_utf8_lossy(&said))
}

fn version_of(said: &str) -> Result<String, String> {
    if let Some(warning) = said.lines().find(|line| line.starts_with("WARNING:")) {
        return Err(format!("this db_bench is not a release build with LZ4; it says: {warning}"));
    }
    let version = said.lines().find_map(|line| line.split_once("version ").map(|(_, v)| v.trim()));
    version.map(str::to_owned).ok_or_else(|| format!("db_bench does not run: {said}"))
}

/// Returns the command of a phase.
pub(crate) fn command(program: &Path, phase: Phase, config: &Config) -> Command {
    let mut command = Command::new(program);
    let benchmarks = match phase {
        Phase::Sequential => "fillseq",
        Phase::Write => "fillrandom,overwrite,waitforcompaction",
        Phase::Read => {
            "readrandom,readmissing,seekrandom,readwhilewriting,waitforcompaction,compact,\
             waitforcompaction,readrandom,seekrandom"
        }
        Phase::Sync => "fillrandom",
    };
    command.arg(format!("--benchmarks={benchmarks}"));
    command.arg(format!("--db={}", config.dir.display()));
    let mut flag = |name: &str, value: u64| {
        command.arg(format!("--{name}={value}"));
    };
    flag("num", config.keys);
    flag("key_size", KEY_LEN as u64);
    flag("value_size", VALUE_LEN as u64);
    flag("cache_size", config.cache);
    flag("bloom_bits", u64::from(BLOOM_BITS));
    flag("block_size", BLOCK_LEN);
    flag("write_buffer_size", config.memtable);
    flag("target_file_size_base", config.table());
    flag("max_bytes_for_level_base", config.level1());
    // Each phase has a seed of its own. With the same seed, reads would repeat the order of the
    // writes.
    flag("seed", config.seed * 10 + phase as u64 + 1);
    match phase {
        Phase::Sequential | Phase::Write => {}
        Phase::Read => {
            flag("use_existing_db", 1);
            flag("duration", config.seconds);
            flag("seek_nexts", SEEK_NEXTS as u64);
            flag("benchmark_write_rate_limit", BESIDE_RATE);
        }
        Phase::Sync => {
            flag("sync", 1);
            flag("threads", SYNC_THREADS);
            flag("writes", config.synced);
        }
    }
    command.arg(format!("--compression_ratio={COMPRESSION_RATIO}"));
    command.arg("--compression_type=lz4");
    command
}

/// Parses the operations per second of the rows, in order, from lines like `readrandom   :
/// 3.516 micros/op 284380 ops/sec 0.352 seconds …`.
pub(crate) fn rates(output: &str) -> Vec<f64> {
    output
        .lines()
        .filter(|line| !line.starts_with("compact "))
        .filter_map(|line| {
            let (_, rest) = line.split_once(" micros/op ")?;
            rest.split_once(" ops/sec")?.0.trim().parse().ok()
        })
        .collect()
}

/// Returns the seconds that the store took to open: from the first line of RocksDB's log to the
/// line that reports the store as open. Returns `None` if the log lacks these lines.
pub(crate) fn open_seconds(dir: &Path) -> Option<f64> {
    open_seconds_of(&fs::read_to_string(dir.join("LOG")).ok()?)
}

fn open_seconds_of(log: &str) -> Option<f64> {
    let first = log.lines().next()?;
    let open = log.lines().find(|line| line.contains("DB pointer"))?;
    // At midnight, the time of day begins again at zero.
    Some((seconds_of_day(open)? - seconds_of_day(first)?).rem_euclid(86_400.0))
}

/// Parses the time of a line like `2026/11/21-22:01:06.192498 26736 RocksDB version: 7.8.3`.
fn seconds_of_day(line: &str) -> Option<f64> {
    let time = line.split_whitespace().next()?.split_once('-')?.1;
    let mut parts = time.split(':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

#[cfg(test)]
mod tests {
    use super::{open_seconds_of, rates, version_of};

    #[test]
    fn version_of_a_debug_build_is_an_error() {
        let release = "Set seed to 1\nInitializing RocksDB Options from the specified file\n\
                       RocksDB:    version 11.8.1\nDate: …\n";
        assert_eq!(version_of(release), Ok("11.8.1".to_owned()));
        let warning = "WARNING: Assertions are enabled; benchmarks unnecessarily slow";
        let error = version_of(&format!("{release}{warning}\n")).unwrap_err();
        assert!(error.ends_with(warning), "{error}");
        assert!(version_of("no such library").is_err());
    }

    #[test]
    fn rates_are_parsed_from_db_bench_output_without_compactions() {
        let output = "RocksDB:    version 7.8.3\n\
                      readrandom   :       3.516 micros/op 284380 ops/sec 0.352 seconds 100000 \
                      operations;   31.5 MB/s (100000 of 100000 found)\n\
                      compact      :  423105.000 micros/op 2 ops/sec 0.423 seconds 1 operations;\n\
                      seekrandom   :      16.905 micros/op 59151 ops/sec 1.691 seconds\n";
        assert_eq!(rates(output), [284_380.0, 59_151.0]);
    }

    #[test]
    fn open_seconds_are_parsed_from_a_log_across_midnight() {
        let log = "2026/11/21-23:59:59.500000 26736 RocksDB version: 7.8.3\n\
                   2026/11/22-00:00:00.250000 26736 DB pointer 0x55fd9e789d40\n";
        assert_eq!(open_seconds_of(log), Some(0.75));
        assert_eq!(open_seconds_of("no log"), None);
    }
}
