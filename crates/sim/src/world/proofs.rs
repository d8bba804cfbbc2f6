//! Checks of the claims of a repair proof. When a node's watermark rises, all members must hold the
//! same records up to the watermark, except purgeable records. Later no client may receive another
//! record from before the watermark. After a round and a compaction, no purgeable record may
//! remain.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsm::{PurgeRule, Space, StepOutcome};
use protocol::Record;
use protocol::layout::Stage;

use super::World;
use crate::ledger::{describe_record, is_replica};

/// Microseconds between two comparisons of all stored records.
const CHECK_MICROS: u64 = 100_000;

/// A node's records by key, each with the number of copies of every record hidden under it.
type HeldRecords = BTreeMap<Bytes, (Record, Vec<u8>)>;

impl World {
    /// Returns a node's watermark; 0 if the node has none.
    pub(super) fn watermark(&self, node: usize) -> u64 {
        let process = self.machines[node].process.as_ref();
        process.map_or(0, |process| process.shared.repair.proofs.watermark())
    }

    /// Checks the proof of a watermark that has risen.
    pub(super) fn record_proof(&mut self, watermark: u64) {
        if self.now < self.proof_checked_at + CHECK_MICROS {
            return;
        }
        self.proof_checked_at = self.now;
        let all = self.all_nodes();
        let members: Vec<usize> = (all.iter().copied())
            .filter(|node| self.is_member(*node) && !self.machines[*node].disk_is_bad)
            .collect();
        let held: Vec<(usize, HeldRecords)> =
            members.into_iter().filter_map(|node| Some((node, self.all_held(node)?))).collect();
        let mut newest: BTreeMap<&Bytes, &Record> = BTreeMap::new();
        for (node, key, own) in
            held.iter().flat_map(|(node, held)| held.iter().map(|(key, held)| (*node, key, held)))
        {
            let (record, _) = own;
            if record.write_time() <= watermark && self.holds_for_readers(node, key, own) {
                let newest = newest.entry(key).or_insert(record);
                *newest = if record.rank() > newest.rank() { record } else { newest };
            }
        }
        let mut wrong = Vec::new();
        for (key, newest) in &newest {
            for (node, held) in &held {
                let own = held.get(*key).filter(|own| self.holds_for_readers(*node, key, own));
                let own = own.map(|(record, _)| record);
                if self.lacks_newest(*node, key, own, newest, watermark) {
                    let (own, newest) = (describe_record(own), describe_record(Some(newest)));
                    wrong.push(format!(
                        "not proven: {key:?}: node {node} holds {own}, the newest up to \
                         {watermark:x} is {newest}"
                    ));
                }
            }
        }
        // If some node's records could not be read, the newest record of a key is unknown.
        if held.len() == all.len() {
            let newest = newest.into_iter();
            let ranks = newest.map(|(key, record)| (key.clone(), record.rank())).collect();
            self.ledger.record_proof(self.now, watermark, ranks);
        }
        wrong.into_iter().for_each(|what| self.ledger.report_error(self.now, what));
    }

    /// Returns true if a node lacks `newest`, the newest record up to the watermark on any node.
    fn lacks_newest(
        &self,
        node: usize,
        key: &Bytes,
        own: Option<&Record>,
        newest: &Record,
        watermark: u64,
    ) -> bool {
        // A purgeable record counts as absent.
        match own.filter(|own| !is_purgeable_at(own, watermark)) {
            Some(own) => own.rank() < newest.rank(),
            None if is_purgeable_at(newest, watermark) => false,
            None => self.is_replica(node, key, newest),
        }
    }

    /// Returns true if a node is a replica of a key under the record's number of copies.
    pub(super) fn is_replica(&self, node: usize, key: &Bytes, record: &Record) -> bool {
        is_replica(&self.topology, key, record.copies(), node)
    }

    /// Returns true if a node holds a record as a replica that readers ask, not only because the
    /// node is about to become a replica or was a replica. If nothing has moved, a node holds no
    /// other records.
    pub(super) fn belongs_to(&self, node: usize, key: &Bytes, record: &Record) -> bool {
        let process = self.machines[node].process.as_ref();
        let holds_others = process.is_some_and(|process| {
            let layouts = &process.shared.membership.layouts;
            layouts.has_orphans() || layouts.active_layout().stage != Stage::Settled
        });
        !holds_others || self.is_replica(node, key, record)
    }

    /// Returns true if a node holds a record as one of the replicas that readers ask, or in place
    /// of a hidden record that it holds as such a replica.
    fn holds_for_readers(&self, node: usize, key: &Bytes, held: &(Record, Vec<u8>)) -> bool {
        let (record, hidden) = held;
        self.belongs_to(node, key, record) || self.stands_for_hidden(node, key, record, hidden)
    }

    /// Returns true if a node keeps a record in place of the records hidden under it. `hidden` has
    /// the number of copies of each hidden record.
    pub(super) fn stands_for_hidden(
        &self,
        node: usize,
        key: &Bytes,
        record: &Record,
        hidden: &[u8],
    ) -> bool {
        let is_held = |copies: &u8| is_replica(&self.topology, key, *copies, node);
        // The record of a conditional write is placed by its own number of copies.
        record.ballot() == 0 && hidden.iter().any(is_held)
    }

    /// Returns all records of a node, or `None` if they cannot be read.
    fn all_held(&self, node: usize) -> Option<HeldRecords> {
        let process = self.machines[node].process.as_ref()?;
        let mut scan = process.store.engine().snapshot().scan(Space::Data, b"", None);
        let mut held = HeldRecords::new();
        while let Some((key, record)) = scan.next().ok()? {
            let record = lsm::Record::parse(Bytes::copy_from_slice(record.raw())).ok()?;
            let (key, record) = (Bytes::copy_from_slice(key), record);
            held.insert(key, (record, scan.hidden_copies().collect()));
        }
        Some(held)
    }

    /// Checks that no node still holds a record that may be purged up to the proven time, after a
    /// flush and a full compaction of its store.
    pub(super) fn check_all_purged(&mut self, proven: u64) {
        for node in self.members() {
            if self.watermark(node) < proven {
                let what = format!("node {node} does not know that {proven:x} is proven");
                self.ledger.report_error(self.now, what);
            }
            let process = self.machines[node].process.as_ref().expect("all are settled");
            let engine = process.store.engine();
            engine.rotate_all();
            let flushed = || -> Result<(), lsm::Error> {
                while engine.flush_one()? == StepOutcome::Done {}
                engine.compact_all()
            };
            if let Err(error) = flushed() {
                let what = format!("node {node} can't compact what it holds: {error}");
                self.ledger.report_error(self.now, what);
            }
            for (key, (record, _)) in self.all_held(node).unwrap_or_default() {
                if is_purgeable_at(&record, proven) {
                    let what = describe_record(Some(&record));
                    let what = format!("not purged: node {node} holds {what} of {key:?}");
                    self.ledger.report_error(self.now, what);
                }
            }
        }
    }
}

fn is_purgeable_at(record: &Record, watermark: u64) -> bool {
    PurgeRule::is_purgeable_at(record.view(), watermark)
}
