//! What was before, and what happens, in the worlds that the tests look at.

use crate::layout::{Acks, Nodes};
use crate::register::Op;
use crate::replica::Record;
use crate::rules::{RULES, Rules};
use crate::world::Action;

/// What was before.
#[derive(Debug, Clone)]
pub(crate) struct Before {
    pub(crate) clock: u8,
    /// What each node holds, be it a replica or not.
    pub(crate) records: Vec<Option<Record>>,
    /// What was acknowledged, one after the other, and the newest record of that …
    pub(crate) done: Vec<Op>,
    pub(crate) kept: Option<Record>,
    /// … what began and was never answered, …
    pub(crate) begun: Vec<Op>,
    /// The time of a tombstone that was purged.
    pub(crate) purged: u8,
    /// … and what is on its way since.
    pub(crate) hints: Vec<(u8, Record)>,
}

/// What may fail, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// A node ends, and starts with what is durable.
    Restart(u8),
    /// Its disk is replaced by an empty one.
    Wipe(u8),
}

/// What happens in it.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) before: Before,
    /// Who holds the partition at first, …
    pub(crate) first: Nodes,
    /// … and then, one after the other; and who is declared lost.
    pub(crate) plan: Vec<(Nodes, Option<u8>)>,
    /// How many transitions may be aborted.
    pub(crate) aborts: u8,
    /// What each client does, and how often it may begin.
    pub(crate) ops: Vec<(Op, u8)>,
    /// What the clock of the first one's coordinator says at first, if that is wrong.
    pub(crate) skewed: Option<u8>,
    pub(crate) acks: Acks,
    pub(crate) faults: Vec<Fault>,
    /// Who never answers.
    pub(crate) absent: Option<u8>,
    /// Whether there are repair rounds.
    pub(crate) proves: bool,
    /// Whether all clients must be answered.
    pub(crate) answers_all: bool,
    /// Whether the transitions must come to their end.
    pub(crate) ends: bool,
    /// Whether what clients are told must be what one register could have told.
    pub(crate) is_register: bool,
    /// What happened already: what goes wrong after many steps is found sooner from there.
    pub(crate) prelude: Vec<Action>,
}

/// Three of four nodes hold the partition, and one of them hands it to the fourth.
pub(crate) const OLD: Nodes = &[0, 1, 2];
pub(crate) const NEW: Nodes = &[1, 2, 3];

/// What was put first.
pub(crate) fn value() -> Record {
    Record::plain(1, &[1])
}

/// These of so many nodes hold a record.
pub(crate) fn held(record: &Record, by: &[u8], nodes: u8) -> Vec<Option<Record>> {
    (0..nodes).map(|node| by.contains(&node).then(|| record.clone())).collect()
}

/// The key was never written; there are so many nodes.
pub(crate) fn absent(nodes: u8) -> Before {
    let records = vec![None; usize::from(nodes)];
    let (done, begun, hints) = (Vec::new(), Vec::new(), Vec::new());
    Before { clock: 1, records, done, kept: None, begun, purged: 0, hints }
}

/// A value was put, which these hold.
pub(crate) fn put(by: &[u8], nodes: u8) -> Before {
    let records = held(&value(), by, nodes);
    Before { records, done: vec![Op::Put(1)], kept: Some(value()), ..absent(nodes) }
}

/// A world with all rules and without faults, in which a partition moves.
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

    pub(crate) fn aborting(self) -> Self {
        Self { aborts: 1, ..self }
    }

    pub(crate) fn after(self, prelude: &[Action]) -> Self {
        Self { prelude: prelude.to_vec(), ..self }
    }

    /// A transition may wait for somebody to complete a conditional write.
    pub(crate) fn open(self) -> Self {
        Self { ends: false, ..self }
    }

    pub(crate) fn proving(self) -> Self {
        Self { proves: true, ..self }
    }
}

/// A put came to these replicas alone, and was not acknowledged.
pub(crate) fn unacknowledged(by: &[u8], nodes: u8) -> Before {
    let records = held(&value(), by, nodes);
    Before { records, begun: vec![Op::Put(1)], ..absent(nodes) }
}

/// A conditional write of the value came to the first replica alone, and was not acknowledged.
pub(crate) fn unchosen(nodes: u8) -> Before {
    let mut before = put(&[0, 1, 2], nodes);
    before.records[0] = Some(Record { ballot: 2, value: vec![1, 5], ..value() });
    Before { clock: 2, begun: vec![Op::Append(5)], ..before }
}

/// The value was deleted, which these hold.
pub(crate) fn deleted(by: &[u8], nodes: u8) -> Before {
    let tombstone = Record::plain(2, &[]);
    let records = held(&tombstone, by, nodes);
    let (done, kept) = (vec![Op::Put(1), Op::Delete], Some(tombstone));
    Before { clock: 2, records, done, kept, ..absent(nodes) }
}

/// The first replica missed the deletion, of which a hint is on its way.
pub(crate) fn missed_by_leaver() -> Before {
    let mut before = deleted(&[1, 2], 4);
    before.records[0] = Some(value());
    before.hints.push((0, Record::plain(2, &[])));
    before
}

/// The receiver has held the partition before, and holds a value that was deleted since.
pub(crate) fn with_leftover() -> Before {
    let mut before = deleted(&[], 4);
    before.records[3] = Some(value());
    Before { kept: None, purged: 2, ..before }
}

/// A put that began during the transition came to the receiver alone.
pub(crate) fn at_receiver() -> Before {
    let hints = vec![(3, Record::plain(2, &[2]))];
    Before { clock: 1, begun: vec![Op::Put(2)], hints, ..put(&[0, 1, 2], 4) }
}

/// A conditional write of the value was chosen by the first two.
pub(crate) fn chosen() -> Before {
    let mut before = put(&[0, 1, 2], 4);
    let appended = Record { ballot: 2, value: vec![1, 5], ..value() };
    before.records[0] = Some(appended.clone());
    before.records[1] = Some(appended.clone());
    before.done.push(Op::Append(5));
    Before { clock: 2, kept: Some(appended), ..before }
}
