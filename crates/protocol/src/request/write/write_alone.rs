//! Writes that this node's store decides alone: the key has one replica, which is this node, and
//! the store holds no newer record. Such a write has no slot and no votes. A write that is not
//! stored before its deadline, or not under the same view, becomes an ordinary write with the same
//! version.
//!
//! ```text
//!  writes_alone ─true─▶ write to the store ─┬─ stored ────────────────────▶ answer
//!       │ false                             └─ refused, late, later view ─▶ a slot
//!       └──▶ Event::Write: an ordinary write
//! ```

use std::collections::VecDeque;

use bytes::Bytes;

use super::Writes;
use crate::dispatch::core::Core;
use crate::event::{Answer, ClientId};
use crate::request::quorum::AskedQuorum;
use crate::request::receipt::{Acks, ReplicaSet};
use record::Record;

/// The position of the only replica in its key's order.
const ONLY: usize = 0;

/// The id of a write that a node's store decides alone. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AloneId(u64);

/// A client's write.
#[derive(Debug)]
pub(crate) struct ClientWrite {
    pub(crate) client: ClientId,
    pub(crate) key: Bytes,
    /// The record, with a version of this node.
    pub(crate) record: Record,
    pub(crate) asked: AskedQuorum,
    /// The time at which the write fails, by the monotonic clock in microseconds.
    pub(crate) deadline: u64,
}

/// The writes that the store has not completed, in the order of their start.
#[derive(Debug, Default)]
pub(crate) struct AloneWrites {
    /// The id of the first write in the list.
    first: u64,
    /// `None` = the write is completed, but an earlier write is not.
    writes: VecDeque<Option<ClientWrite>>,
    open: usize,
}

impl AloneWrites {
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    pub(crate) fn add(&mut self, write: ClientWrite) -> AloneId {
        let id = self.first + self.writes.len() as u64;
        self.writes.push_back(Some(write));
        self.open += 1;
        AloneId(id)
    }

    /// Returns the write with this id; `None` = the write was completed, or has a slot by now.
    pub(crate) fn get(&self, AloneId(id): AloneId) -> Option<&ClientWrite> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        self.writes.get(at)?.as_ref()
    }

    /// Completes a write: removes and returns it. `None` = the write was completed, or has a slot
    /// by now.
    pub(crate) fn take(&mut self, AloneId(id): AloneId) -> Option<ClientWrite> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        let write = self.writes.get_mut(at)?.take()?;
        self.open -= 1;
        while self.writes.front().is_some_and(Option::is_none) {
            self.writes.pop_front();
            self.first += 1;
        }
        Some(write)
    }

    /// Takes the write that began first; `None` = there is none, or its deadline is after `mono`.
    pub(crate) fn take_late(&mut self, mono: u64) -> Option<ClientWrite> {
        let first = self.writes.front()?.as_ref().expect("the first one is not completed");
        if first.deadline > mono { None } else { self.take(AloneId(self.first)) }
    }
}

impl Writes {
    /// True if a write needs no other node and no slot: the key has one replica, this node; no
    /// partition moves; and the store holds no newer record and may have lost none.
    pub(crate) fn writes_alone(
        core: &Core,
        key: &[u8],
        record: &Record,
        asked: AskedQuorum,
    ) -> bool {
        let shared = &core.shared;
        asked.resolve(&core.view.topology).from == 1
            && core.may_decide_alone(key, 1)
            && shared.membership.known_disk.acknowledges()
            && shared.may_have_lost(key, record.write_time()).is_none()
            && !core.note_and_check(record)
    }

    /// Returns the answer to a write that the store has stored.
    pub(crate) fn answer_alone(core: &Core, write: &ClientWrite) -> Answer {
        let acks = Acks { epoch: core.view.epoch, by: ReplicaSet::of(std::iter::once(ONLY)) };
        Answer::Written(write.record.version(), acks)
    }
}

#[cfg(test)]
mod tests {
    use record::{Fields, Kind, Version};

    use super::*;

    fn write(client: u64, deadline: u64) -> ClientWrite {
        let fields = Fields::new(Kind::Value, Version { time: 1 << 12, origin: 1 });
        let (key, record) = (Bytes::from_static(b"key"), Record::new(b"key", &fields, b"value"));
        let (client, asked) = (ClientId(client), AskedQuorum::default());
        ClientWrite { client, key, record, asked, deadline }
    }

    #[test]
    fn an_id_is_completed_once_in_any_order() {
        let mut writes = AloneWrites::default();
        let ids: Vec<AloneId> = (0..4).map(|client| writes.add(write(client, 10))).collect();
        for (at, left) in [(2, 3), (0, 2), (1, 1), (3, 0)] {
            assert_eq!(writes.take(ids[at]).map(|write| write.client), Some(ClientId(at as u64)));
            assert!(writes.take(ids[at]).is_none() && writes.get(ids[at]).is_none());
            assert_eq!(writes.len(), left);
        }
        let next = writes.add(write(9, 10));
        assert!(!ids.contains(&next), "a late completion of an earlier write finds nothing");
    }

    #[test]
    fn writes_expire_in_the_order_of_their_start() {
        let mut writes = AloneWrites::default();
        let ids = [writes.add(write(1, 10)), writes.add(write(2, 20))];
        assert!(writes.take_late(9).is_none());
        assert_eq!(writes.take_late(15).map(|write| write.client), Some(ClientId(1)));
        assert!(writes.take_late(15).is_none());
        assert!(writes.get(ids[0]).is_none() && writes.get(ids[1]).is_some());
    }
}
