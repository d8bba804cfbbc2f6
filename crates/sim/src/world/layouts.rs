//! Changes of the council while everything else goes on. Whatever happens, an epoch has one layout,
//! and in the end all nodes go by the last one.

use std::sync::Arc;

use cluster::layout::Change;
use cluster::{NodeEvent, NodeId};

use super::{Due, World};

impl World {
    /// Somebody wants another council, at a random node.
    pub(super) fn change_council(&mut self) {
        if !self.clients_run {
            return;
        }
        let pause = self.changes.between(self.plan.change_micros / 10, self.plan.change_micros);
        self.agenda.put(self.now + pause, Due::Change);
        let node = self.changes.index(self.plan.nodes);
        let mut names: Vec<String> = self.machines.iter().map(|m| m.name.clone()).collect();
        let size = *self.changes.pick(&[1, 3, 3, 5]);
        while names.len() > size || names.len().is_multiple_of(2) {
            let gone = self.changes.index(names.len());
            names.swap_remove(gone);
        }
        let Some(process) = &self.machines[node].process else { return };
        let (life, shared) = (process.life, Arc::clone(&process.shared));
        let voter_of = |name: &str| {
            let other = self.machines.iter().position(|machine| machine.name == name)?;
            match other == node {
                true => Some(shared.layouts.voter().id),
                false => process.table.seen(NodeId(other as u16)).voter(),
            }
        };
        let change = Change { council: Some(names), ..Change::default() };
        let planned = shared.layouts.known().planned(&change, voter_of);
        if let Ok(planned) = planned {
            self.node_event(node, life, NodeEvent::Propose(Arc::new(planned)).into());
        }
    }

    /// Which layout a node goes by.
    pub(super) fn look_at_layout(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let layout = process.shared.layouts.entered();
        if process.shared.views.epoch() != layout.epoch {
            let what = format!("node {node} entered {} and does not go by it", layout.epoch);
            self.ledger.accuse(self.now, what);
        }
        let before = std::mem::replace(&mut self.machines[node].epoch, layout.epoch);
        if layout.epoch < before {
            let what = format!("node {node} went by epoch {before}, and by {} again", layout.epoch);
            self.ledger.accuse(self.now, what);
        }
        let other = *self.layouts.entry(layout.epoch).or_insert_with(|| layout.id());
        if other != layout.id() {
            let what = format!("two layouts of epoch {}: one is that of node {node}", layout.epoch);
            self.ledger.accuse(self.now, what);
        }
    }

    /// Why not all nodes go by one layout.
    pub(super) fn unsettled_layouts(&self) -> Option<String> {
        let process = |node: usize| self.machines[node].process.as_ref();
        let epoch = |node: usize| process(node).map(|process| process.shared.views.epoch());
        let epochs: Vec<_> = (0..self.plan.nodes).map(epoch).collect();
        let alike = epochs.windows(2).all(|pair| pair[0] == pair[1]);
        (!alike).then(|| format!("nodes go by different layouts: {epochs:?}"))
    }
}
