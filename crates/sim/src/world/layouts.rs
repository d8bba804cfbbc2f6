//! Layout changes in a running cluster: changes of the metadata quorum, changes of access tokens,
//! and changes that move keys. Two nodes must never use different layouts of one epoch, and in the
//! end all nodes must use the last layout, with no keys moving.
//!
//! ```text
//!  settled ─┬─ change of the quorum or access tokens ─▶ settled
//!           └─ change of weights or copies ─▶ read old ─┬─ decided ──▶ read new ─▶ settled
//!                                                       └─ reverted ─▶ settled
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::layout::{Kinds, Layout, Methods, PlanChange, Seat, Stage, Token, Voter, VoterId};
use protocol::{BackgroundEvent, FIRST_EPOCH, NodeId};

use super::{DueEvent, World};

/// The greatest weight that a change gives to a node.
const MOST_WEIGHT: u64 = 4;

/// Probabilities, per thousand, that a change that moves keys changes weights, and that it changes
/// the number of copies. A change without a new number of copies always changes weights.
const OF_WEIGHTS: u64 = 700;
const OF_COPIES: u64 = 500;

impl World {
    /// Requests a layout change at a random node.
    pub(super) fn change_layout(&mut self) {
        if !self.clients_run {
            return;
        }
        let pause = self.changes.between(self.plan.change_micros / 10, self.plan.change_micros);
        self.agenda.put(self.now + pause, DueEvent::Change);
        let node = *self.changes.pick(&self.nodes);
        let Some(process) = &self.machines[node].process else { return };
        let (life, shared) = (process.life, Arc::clone(&process.shared));
        let known = shared.membership.layouts.known_layout();
        let is_of_tokens = self.plan.tokens > 0 && self.changes.permille(self.plan.tokens);
        let planned = if is_of_tokens {
            Some(self.draw_token_change(&known))
        } else if known.stage != Stage::Settled {
            let waits_for_lost_node = self.waits_for_lost_node(&known);
            let back = self.voters_of(node).and_then(|voter_of| known.plan_abort(voter_of));
            let has_ids = self.has_ids_for(&known, None);
            back.filter(|_| {
                waits_for_lost_node || self.changes.permille(self.plan.aborts) && has_ids
            })
        } else {
            let change = self.draw_change(&known);
            self.plan_change(node, &known, &change)
        };
        if let Some(planned) = planned {
            self.propose(node, life, planned);
        }
    }

    /// Returns the layout with one token more, or with one token fewer if the layout has any.
    fn draw_token_change(&mut self, known: &Layout) -> Layout {
        let tokens = &known.access.tokens;
        let revoked = self.changes.index(2 * tokens.len() + 1);
        let access = match tokens.get(revoked) {
            Some(token) => known.access.without(&token.id_text(), 0),
            None => known.access.with(self.draw_token(), 0),
        };
        // If the drawn name is in use already, the layout stays as it is.
        known.with_access(access.unwrap_or_else(|_| (*known.access).clone()))
    }

    fn draw_token(&mut self) -> Token {
        let id = self.changes.between(1, u64::from(u32::MAX)) as u32;
        Token {
            id,
            name: format!("token-{id}"),
            hash: Token::hash_of(&id.to_le_bytes()),
            methods: Methods::ALL,
            kinds: Kinds::DATA,
            prefix: Vec::new(),
            changed_ms: 0,
            expires_ms: 0,
            requests: 0,
            bytes: 0,
        }
    }

    pub(super) fn propose(&mut self, node: usize, life: u32, planned: Layout) {
        let Layout { epoch, stage, replicas, .. } = &planned;
        let line = format_args!("n{node} wants layout {epoch}, {stage:?}, x{replicas}");
        self.journal.line(self.now, line);
        let planned = Arc::new(planned);
        self.wanted.push(Arc::clone(&planned));
        self.handle_task_event(node, life, BackgroundEvent::Propose(planned).into());
    }

    /// Returns the layout that a node plans for a change. Returns `None` if the node does not run,
    /// or the change is not possible.
    pub(super) fn plan_change(
        &self,
        node: usize,
        known: &Layout,
        change: &PlanChange,
    ) -> Option<Layout> {
        known.plan_change(change, self.voters_of(node)?).ok()
    }

    /// Returns a lookup from the names of nodes to their voter ids. It covers the nodes that `node`
    /// sees and the nodes that ask to join. Returns `None` if `node` does not run.
    pub(super) fn voters_of(&self, node: usize) -> Option<impl Fn(&str) -> Option<VoterId>> {
        let process = self.machines[node].process.as_ref()?;
        Some(move |name: &str| {
            if let Some(asker) = self.askers.iter().find(|asker| asker.member.name == name) {
                return Some(asker.numbers.voter);
            }
            let other = self.machines.iter().position(|machine| machine.name == name)?;
            match other == node {
                true => process.shared.membership.layouts.voter().id,
                false => process.table.voter_of(NodeId(other as u16)),
            }
        })
    }

    fn draw_change(&mut self, known: &Layout) -> PlanChange {
        let has_lost = known.nodes.iter().any(|node| self.is_lost(node));
        if has_lost || self.plan.moves > 0 && self.changes.permille(self.plan.moves) {
            let changes_members = self.plan.changes_members();
            if changes_members && (has_lost || self.changes.permille(self.plan.members)) {
                return self.draw_members_change(known);
            }
            self.draw_moving_change(known)
        } else {
            self.draw_council_change(known)
        }
    }

    pub(super) fn draw_council_change(&mut self, known: &Layout) -> PlanChange {
        let names = known.nodes.iter().map(|node| node.member.name.clone());
        let council = Some(self.draw_councillors(names.collect()));
        PlanChange { council, ..PlanChange::default() }
    }

    /// Draws a metadata quorum from the named nodes. Omits nodes whose disks are about to be
    /// replaced, unless all are: a quorum of one such node would lose its only vote.
    pub(super) fn draw_councillors(&mut self, mut names: Vec<String>) -> Vec<String> {
        let has_corrupt_disk =
            |name: &String| self.machines.iter().any(|m| m.disk_is_corrupt && m.name == *name);
        if !names.iter().all(has_corrupt_disk) {
            names.retain(|name| !has_corrupt_disk(name));
        }
        let size = *self.changes.pick(&[1, 3, 3, 5]);
        while names.len() > size || names.len().is_multiple_of(2) {
            let gone = self.changes.index(names.len());
            names.swap_remove(gone);
        }
        names
    }

    /// Draws a change of weights, of the number of copies, or of both.
    pub(super) fn draw_moving_change(&mut self, known: &Layout) -> PlanChange {
        let mut change = PlanChange::default();
        if self.changes.permille(OF_COPIES) {
            let mut numbers = vec![2, 3, 5];
            if self.plan.forgets_nothing() {
                // A single copy guarantees nothing if disks can be lost, so one copy is drawn only
                // in plans without such faults.
                numbers.push(1);
            }
            numbers.retain(|n| usize::from(*n) <= known.nodes.len() && *n != known.replicas);
            if !numbers.is_empty() {
                change.replicas = Some(*self.changes.pick(&numbers));
            }
        }
        if change.replicas.is_none() || self.changes.permille(OF_WEIGHTS) {
            let first = self.changes.index(known.nodes.len());
            for (node, of) in known.nodes.iter().enumerate() {
                if node == first || self.changes.permille(300) {
                    let weight = self.changes.between(1, MOST_WEIGHT) as u32;
                    change.weights.push((of.member.name.clone(), weight));
                }
            }
        }
        change
    }

    /// Checks the layout in use on a node against the layouts of other nodes, and records a new
    /// layout.
    pub(super) fn check_layout(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let shared = Arc::clone(&process.shared);
        let (layout, view) = (shared.membership.layouts.active_layout(), shared.view());
        if view.epoch != layout.epoch {
            let what = format!("node {node} entered {} and does not go by it", layout.epoch);
            self.ledger.report_error(self.now, what);
        }
        let machine = &mut self.machines[node];
        machine.voter = Some(shared.membership.layouts.voter());
        let before = std::mem::replace(&mut machine.epoch, layout.epoch);
        if layout.epoch == before {
            return;
        }
        let line = format_args!("n{node} goes by layout {}, {:?}", layout.epoch, layout.stage);
        self.journal.line(self.now, line);
        if layout.epoch < before {
            let what = format!("node {node} went by epoch {before}, and by {} again", layout.epoch);
            self.ledger.report_error(self.now, what);
        }
        let is_latest = self.layouts.last_key_value().is_none_or(|(last, _)| *last < layout.epoch);
        let other = self.layouts.entry(layout.epoch).or_insert_with(|| Arc::clone(&layout));
        if other.id() != layout.id() {
            let what = format!("two layouts of epoch {}: one is that of node {node}", layout.epoch);
            self.ledger.report_error(self.now, what);
        }
        if is_latest {
            self.wanted.retain(|wanted| wanted.epoch > layout.epoch);
            self.schedule_switch_offs(&layout);
        }
        if is_latest && self.placement != view.id().placement {
            self.placement = view.id().placement;
            self.ledger.record_placement_change();
        }
        if is_latest && view.topology.digest() != self.topology.digest() {
            self.topology = view.topology.clone();
            self.ledger.record_switch(self.topology.default_copies());
        }
    }

    /// Returns true if keys move and the move needs the node's vote: without the vote, the metadata
    /// quorum of the last layout, or of a proposed layout, has no majority. While keys move, no
    /// seat can be reassigned, so the move would never end.
    pub(super) fn needs_vote_of(&self, node: usize) -> bool {
        let moves = |layout: &&Arc<Layout>| layout.stage != Stage::Settled;
        self.may_follow().filter(moves).any(|layout| !self.has_majority_without(layout, node))
    }

    /// Returns the last layout, and the layouts proposed after it. A proposed layout may be decided
    /// already, although no node uses it yet.
    pub(super) fn may_follow(&self) -> impl Iterator<Item = &Arc<Layout>> {
        self.layouts.values().next_back().into_iter().chain(&self.wanted)
    }

    /// Returns true if a layout's metadata quorum has a majority of votes without `node`.
    pub(super) fn has_majority_without(&self, layout: &Layout, node: usize) -> bool {
        let others = layout.council.iter().filter(|seat| usize::from(seat.node.0) != node);
        others.filter(|seat| self.has_vote(seat)).count() > layout.council.len() / 2
    }

    /// Returns true if the node with a seat still has the disk to which the seat was given.
    pub(super) fn has_vote(&self, seat: &Seat) -> bool {
        let machine = &self.machines[usize::from(seat.node.0)];
        let is_seated = |voter: &Voter| match seat.voter {
            None => voter.is_first,
            id => voter.id == id,
        };
        !machine.disk_is_corrupt && machine.voter.as_ref().is_some_and(is_seated)
    }

    /// Returns true if any layout has moved keys, or has begun to move keys.
    pub(super) fn has_moved(&self) -> bool {
        self.layouts.values().any(|layout| layout.placement_epoch != FIRST_EPOCH)
    }

    /// Returns true if no keys move, and no node has orphaned records from a move.
    pub(super) fn is_quiet(&self) -> bool {
        let last = self.layouts.last_key_value();
        let is_over = |node: usize| {
            let process = self.machines[node].process.as_ref();
            process.is_some_and(|process| {
                let layouts = &process.shared.membership.layouts;
                let is_last =
                    last.is_some_and(|(epoch, _)| *epoch == layouts.active_layout().epoch);
                is_last && !layouts.has_orphans()
            })
        };
        let is_settled = last.is_none_or(|(_, layout)| layout.stage == Stage::Settled);
        !self.has_moved() || is_settled && self.members().into_iter().all(is_over)
    }

    /// Returns the number of completed moves of keys.
    pub(super) fn completed_moves(&self) -> u64 {
        let is_settled =
            |began: u64| self.layouts.values().any(|layout| layout.placement_epoch > began);
        let reads_new = self.layouts.values().filter(|layout| layout.stage == Stage::ReadNew);
        // One move may have several layouts, with different tokens.
        let ended =
            reads_new.map(|layout| layout.placement_epoch).filter(|began| is_settled(*began));
        ended.collect::<BTreeSet<u64>>().len() as u64
    }

    /// Returns a description of the nodes' layouts, or `None` if all members use the same settled
    /// layout.
    pub(super) fn unsettled_layouts(&self) -> Option<String> {
        let entered = |node: usize| {
            let process = self.machines[node].process.as_ref()?;
            let layout = process.shared.membership.layouts.active_layout();
            Some((layout.epoch, layout.stage))
        };
        let entered: Vec<_> = self.members().into_iter().map(entered).collect();
        let first = entered[0];
        let is_settled = first.is_some_and(|(_, stage)| stage == Stage::Settled);
        if is_settled && entered.iter().all(|other| *other == first) {
            return None;
        }
        let why = |node: usize| {
            let process = self.machines[node].process.as_ref()?;
            Some(process.shared.membership.moves.reported_progress())
        };
        let reported = self.members().into_iter().filter_map(why);
        let reported: Vec<_> = reported.filter(|t| !t.is_empty()).collect();
        Some(format!("nodes go by different layouts, or keys move: {entered:?} {reported:?}"))
    }
}
