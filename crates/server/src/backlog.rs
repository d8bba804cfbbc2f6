//! Writes that wait until this node's store accepts them.
//!
//! ```text
//!  a write ─┬─ the store accepts it ─▶ this turn's batch
//!           └─ the log or the flushes are too far behind ─▶ backlog
//!                 ├─ the store accepts writes again ─▶ a later batch, oldest write first
//!                 └─ the deadline is near ─▶ Busy
//! ```
//!
//! A coordinator sends a write to all replicas at once. If one replica refused the write, the
//! others might store it all the same, and the outcome would be unknown. A replica therefore lets
//! the write wait for almost as long as the client waits.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::{Demand, OpId, Record, Via};

/// Memory of a waiting write besides its key and record, in bytes.
pub(crate) const WRITE_OVERHEAD: usize = 64;

/// Interval between two attempts to store waiting writes, in microseconds: a small part of the
/// duration of a sync.
const RETRY_INTERVAL: u64 = 2_000;

/// A write gives up early, by 1/`ANSWER_SHARE` of the time that a request may take, so that its
/// replica can still answer `Busy` in time.
const ANSWER_SHARE: u64 = 8;

/// A write's check for a newer record of its key: whether the write needs the check, and the
/// result of the check.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyCheck {
    /// The write needs no check.
    NotNeeded,
    /// The write needs the check.
    Needed,
    /// The check is done, with the version time of the newer record; `None` = there is no newer
    /// record.
    Done(Option<u64>),
}

/// A write to the store.
#[derive(Debug, Clone)]
pub struct Write {
    pub(crate) op: OpId,
    pub(crate) key: Bytes,
    pub(crate) record: Record,
    pub(crate) via: Via,
    pub(crate) look: KeyCheck,
    /// True if the write must be durable when it is done, whatever the sync mode.
    pub(crate) durable: bool,
    /// Class of the requester, and the time until which the requester waits.
    pub(crate) demand: Demand,
}

/// Limits on waiting writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum bytes of the waiting writes, without records whose memory is reserved elsewhere.
    pub(crate) bytes: usize,
    /// Length in bytes above which a record's memory is reserved elsewhere (by an owner).
    pub(crate) owned_from: usize,
    /// Microseconds that a request may take.
    pub(crate) deadline_micros: u64,
}

/// The waiting writes of one event loop, oldest first, each with the monotonic time in microseconds
/// at which the write gives up.
#[derive(Debug)]
pub(crate) struct Backlog {
    bounds: Bounds,
    waiting: VecDeque<(Write, u64)>,
    unreserved: usize,
    /// Time of the next attempt, by the monotonic clock.
    next_attempt_at: u64,
}

impl Backlog {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, waiting: VecDeque::new(), unreserved: 0, next_attempt_at: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the bytes of a write that no reservation covers: the memory of a long record is
    /// reserved elsewhere.
    fn unreserved_bytes(&self, write: &Write) -> usize {
        let record = write.record.byte_len();
        let record = if record > self.bounds.owned_from { 0 } else { record };
        write.key.len() + WRITE_OVERHEAD + record
    }

    /// Queues a write that arrived at `now`; returns the write if the backlog is full.
    pub(crate) fn add(&mut self, now: u64, write: Write) -> Option<Write> {
        let unreserved = self.unreserved + self.unreserved_bytes(&write);
        if !self.is_empty() && unreserved > self.bounds.bytes {
            return Some(write);
        }
        if self.is_empty() {
            self.next_attempt_at = now + RETRY_INTERVAL;
        }
        self.unreserved = unreserved;
        let until = write.demand.until.saturating_sub(self.bounds.deadline_micros / ANSWER_SHARE);
        self.waiting.push_back((write, until));
        None
    }

    /// Returns the time of the next attempt; `None` = the backlog is empty.
    pub(crate) fn next_attempt(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.next_attempt_at)
    }

    /// Returns true if an attempt is due at `now`, and schedules the next attempt.
    pub(crate) fn is_due(&mut self, now: u64) -> bool {
        if self.is_empty() || now < self.next_attempt_at {
            return false;
        }
        self.next_attempt_at = now + RETRY_INTERVAL;
        true
    }

    /// Removes the oldest write. Returns the write with the time at which it gives up; `None` = the
    /// backlog is empty.
    pub(crate) fn pop(&mut self) -> Option<(Write, u64)> {
        let next = self.waiting.pop_front()?;
        let unreserved = self.unreserved_bytes(&next.0);
        assert!(self.unreserved >= unreserved, "what waits was counted");
        self.unreserved -= unreserved;
        assert!(
            self.unreserved == 0 || !self.is_empty(),
            "where nothing waits, nothing is counted"
        );
        Some(next)
    }

    /// Puts a write back in front because the store still refuses it.
    pub(crate) fn put_back(&mut self, write: Write, until: u64) {
        self.unreserved += self.unreserved_bytes(&write);
        self.waiting.push_front((write, until));
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Class, SlotId};
    use record::{Fields, Kind, MIN_RECORD_LEN, Version};

    use super::*;

    fn write(number: u64, len: usize) -> Write {
        let fields = Fields::new(Kind::Value, Version { time: 1, origin: 0 });
        let record = Record::new(b"", &fields, &vec![0; len.saturating_sub(MIN_RECORD_LEN)]);
        let (op, until) = (OpId::Slot(SlotId(number)), 100 + 80_000);
        let demand = Demand { class: Class::Client, until };
        let via = Via::Accept;
        Write {
            op,
            key: Bytes::new(),
            record,
            via,
            look: KeyCheck::NotNeeded,
            durable: false,
            demand,
        }
    }

    fn backlog() -> Backlog {
        Backlog::new(Bounds { bytes: 500, owned_from: 1000, deadline_micros: 80_000 })
    }

    #[test]
    fn bytes_without_a_reservation_are_bounded_and_one_write_always_fits() {
        let mut backlog = backlog();
        assert!(backlog.add(0, write(1, 900)).is_none(), "the first");
        assert!(backlog.add(0, write(2, 1)).is_some());
        assert!(backlog.pop().is_some());
        assert!(backlog.add(0, write(3, 2000)).is_none(), "its bytes are somebody's");
        assert!(backlog.add(0, write(4, 300)).is_none());
        assert!(backlog.add(0, write(5, 300)).is_some());
    }

    #[test]
    fn the_oldest_write_is_popped_first_and_waits_until_shortly_before_its_deadline() {
        let mut backlog = backlog();
        assert_eq!(backlog.next_attempt(), None);
        assert!(backlog.add(100, write(1, 1)).is_none());
        assert!(backlog.add(200, write(2, 1)).is_none());
        assert_eq!(backlog.next_attempt(), Some(100 + RETRY_INTERVAL));
        assert!(!backlog.is_due(RETRY_INTERVAL) && backlog.is_due(100 + RETRY_INTERVAL));
        let (first, until) = backlog.pop().unwrap();
        assert_eq!((first.op, until), (OpId::Slot(SlotId(1)), 100 + 70_000));
        backlog.put_back(first, until);
        assert_eq!(backlog.pop().unwrap().0.op, OpId::Slot(SlotId(1)));
        assert_eq!(backlog.pop().unwrap().0.op, OpId::Slot(SlotId(2)));
        assert!(backlog.is_empty());
    }
}
