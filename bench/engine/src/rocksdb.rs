//! The same phases by Debian's `db_bench`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::config::{BESIDE_RATE, BLOCK_LEN, BLOOM_BITS, Config, Phase, SEEK_NEXTS, SYNC_THREADS};
use crate::values::{COMPRESSION_RATIO, KEY_LEN, VALUE_LEN};

/// Where it is, or the line that installs it.
pub(crate) fn find() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join("db_bench"))
        .find(|path| path.is_file())
        .ok_or_else(|| "db_bench is not installed: apt-get install rocksdb-tools".to_owned())
}

/// The command of a phase.
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
    // Each phase other keys: with the same seed, reads would follow the writes one by one.
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

/// Operations a second of the rows, in order, from lines like
/// `readrandom   :       3.516 micros/op 284380 ops/sec 0.352 seconds …`.
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

/// Seconds that opening took: from the first line of its log to the one that says it is open.
pub(crate) fn open_seconds(dir: &Path) -> Option<f64> {
    open_seconds_of(&fs::read_to_string(dir.join("LOG")).ok()?)
}

fn open_seconds_of(log: &str) -> Option<f64> {
    let first = log.lines().next()?;
    let open = log.lines().find(|line| line.contains("DB pointer"))?;
    // Over midnight a day is missing.
    Some((seconds_of_day(open)? - seconds_of_day(first)?).rem_euclid(86_400.0))
}

/// Of `2026/11/21-22:01:06.192498 26736 RocksDB version: 7.8.3`.
fn seconds_of_day(line: &str) -> Option<f64> {
    let time = line.split_whitespace().next()?.split_once('-')?.1;
    let mut parts = time.split(':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

#[cfg(test)]
mod tests {
    use super::{open_seconds_of, rates};

    #[test]
    fn rates_are_read_as_db_bench_prints_them() {
        let output = "RocksDB:    version 7.8.3\n\
                      readrandom   :       3.516 micros/op 284380 ops/sec 0.352 seconds 100000 \
                      operations;   31.5 MB/s (100000 of 100000 found)\n\
                      compact      :  423105.000 micros/op 2 ops/sec 0.423 seconds 1 operations;\n\
                      seekrandom   :      16.905 micros/op 59151 ops/sec 1.691 seconds\n";
        assert_eq!(rates(output), [284_380.0, 59_151.0]);
    }

    #[test]
    fn opening_is_read_from_the_log() {
        let log = "2026/11/21-23:59:59.500000 26736 RocksDB version: 7.8.3\n\
                   2026/11/22-00:00:00.250000 26736 DB pointer 0x55fd9e789d40\n";
        assert_eq!(open_seconds_of(log), Some(0.75));
        assert_eq!(open_seconds_of("no log"), None);
    }
}
