//! Initial states of the worlds. In most of these states the next round or fault could do harm. A
//! search from an empty key would need many steps to reach such a state.

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
    /// The ballot that all replicas have promised.
    pub(crate) promise: u8,
    /// The acknowledged operations in sequence.
    pub(crate) done: Vec<Op>,
    /// The operations that were begun and never answered.
    pub(crate) begun: Vec<Op>,
    /// Messages in transit from before the start, each with its recipient.
    pub(crate) late: Vec<(u8, Message)>,
}

/// A fault that happens at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// All nodes restart with their durable state.
    PowerCut,
    /// The third replica restarts with its durable state.
    Restart,
    /// The driver of the first round restarts with its durable state.
    Driver,
    /// The third replica's disk is replaced by an empty one.
    Wipe,
    /// The third replica's disk is replaced by an earlier copy.
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
    /// The maximum number of times that the operation is started.
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
    /// True if the round compares all records, and not only those since the last round.
    pub(crate) is_full: bool,
}

/// Returns a full round.
pub(crate) fn full(node: u8) -> Drive {
    Drive { node, behind: 0, is_full: true }
}

/// Returns a full round that omits the newest time.
pub(crate) fn full_without_newest(node: u8) -> Drive {
    Drive { behind: 1, ..full(node) }
}

/// Returns a round that compares only records since the last round.
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
    /// True if a record may stay for a while after it may be purged.
    pub(crate) purges_late: bool,
    /// True if all clients must be answered in the end.
    pub(crate) answers_all: bool,
    /// True if rounds may continue without nodes that do not answer.
    pub(crate) leaves: bool,
    /// True if no round is so slow that nodes consider it ended.
    pub(crate) takes_turns: bool,
}

impl World {
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    pub(crate) fn with_late_purge(self) -> Self {
        Self { purges_late: true, ..self }
    }

    pub(crate) fn with_all_answering(self) -> Self {
        Self { answers_all: true, ..self }
    }

    pub(crate) fn with_leave(self) -> Self {
        Self { leaves: true, ..self }
    }

    pub(crate) fn with_turns(self) -> Self {
        Self { takes_turns: true, ..self }
    }
}

/// Returns an operation with its maximum number of tries.
pub(crate) fn client(op: Op, tries: u8) -> Does {
    Does { op, at: 0, first: First::default(), tries }
}

/// Returns an operation whose coordinator's clock shows this time at first.
pub(crate) fn slow(op: Op, time: u8) -> Does {
    Does { first: First { time: Some(time), kept: None }, ..client(op, 2) }
}

/// Returns an append whose coordinator has cached its last record and a promised next ballot.
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
fn appended_record() -> Record {
    Record { ballot: 3, value: vec![1, 5], ..value() }
}

fn holds(record: Record) -> Directory {
    Directory { record: Some(record), ..Directory::default() }
}

fn holds_value() -> Directory {
    holds(value())
}

/// Returns the proof state of a node that was ready for the first node's round of this time, but
/// does not know the commit.
fn ready(time: u8) -> Proof {
    Proof { seal: (time, 0), ready: (time, 0), ..Proof::default() }
}

/// Returns the proof state of a node that knows the commit of the first node's round of this time.
fn proof(time: u8, floor: u8) -> Proof {
    Proof { proven: (time, 0), floor, ..ready(time) }
}

/// Returns a directory that has purged the tombstone of a proven deletion.
fn purged_directory() -> Directory {
    Directory { proof: proof(2, 3), ..Directory::default() }
}

/// Returns a directory with the tombstone of a proven deletion, whose commit has not arrived.
fn unpurged_directory() -> Directory {
    Directory { proof: ready(2), ..holds(tombstone()) }
}

/// Returns the state of a key without any write.
pub(crate) fn absent() -> Before {
    Before { clock: 1, nodes: vec![Directory::default(); REPLICAS], ..Before::default() }
}

/// Returns the state after a put whose record all replicas hold.
pub(crate) fn put() -> Before {
    Before { nodes: vec![holds_value(); REPLICAS], done: vec![Op::Put(1)], ..absent() }
}

/// Returns the state after a put that one replica missed.
pub(crate) fn after_missed_put(replica: usize) -> Before {
    let mut before = put();
    before.nodes[replica] = Directory::default();
    before
}

/// Returns the state after a put that one replica missed, and that is too new for a settled round.
pub(crate) fn young() -> Before {
    let mut before = Before { clock: 2, ..after_missed_put(1) };
    let held = before.nodes.iter_mut().filter_map(|held| held.record.as_mut());
    held.for_each(|record| record.time = 2);
    before
}

/// Returns the state after an unacknowledged put that only this replica holds.
pub(crate) fn after_unacknowledged_put(replica: usize) -> Before {
    let mut before = Before { begun: vec![Op::Put(1)], ..absent() };
    before.nodes[replica] = holds_value();
    before
}

/// Returns the state after an unacknowledged put that only the first replica holds, and after an
/// abandoned round that has fenced all nodes.
pub(crate) fn after_fencing() -> Before {
    let mut before = Before { clock: 2, ..after_unacknowledged_put(0) };
    before.nodes.iter_mut().for_each(|held| held.proof.seal = (2, 1));
    before
}

/// Returns a state in which a late put is in transit to all replicas.
pub(crate) fn late_put() -> Before {
    let late = (0..3).map(|to| (to, Message::Write(value()))).collect();
    Before { begun: vec![Op::Put(1)], late, ..absent() }
}

/// Returns a state in which a put has reached no replica, and a hint of it is in transit.
pub(crate) fn only_hint() -> Before {
    with_hint(Before { begun: vec![Op::Put(1)], ..absent() })
}

/// Returns the state after a deletion whose tombstone all replicas hold.
pub(crate) fn after_deletion() -> Before {
    let done = vec![Op::Put(1), Op::Delete];
    Before { clock: 2, nodes: vec![holds(tombstone()); REPLICAS], done, ..Before::default() }
}

/// Returns the state after a deletion that the third replica missed.
pub(crate) fn after_missed_deletion() -> Before {
    let mut before = after_deletion();
    before.nodes[2] = holds_value();
    before
}

/// Returns the state after a proven deletion. The replicas `by` have purged the tombstone; the
/// other replicas missed the commit.
pub(crate) fn after_proven_deletion(by: &[usize]) -> Before {
    let directory =
        |n: usize| if by.contains(&n) { purged_directory() } else { unpurged_directory() };
    let nodes = (0..REPLICAS).map(directory).collect();
    Before { clock: 3, promise: 3, nodes, ..after_deletion() }
}

/// Adds a node without a record, which either knows the proof or missed the commit.
pub(crate) fn with_another(mut before: Before, knows: bool) -> Before {
    let proof = if knows { proof(2, 3) } else { ready(2) };
    before.nodes.push(Directory { proof, ..Directory::default() });
    before
}

/// Returns the state after a proven deletion whose tombstone the third replica has not purged yet,
/// so that the value is still beneath it.
pub(crate) fn partly_purged() -> Before {
    let mut before = after_proven_deletion(&[0, 1]);
    let beneath = Some(value());
    before.nodes[2] = Directory { beneath, proof: proof(2, 3), ..holds(tombstone()) };
    before
}

/// Returns the state after a proven put. Only the third replica knows the proof.
pub(crate) fn proven_put() -> Before {
    let mut before = put();
    before.nodes.iter_mut().for_each(|held| held.proof = ready(1));
    before.nodes[2].proof = proof(1, 2);
    Before { promise: 2, ..before }
}

/// Returns the state after a proven put, whose proof all nodes know, and a later deletion that the
/// third replica missed.
pub(crate) fn after_late_missed_deletion() -> Before {
    let mut before = after_missed_deletion();
    before.nodes.iter_mut().for_each(|held| held.proof = proof(1, 2));
    Before { promise: 2, ..before }
}

/// Returns a state in which all nodes were ready for a round that proves the deletion. No node
/// knows the commit, which is in transit to the first replica. The third replica has restored an
/// older copy of its directory, with the value.
pub(crate) fn untold() -> Before {
    let mut before = after_proven_deletion(&[]);
    before.nodes[2] = holds_value();
    before.late.push((0, Message::Commit { round: (2, 0), floor: 3 }));
    before
}

/// Sets a clock ahead: its coordinator has the promise of a ballot above the times that other nodes
/// issue.
pub(crate) fn ahead(before: Before) -> Before {
    Before { clock: 3, promise: 3, ..before }
}

/// Sets a clock ahead like [`ahead`], but only the previous ballot is promised; the coordinator may
/// continue under the next one.
pub(crate) fn follows(before: Before) -> Before {
    Before { promise: 2, ..ahead(before) }
}

/// Returns the state after a conditional write of the value, while a hint of it is in transit to
/// the third replica.
pub(crate) fn after_chosen_append() -> Before {
    let nodes = vec![holds(appended_record()), holds(appended_record()), holds_value()];
    let done = vec![Op::Put(1), Op::Append(5)];
    with(ahead(Before { nodes, done, ..put() }), Message::Hint(appended_record()))
}

/// Returns the state after an unacknowledged conditional write that only the first replica holds.
pub(crate) fn after_unchosen_append() -> Before {
    let nodes = vec![holds(appended_record()), holds_value(), holds_value()];
    let begun = vec![Op::Append(5)];
    Before { clock: 3, nodes, begun, ..put() }
}

/// Returns the state after a conditional write that was deleted and purged everywhere, while a hint
/// of it is in transit.
pub(crate) fn after_purged_append() -> Before {
    let done = vec![Op::Put(1), Op::Append(5), Op::Delete];
    with(Before { done, ..after_proven_deletion(&[0, 1, 2]) }, Message::Hint(appended_record()))
}

/// Adds a copy of the third replica's directory from a time at which it held the value.
pub(crate) fn with_copy(before: Before) -> Before {
    Before { copy: Some(Directory { end: 1, ..holds_value() }), ..before }
}

/// Adds a copy like [`with_copy`], of the first directory of its node. That directory was made at a
/// time ahead of the rounds, because its clock allows for the skew of other clocks.
pub(crate) fn with_first_copy(before: Before) -> Before {
    let proof = Proof { made: 3, is_first: true, ..Proof::default() };
    Before { copy: Some(Directory { end: 1, proof, ..holds_value() }), ..before }
}

/// Adds a late hint of the first put to the third replica.
pub(crate) fn with_hint(before: Before) -> Before {
    with(before, Message::Hint(value()))
}

/// Adds a late message to the third replica.
pub(crate) fn with(mut before: Before, message: Message) -> Before {
    before.late.push((2, message));
    before
}
