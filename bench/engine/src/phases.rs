//! Runs every phase of every engine as a process of its own, and collects the figures.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bench_table::Report;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::config::{Config, Engine, Phase};
use crate::rocksdb;
use crate::values::{KEY_LEN, VALUE_LEN};

/// Name of the row of write amplification: a ratio, of which less is better.
pub(crate) const WRITE_AMPLIFICATION: &str = "bytes written per byte put";
/// Name of the row of bytes on disk per live byte before the compaction; less is better.
pub(crate) const SPACE_AMPLIFICATION: &str = "bytes on disk per byte live, before compaction";
/// Name of the row of bytes on disk per live byte after the compaction; less is better.
pub(crate) const SPACE_COMPACTED: &str = "bytes on disk per byte live, compacted";
/// Name of the row of the time to reopen the store, in seconds.
pub(crate) const REOPEN: &str = "seconds to reopen";

/// Share of the keys that exist after two passes of random writes, of as many writes each as there
/// are keys: 1 − e⁻².
const LIVE_SHARE: f64 = 0.864_665;

/// The figures of an engine for one row of the table, one for each repeat.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) engine: Engine,
    pub(crate) row: &'static str,
    pub(crate) repeats: Vec<f64>,
}

/// Runs all phases of all engines `repeats` times, every second time with the engines in reverse
/// order. An engine that fails is reported and left out.
pub(crate) fn run(
    engines: &[Engine],
    config: &mut Config,
    repeats: usize,
    report: &mut Report,
) -> Result<Vec<Figures>, String> {
    let mut results: Vec<Figures> = Vec::new();
    let mut skipped = Vec::new();
    for repeat in 0..repeats {
        config.seed = repeat as u64 + 1;
        let mut order = engines.to_vec();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for engine in order {
            if skipped.contains(&engine) {
                continue;
            }
            match run_engine(engine, config, repeat, report) {
                Ok(figures) => {
                    for (row, figure) in figures {
                        add_figure(&mut results, engine, row, figure);
                    }
                }
                Err(why) => {
                    report.say(&format!("Skipped {}: {why}", engine.name()));
                    skipped.push(engine);
                }
            }
        }
    }
    results.retain(|figures| !skipped.contains(&figures.engine));
    Ok(results)
}

fn add_figure(results: &mut Vec<Figures>, engine: Engine, row: &'static str, figure: f64) {
    match results.iter_mut().find(|known| known.engine == engine && known.row == row) {
        Some(known) => known.repeats.push(figure),
        None => results.push(Figures { engine, row, repeats: vec![figure] }),
    }
}

fn run_engine(
    engine: Engine,
    config: &Config,
    repeat: usize,
    report: &mut Report,
) -> Result<Vec<(&'static str, f64)>, String> {
    let mut figures = Vec::new();
    for phase in Phase::ALL {
        if !phase.keeps_data() {
            clear(&config.dir)?;
        }
        let done = run_phase(engine, phase, config)?;
        if done.rates.len() != phase.rows().len() {
            return Err(format!("{phase:?} gave {} rows: {}", done.rates.len(), done.output));
        }
        figures.extend(phase.rows().iter().copied().zip(done.rates));
        let live = LIVE_SHARE * (config.keys * (KEY_LEN + VALUE_LEN) as u64) as f64;
        let put = 2.0 * (config.keys * (KEY_LEN + VALUE_LEN) as u64) as f64;
        match phase {
            Phase::Write => {
                figures.push((WRITE_AMPLIFICATION, done.bytes_written / put));
                figures.push((SPACE_AMPLIFICATION, disk_usage(&config.dir) / live));
            }
            Phase::Read => {
                figures.push((SPACE_COMPACTED, disk_usage(&config.dir) / live));
                figures.extend(done.open_seconds.map(|seconds| (REOPEN, seconds)));
            }
            Phase::Sequential | Phase::Sync => {}
        }
        if repeat == 0 {
            report.say(&format!("{}, {phase:?}: `{}`", engine.name(), done.argv));
        }
    }
    for (row, figure) in &figures {
        let section = format!("{} {}", engine.name(), config.cache);
        report.figure(&section, row, repeat, "value", *figure);
    }
    clear(&config.dir)?;
    Ok(figures)
}

struct PhaseOutcome {
    rates: Vec<f64>,
    open_seconds: Option<f64>,
    bytes_written: f64,
    argv: String,
    output: String,
}

fn run_phase(engine: Engine, phase: Phase, config: &Config) -> Result<PhaseOutcome, String> {
    let command = match engine {
        Engine::Rocksdb => rocksdb::command(&rocksdb::find()?, phase, config),
        Engine::Kvorum | Engine::Fjall => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let mut command = Command::new(own);
            let name = if engine == Engine::Kvorum { "kvorum" } else { "fjall" };
            command.args(["worker", "--engine", name, "--phase", phase.name()]);
            command.args(config.flags());
            command
        }
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let argv = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let log = config.dir.with_extension("log");
    let open = |path: &Path| fs::File::create(path).map_err(|error| format!("{path:?}: {error}"));
    let errors = config.dir.with_extension("err");
    // The kernel kills the process when this program ends, so that nothing keeps writing after a
    // Ctrl-C.
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(open(&log)?)
        .stderr(open(&errors)?)
        .spawn()
        .map_err(|error| format!("`{argv}`: {error}"))?;
    let (succeeded, bytes_written) = finish(child)?;
    let output = fs::read_to_string(&log).unwrap_or_default();
    if !succeeded {
        let errors = fs::read_to_string(&errors).unwrap_or_default();
        return Err(format!("`{argv}` failed: {output}{errors}"));
    }
    let (rates, open_seconds) = match engine {
        Engine::Rocksdb => (rocksdb::rates(&output), rocksdb::open_seconds(&config.dir)),
        Engine::Kvorum | Engine::Fjall => {
            let numbers = |name: &str| -> Vec<f64> {
                output
                    .lines()
                    .filter_map(|line| line.strip_prefix(name)?.trim().parse().ok())
                    .collect()
            };
            (numbers("row "), numbers("open ").first().copied())
        }
    };
    Ok(PhaseOutcome { rates, open_seconds, bytes_written, argv, output })
}

/// Waits until a process ends. Returns true if it succeeded, and the kernel's count of the bytes
/// that it wrote, which can be read only before the process is reaped.
fn finish(mut child: Child) -> Result<(bool, f64), String> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or("a process without an id")?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(error) = waitid(WaitId::Pid(pid), options) {
        if error != rustix::io::Errno::INTR {
            return Err(format!("waiting for {}: {error}", child.id()));
        }
    }
    let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
    let field = |name: &str| -> f64 {
        io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(f64::NAN)
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok((status.success(), field("write_bytes:")))
}

fn clear(dir: &Path) -> Result<(), String> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the number of bytes that the files under `dir` take on the disk.
fn disk_usage(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(dir) else { return 0.0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_usage(&entry.path()),
            Ok(metadata) => (metadata.blocks() * 512) as f64,
            Err(_) => 0.0,
        })
        .sum()
}
