//! What an operator does about a node whose clock was far ahead: its start is refused; the clock is
//! set, and what it stamped meanwhile is taken out of its store, as `kvorum repair-clock` does.

use cluster::{Clock, Standing};
use lsm::{Above, Error, Space};

use super::World;
use super::node::{BORN_KEY, BOUND_KEY, STANDING_KEY, number_batch};
use crate::store::Store;

/// How far ahead of the wall clock, beyond the skew allowed, a node may begin, in microseconds.
const MOST_AHEAD: u64 = 60_000_000;

/// How long a refused start waits for somebody to look at it, in microseconds.
const LOOKED_AT: u64 = 2_000_000;

impl World {
    /// Whether a node is not to start, for its clock would begin far ahead of the wall clock. Then
    /// somebody sees to it, and it is tried again.
    pub(super) fn starts_ahead(&mut self, node: usize, store: &Store) -> Result<bool, Error> {
        let wall = self.times(node).wall;
        let bound = store.number(BOUND_KEY)?.unwrap_or(0);
        let most = wall + MOST_AHEAD + self.plan.max_skew_micros;
        if Clock::micros(bound) <= most {
            return Ok(false);
        }
        let offset = self.machines[node].wall.offset(self.now);
        self.journal.line(self.now, format_args!("n{node} would begin ahead: not started"));
        let most_wrong = self.plan.skew_micros as i64 + 1;
        if self.is_off_by_days(node) {
            // Until that is over.
        } else if offset.abs() > most_wrong {
            self.machines[node].wall.set(self.now, 0);
        } else if self.may_be_repaired(node) {
            self.repair_clock(node, store)?;
        }
        self.agenda.put(self.now + LOOKED_AT, super::Due::Start(node));
        Ok(true)
    }

    fn repair_clock(&mut self, node: usize, store: &Store) -> Result<(), Error> {
        let limit = Clock::limit(self.times(node).wall, self.plan.max_skew_micros);
        // To those who were promised something it is a lost disk, as far as nobody else has it;
        // also if a disk error ends it half-way.
        self.note_lost_disk(node);
        self.forget_hints(node);
        self.ledger.wiped(limit);
        self.ledger.forget_future(self.now, limit);
        let born = store.number(BORN_KEY)?.unwrap_or(0).max(limit);
        let numbers = [(STANDING_KEY, Standing::Amnesiac as u64), (BORN_KEY, born)];
        let core = store.core();
        core.commit(std::iter::once(&number_batch(self.now, &numbers)))?;
        let spaces = &[Space::Data, Space::Hints];
        let removed = core.remove_above(Above { time: limit, spaces })?;
        core.commit(std::iter::once(&number_batch(self.now, &[(BOUND_KEY, limit)])))?;
        core.close()?;
        self.journal.line(self.now, format_args!("n{node} is rid of {removed} of the future"));
        self.faults += 1;
        self.machines[node].most_ahead = 0;
        Ok(())
    }
}
