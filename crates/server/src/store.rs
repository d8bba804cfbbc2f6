//! The engine as a node's start and repair use it: each of their steps waits for its own commit.

use lsm::{Batch, Db, Engine, Error, PurgeRule};
use protocol::{IDEMPOTENCY_RETENTION_MICROS, StoreError};

/// A store with blocking reads and commits.
pub trait Store {
    /// Returns the engine, for reads.
    fn engine(&self) -> &Engine;

    /// Writes a batch; returns once the batch is as durable as the sync mode requires.
    fn commit(&self, batch: Batch) -> Result<(), Error>;
}

/// A store with running threads.
impl Store for Db {
    fn engine(&self) -> &Engine {
        Self::engine(self)
    }

    fn commit(&self, batch: Batch) -> Result<(), Error> {
        Self::commit(self, batch)
    }
}

/// A store without threads: that of a stopped or simulated node.
impl Store for Engine {
    fn engine(&self) -> &Engine {
        self
    }

    fn commit(&self, batch: Batch) -> Result<(), Error> {
        Self::commit(self, std::iter::once(&batch)).map(drop)
    }
}

/// Ten minutes, in microseconds. At the bottom level, the only replica of a key may purge a
/// tombstone that is older than that, and a value that expired longer ago. A write with an older
/// version than its key's tombstone may reach the log after the tombstone, but no later than a
/// request may take, which is far less than ten minutes.
const PURGE_AFTER: u64 = 600_000_000;

/// Returns the rule for the tombstones and expired values that the engine may purge. The engine
/// keeps a tombstone or expired value until repair rounds have proven that all replicas have it
/// ([`PurgeRule::raise_watermark`]), because a replica without it would bring back the records that
/// it hides. While the node is alone in its cluster, age decides instead: from
/// [`crate::StartingNode::begin`] on, which reads from the stored layout whether the node is alone,
/// until the node enters a layout with other nodes.
pub fn purge_rule(wall_micros: impl Fn() -> u64 + Send + Sync + 'static) -> PurgeRule {
    PurgeRule::with_watermark(PURGE_AFTER, IDEMPOTENCY_RETENTION_MICROS, wall_micros)
}

/// Converts an engine error into the protocol's error.
pub fn store_error(error: &Error) -> StoreError {
    if error.is_no_space() {
        return StoreError::NoSpace(error.to_string());
    }
    match error {
        Error::Busy { what } => StoreError::Busy(what),
        Error::Closing => StoreError::Busy("the node is shutting down"),
        Error::Failed { outcome_unknown: begun, .. } => {
            StoreError::Failed { begun: *begun, detail: error.to_string() }
        }
        // All other errors occur before anything is written to the log.
        _ => StoreError::Failed { begun: false, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lsm::{
        Fields, Kind, Lookup, MemDisk, Options, ReadMode, Record, Space, StepOutcome, Version,
    };
    use protocol::Clock;

    use super::*;

    #[test]
    fn tombstones_are_purged_by_age_where_no_replica_may_lack_them() {
        let now = 1_700_000_000_000_000;
        let may = |alone, space, age: u64| {
            let version = Version { time: (now - age) << 12, origin: 1 };
            let record = Record::new(b"k", &Fields::new(Kind::Tombstone, version), b"");
            let rule = purge_rule(move || now);
            rule.set_only_replica(alone);
            rule.set_agreed_time(now);
            rule.may_purge(space, record.view())
        };
        assert!(may(true, Space::Data, PURGE_AFTER + 1));
        assert!(!may(true, Space::Data, PURGE_AFTER), "one that is older may be on its way");
        assert!(!may(false, Space::Data, 2 * PURGE_AFTER));
        assert!(may(false, Space::Hints, 0), "nobody else has hints");
        assert!(may(false, Space::Idempotency, IDEMPOTENCY_RETENTION_MICROS + 1));
        assert!(!may(true, Space::Idempotency, IDEMPOTENCY_RETENTION_MICROS), "it may come again");
    }

    /// Compacts a store with four values: the first expired a second more than `PURGE_AFTER` ago,
    /// the second a second less than that, the third expires in a second, and the fourth never.
    /// Returns the keys of the values that the compaction kept.
    fn keys_after_compaction(alone: bool) -> Vec<&'static str> {
        let now = 1_700_000_000_000_000;
        let purge = Arc::new(purge_rule(move || now));
        purge.set_only_replica(alone);
        let options = Options { purge, level0_tables: 2, ..Options::default() };
        let engine = Engine::open(Arc::new(MemDisk::new()), options).unwrap();
        let second = 1_000_000;
        let expires = [
            ("gone", now - PURGE_AFTER - second),
            ("kept", now - PURGE_AFTER + second),
            ("lives", now + second),
            ("stays", 0),
        ];
        let year_ago = Version { time: Clock::time_of(now - 365 * 86_400 * second), origin: 1 };
        for copy in [1, 2] {
            let mut batch = Batch::new();
            for (key, micros) in expires {
                let version = Version { origin: copy, ..year_ago };
                let fields =
                    Fields { expiry_ms: micros / 1000, ..Fields::new(Kind::Value, version) };
                batch.write(Space::Data, key.as_bytes(), &fields, b"v").unwrap();
            }
            Store::commit(&engine, batch).unwrap();
            engine.rotate_all();
            engine.flush_one().unwrap();
        }
        while engine.compact_one().unwrap() == StepOutcome::Done {}
        let is_held = |key: &&str| {
            let found = engine.get(Space::Data, key.as_bytes(), ReadMode::Blocking).unwrap();
            matches!(found, Lookup::Found(_))
        };
        expires.map(|(key, _)| key).into_iter().filter(is_held).collect()
    }

    #[test]
    fn the_only_replica_purges_expired_values_by_age() {
        assert_eq!(keys_after_compaction(true), ["kept", "lives", "stays"]);
        assert_eq!(
            keys_after_compaction(false),
            ["gone", "kept", "lives", "stays"],
            "another may have missed them"
        );
    }

    #[test]
    fn errors_distinguish_whether_a_write_may_have_begun() {
        let error = |error| store_error(&error);
        assert_eq!(error(Error::Busy { what: "x" }), StoreError::Busy("x"));
        assert_eq!(error(Error::Closing), StoreError::Busy("the node is shutting down"));
        let full = Error::NoSpace { what: "tables" };
        assert!(matches!(error(full), StoreError::NoSpace(_)));
        for begun in [false, true] {
            let failed = Error::Failed { cause: "sync".into(), outcome_unknown: begun };
            assert!(matches!(error(failed), StoreError::Failed { begun: b, .. } if b == begun));
        }
    }
}
