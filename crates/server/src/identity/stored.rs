//! Reads, at a start, the identity records that earlier process starts stored.

use std::collections::BTreeMap;

use lsm::{Engine, Space, Version};
use protocol::{FormerDisks, Incarnation, Proof};

use super::format::{self, StoredIdentity};
use super::{
    FIRST, FORMER_DISKS, IDEMPOTENCY_RECOVERED, KEY, PEER, PEERS_END, PROOF, PeerRecord,
    identity_error, unreadable,
};
use crate::start_error::StartError;

/// Reads the directory's identity and the version of its record; `None` = there is no identity.
pub(super) fn read(engine: &Engine) -> Result<Option<(StoredIdentity, Version)>, StartError> {
    let record = engine.read(Space::Node, KEY).map_err(identity_error)?;
    let Some(record) = record else { return Ok(None) };
    let kept = StoredIdentity::decode(&record.value());
    let kept = kept.map_err(|why| unreadable("the node's identity", why))?;
    Ok(Some((kept, record.view().version())))
}

/// Reads the time up to which idempotency-key records were recovered from peers; 0 = never.
pub(super) fn idempotency_recovered_until(engine: &Engine) -> Result<u64, StartError> {
    let stored = engine.read(Space::Node, IDEMPOTENCY_RECOVERED).map_err(identity_error)?;
    let stored = stored.map(|record| format::decode_time(&record.value())).transpose();
    let what = "what the node has learned anew of idempotency keys (recovered-words)";
    stored.map(Option::unwrap_or_default).map_err(|why| unreadable(what, why))
}

/// Reads the former disks of this node.
pub(super) fn former_disks(engine: &Engine) -> Result<FormerDisks, StartError> {
    let stored = engine.read(Space::Node, FORMER_DISKS).map_err(identity_error)?;
    let stored = stored.map(|record| format::decode_former(&record.value())).transpose();
    let what = "the former disks of the node (former-disks)";
    stored.map(Option::unwrap_or_default).map_err(|why| unreadable(what, why))
}

pub(super) fn proof(engine: &Engine) -> Result<Option<Proof>, StartError> {
    let stored = engine.read(Space::Node, PROOF).map_err(identity_error)?;
    let proof = stored.map(|record| format::decode_proof(&record.value())).transpose();
    proof.map_err(|why| unreadable("the repair seal and watermark (proof)", why))
}

/// Reads the records of all peers.
pub(super) fn peers(engine: &Engine) -> Result<BTreeMap<String, PeerRecord>, StartError> {
    let mut peers = BTreeMap::new();
    let mut scan = engine.snapshot().scan(Space::Node, PEER, Some(PEERS_END));
    while let Some((key, record)) = scan.next().map_err(identity_error)? {
        let name = String::from_utf8_lossy(&key[PEER.len()..]).into_owned();
        let claim = format::decode_peer(record.value()).map_err(|why| {
            unreadable(format!("persisted state of node {}", name.escape_debug()), why)
        })?;
        let first = engine.read(Space::Node, &[FIRST, name.as_bytes()].concat());
        let first = first.map_err(identity_error)?.and_then(|record| {
            let value = record.value();
            let number = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            number.and_then(Incarnation::of_number)
        });
        peers.insert(name, PeerRecord { claim: Some(claim), first, ..PeerRecord::default() });
    }
    Ok(peers)
}

/// Returns the greatest version time in the node's own space, [`Space::Node`].
pub(super) fn newest(engine: &Engine) -> Result<u64, StartError> {
    let mut newest = 0;
    let mut scan = engine.snapshot().scan(Space::Node, &[], None);
    while let Some((_, record)) = scan.next().map_err(identity_error)? {
        newest = newest.max(record.version().time);
    }
    Ok(newest)
}
