//! What an operator does about a node whose clock was far ahead: its start is refused; the clock is
//! set, and what it wrote meanwhile is taken out of its store, as `kvorum repair-clock` does.

use cluster::{Clock, origin_of};
use node::{Ahead, StartError};

use super::World;
use super::nemesis::DAY_MICROS;
use crate::store::Store;
use crate::wall::true_wall;

/// How long a refused start waits for somebody to look at it, in microseconds.
const LOOKED_AT: u64 = 2_000_000;

impl World {
    /// A node was not started, for its clock would begin far ahead of the wall clock. Somebody sees
    /// to it, and it is tried again.
    pub(super) fn started_ahead(&mut self, node: usize, store: &Store) -> Result<(), StartError> {
        let offset = self.machines[node].wall.offset(self.now);
        self.journal.line(self.now, format_args!("n{node} would begin ahead: not started"));
        let most_wrong = self.plan.skew_micros as i64 + 1;
        if self.is_off_by_days(node) {
            // Until that is over.
        } else if offset.abs() > most_wrong {
            self.set_wall(node, 0);
        } else if self.may_be_repaired(node) {
            self.repair_clock(node, store)?;
        }
        self.agenda.put(self.now + LOOKED_AT, super::Due::Start(node));
        Ok(())
    }

    fn repair_clock(&mut self, node: usize, store: &Store) -> Result<(), StartError> {
        let limit = Clock::limit(self.times(node).wall, self.plan.max_skew_micros);
        let engine = store.engine();
        let Some(found) = Ahead::look(engine, limit)? else { return Ok(()) };
        // To those who were promised something it is a lost disk, as far as nobody else has it;
        // also if a disk error ends it half-way.
        self.note_lost_disk(node);
        self.forget_hints(node);
        self.ledger.wiped(self.now, origin_of(&self.machines[node].name), limit);
        self.ledger.forget_future(self.now, limit);
        let removed = found.records + found.hints;
        found.remove(engine)?;
        let closed = engine.close();
        closed.map_err(|source| StartError::Store { what: "the store", source })?;
        self.journal.line(self.now, format_args!("n{node} is rid of {removed} future records"));
        self.faults += 1;
        self.machines[node].most_ahead = 0;
        Ok(())
    }

    /// A node that was removed is switched off. Nobody repairs its clock any more: what it wrote
    /// while that was off by days is on no other node, and goes with it.
    pub(super) fn takes_future_along(&mut self, node: usize) {
        if self.machines[node].most_ahead >= DAY_MICROS {
            let limit = Clock::limit(true_wall(self.now), self.plan.max_skew_micros);
            self.ledger.forget_future(self.now, limit);
        }
    }
}
