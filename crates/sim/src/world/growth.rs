//! Runs that measure a cluster's costs: see [`crate::measure`].

use std::sync::Arc;

use protocol::NodeId;
use protocol::layout::PlanChange;

use super::power::ProcessEnd;
use super::{DueEvent, World};
use crate::scale::{Growth, Scale, Traffic};

/// The node that is stopped.
const STOPPED_NODE: usize = 0;

/// Microseconds between two checks of the hints, or of the layouts.
const CHECK_MICROS: u64 = 10_000;

/// Maximum number of checks until all hints are delivered, or until a layout change ends.
const MAX_CHECKS: u32 = 6_000;

impl World {
    /// Runs for `micros` with all nodes, then without one node, then until that node has received
    /// its hints.
    pub(crate) fn measure_scale(mut self, micros: u64) -> Scale {
        self.run_until(self.now + 1_000_000);
        let (tally, messages) = (self.ledger.tally, self.network.messages);
        self.run_until(self.now + micros);
        let done = self.ledger.tally;
        let answered = done.reads + done.writes - tally.reads - tally.writes;
        let messages = self.network.messages - messages;
        self.end_process(STOPPED_NODE, ProcessEnd::Kill);
        self.run_until(self.now + micros);
        self.clients_run = false;
        self.run_until(self.now + 2 * self.plan.deadline_micros);
        let connections = self.network.connections();
        let waiting = self.hints_for(STOPPED_NODE);
        self.agenda.put(self.now, DueEvent::Start(STOPPED_NODE));
        while self.machines[STOPPED_NODE].process.is_none() {
            self.run_until(self.now + CHECK_MICROS);
        }
        let back = self.now;
        let mut checks = 0;
        while !self.hints_for(STOPPED_NODE).is_empty() && checks < MAX_CHECKS {
            self.run_until(self.now + CHECK_MICROS);
            checks += 1;
        }
        let hints = waiting.iter().sum();
        let (holders, hint_micros) = (waiting.len() as u64, self.now - back);
        Scale { answered, messages, connections, hints, holders, hint_micros }
    }

    /// Runs for `micros`, then until `joiners` nodes have joined, then for `micros` again.
    pub(crate) fn measure_join_traffic(mut self, joiners: usize, micros: u64) -> Growth {
        let nodes = self.nodes.len();
        // After this time all nodes have seen one another.
        self.run_until(self.now + 2 * micros);
        let before = self.traffic(|world| world.run_until(world.now + micros));
        let change = self.traffic(|world| {
            let process = world.machines[STOPPED_NODE].process.as_ref().expect("nothing ends it");
            let (life, shared) = (process.life, Arc::clone(&process.shared));
            let change = PlanChange { add: world.joiners(joiners), ..PlanChange::default() };
            let planned =
                world.plan_change(STOPPED_NODE, &shared.membership.layouts.known_layout(), &change);
            world.propose(STOPPED_NODE, life, planned.expect("names and ids are new"));
            let mut checks = 0;
            while (world.members().len() == nodes || world.unsettled_layouts().is_some())
                && checks < MAX_CHECKS
            {
                world.run_until(world.now + CHECK_MICROS);
                checks += 1;
            }
        });
        let after = self.traffic(|world| world.run_until(world.now + micros));
        Growth { nodes, joiners, before, change, after }
    }

    /// Counts the traffic while `what` runs.
    fn traffic(&mut self, what: impl FnOnce(&mut Self)) -> Traffic {
        let (messages, bytes, now) = (self.network.messages, self.network.bytes, self.now);
        what(self);
        let messages = self.network.messages - messages;
        Traffic { messages, bytes: self.network.bytes - bytes, micros: self.now - now }
    }

    /// Returns the number of hints for a node on each node that holds any.
    fn hints_for(&self, node: usize) -> Vec<u64> {
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let hints = processes.map(|p| p.shared.transfer.hints.waiting_hints(NodeId(node as u16)).0);
        hints.filter(|hints| *hints > 0).collect()
    }
}
