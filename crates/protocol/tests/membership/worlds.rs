//! Worlds for the tests: initial states, operations and faults.

use crate::layout::{Acks, Nodes};
use crate::register::Op;
use crate::replica::Record;
use crate::rules::{RULES, Rules};
use crate::world::Action;

/// The initial state.
#[derive(Debug, Clone)]
pub(crate) struct Before {
    pub(crate) clock: u8,
    /// The record of each node, replica or not.
    pub(crate) records: Vec<Option<Record>>,
    /// The acknowledged operations in sequence, and their newest record (`kept`).
    pub(crate) done: Vec<Op>,
    pub(crate) kept: Option<Record>,
    /// The operations that were begun and never answered.
    pub(crate) begun: Vec<Op>,
    /// The time of a purged tombstone; 0 = none.
    pub(crate) purged: u8,
    /// The hints in transit, with their recipients.
    pub(crate) hints: Vec<(u8, Record)>,
}

/// A fault that happens at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// A node restarts with its durable state.
    Restart(u8),
    /// A node's disk is replaced by an empty one.
    Wipe(u8),
}

/// A world: rules, initial state, transitions, operations and faults.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) before: Before,
    /// The first set of replicas.
    pub(crate) first: Nodes,
    /// The following sets in sequence, each with the node that is declared lost.
    pub(crate) plan: Vec<(Nodes, Option<u8>)>,
    /// Number of transitions that may be aborted.
    pub(crate) aborts: u8,
    /// The operation of each client, and its maximum number of tries.
    pub(crate) ops: Vec<(Op, u8)>,
    /// A wrong time that the first client's coordinator clock shows at first; `None` = the clock is
    /// right.
    pub(crate) skewed: Option<u8>,
    pub(crate) acks: Acks,
    pub(crate) faults: Vec<Fault>,
    /// A node that never answers.
    pub(crate) absent: Option<u8>,
    /// True if there are repair rounds.
    pub(crate) proves: bool,
    /// True if every client must be answered.
    pub(crate) answers_all: bool,
    /// True if all transitions must end.
    pub(crate) ends: bool,
    /// True if the answers must be linearizable: those that a single register could give.
    pub(crate) is_register: bool,
    /// Actions that are performed first, so that failures after many steps are found sooner.
    pub(crate) prelude: Vec<Action>,
}

/// The default move: three of four nodes hold the partition, and node 0 hands it over to node 3.
pub(crate) const OLD: Nodes = &[0, 1, 2];
pub(crate) const NEW: Nodes = &[1, 2, 3];

/// Returns the record of the first put.
pub(crate) fn value() -> Record {
    Record::plain(1, &[1])
}

/// Returns the records of `nodes` nodes, of which the nodes `by` hold `record`.
pub(crate) fn records_on(record: &Record, by: &[u8], nodes: u8) -> Vec<Option<Record>> {
    (0..nodes).map(|node| by.contains(&node).then(|| record.clone())).collect()
}

/// Returns the state of a key without any write.
pub(crate) fn absent(nodes: u8) -> Before {
    let records = vec![None; usize::from(nodes)];
    let (done, begun, hints) = (Vec::new(), Vec::new(), Vec::new());
    Before { clock: 1, records, done, kept: None, begun, purged: 0, hints }
}

/// Returns the state after a put whose record the nodes `by` hold.
pub(crate) fn put(by: &[u8], nodes: u8) -> Before {
    let records = records_on(&value(), by, nodes);
    Before { records, done: vec![Op::Put(1)], kept: Some(value()), ..absent(nodes) }
}

/// Returns a world with one move, all rules and no faults.
pub(crate) fn world(before: Before, first: Nodes, new: Nodes, ops: Vec<(Op, u8)>) -> World {
    World {
        rules: RULES,
        before,
        first,
        plan: vec![(new, None)],
        aborts: 0,
        ops,
        skewed: None,
        acks: Acks::default(),
        faults: Vec::new(),
        absent: None,
        proves: false,
        answers_all: false,
        ends: true,
        is_register: true,
        prelude: Vec::new(),
    }
}

impl World {
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    pub(crate) fn without(self, node: u8) -> Self {
        Self { absent: Some(node), ..self }
    }

    pub(crate) fn then(mut self, new: Nodes) -> Self {
        self.plan.push((new, None));
        self
    }

    pub(crate) fn with_abort(self) -> Self {
        Self { aborts: 1, ..self }
    }

    pub(crate) fn after(self, prelude: &[Action]) -> Self {
        Self { prelude: prelude.to_vec(), ..self }
    }

    /// Lets a transition wait until a client completes a conditional write.
    pub(crate) fn open(self) -> Self {
        Self { ends: false, ..self }
    }

    pub(crate) fn with_proof(self) -> Self {
        Self { proves: true, ..self }
    }
}

/// Returns the state after an unacknowledged put that only the nodes `by` hold.
pub(crate) fn after_unacknowledged_put(by: &[u8], nodes: u8) -> Before {
    let records = records_on(&value(), by, nodes);
    Before { records, begun: vec![Op::Put(1)], ..absent(nodes) }
}

/// Returns the state after an unacknowledged conditional write that only the first replica holds.
pub(crate) fn after_unchosen_append(nodes: u8) -> Before {
    let mut before = put(&[0, 1, 2], nodes);
    before.records[0] = Some(Record { ballot: 2, value: vec![1, 5], ..value() });
    Before { clock: 2, begun: vec![Op::Append(5)], ..before }
}

/// Returns the state after a deletion whose tombstone the nodes `by` hold.
pub(crate) fn after_deletion(by: &[u8], nodes: u8) -> Before {
    let tombstone = Record::plain(2, &[]);
    let records = records_on(&tombstone, by, nodes);
    let (done, kept) = (vec![Op::Put(1), Op::Delete], Some(tombstone));
    Before { clock: 2, records, done, kept, ..absent(nodes) }
}

/// Returns the state after a deletion that the first replica missed; a hint of it is in transit.
pub(crate) fn after_missed_deletion() -> Before {
    let mut before = after_deletion(&[1, 2], 4);
    before.records[0] = Some(value());
    before.hints.push((0, Record::plain(2, &[])));
    before
}

/// Returns a state in which the receiver still has a value from an earlier placement that was
/// deleted since.
pub(crate) fn with_leftover() -> Before {
    let mut before = after_deletion(&[], 4);
    before.records[3] = Some(value());
    Before { kept: None, purged: 2, ..before }
}

/// Returns a state in which a put begins during the transition and reaches only the receiver.
pub(crate) fn at_receiver() -> Before {
    let hints = vec![(3, Record::plain(2, &[2]))];
    Before { clock: 1, begun: vec![Op::Put(2)], hints, ..put(&[0, 1, 2], 4) }
}

/// Returns the state after a conditional write that the first two replicas have accepted.
pub(crate) fn after_chosen_append() -> Before {
    let mut before = put(&[0, 1, 2], 4);
    let appended = Record { ballot: 2, value: vec![1, 5], ..value() };
    before.records[0] = Some(appended.clone());
    before.records[1] = Some(appended.clone());
    before.done.push(Op::Append(5));
    Before { clock: 2, kept: Some(appended), ..before }
}
