//! Expiring values: their time to live, and bounds of the time at which a node evaluates an
//! operation, that is, decides by its wall clock whether a value has expired.
//!
//! ```text
//!  earliest    the time of the wall clock that is furthest behind, minus the duration of a request
//!  evaluation  the wall-clock time at which a node evaluates an operation: between the two
//!  latest      the latest time that any node's wall clock has shown so far
//! ```

use super::{LoopId, World};
use crate::histories::RetryState;
use crate::ledger::{ClientRequest, RequestKind};

/// Bits of the longest time to live, in milliseconds.
const MOST_TTL_BITS: u64 = 11;

impl World {
    /// Returns the time to live, in milliseconds, of a value that a client is about to write; 0 =
    /// for ever.
    ///
    /// The draw is derived from the operation's number, so that no other random choice of the run
    /// changes.
    pub(super) fn ttl_ms(&self, what: &RequestKind) -> u64 {
        let may_expire = match what {
            RequestKind::Put => true,
            // A retry could take effect with the expiry of the first attempt or with its own
            // expiry.
            RequestKind::Change(wanted) => wanted.retry == RetryState::Once,
            RequestKind::Get | RequestKind::Delete | RequestKind::Scan => false,
        };
        let number = self.ledger.next() ^ self.plan.seed << 32;
        let mut draw = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        draw = (draw ^ draw >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16;
        if !may_expire || !self.clients_run || draw % 1000 >= self.plan.expiring {
            return 0;
        }
        let most = 1 << (draw / 1000 % (MOST_TTL_BITS + 1));
        1 + draw / 100_000 % most
    }

    /// Returns the expiry of a write's value, as the receiving node computes it, in milliseconds
    /// since 1970; 0 = never.
    pub(super) fn expiry_ms(&mut self, place: LoopId, number: u64, asked: &ClientRequest) -> u64 {
        let now = self.times(place.node);
        let Some(process) = self.process(place) else { return 0 };
        if asked.ttl_ms == 0 {
            return 0;
        }
        let now = process.shared.clock.ttl_base_time(now);
        let expiry_ms = now.div_ceil(1000) + asked.ttl_ms;
        self.ledger.record_expiry(&asked.key, number, expiry_ms);
        expiry_ms
    }

    /// Returns the earliest time, in milliseconds, at which an operation that begins now may be
    /// evaluated. The operation may join a round that began earlier, at most the duration of a
    /// request ago.
    pub(super) fn earliest_ms(&self) -> u64 {
        let round = self.plan.deadline_micros + self.plan.deadline_micros / 10;
        let walls = self.machines.iter().map(|machine| machine.wall.wall(self.now));
        let lately = |(at, _): &&(u64, u64)| at + 2 * round >= self.now;
        let set = self.clock_changes.iter().rev().take_while(lately).map(|(_, wall)| *wall);
        walls.chain(set).min().unwrap_or(0).saturating_sub(round) / 1000
    }

    /// Sets a machine's wall clock to `offset` microseconds ahead of true time.
    pub(super) fn set_wall(&mut self, node: usize, offset: i64) {
        let wall = &mut self.machines[node].wall;
        let before = wall.wall(self.now);
        wall.set(self.now, offset);
        let after = wall.wall(self.now);
        self.clock_changes.extend([(self.now, before), (self.now, after)]);
        self.ledger.record_clock_set_back(after / 1000);
    }

    /// Records the time of a node's wall clock, right or wrong, because the node may evaluate reads
    /// and conditional writes by it. No node decides about expiry by its hybrid clock.
    pub(super) fn record_wall_time(&mut self, place: LoopId) {
        let shows = self.times(place.node).wall / 1000;
        self.ledger.latest_ms = self.ledger.latest_ms.max(shows);
    }
}
