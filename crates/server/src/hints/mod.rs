//! Hints in the store: writes that other nodes missed, kept until those nodes have received them.
//!
//! ```text
//!  Space::Hints   key := name length u8 │ name │ the user's key      value := the record's bytes
//! ```
//!
//! A hint has the version and the ballot of its record. So the newer of two hints for one key wins,
//! and the removal of a hint does not remove a newer hint.

use bytes::Bytes;
use lsm::{Batch, Engine, Fields, Kind, RecordRef, Space};
use protocol::{FIRST_EPOCH, HintId, Mark, NodeId, Rank, Record, Shared, hint_bytes};

use crate::identity::Identity;
use crate::start_error::StartError;
use crate::store::Store;

/// Prefix of a missed-write mark for one partition, as `repair-clock` writes it; the next start
/// converts the mark.
const REPAIR_CLOCK_MARKS: &[u8] = b"missed/";

/// Length in bytes at which a batch that removes hints of departed nodes is committed. A longer
/// batch would delay the start's other writes for longer.
const REMOVAL_BATCH_BYTES: usize = 1 << 20;

/// A hint on its way into the store.
#[derive(Debug, Clone)]
pub struct Hint {
    /// The id by which the coordinator waits for the hint.
    pub id: HintId,
    /// The node that the hint is for.
    pub peer: NodeId,
    /// The user's key.
    pub key: Bytes,
    /// The rank of the hint's record.
    pub rank: Rank,
}

impl Hint {
    pub(crate) fn of(id: HintId, peer: NodeId, key: Bytes, record: &Record) -> Self {
        Self { id, peer, key, rank: record.rank() }
    }
}

fn prefix(shared: &Shared, peer: NodeId) -> Vec<u8> {
    let name = shared.name_of(peer);
    let mut key = vec![name.len() as u8];
    key.extend_from_slice(name.as_bytes());
    key
}

fn key_of(shared: &Shared, peer: NodeId, key: &[u8]) -> Vec<u8> {
    let mut hint = prefix(shared, peer);
    hint.extend_from_slice(key);
    hint
}

/// Adds a hint to a batch.
pub(crate) fn put(
    shared: &Shared,
    batch: &mut Batch,
    hint: &Hint,
    record: &Record,
) -> Result<(), lsm::Error> {
    let key = key_of(shared, hint.peer, &hint.key);
    batch.write(Space::Hints, &key, &fields(Kind::Value, record), record.raw())
}

/// Returns the fields of a hint, or of its removal.
fn fields(kind: Kind, record: &Record) -> Fields<'static> {
    let ballot = record.ballot();
    Fields { ballot, ..Fields::new(kind, record.version()) }
}

/// Adds the removal of delivered hints to a batch.
pub(crate) fn remove(
    shared: &Shared,
    batch: &mut Batch,
    peer: NodeId,
    items: &[(Bytes, Record)],
) -> Result<(), lsm::Error> {
    items.iter().try_for_each(|(key, record)| {
        let gone = fields(Kind::Tombstone, record);
        batch.write(Space::Hints, &key_of(shared, peer, key), &gone, &[])
    })
}

/// Reads hints for `peer` after a key, up to about `max_bytes`, at least one. Waits for the disk.
pub fn read(
    engine: &Engine,
    shared: &Shared,
    peer: NodeId,
    after: Option<&[u8]>,
    max_bytes: usize,
) -> Result<Vec<(Bytes, Record)>, lsm::Error> {
    let prefix = prefix(shared, peer);
    let start = match after {
        Some(key) => [&prefix, key, &[0]].concat(),
        None => prefix.clone(),
    };
    let (mut items, mut bytes) = (Vec::new(), 0);
    for_each_hint(engine, &start, &prefix, |key, record| {
        bytes += key.len() + record.byte_len();
        items.push((Bytes::copy_from_slice(key), record));
        bytes < max_bytes
    })?;
    Ok(items)
}

/// Counts the hints left by earlier process starts.
pub(crate) fn count(engine: &Engine, shared: &Shared) -> Result<(), StartError> {
    for peer in shared.view().ids().filter(|peer| *peer != shared.own) {
        let prefix = prefix(shared, peer);
        let (mut hints, mut bytes) = (0, 0);
        for_each_hint(engine, &prefix, &prefix, |key, record| {
            hints += 1;
            bytes += hint_bytes(key, &record);
            true
        })
        .map_err(|source| StartError::Store { what: "hints", source })?;
        shared.transfer.hints.count_found(peer, hints, bytes);
    }
    Ok(())
}

/// Calls `more` with each hint from `start` on, until a key lacks `prefix` or `more` returns false.
fn for_each_hint(
    engine: &Engine,
    start: &[u8],
    prefix: &[u8],
    mut more: impl FnMut(&[u8], Record) -> bool,
) -> Result<(), lsm::Error> {
    let mut scan = engine.snapshot().scan(Space::Hints, start, None);
    while let Some((hint, held)) = scan.next()? {
        let Some(key) = hint.strip_prefix(prefix) else { break };
        if held.kind() != Kind::Value {
            continue;
        }
        let record = Record::parse(Bytes::copy_from_slice(held.value()));
        // The engine has verified the checksum, so the value is the record that was stored.
        let record = record.expect("a hint holds a record");
        if !more(key, record) {
            break;
        }
    }
    Ok(())
}

/// Removes the hints of nodes that have left the cluster: no code delivers or counts them. Hints
/// that can't be removed now are left to the next start.
pub(crate) fn remove_hints_of_leavers<S: Store>(store: &S, shared: &Shared) {
    let removed = try_remove_hints_of_leavers(store, shared);
    if let Err(error) = removed {
        tracing::warn!(%error, "hints for nodes that have left could not be removed yet");
    }
}

fn try_remove_hints_of_leavers<S: Store>(store: &S, shared: &Shared) -> Result<(), lsm::Error> {
    let view = shared.view();
    // No node has left in the first epoch. If the view then lacks a node, `--cluster` is wrong, and
    // the node's hints stay.
    if view.epoch == FIRST_EPOCH {
        return Ok(());
    }
    let is_member =
        |name: &[u8]| view.find_node(std::str::from_utf8(name).unwrap_or_default()).is_some();
    let (mut start, mut gone) = (Vec::new(), Batch::new());
    'members: loop {
        let mut scan = store.engine().snapshot().scan(Space::Hints, &start, None);
        while let Some((hint, held)) = scan.next()? {
            let Some((prefix, _)) = split(hint) else { continue };
            if is_member(&prefix[1..]) {
                start = prefix.to_vec();
                // No name ends with the byte 255, so the addition does not overflow.
                *start.last_mut().expect("a prefix has its name's length") += 1;
                continue 'members;
            }
            if held.kind() == Kind::Value {
                gone.write(Space::Hints, hint, &removal(held), &[])?;
            }
            if gone.byte_len() >= REMOVAL_BATCH_BYTES {
                store.commit(std::mem::take(&mut gone))?;
            }
        }
        break;
    }
    if gone.is_empty() { Ok(()) } else { store.commit(gone) }
}

/// Returns the fields of a hint's removal, from the stored hint.
fn removal(held: RecordRef<'_>) -> Fields<'static> {
    let ballot = held.ballot();
    Fields { ballot, ..Fields::new(Kind::Tombstone, held.version()) }
}

/// Splits a hint's key into its node prefix and the user's key; `None` = the key is malformed.
fn split(hint: &[u8]) -> Option<(&[u8], &[u8])> {
    let name_len = usize::from(*hint.first()?);
    hint.split_at_checked(1 + name_len)
}

/// Returns the key of the missed-write mark for a hint's partition; `None` = malformed hint key.
pub(crate) fn mark_of(hint: &[u8]) -> Option<Vec<u8>> {
    let (prefix, key) = split(hint)?;
    Some([REPAIR_CLOCK_MARKS, prefix, &protocol::partition_of(key).to_be_bytes()].concat())
}

/// Converts the missed-write marks that `repair-clock` left, one per partition.
pub(crate) fn convert_old_marks<S: Store>(
    store: &S,
    identity: &Identity,
    shared: &Shared,
) -> Result<(), StartError> {
    let failed = |source| StartError::Store { what: "marks", source };
    for peer in shared.view().ids().filter(|peer| *peer != shared.own) {
        let prefix = [REPAIR_CLOCK_MARKS, &prefix(shared, peer)].concat();
        let mut old_marks = Batch::new();
        let mut scan = store.engine().snapshot().scan(Space::Node, &prefix, None);
        while let Some((key, record)) = scan.next().map_err(failed)? {
            let Some(partition) = key.strip_prefix(&prefix[..]) else { break };
            if let Ok(partition) = partition.try_into()
                && record.kind() == Kind::Value
            {
                let partition = Some(u16::from_be_bytes(partition));
                shared.transfer.missed.mark(peer, Mark { partition, since: 0 });
            }
            old_marks.delete(Space::Node, key, record.version()).map_err(failed)?;
        }
        if !old_marks.is_empty() {
            let (batch, kept) = identity.keep_missed(shared, peer);
            store.commit(batch).map_err(failed)?;
            identity.apply_durable(shared, &kept);
            store.commit(old_marks).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
