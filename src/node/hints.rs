//! Hints in the store: writes that other nodes missed, until they have taken them.
//!
//! ```text
//!  Space::Hints   key := name length u8 │ name │ the user's key      value := the record's bytes
//! ```
//!
//! A hint has the version of its record: of two for one key the newer stays, and removing one
//! leaves a newer one alone.

use std::rc::Rc;

use bytes::Bytes;
use cluster::{Event, HintId, Mark, NodeId, hint_bytes};
use lsm::{Batch, Db, Space};

use crate::node::Node;
use crate::node::coordinate::Purpose;
use crate::node::identity::Identity;
use crate::node::records;
use crate::runtime::event_loop::EventLoop;

/// What precedes a marked partition as earlier releases kept it, and as `repair-clock` leaves it:
/// the next start takes it over.
const EARLIER: &[u8] = b"missed/";

fn prefix(shared: &cluster::Shared, peer: NodeId) -> Vec<u8> {
    let name = shared.name_of(peer);
    let mut key = vec![name.len() as u8];
    key.extend_from_slice(name.as_bytes());
    key
}

fn key_of(node: &Node, peer: NodeId, key: &[u8]) -> Vec<u8> {
    let mut hint = prefix(&node.shared, peer);
    hint.extend_from_slice(key);
    hint
}

/// Keeps a hint, and tells the coordinator what came of it.
pub(crate) fn keep(
    event_loop: &Rc<EventLoop>,
    hint: HintId,
    peer: NodeId,
    key: &[u8],
    record: &cluster::Record,
) {
    let node = &event_loop.node;
    let bytes = hint_bytes(key, record) as usize;
    let hint_key = key_of(node, peer, key);
    let version = records::version(record.rank.stamp);
    let added = event_loop.writes.add(bytes, Purpose::Hint(hint), |batch| {
        batch.put(Space::Hints, &hint_key, version, &record.bytes)
    });
    if added.is_err() {
        event_loop.happen(Event::Hinted { hint, kept: false });
    }
}

/// The key of the mark that a hint's partition needs repair. `None` = it is no hint's key.
pub(crate) fn mark_of(hint: &[u8]) -> Option<Vec<u8>> {
    let name_len = usize::from(*hint.first()?);
    let (prefix, key) = hint.split_at_checked(1 + name_len)?;
    Some([EARLIER, prefix, &cluster::partition_of(key).to_be_bytes()].concat())
}

/// Removes hints that were delivered. One that stays for want of room is delivered again.
pub(crate) fn drop_delivered(
    event_loop: &Rc<EventLoop>,
    peer: NodeId,
    items: &[(Bytes, cluster::Record)],
) {
    let node = &event_loop.node;
    let bytes = items.iter().map(|(key, _)| key.len() + 64).sum();
    let added = event_loop.writes.add(bytes, Purpose::Nothing, |batch| {
        items.iter().try_for_each(|(key, record)| {
            let version = records::version(record.rank.stamp);
            batch.delete(Space::Hints, &key_of(node, peer, key), version)
        })
    });
    if added.is_err() {
        tracing::debug!(peer = peer.0, "delivered hints stay for now: the store is busy");
    }
}

/// Reads hints for `peer` after a key, up to about `max_bytes`. Waits for the disk.
pub(crate) fn read(
    node: &Node,
    peer: NodeId,
    after: Option<&[u8]>,
    max_bytes: usize,
) -> Result<Vec<(Bytes, cluster::Record)>, lsm::Error> {
    let prefix = prefix(&node.shared, peer);
    let start = match after {
        Some(key) => [&key_of(node, peer, key)[..], &[0]].concat(),
        None => prefix.clone(),
    };
    let (mut items, mut bytes) = (Vec::new(), 0);
    walk(&node.db, &start, &prefix, |key, record| {
        bytes += key.len() + record.bytes.len();
        items.push((Bytes::copy_from_slice(key), record));
        bytes < max_bytes
    })?;
    Ok(items)
}

/// Counts the hints that an earlier run left.
pub(crate) fn count(db: &Db, shared: &cluster::Shared) -> Result<(), lsm::Error> {
    for peer in shared.view().topology.ids().filter(|peer| *peer != shared.own) {
        let prefix = prefix(shared, peer);
        let (mut hints, mut bytes) = (0, 0);
        walk(db, &prefix, &prefix, |key, record| {
            hints += 1;
            bytes += hint_bytes(key, &record);
            true
        })?;
        shared.hints.found(peer, hints, bytes);
    }
    Ok(())
}

/// Takes over the partitions that an earlier release marked one by one.
pub(crate) fn adopt_earlier_marks(node: &Identity, shared: &cluster::Shared) -> Result<(), String> {
    let db = node.db();
    for peer in shared.view().topology.ids().filter(|peer| *peer != shared.own) {
        let prefix = [EARLIER, &prefix(shared, peer)].concat();
        let (mut earlier, mut scan) = (Batch::new(), db.scan(Space::Node, &prefix, None));
        while let Some((key, record)) = scan.next().map_err(|error| error.to_string())? {
            let Some(partition) = key.strip_prefix(&prefix[..]) else { break };
            if let Ok(partition) = partition.try_into()
                && record.kind() == lsm::Kind::Value
            {
                let partition = Some(u16::from_be_bytes(partition));
                shared.missed.mark(peer, Mark { partition, since: 0 });
            }
            let removed = earlier.delete(Space::Node, key, record.version());
            removed.map_err(|error| error.to_string())?;
        }
        if !earlier.is_empty() {
            let kept = node.keep_missed(peer, &shared.name_of(peer), &shared.missed);
            kept.and_then(|()| db.commit(earlier)).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Hands out hints from `start` on while their keys have `prefix` and `more` says so.
fn walk(
    db: &Db,
    start: &[u8],
    prefix: &[u8],
    mut more: impl FnMut(&[u8], cluster::Record) -> bool,
) -> Result<(), lsm::Error> {
    let mut scan = db.scan(Space::Hints, start, None);
    while let Some((hint, held)) = scan.next()? {
        let Some(key) = hint.strip_prefix(prefix) else { break };
        if held.kind() != lsm::Kind::Value {
            continue;
        }
        let record = (records::CODEC.parse)(Bytes::copy_from_slice(held.value()));
        // Verified as a hint just now, so it is what was put in.
        let record = record.expect("a hint holds a record");
        if !more(key, record) {
            break;
        }
    }
    Ok(())
}
