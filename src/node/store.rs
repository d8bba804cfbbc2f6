//! Opens the engine as the node wants it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lsm::{Db, Disk, Kind, Options, RealDisk, RecordRef, Space};

use crate::node::clock::COUNTER_BITS;
use crate::settings::config::Config;

/// log2 of the number of trees of a new store. One tree: a scan merges the fewest sources, and one
/// compaction thread keeps up with what one WAL takes. Fixed when a data directory is made.
const TREE_BITS: u8 = 0;

/// Age at which a tombstone may go from the bottom of the only replica. A write that is older than
/// its key's tombstone can still be on its way into the log for as long as a request may take;
/// this is far beyond that.
const PURGE_AFTER: Duration = Duration::from_secs(600);

/// Opens, or makes, the store in the data directory and recovers it.
pub(crate) fn open(config: &Config) -> Result<Db, String> {
    let shown = config.data.display();
    let failed = |error| format!("data directory {shown}: {error}");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&config.data).map_err(failed)?);
    let alone = config.members.nodes() == 1;
    let options = Options {
        new_store_id: RandomState::new().hash_one("store"),
        new_tree_bits: TREE_BITS,
        sync: config.sync,
        memtable_bytes: config.memory.memtable_bytes as usize,
        cache_bytes: config.memory.cache_bytes as usize,
        segment_bytes: config.memory.segment_bytes as usize,
        may_purge: Arc::new(move |space, _key, version| match space {
            // Nobody else has hints: one that was delivered is gone for good.
            Space::Hints => true,
            _ => alone && may_purge(version.time >> COUNTER_BITS),
        }),
        ..Options::default()
    };
    Db::open(disk, options).map_err(failed)
}

/// Whether `record` is a value that has not expired.
pub(crate) fn is_live(record: &RecordRef<'_>, now_ms: u64) -> bool {
    record.kind() == Kind::Value && (record.expiry_ms() == 0 || record.expiry_ms() > now_ms)
}

/// When this node is the only replica, it alone decides, by age. With others, a tombstone stays:
/// one of them may have missed it, and would bring back what it deleted.
fn may_purge(written_micros: u64) -> bool {
    let written = SystemTime::UNIX_EPOCH + Duration::from_micros(written_micros);
    written.elapsed().is_ok_and(|age| age > PURGE_AFTER)
}
