//! Row 4 of docs/results/reliability.md: power fails. The data is on an ext4 image.
//! `FS_IOC_SHUTDOWN` without a flush of the journal stops the file system at once, so that only
//! synced writes exist after a remount.
//!
//! `sync=never` runs as a control: if it lost no writes, the power cut would be without effect.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::faults::mount::{Mount, make_image};
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::{check, check_gets, read_all};
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers};

use crate::Setup;

/// Size of the image in bytes: space for the data of many rounds.
const IMAGE_BYTES: u64 = 1 << 30;

/// Default interval of sync mode `interval`.
const INTERVAL: Duration = Duration::from_millis(100);

/// Maximum duration of a sync and of its predecessor on a busy disk.
const SYNC_TAKES: Duration = Duration::from_millis(1500);

/// The condition that must be true after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Oracle {
    Acknowledged,
    Prefix(Duration),
}

#[derive(Debug, Default)]
struct PowerCutFigures {
    acknowledged: usize,
    lost: usize,
    window: Duration,
}

/// Cuts the power `rounds` times in each of the three sync modes.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let always = cuts(setup, "always", Oracle::Acknowledged)?;
    let interval = cuts(setup, "interval", Oracle::Prefix(INTERVAL + SYNC_TAKES))?;
    let never = cuts(setup, "never", Oracle::Prefix(Duration::MAX))?;
    if never.lost == 0 {
        return Err(Failure::Environment(
            "sync=never lost nothing: the cut does not cut".to_owned(),
        ));
    }
    Ok(format!(
        "{} cuts a mode: always lost 0 of {}; interval lost the last {} ms at most ({} keys of {} \
         writes), no holes; never (the control) {} ms ({} keys)",
        setup.rounds,
        always.acknowledged,
        interval.window.as_millis(),
        interval.lost,
        interval.acknowledged,
        never.window.as_millis(),
        never.lost
    ))
}

fn cuts(setup: &Setup, sync: &str, oracle: Oracle) -> Result<PowerCutFigures, Failure> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    make_image(&image, IMAGE_BYTES)?;
    let mut disk = Mount::image(&image)?;
    let args = ["--sync", sync, "--memory", "64MiB", "--memtable", "2MiB"];
    let launch = setup.launch(disk.path(), dir.path(), &args);
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let mut figures = PowerCutFigures::default();
    for round in 0..setup.rounds {
        let node = launch.start()?;
        let work = WriterParams { value_len: 10_000, ..WriterParams::default() };
        let writers = Writers::start(node.address, &ledger, work, random.number())?;
        thread::sleep(Duration::from_millis(100 + random.below(setup.size(1500, 700))));
        let cut = ledger.now();
        disk.cut_power()?;
        thread::sleep(Duration::from_millis(20));
        node.kill()?;
        writers.stop()?;
        figures.acknowledged += ledger.counts().0;
        disk.remount()?;
        let node = launch.start()?;
        let tally = match oracle {
            Oracle::Acknowledged => check(&node, &ledger, ProcessState::New),
            Oracle::Prefix(most) => {
                let found = read_all(&node)?;
                check_gets(&node, &ledger, &found)?;
                ledger.check_prefix(&found, cut, most)
            }
        };
        let tally = tally.map_err(|failure| match failure {
            Failure::Broken(what) => {
                Failure::Broken(format!("{what} (sync={sync}, seed {}, round {round})", setup.seed))
            }
            other => other,
        })?;
        figures.lost += tally.lost;
        figures.window = figures.window.max(tally.window);
        // Half of the rounds end with a clean stop, the other half with a kill.
        if random.percent(50) {
            node.stop()?;
        }
    }
    Ok(figures)
}
