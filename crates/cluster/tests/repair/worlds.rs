//! What was before, in the worlds that the tests look at: most begin where a round or a fault has
//! something to spoil, for from an empty key it is a long way to there.

use crate::client::{First, Op};
use crate::replica::{Directory, Record};
use crate::rules::{RULES, Rules};
use crate::world::{Message, REPLICAS};

/// What was before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    pub(crate) clock: u8,
    pub(crate) replicas: [Directory; REPLICAS],
    /// What an older copy of the third replica's directory holds.
    pub(crate) copy: Option<Directory>,
    /// A promise that all replicas gave.
    pub(crate) promise: u8,
    /// What was acknowledged, one after the other, …
    pub(crate) done: Vec<Op>,
    /// … what began and was never answered, …
    pub(crate) begun: Vec<Op>,
    /// … and what is on its way since.
    pub(crate) late: Vec<(u8, Message)>,
}

/// What may fail, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// All nodes end, and start with what is durable.
    PowerCut,
    /// The third replica's disk is replaced by an empty one, …
    Wipe,
    /// … by a copy that was made earlier, …
    Rollback,
    /// … or rots.
    Rot,
}

/// What happens in it.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) before: Before,
    /// What each client does, and how often it may begin.
    pub(crate) ops: Vec<(Op, First, u8)>,
    /// Rounds, each by how far behind the clock it begins.
    pub(crate) rounds: Vec<u8>,
    pub(crate) faults: Vec<Fault>,
    /// Whether what may be purged can stay a while.
    pub(crate) purges_late: bool,
    /// Whether all clients must be answered in the end.
    pub(crate) answers_all: bool,
}

impl World {
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    pub(crate) fn purging_late(self) -> Self {
        Self { purges_late: true, ..self }
    }

    pub(crate) fn answering_all(self) -> Self {
        Self { answers_all: true, ..self }
    }
}

/// What a client does, in how many tries.
pub(crate) fn client(op: Op, tries: u8) -> (Op, First, u8) {
    (op, First::default(), tries)
}

/// The same; its coordinator's clock says this at first.
pub(crate) fn slow(op: Op, time: u8) -> (Op, First, u8) {
    (op, First { time: Some(time), kept: None }, 2)
}

/// An append whose coordinator has kept the value that it wrote last, and a promise for its next
/// ballot.
pub(crate) fn keeps(id: u8) -> (Op, First, u8) {
    (Op::Append(id), First { time: None, kept: Some((value(), 3)) }, 2)
}

/// A world with all rules, and without faults.
pub(crate) fn world(before: Before, ops: Vec<(Op, First, u8)>, rounds: &[u8]) -> World {
    World {
        rules: RULES,
        before,
        ops,
        rounds: rounds.to_vec(),
        faults: Vec::new(),
        purges_late: false,
        answers_all: false,
    }
}

/// What was put first.
pub(crate) fn value() -> Record {
    Record::plain(1, &[1])
}

/// What a conditional write made of it.
fn appended() -> Record {
    Record { ballot: 3, value: vec![1, 5], ..value() }
}

fn holds(record: Record) -> Directory {
    Directory { record: Some(record), ..Directory::default() }
}

fn holds_value() -> Directory {
    holds(value())
}

fn holds_tombstone() -> Directory {
    holds(Record::plain(2, &[]))
}

/// A deletion was proven, and its tombstone purged.
fn purged() -> Directory {
    Directory { seal: 2, watermark: 2, floor: 3, ..Directory::default() }
}

/// The same, but the commit did not come.
fn sealed() -> Directory {
    Directory { seal: 2, ..holds_tombstone() }
}

/// The key was never written.
pub(crate) fn absent() -> Before {
    Before { clock: 1, ..Before::default() }
}

/// A value was put, and is held by all.
pub(crate) fn put() -> Before {
    let replicas = [holds_value(), holds_value(), holds_value()];
    Before { clock: 1, replicas, done: vec![Op::Put(1)], ..Before::default() }
}

/// A replica missed the put.
pub(crate) fn missed_by(replica: usize) -> Before {
    let mut before = put();
    before.replicas[replica] = Directory::default();
    before
}

/// A put came to this replica alone, and was not acknowledged.
pub(crate) fn unacknowledged(replica: usize) -> Before {
    let mut before = Before { begun: vec![Op::Put(1)], ..absent() };
    before.replicas[replica] = holds_value();
    before
}

/// A put has been on its way to all for long.
pub(crate) fn late_put() -> Before {
    let late = (0..3).map(|to| (to, Message::Write(value()))).collect();
    Before { begun: vec![Op::Put(1)], late, ..absent() }
}

/// A put came to nobody; a hint of it is left.
pub(crate) fn only_hint() -> Before {
    hinted(Before { begun: vec![Op::Put(1)], ..absent() })
}

/// The value was deleted, which all know.
pub(crate) fn deleted() -> Before {
    let replicas = [holds_tombstone(), holds_tombstone(), holds_tombstone()];
    let done = vec![Op::Put(1), Op::Delete];
    Before { clock: 2, replicas, done, ..Before::default() }
}

/// The third replica missed the deletion.
pub(crate) fn missed_deletion() -> Before {
    let mut before = deleted();
    before.replicas[2] = holds_value();
    before
}

/// The deletion was proven, and purged by these replicas; the others missed the commit.
pub(crate) fn proven(by: &[usize]) -> Before {
    let mut before = deleted();
    let directory = |n: usize| if by.contains(&n) { purged() } else { sealed() };
    before.replicas = std::array::from_fn(directory);
    Before { clock: 3, promise: 3, ..before }
}

/// It was proven, and the third has not purged it yet.
pub(crate) fn partly_purged() -> Before {
    let mut before = proven(&[0, 1]);
    before.replicas[2] = Directory { record: Some(Record::plain(2, &[])), ..purged() };
    before
}

/// The put was proven; only the third knows.
pub(crate) fn proven_put() -> Before {
    let held = |watermark| Directory { seal: 1, watermark, ..holds_value() };
    Before { replicas: [held(0), held(0), held(1)], ..put() }
}

/// A clock is ahead: its coordinator has a promise for a later ballot than others issue times.
pub(crate) fn ahead(before: Before) -> Before {
    Before { clock: 3, promise: 3, ..before }
}

/// A conditional write was made of the value, and its hint is on its way to the third.
pub(crate) fn chosen() -> Before {
    let replicas = [holds(appended()), holds(appended()), holds_value()];
    let done = vec![Op::Put(1), Op::Append(5)];
    with(ahead(Before { replicas, done, ..put() }), Message::Hint(appended()))
}

/// A conditional write of the value came to the first replica alone, and was not acknowledged.
pub(crate) fn unchosen() -> Before {
    let replicas = [holds(appended()), holds_value(), holds_value()];
    let begun = vec![Op::Append(5)];
    Before { clock: 3, replicas, begun, ..put() }
}

/// All that was purged; that hint is on its way still.
pub(crate) fn ended() -> Before {
    let done = vec![Op::Put(1), Op::Append(5), Op::Delete];
    with(Before { done, ..proven(&[0, 1, 2]) }, Message::Hint(appended()))
}

/// There is a copy of the third replica's directory, made when it held the value.
pub(crate) fn copied(before: Before) -> Before {
    Before { copy: Some(holds_value()), ..before }
}

/// A hint of the first put is on its way to the third replica for long.
pub(crate) fn hinted(before: Before) -> Before {
    with(before, Message::Hint(value()))
}

/// A message is on its way to the third replica for long.
pub(crate) fn with(mut before: Before, message: Message) -> Before {
    before.late.push((2, message));
    before
}
