//! A replica's lookup of a conditional write that it may have stored. A coordinator requests it if
//! the key no longer shows the outcome of an earlier try.

use bytes::Bytes;

use super::acceptor::must_pull;
use crate::clock::Clock;
use crate::dispatch::core::{Core, Cx};
use crate::event::{Demand, Effect, OpId, StoreError};
use crate::message::Reply;
use crate::paxos::operation::{IDEMPOTENCY_RETENTION_MICROS, has_idempotency_key};
use crate::paxos::recent::{OpLookup, WriteIdentity};
use crate::placement::topology::partition_of;
use crate::replica::reply::reply_to_error;
use crate::shared::SharedMembership;

/// Handles a query, from another node or this one, about a conditional write that was first tried
/// under the ballot `since`. For a write with an idempotency key, which may be old, `since` is
/// ignored.
pub(crate) fn recall(
    cx: &mut Cx<'_>,
    op: OpId,
    (key, asked, since): (Bytes, WriteIdentity, u64),
    demand: Demand,
) {
    if has_idempotency_key(asked.id) {
        // The store knows more than the table.
        return cx.out.push(Effect::Recall { op, key, asked, demand });
    }
    let recalled = match cx.core.shared.paxos.recent.recall(&key, asked, since) {
        // A previous incarnation that lost its disk may have stored the write.
        OpLookup::Never if since <= forgets_before(cx.core, partition_of(&key)) => {
            OpLookup::Forgotten
        }
        recalled => recalled,
    };
    cx.reply_as_replica(op, Reply::Recalled(recalled));
}

/// Returns the ballot up to which this node may have forgotten tried writes, because it lost a
/// disk, or because the partition has moved to it since.
fn forgets_before(core: &Core, partition: u16) -> u64 {
    let SharedMembership { state: membership, layouts, .. } = &core.shared.membership;
    membership.promised_before().max(layouts.forgets_before(partition))
}

/// Returns the version time up to which this node may lack stored writes with an idempotency key:
/// it may have lost them with a disk, or the partition's previous replicas may not have reported
/// all of theirs.
fn recallable_from(core: &Core, partition: Option<u16>) -> u64 {
    let SharedMembership { state: membership, layouts, .. } = &core.shared.membership;
    let lost = membership.idempotency_lost_before();
    match partition {
        None => lost,
        Some(partition) if must_pull(core, || partition) => u64::MAX,
        partition => lost.max(layouts.recallable_from(partition)),
    }
}

/// Handles the store's answer about a write with an idempotency key. `partition` is the partition
/// of the write's key.
pub(crate) fn on_recall(
    cx: &mut Cx<'_>,
    op: OpId,
    partition: Option<u16>,
    result: Result<Option<OpLookup>, StoreError>,
) {
    let lost = Clock::micros(recallable_from(cx.core, partition));
    let reply = match result {
        Ok(Some(recalled)) => Reply::Recalled(recalled),
        // A previous incarnation that lost its disk may have stored the write.
        Ok(None) if lost + IDEMPOTENCY_RETENTION_MICROS > cx.now.wall => {
            Reply::Recalled(OpLookup::Forgotten)
        }
        Ok(None) => Reply::Recalled(OpLookup::Never),
        Err(error) => reply_to_error(&error),
    };
    cx.reply_as_replica(op, reply);
}
