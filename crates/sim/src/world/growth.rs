//! Runs that measure a cluster's costs: see [`crate::measure`].

use std::sync::Arc;

use protocol::NodeId;
use protocol::layout::PlanChange;

use super::power::ProcessEnd;
use super::{DueEvent, World};
use crate::scale::{Growth, Scale, Traffic};

/// The node that goes away.
const AWAY: usize = 0;

/// Microseconds between two checks of the hints.
const LOOK_MICROS: u64 = 10_000;

/// Number of checks by which all hints must have been delivered.
const MOST_LOOKS: u32 = 6_000;

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
        self.end_process(AWAY, ProcessEnd::Kill);
        self.run_until(self.now + micros);
        self.clients_run = false;
        self.run_until(self.now + 2 * self.plan.deadline_micros);
        let connections = self.network.connections();
        let waiting = self.hints_for(AWAY);
        self.agenda.put(self.now, DueEvent::Start(AWAY));
        while self.machines[AWAY].process.is_none() {
            self.run_until(self.now + LOOK_MICROS);
        }
        let back = self.now;
        let mut looks = 0;
        while !self.hints_for(AWAY).is_empty() && looks < MOST_LOOKS {
            self.run_until(self.now + LOOK_MICROS);
            looks += 1;
        }
        let hints = waiting.iter().sum();
        let (holders, hint_micros) = (waiting.len() as u64, self.now - back);
        Scale { answered, messages, connections, hints, holders, hint_micros }
    }

    /// Runs for `micros`, then until `joiners` nodes have joined, then for `micros` again.
    pub(crate) fn measure_join_traffic(mut self, joiners: usize, micros: u64) -> Growth {
        let nodes = self.nodes.len();
        // By then all nodes have seen one another.
        self.run_until(self.now + 2 * micros);
        let before = self.traffic(|world| world.run_until(world.now + micros));
        let change = self.traffic(|world| {
            let process = world.machines[AWAY].process.as_ref().expect("nothing ends it");
            let (life, shared) = (process.life, Arc::clone(&process.shared));
            let change = PlanChange { add: world.joiners(joiners), ..PlanChange::default() };
            let planned = world.planned(AWAY, &shared.membership.layouts.known(), &change);
            world.propose(AWAY, life, planned.expect("names and ids are new"));
            let mut looks = 0;
            while (world.members().len() == nodes || world.unsettled_layouts().is_some())
                && looks < MOST_LOOKS
            {
                world.run_until(world.now + LOOK_MICROS);
                looks += 1;
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

    /// Returns how many hints for a node each other node holds, without the nodes that hold none.
    fn hints_for(&self, node: usize) -> Vec<u64> {
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let hints = processes.map(|p| p.shared.transfer.hints.waiting(NodeId(node as u16)).0);
        hints.filter(|hints| *hints > 0).collect()
    }
}
