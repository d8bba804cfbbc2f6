//! `kvorum repair-clock`: takes what a wrong clock stamped out of a stopped node's directory. What
//! that takes is in [`node::Ahead`]; here it is told, and done only if it is asked for.

use std::path::Path;
use std::sync::Arc;

use cluster::Clock;
use lsm::{Core, Disk, Options, RealDisk};
use node::{Ahead, StartError};

use crate::cli::RepairClockArgs;
use crate::node::clock::wall_micros;

/// What came of it, for people. An error is one line.
pub(crate) fn run(args: &RepairClockArgs) -> Result<String, String> {
    let shown = args.data.display();
    let in_data = |error: String| format!("data directory {shown}: {error}");
    let failed = |error: StartError| in_data(error.to_string());
    let core = open(&args.data).map_err(in_data)?;
    let wall = wall_micros();
    let skew = args.max_clock_skew.0;
    let limit = Clock::limit(wall, skew.as_micros() as u64);
    let Some(found) = Ahead::look(&core, limit).map_err(failed)? else {
        return Err(in_data(
            "its node is alone, and nobody refuses what it stamps: there is nothing to repair, and \
             nobody to give back what would be lost"
                .to_owned(),
        ));
    };
    let ahead = |time: u64| Clock::micros(time).saturating_sub(wall) / 1_000_000;
    let told = format!(
        "{shown}: {} records and {} hints are stamped further ahead of this machine's clock than \
         clocks may be ({skew:?}), the furthest by {} s; the node's clock begins {} s ahead.\n",
        found.records,
        found.hints,
        ahead(found.furthest),
        ahead(found.bound)
    );
    if !found.is_any() {
        return Ok(told + "There is nothing to repair.\n");
    }
    if !args.yes {
        return Ok(told
            + "Nothing was changed. Make sure that the clock is right now (date -u); then --yes \
               removes those records and hints,\nand with them what this node alone acknowledged \
               while its clock was wrong.\n");
    }
    found.remove(&core).map_err(failed)?;
    core.close().map_err(|error| in_data(error.to_string()))?;
    Ok(told
        + "They were removed. When the node is started, the others stream back what it is to hold; \
           until then reads do not rely on what it lacks.\n")
}

fn open(data: &Path) -> Result<Core, String> {
    if !data.join("STORE").exists() {
        return Err("there is no node's data in it".to_owned());
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(data).map_err(|error| error.to_string())?);
    Core::open(disk, Options::default()).map_err(|error| error.to_string())
}
