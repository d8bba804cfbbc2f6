//! Initial states of the worlds that the tests check. Most worlds begin in a state in which a round
//! or a fault could do harm, because such a state is many steps away from an empty key.

use crate::client::First;
use crate::register::Op;
use crate::replica::{Directory, Proof, Record};
use crate::rules::{RULES, Rules};
use crate::state::{Message, REPLICAS};

/// The initial state of a world.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    pub(crate) clock: u8,
    /// The replicas, then other nodes.
    pub(crate) nodes: Vec<Directory>,
    /// The contents of an older copy of the third replica's directory.
    pub(crate) copy: Option<Directory>,
    /// A promise that all replicas gave.
    pub(crate) promise: u8,
    /// The acknowledged operations, in their order.
    pub(crate) done: Vec<Op>,
    /// The operations that began and were never answered.
    pub(crate) begun: Vec<Op>,
    /// The messages that are in flight since before the start, each with its recipient.
    pub(crate) late: Vec<(u8, Message)>,
}

/// A fault that happens at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// All nodes end, and restart with their durable state.
    PowerCut,
    /// The third replica ends, and restarts with its durable state.
    Restart,
    /// The driver of the first round ends, and restarts with its durable state.
    Driver,
    /// The third replica's disk is replaced by an empty one.
    Wipe,
    /// The third replica's disk is replaced by a copy made earlier.
    Rollback,
    /// A record on the third replica's disk becomes unreadable.
    Rot,
}

/// A client's operation.
#[derive(Debug, Clone)]
pub(crate) struct Does {
    pub(crate) op: Op,
    /// The node that coordinates the operation.
    pub(crate) at: u8,
    pub(crate) first: First,
    /// Maximum number of starts.
    pub(crate) tries: u8,
}

impl Does {
    pub(crate) fn at(self, at: u8) -> Self {
        Self { at, ..self }
    }
}

/// A round and its driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drive {
    pub(crate) node: u8,
    /// The distance of the round's time from the clock.
    pub(crate) behind: u8,
    /// True if everything is compared, not only what was written since the last round.
    pub(crate) is_full: bool,
}

/// Returns a full round.
pub(crate) fn full(node: u8) -> Drive {
    Drive { node, behind: 0, is_full: true }
}

/// Returns a full round that leaves out the newest time.
pub(crate) fn settled(node: u8) -> Drive {
    Drive { behind: 1, ..full(node) }
}

/// Returns a round that compares what was written since the last one.
pub(crate) fn partial(node: u8) -> Drive {
    Drive { is_full: false, ..full(node) }
}

/// A world: the rules, initial state, operations, rounds and faults that a search explores.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) before: Before,
    pub(crate) ops: Vec<Does>,
    pub(crate) rounds: Vec<Drive>,
    pub(crate) faults: Vec<Fault>,
    /// True if records that may be purged can stay a while.
    pub(crate) purges_late: bool,
    /// True if all clients must be answered in the end.
    pub(crate) answers_all: bool,
    /// True if rounds continue without nodes that do not answer.
    pub(crate) leaves: bool,
    /// True if no round is ever so slow that nodes take it for ended.
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

/// Returns an operation with its number of tries.
pub(crate) fn client(op: Op, tries: u8) -> Does {
    Does { op, at: 0, first: First::default(), tries }
}

/// Returns an operation whose coordinator's clock first shows this time.
pub(crate) fn slow(op: Op, time: u8) -> Does {
    Does { first: First { time: Some(time), kept: None }, ..client(op, 2) }
}

/// Returns an append whose coordinator has cached the value that it wrote last, and a promise for
/// its next ballot.
pub(crate) fn append_from_cache(id: u8) -> Does {
    let first = First { time: None, kept: Some((value(), 3)) };
    Does { first, ..client(Op::Append(id), 2) }
}

/// Makes a world with all rules, and without faults.
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

/// Returns the record of the first put.
pub(crate) fn value() -> Record {
    Record::plain(1, &[1])
}

/// Returns the tombstone of the first put's deletion.
fn tombstone() -> Record {
    Record::plain(2, &[])
}

/// Returns the record of a conditional write based on the first put.
fn appended() -> Record {
    Record { ballot: 3, value: vec![1, 5], ..value() }
}

fn holds(record: Record) -> Directory {
    Directory { record: Some(record), ..Directory::default() }
}

fn holds_value() -> Directory {
    holds(value())
}

/// Returns the proof of a node that was ready for a round of the first node up to this time, and
/// does not know the commit.
fn ready(time: u8) -> Proof {
    Proof { seal: (time, 0), ready: (time, 0), ..Proof::default() }
}

/// Returns the proof of a node that knows the commit of such a round.
fn proof(time: u8, floor: u8) -> Proof {
    Proof { proven: (time, 0), floor, ..ready(time) }
}

/// Returns a directory after a proven deletion, whose tombstone is purged.
fn purged() -> Directory {
    Directory { proof: proof(2, 3), ..Directory::default() }
}

/// Returns a directory after a proven deletion, to which the commit did not arrive.
fn unpurged() -> Directory {
    Directory { proof: ready(2), ..holds(tombstone()) }
}

/// Returns the state of a key that was never written.
pub(crate) fn absent() -> Before {
    Before { clock: 1, nodes: vec![Directory::default(); REPLICAS], ..Before::default() }
}

/// Returns a state in which a value was put, and all replicas hold it.
pub(crate) fn put() -> Before {
    Before { nodes: vec![holds_value(); REPLICAS], done: vec![Op::Put(1)], ..absent() }
}

/// Returns a state in which one replica missed the put.
pub(crate) fn missed_by(replica: usize) -> Before {
    let mut before = put();
    before.nodes[replica] = Directory::default();
    before
}

/// Returns a state in which a replica missed a put that is younger than what a round settles.
pub(crate) fn young() -> Before {
    let mut before = Before { clock: 2, ..missed_by(1) };
    let held = before.nodes.iter_mut().filter_map(|held| held.record.as_mut());
    held.for_each(|record| record.time = 2);
    before
}

/// Returns a state in which a put reached this replica alone, and was not acknowledged.
pub(crate) fn unacknowledged(replica: usize) -> Before {
    let mut before = Before { begun: vec![Op::Put(1)], ..absent() };
    before.nodes[replica] = holds_value();
    before
}

/// Returns a state in which a put reached the first replica alone, and an abandoned round has
/// fenced all nodes.
pub(crate) fn sealed() -> Before {
    let mut before = Before { clock: 2, ..unacknowledged(0) };
    before.nodes.iter_mut().for_each(|held| held.proof.seal = (2, 1));
    before
}

/// Returns a state in which a put has long been in flight to all replicas.
pub(crate) fn late_put() -> Before {
    let late = (0..3).map(|to| (to, Message::Write(value()))).collect();
    Before { begun: vec![Op::Put(1)], late, ..absent() }
}

/// Returns a state in which a put reached no replica, and a hint of it is left.
pub(crate) fn only_hint() -> Before {
    hinted(Before { begun: vec![Op::Put(1)], ..absent() })
}

/// Returns a state in which the value was deleted, and all replicas hold the tombstone.
pub(crate) fn deleted() -> Before {
    let done = vec![Op::Put(1), Op::Delete];
    Before { clock: 2, nodes: vec![holds(tombstone()); REPLICAS], done, ..Before::default() }
}

/// Returns a state in which the third replica missed the deletion.
pub(crate) fn missed_deletion() -> Before {
    let mut before = deleted();
    before.nodes[2] = holds_value();
    before
}

/// Returns a state in which the deletion was proven. The replicas `by` have purged the tombstone;
/// the others missed the commit.
pub(crate) fn proven(by: &[usize]) -> Before {
    let directory = |n: usize| if by.contains(&n) { purged() } else { unpurged() };
    let nodes = (0..REPLICAS).map(directory).collect();
    Before { clock: 3, promise: 3, nodes, ..deleted() }
}

/// Adds a node that holds nothing, and that knows of the proof or missed the commit too.
pub(crate) fn with_another(mut before: Before, knows: bool) -> Before {
    let proof = if knows { proof(2, 3) } else { ready(2) };
    before.nodes.push(Directory { proof, ..Directory::default() });
    before
}

/// Returns a state in which the deletion was proven, and the third replica has not purged the
/// tombstone yet, so that the value is still beneath it.
pub(crate) fn partly_purged() -> Before {
    let mut before = proven(&[0, 1]);
    let beneath = Some(value());
    before.nodes[2] = Directory { beneath, proof: proof(2, 3), ..holds(tombstone()) };
    before
}

/// Returns a state in which the put was proven, and only the third replica knows of the proof.
pub(crate) fn proven_put() -> Before {
    let mut before = put();
    before.nodes.iter_mut().for_each(|held| held.proof = ready(1));
    before.nodes[2].proof = proof(1, 2);
    Before { promise: 2, ..before }
}

/// Returns a state in which the put was proven, and all know of the proof. The third replica missed
/// a later deletion.
pub(crate) fn missed_since() -> Before {
    let mut before = missed_deletion();
    before.nodes.iter_mut().for_each(|held| held.proof = proof(1, 2));
    Before { promise: 2, ..before }
}

/// Returns a state in which all were ready for a round that proves the deletion, and no node knows
/// of the commit, which is in flight to the first replica. The third replica's directory is now an
/// older copy, and holds the value.
pub(crate) fn untold() -> Before {
    let mut before = proven(&[]);
    before.nodes[2] = holds_value();
    before.late.push((0, Message::Commit { round: (2, 0), floor: 3 }));
    before
}

/// Sets a clock ahead: the coordinator with this clock has a promise for a ballot later than the
/// times that other nodes issue.
pub(crate) fn ahead(before: Before) -> Before {
    Before { clock: 3, promise: 3, ..before }
}

/// Sets a clock ahead like [`ahead`], but the promise is for the ballot before, from which the
/// coordinator may continue.
pub(crate) fn follows(before: Before) -> Before {
    Before { promise: 2, ..ahead(before) }
}

/// Returns a state in which a conditional write was based on the value, and a hint of the write is
/// in flight to the third replica.
pub(crate) fn chosen() -> Before {
    let nodes = vec![holds(appended()), holds(appended()), holds_value()];
    let done = vec![Op::Put(1), Op::Append(5)];
    with(ahead(Before { nodes, done, ..put() }), Message::Hint(appended()))
}

/// Returns a state in which a conditional write of the value reached the first replica alone, and
/// was not acknowledged.
pub(crate) fn unchosen() -> Before {
    let nodes = vec![holds(appended()), holds_value(), holds_value()];
    let begun = vec![Op::Append(5)];
    Before { clock: 3, nodes, begun, ..put() }
}

/// Returns a state in which the conditional write was deleted and purged everywhere, while a hint
/// of it is still in flight.
pub(crate) fn ended() -> Before {
    let done = vec![Op::Put(1), Op::Append(5), Op::Delete];
    with(Before { done, ..proven(&[0, 1, 2]) }, Message::Hint(appended()))
}

/// Adds a copy of the third replica's directory, made when it held the value.
pub(crate) fn copied(before: Before) -> Before {
    Before { copy: Some(Directory { end: 1, ..holds_value() }), ..before }
}

/// Adds such a copy of the first directory of the node's name. The directory was made at a time
/// ahead of the rounds, because its clock allows for the skew of the others.
pub(crate) fn copied_first(before: Before) -> Before {
    let proof = Proof { made: 3, is_first: true, ..Proof::default() };
    Before { copy: Some(Directory { end: 1, proof, ..holds_value() }), ..before }
}

/// Adds a hint of the first put, long in flight to the third replica.
pub(crate) fn hinted(before: Before) -> Before {
    with(before, Message::Hint(value()))
}

/// Adds a message, long in flight to the third replica.
pub(crate) fn with(mut before: Before, message: Message) -> Before {
    before.late.push((2, message));
    before
}
