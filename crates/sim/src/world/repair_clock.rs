//! The operator's response to a node whose clock was far ahead: the node refuses to start; the
//! clock is set, and the records it wrote meanwhile are removed from its store, as by `kvorum
//! repair-clock`.

use protocol::{Clock, origin_of};
use server::{Ahead, StartError};

use super::World;
use super::nemesis::DAY_MICROS;
use crate::store::Store;
use crate::wall::true_wall;

/// Microseconds from a refused start to the operator's response.
const LOOKED_AT: u64 = 2_000_000;

impl World {
    /// Handles a refused start, whose clock would begin far ahead of the wall clock: an operator
    /// responds, and the node starts again.
    pub(super) fn started_ahead(&mut self, node: usize, store: &Store) -> Result<(), StartError> {
        let offset = self.machines[node].wall.offset(self.now);
        self.journal.line(self.now, format_args!("n{node} would begin ahead: not started"));
        let most_wrong = self.plan.skew_micros as i64 + 1;
        if self.is_off_by_days(node) {
            // While the fault lasts.
        } else if offset.abs() > most_wrong {
            self.set_wall(node, 0);
        } else if self.may_be_repaired(node) {
            self.repair_clock(node, store)?;
        }
        self.agenda.put(self.now + LOOKED_AT, super::DueEvent::Start(node));
        Ok(())
    }

    fn repair_clock(&mut self, node: usize, store: &Store) -> Result<(), StartError> {
        let limit = Clock::limit(self.times(node).wall, self.plan.max_skew_micros);
        let engine = store.engine();
        let Some(found) = Ahead::look(engine, limit)? else { return Ok(()) };
        // For holders of promises this is a lost disk, unless other nodes have the records; also if
        // a disk error interrupts the removal.
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

    /// Notes that a removed node is switched off without a repair of its clock: its writes from
    /// while the clock was off by days are on no other node, and are lost with it.
    pub(super) fn takes_future_along(&mut self, node: usize) {
        if self.machines[node].most_ahead >= DAY_MICROS {
            let limit = Clock::limit(true_wall(self.now), self.plan.max_skew_micros);
            self.ledger.forget_future(self.now, limit);
        }
    }
}
