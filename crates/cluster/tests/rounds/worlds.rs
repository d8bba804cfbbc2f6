//! What was before, in the worlds that the tests look at: most begin where a round or a fault has
//! something to spoil, for from an empty key it is a long way to there.

use crate::client::First;
use crate::register::Op;
use crate::replica::{Directory, Proof, Record};
use crate::rules::{RULES, Rules};
use crate::state::{Message, REPLICAS};

/// What was before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    pub(crate) clock: u8,
    /// The replicas, and other nodes.
    pub(crate) nodes: Vec<Directory>,
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
    /// All nodes end, and start with what is durable; …
    PowerCut,
    /// … only the third one does; …
    Restart,
    /// … only the one that drives the first round.
    Driver,
    /// The third replica's disk is replaced by an empty one, …
    Wipe,
    /// … by a copy that was made earlier, …
    Rollback,
    /// … or rots.
    Rot,
}

/// What a client does.
#[derive(Debug, Clone)]
pub(crate) struct Does {
    pub(crate) op: Op,
    /// The node that coordinates it.
    pub(crate) at: u8,
    pub(crate) first: First,
    /// How often it may begin.
    pub(crate) tries: u8,
}

impl Does {
    pub(crate) fn at(self, at: u8) -> Self {
        Self { at, ..self }
    }
}

/// A round that is driven.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drive {
    pub(crate) node: u8,
    /// How far its time is behind the clock.
    pub(crate) behind: u8,
    /// Whether all is compared, not only what was written since the last one.
    pub(crate) is_full: bool,
}

/// A full round.
pub(crate) fn full(node: u8) -> Drive {
    Drive { node, behind: 0, is_full: true }
}

/// The same of what is not quite new.
pub(crate) fn settled(node: u8) -> Drive {
    Drive { behind: 1, ..full(node) }
}

/// A round that compares what was written since the last one.
pub(crate) fn partial(node: u8) -> Drive {
    Drive { is_full: false, ..full(node) }
}

/// What happens in it.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) before: Before,
    pub(crate) ops: Vec<Does>,
    pub(crate) rounds: Vec<Drive>,
    pub(crate) faults: Vec<Fault>,
    /// Whether what may be purged can stay a while.
    pub(crate) purges_late: bool,
    /// Whether all clients must be answered in the end.
    pub(crate) answers_all: bool,
    /// Whether rounds go on without nodes that do not answer.
    pub(crate) leaves: bool,
    /// Whether a round is never so slow that nodes take it for ended.
    pub(crate) takes_turns: bool,
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

    pub(crate) fn leaving(self) -> Self {
        Self { leaves: true, ..self }
    }

    pub(crate) fn taking_turns(self) -> Self {
        Self { takes_turns: true, ..self }
    }
}

/// What a client does, in how many tries.
pub(crate) fn client(op: Op, tries: u8) -> Does {
    Does { op, at: 0, first: First::default(), tries }
}

/// The same; its coordinator's clock says this at first.
pub(crate) fn slow(op: Op, time: u8) -> Does {
    Does { first: First { time: Some(time), kept: None }, ..client(op, 2) }
}

/// An append whose coordinator has kept the value that it wrote last, and a promise for its next
/// ballot.
pub(crate) fn keeps(id: u8) -> Does {
    let first = First { time: None, kept: Some((value(), 3)) };
    Does { first, ..client(Op::Append(id), 2) }
}

/// A world with all rules, and without faults.
pub(crate) fn world(before: Before, ops: Vec<Does>, rounds: &[Drive]) -> World {
    World {
        rules: RULES,
        before,
        ops,
        rounds: rounds.to_vec(),
        faults: Vec::new(),
        purges_late: false,
        answers_all: false,
        leaves: false,
        takes_turns: false,
    }
}

/// What was put first.
pub(crate) fn value() -> Record {
    Record::plain(1, &[1])
}

/// What deleted it.
fn tombstone() -> Record {
    Record::plain(2, &[])
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

/// All were ready for a round of the first node up to this time, but it is not known that they
/// were.
fn ready(time: u8) -> Proof {
    Proof { seal: (time, 0), ready: (time, 0), ..Proof::default() }
}

/// It is known.
fn proof(time: u8, floor: u8) -> Proof {
    Proof { proven: (time, 0), floor, ..ready(time) }
}

/// A deletion was proven, and its tombstone purged.
fn purged() -> Directory {
    Directory { proof: proof(2, 3), ..Directory::default() }
}

/// The same, but the commit did not come.
fn unpurged() -> Directory {
    Directory { proof: ready(2), ..holds(tombstone()) }
}

/// The key was never written.
pub(crate) fn absent() -> Before {
    Before { clock: 1, nodes: vec![Directory::default(); REPLICAS], ..Before::default() }
}

/// A value was put, and is held by all.
pub(crate) fn put() -> Before {
    Before { nodes: vec![holds_value(); REPLICAS], done: vec![Op::Put(1)], ..absent() }
}

/// A replica missed the put.
pub(crate) fn missed_by(replica: usize) -> Before {
    let mut before = put();
    before.nodes[replica] = Directory::default();
    before
}

/// The same of one that is younger than what a round settles.
pub(crate) fn young() -> Before {
    let mut before = Before { clock: 2, ..missed_by(1) };
    let held = before.nodes.iter_mut().filter_map(|held| held.record.as_mut());
    held.for_each(|record| record.time = 2);
    before
}

/// A put came to this replica alone, and was not acknowledged.
pub(crate) fn unacknowledged(replica: usize) -> Before {
    let mut before = Before { begun: vec![Op::Put(1)], ..absent() };
    before.nodes[replica] = holds_value();
    before
}

/// The same, and a round that was not gone on with has sealed all.
pub(crate) fn sealed() -> Before {
    let mut before = Before { clock: 2, ..unacknowledged(0) };
    before.nodes.iter_mut().for_each(|held| held.proof.seal = (2, 1));
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
    let done = vec![Op::Put(1), Op::Delete];
    Before { clock: 2, nodes: vec![holds(tombstone()); REPLICAS], done, ..Before::default() }
}

/// The third replica missed the deletion.
pub(crate) fn missed_deletion() -> Before {
    let mut before = deleted();
    before.nodes[2] = holds_value();
    before
}

/// The deletion was proven, and purged by these replicas; the others missed the commit.
pub(crate) fn proven(by: &[usize]) -> Before {
    let directory = |n: usize| if by.contains(&n) { purged() } else { unpurged() };
    let nodes = (0..REPLICAS).map(directory).collect();
    Before { clock: 3, promise: 3, nodes, ..deleted() }
}

/// The same, and a node that holds nothing knows it, or missed it too.
pub(crate) fn with_another(mut before: Before, knows: bool) -> Before {
    let proof = if knows { proof(2, 3) } else { ready(2) };
    before.nodes.push(Directory { proof, ..Directory::default() });
    before
}

/// It was proven, and the third has not purged it yet: there is a value beneath.
pub(crate) fn partly_purged() -> Before {
    let mut before = proven(&[0, 1]);
    let beneath = Some(value());
    before.nodes[2] = Directory { beneath, proof: proof(2, 3), ..holds(tombstone()) };
    before
}

/// The put was proven; only the third knows.
pub(crate) fn proven_put() -> Before {
    let mut before = put();
    before.nodes.iter_mut().for_each(|held| held.proof = ready(1));
    before.nodes[2].proof = proof(1, 2);
    Before { promise: 2, ..before }
}

/// The put was proven, which all know; the third missed the deletion since.
pub(crate) fn missed_since() -> Before {
    let mut before = missed_deletion();
    before.nodes.iter_mut().for_each(|held| held.proof = proof(1, 2));
    Before { promise: 2, ..before }
}

/// All were ready for a round that proves the deletion, which nobody knows: the commit is on its
/// way to the first. The third's directory is an older copy by now, and holds the value.
pub(crate) fn untold() -> Before {
    let mut before = proven(&[]);
    before.nodes[2] = holds_value();
    before.late.push((0, Message::Commit { round: (2, 0), floor: 3 }));
    before
}

/// A clock is ahead: its coordinator has a promise for a later ballot than others issue times.
pub(crate) fn ahead(before: Before) -> Before {
    Before { clock: 3, promise: 3, ..before }
}

/// The same, but what it was promised is the ballot before, which it may go on from.
pub(crate) fn follows(before: Before) -> Before {
    Before { promise: 2, ..ahead(before) }
}

/// A conditional write was made of the value, and its hint is on its way to the third.
pub(crate) fn chosen() -> Before {
    let nodes = vec![holds(appended()), holds(appended()), holds_value()];
    let done = vec![Op::Put(1), Op::Append(5)];
    with(ahead(Before { nodes, done, ..put() }), Message::Hint(appended()))
}

/// A conditional write of the value came to the first replica alone, and was not acknowledged.
pub(crate) fn unchosen() -> Before {
    let nodes = vec![holds(appended()), holds_value(), holds_value()];
    let begun = vec![Op::Append(5)];
    Before { clock: 3, nodes, begun, ..put() }
}

/// All that was purged; that hint is on its way still.
pub(crate) fn ended() -> Before {
    let done = vec![Op::Put(1), Op::Append(5), Op::Delete];
    with(Before { done, ..proven(&[0, 1, 2]) }, Message::Hint(appended()))
}

/// There is a copy of the third replica's directory, made when it held the value.
pub(crate) fn copied(before: Before) -> Before {
    Before { copy: Some(Directory { end: 1, ..holds_value() }), ..before }
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
