//! A replica that has lost keys without a trace: no node stores a hint for it, so only a round can
//! find the loss.

use std::path::Path;
use std::sync::Arc;

use bench_table::Server;
use load::Requests;
use lsm::{Disk, Engine, Options, RealDisk, RemovalFilter, Space};

use super::{PROMPT, ROUND_LIMIT, SETTLED, each_once};
use crate::fleet::{Fleet, Place, SyncSetting};
use crate::requests::{self, LATE, LATE_OF};

/// The node that loses keys. Another node coordinates the rounds.
const LOSER: usize = 2;

/// Writes the late keys anew on all replicas, and removes the new records from one of them. Returns
/// their number.
pub(super) fn late(place: &mut Place, fleet: &mut Fleet, keys: u64) -> Result<u64, String> {
    fleet.nodes.iter().for_each(Server::resume);
    fleet.wait_ready()?;
    let count = keys / LATE_OF;
    let late = Requests::Custom(requests::LATE_VALUES);
    each_once(fleet, count, late, ROUND_LIMIT, "written anew")?;
    std::thread::sleep(SETTLED);
    let addresses = fleet.addresses();
    // Dropping the node kills its process. With `--sync always`, the node's log has every
    // acknowledged write.
    drop(fleet.nodes.remove(LOSER));
    let lost = remove(&place.data(addresses[LOSER]));
    let mut command = place.kvorum(SyncSetting::Always, &addresses, LOSER)?;
    command.args(PROMPT);
    fleet.nodes.insert(LOSER, place.launch(command, addresses[LOSER])?);
    fleet.wait_ready()?;
    lost
}

/// Removes the late records, which are newer than all others, from a stopped node's store.
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
    let gone = RemovalFilter { time: newest, spaces: &[Space::Data], proven: 0 };
    let removed = engine.remove_above(gone).map_err(failed)?;
    engine.close().map_err(failed)?;
    Ok(removed)
}

fn is_late(key: &[u8]) -> bool {
    let number =
        std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix("key")?.parse().ok());
    number.is_some_and(|number: u64| number % LATE_OF == LATE)
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
