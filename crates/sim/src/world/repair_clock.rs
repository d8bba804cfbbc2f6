//! The operator's response when a node refuses to start because its clock was far ahead. The
//! operator sets the clock, and removes from the node's store the records written with the wrong
//! clock, as `kvorum repair-clock` does.

use protocol::{Clock, origin_of};
use server::{Ahead, StartError};

use super::World;
use super::nemesis::DAY_MICROS;
use crate::machine_clock::true_wall_time;
use crate::store::Store;

/// Microseconds from a refused start until the operator responds.
const RESPONSE_MICROS: u64 = 2_000_000;

impl World {
    /// Handles the refused start of a node whose clock would begin far ahead of the wall clock: the
    /// operator responds, and the node starts again.
    pub(super) fn handle_refused_start(
        &mut self,
        node: usize,
        store: &Store,
    ) -> Result<(), StartError> {
        let offset = self.machines[node].wall.offset(self.now);
        self.journal.line(self.now, format_args!("n{node} would begin ahead: not started"));
        let most_wrong = self.plan.skew_micros as i64 + 1;
        if self.is_off_by_days(node) {
            // The fault is still in progress, so the operator sets the clock only.
        } else if offset.abs() > most_wrong {
            self.set_wall(node, 0);
        } else if self.may_be_repaired(node) {
            self.repair_clock(node, store)?;
        }
        self.agenda.put(self.now + RESPONSE_MICROS, super::DueEvent::Start(node));
        Ok(())
    }

    fn repair_clock(&mut self, node: usize, store: &Store) -> Result<(), StartError> {
        let limit = Clock::limit(self.times(node).wall, self.plan.max_skew_micros);
        let engine = store.engine();
        let Some(found) = Ahead::find(engine, limit)? else { return Ok(()) };
        // The removal counts as a lost disk, also if a disk error interrupts it, because the
        // removed records may be on no other node.
        self.record_lost_disk(node);
        self.forget_hints(node);
        self.ledger.record_disk_loss(self.now, origin_of(&self.machines[node].name), limit);
        self.ledger.forget_future(self.now, limit);
        let removed = found.records + found.hints;
        found.remove(engine)?;
        let closed = engine.close();
        closed.map_err(|source| StartError::Store { what: "the store", source })?;
        self.journal.line(self.now, format_args!("n{node} is rid of {removed} future records"));
        self.faults += 1;
        self.machines[node].max_lead_micros = 0;
        Ok(())
    }

    /// Notes that a removed node is switched off without a repair of its clock. The writes that the
    /// node made while its clock was off by days are on no other node, and are lost with the node.
    pub(super) fn record_lost_future_writes(&mut self, node: usize) {
        if self.machines[node].max_lead_micros >= DAY_MICROS {
            let limit = Clock::limit(true_wall_time(self.now), self.plan.max_skew_micros);
            self.ledger.forget_future(self.now, limit);
        }
    }
}
