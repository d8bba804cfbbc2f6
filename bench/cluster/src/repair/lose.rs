//! Removes records from one replica, so that only a repair round can find the loss: no node stores
//! a hint for the removed records.

use std::path::Path;
use std::sync::Arc;

use bench_table::Server;
use load::Requests;
use lsm::{Disk, Engine, Options, RealDisk, RemovalFilter, Space};

use super::{ROUND_LIMIT, SETTLED, SHORT_WAIT, each_once};
use crate::fleet::{Fleet, Launcher, SyncSetting};
use crate::requests::{self, FIRST_LATE, LATE_SPACING};

/// Index of the node that loses records. It does not coordinate the rounds.
const LOSING_NODE: usize = 2;

/// Overwrites the late keys on all replicas, and then removes the new records from one replica.
/// Returns the number of removed records.
pub(super) fn late(place: &mut Launcher, fleet: &mut Fleet, keys: u64) -> Result<u64, String> {
    fleet.nodes.iter().for_each(Server::resume);
    fleet.wait_ready()?;
    let count = keys / LATE_SPACING;
    let late = Requests::Custom(requests::LATE_VALUES);
    each_once(fleet, count, late, ROUND_LIMIT, "written anew")?;
    std::thread::sleep(SETTLED);
    let addresses = fleet.addresses();
    // Dropping the node kills its process. With `--sync always`, the node's log has every
    // acknowledged write.
    drop(fleet.nodes.remove(LOSING_NODE));
    let lost = remove(&place.data(addresses[LOSING_NODE]));
    let mut command = place.kvorum(SyncSetting::Always, &addresses, LOSING_NODE)?;
    command.args(SHORT_WAIT);
    fleet.nodes.insert(LOSING_NODE, place.launch(command, addresses[LOSING_NODE])?);
    fleet.wait_ready()?;
    lost
}

/// Removes the late records, which are newer than all others, from the store of a stopped node.
/// Returns their number.
fn remove(data: &Path) -> Result<u64, String> {
    let failed = |error: lsm::Error| format!("{}: {error}", data.display());
    let disk = RealDisk::open(data).map_err(|error| format!("{}: {error}", data.display()))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let engine = Engine::open(disk, Options::default()).map_err(failed)?;
    let mut newest = 0;
    let all = RemovalFilter { time: 0, spaces: &[Space::Data], proven: 0 };
    let walked = engine.records_above(all, |_, key, when| {
        if !is_late(key) {
            newest = newest.max(when);
        }
    });
    walked.map_err(failed)?;
    let late_filter = RemovalFilter { time: newest, spaces: &[Space::Data], proven: 0 };
    let removed = engine.remove_above(late_filter).map_err(failed)?;
    engine.close().map_err(failed)?;
    Ok(removed)
}

fn is_late(key: &[u8]) -> bool {
    let number =
        std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix("key")?.parse().ok());
    number.is_some_and(|number: u64| number % LATE_SPACING == FIRST_LATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_of_a_hundred_is_late() {
        let late = (0..1_000).filter(|number| is_late(format!("key{number}").as_bytes()));
        assert_eq!(late.take(3).collect::<Vec<_>>(), [42, 142, 242]);
        assert!(!is_late(b"hot"));
    }
}
