//! The node task of each simulated process, which runs beside the event loops. Drives
//! [`server::Task`], and records the stored hints, so that their delivery can be checked at the end
//! of a run.

use bytes::Bytes;
use lsm::{Batch, PurgeRule, Space};
use protocol::{
    BackgroundEvent, CallId, Class, ClusterId, Event, FailureKind, MembershipState,
    NODE_TICK_MICROS, NodeId, Now, Reply, Request,
};
use server::hints::{self, Hint};
use server::identity::OwnRecords;
use server::{HintQuery, Outcome, TaskDriver, TaskEvent, WriteBatcher, WritePurpose};

use super::machine::Input;
use super::{DueEvent, LoopId, World};
use crate::histories::is_contended;
use crate::ledger::{describe_record, is_replica};
use crate::store::{BatchOwner, Store};

/// Driver of a node's task on a simulated machine.
struct SimTaskDriver<'a> {
    world: &'a mut World,
    node: usize,
    life: u32,
}

impl SimTaskDriver<'_> {
    fn place(&self, index: usize) -> LoopId {
        LoopId { node: self.node, life: self.life, index }
    }

    fn store(&self) -> &Store {
        let process = self.world.machines[self.node].process.as_ref();
        &process.expect("its task is at something").store
    }
}

impl WriteBatcher for SimTaskDriver<'_> {
    fn now(&self) -> Now {
        self.world.times(self.node)
    }

    fn write(
        &mut self,
        _bytes: usize,
        purpose: WritePurpose,
        fill: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome {
        let place = self.place(0);
        let refusal = self.world.process(place).and_then(|process| process.store.refusal());
        if let Some(refusal) = refusal {
            return Err(refusal.into());
        }
        let mut batch = Batch::new();
        fill(&mut batch).map_err(server::WriteError::Store)?;
        self.world.submit(place, BatchOwner::Loop(0, vec![purpose]), batch);
        Ok(())
    }
}

impl TaskDriver for SimTaskDriver<'_> {
    fn call(&mut self, call: CallId, node: NodeId, class: Class, request: Request) {
        let loops = self.world.plan.loops;
        let place = self.place(call.0 as usize % loops);
        let event = Event::Call { call, node, class, request };
        self.world.input(place, Input::Event(event));
    }

    fn read_hints(&mut self, wanted: HintQuery) {
        let at = self.world.now + self.world.disk_micros(self.node);
        let (node, life) = (self.node, self.life);
        self.world.agenda.put(at, DueEvent::Hints { node, life, wanted });
    }

    fn keep(&mut self, batch: Batch, keeps: OwnRecords) {
        self.world.submit(self.place(0), BatchOwner::Task(keeps), batch);
    }

    fn report_outdated(&mut self, _proven: u64) {
        let (node, life) = (self.node, self.life);
        self.world.agenda.put(self.world.now, DueEvent::Outdated { node, life });
    }

    fn purge_rule(&self) -> &PurgeRule {
        self.store().engine().purge_rule()
    }

    fn compact(&mut self) -> u64 {
        let process = self.world.machines[self.node].process.as_mut();
        process.expect("its task is at something").store.compact()
    }

    fn compaction_succeeded(&self, number: u64) -> Option<bool> {
        self.store().compaction_succeeded(number)
    }

    fn after(&mut self, micros: u64, event: TaskEvent) {
        let (node, life) = (self.node, self.life);
        self.world.agenda.put(self.world.now + micros, DueEvent::Node { node, life, event });
    }
}

impl World {
    pub(super) fn tick(&mut self, node: usize, life: u32) {
        if self.process(LoopId { node, life, index: 0 }).is_some() {
            self.agenda.put(self.now + NODE_TICK_MICROS, DueEvent::Tick { node, life });
            self.drop_task(node);
            self.handle_task_event(node, life, BackgroundEvent::Tick.into());
            self.record_forgetful(LoopId { node, life, index: 0 });
        }
    }

    /// While faults happen, drops a random background task in the middle of its work, with the
    /// probability of `task_drops` per thousand.
    fn drop_task(&mut self, node: usize) {
        let is_calm = self.now >= self.plan.seconds * 1_000_000;
        if is_calm || !self.drops.permille(self.plan.task_drops) {
            return;
        }
        let pick = self.drops.number();
        let process = self.machines[node].process.as_mut();
        let task = process.and_then(|process| process.task.as_mut());
        if let Some(name) = task.and_then(|task| task.drop_background(pick)) {
            self.journal.line(self.now, format_args!("n{node} drops task {name:?}"));
        }
    }

    /// Records the present time if a node may refuse a write as forgotten: if the node may have
    /// forgotten writes with idempotency keys, or keys move.
    pub(super) fn record_forgetful(&mut self, place: LoopId) {
        let Some(process) = self.process(place) else { return };
        let shared = &process.shared;
        let may_have_forgotten = !shared.membership.state.is_authoritative_for_all()
            || shared.idempotency_forgotten_before() > 0
            || shared.view().other.is_some();
        if may_have_forgotten {
            self.ledger.forgetful_at = self.now;
        }
    }

    pub(super) fn handle_task_event(&mut self, node: usize, life: u32, event: TaskEvent) {
        let place = LoopId { node, life, index: 0 };
        let Some(process) = self.process(place) else { return };
        let mut task = process.task.take().expect("one event at a time");
        if !matches!(event, TaskEvent::Node(BackgroundEvent::Tick)) {
            self.journal.line(self.now, format_args!("n{node} {}", node_line(&event)));
        }
        task.handle(&mut SimTaskDriver { world: self, node, life }, event);
        if let Some(process) = self.process(place) {
            process.task = Some(task);
        }
        self.check_layout(node);
    }

    pub(super) fn finish_hint_read(&mut self, node: usize, life: u32, wanted: HintQuery) {
        let Some(process) = self.process(LoopId { node, life, index: 0 }) else { return };
        let HintQuery { peer, after, max_bytes, .. } = &wanted;
        let (engine, shared) = (process.store.engine(), &process.shared);
        let read = hints::read(engine, shared, *peer, after.as_deref(), *max_bytes);
        self.handle_task_event(node, life, TaskEvent::HintsRead(wanted, read));
    }

    /// Passes the result of a call to the node's task, which made the call.
    pub(super) fn return_to_task(
        &mut self,
        place: LoopId,
        call: CallId,
        result: Result<Reply, FailureKind>,
    ) {
        self.send_to_task(place, BackgroundEvent::CallReturned { call, result }.into());
    }

    /// Passes an event of a loop to the node's task.
    pub(super) fn send_to_task(&mut self, place: LoopId, event: TaskEvent) {
        let LoopId { node, life, .. } = place;
        self.agenda.put(self.now + 1, DueEvent::Node { node, life, event });
    }

    /// Records that a node stores a hint.
    pub(super) fn record_hint(&mut self, holder: usize, hint: &Hint) {
        let Hint { peer, key, rank, .. } = hint;
        let owed = self.owed.entry((usize::from(peer.0), holder, key.to_vec())).or_insert(*rank);
        *owed = (*owed).max(*rank);
    }

    /// Forgets the hints on a lost disk, and the hints for its node.
    pub(super) fn forget_hints(&mut self, node: usize) {
        self.owed.retain(|(peer, holder, _), _| *peer != node && *holder != node);
    }

    /// Checks that every stored hint has reached its target, after all nodes have delivered their
    /// hints.
    pub(super) fn check_hints_delivered(&mut self) {
        for ((peer, holder, key), rank) in std::mem::take(&mut self.owed) {
            let members = self.members();
            if !members.contains(&peer) || !members.contains(&holder) {
                // A node that has left no longer delivers its hints.
                continue;
            }
            let key = Bytes::from(key);
            let held = self.stored_record(peer, &key).ok().flatten();
            // All records of contended keys have the default number of copies.
            let is_replica = match is_contended(&key) {
                true => is_replica(&self.topology, &key, 0, peer),
                false => self.ledger.is_replica(&self.topology, peer, &key),
            };
            if self.has_moved() && !is_replica {
                continue;
            }
            // The node's repair fence refuses the hint; a repair round brings the record.
            let process = self.machines[peer].process.as_ref();
            if process.is_some_and(|process| {
                let known = process.shared.repair.proofs.known_proof();
                rank.write_time() <= known.seal.time.max(known.floor)
            }) {
                continue;
            }
            // A record that outranks the hint may belong to an older write, if that write continues
            // an earlier base version.
            if held.as_ref().is_none_or(|held| held.rank() < rank) {
                let what = format!(
                    "hint lost: node {holder} kept {rank:x?} of {key:?} for node {peer}, which \
                     holds {}",
                    describe_record(held.as_ref())
                );
                self.ledger.report_error(self.now, what);
            }
        }
    }

    /// Returns a node's stored record of a key. The node must be running.
    pub(super) fn stored_record(
        &self,
        node: usize,
        key: &Bytes,
    ) -> Result<Option<protocol::Record>, lsm::Error> {
        let process = self.machines[node].process.as_ref().expect("all are settled");
        process.store.engine().read(Space::Data, key)
    }

    /// Returns true if a node is running and its membership state is `Member`.
    pub(super) fn is_member(&self, node: usize) -> bool {
        let process = self.machines[node].process.as_ref();
        process.is_some_and(|process| {
            process.shared.membership.state.state() == MembershipState::Member
        })
    }
}

/// Formats an event for the journal.
fn node_line(event: &TaskEvent) -> String {
    let event = match event {
        TaskEvent::Node(event) => event,
        TaskEvent::ReadHints(wanted) => return format!("reads hints again: {wanted:?}"),
        TaskEvent::HintsRead(wanted, read) => {
            let hints = read.as_ref().map(Vec::len);
            return format!("has {hints:?} hints for n{}", wanted.peer.0);
        }
        TaskEvent::Compacted(number) => return format!("looks at compaction {number}"),
        TaskEvent::Kept(keeps, result) => return format!("keeps {keeps:x?}: {result:?}"),
    };
    match event {
        BackgroundEvent::PeerSeen { peer, incarnation, knows_us, knew_only_this_disk, cluster } => {
            let disk = incarnation.0;
            let another = if *knew_only_this_disk { " and no other" } else { "" };
            let id = ClusterId::number(*cluster);
            format!("met n{} {disk:x} of {id:x}, who knows it as {knows_us:x?}{another}", peer.0)
        }
        BackgroundEvent::CallReturned { call, result } => match result {
            Ok(Reply::Page(page)) => format!("call {}: page of {}", call.0, page.items.len()),
            other => format!("call {}: {other:?}", call.0),
        },
        other => format!("{other:?}"),
    }
}
