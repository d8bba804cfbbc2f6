//! Worlds in which all properties must hold, without and with faults.

use crate::layout::{Acks, Nodes};
use crate::register::Op;
use crate::world::Action;
use crate::worlds::*;

/// A set that shares no node with [0, 1, 2].
pub(crate) const ALL_OTHERS: Nodes = &[3, 4, 5];

pub(crate) fn puts(value: u8, tries: u8) -> (Op, u8) {
    (Op::Put(value), tries)
}

fn deletes() -> (Op, u8) {
    (Op::Delete, 3)
}

pub(crate) fn gets() -> (Op, u8) {
    (Op::Get, 3)
}

pub(crate) fn appends(id: u8) -> (Op, u8) {
    (Op::Append(id), 3)
}

pub(crate) fn moves(before: Before, ops: Vec<(Op, u8)>) -> World {
    world(before, OLD, NEW, ops)
}

pub(crate) fn one_of_three(world: World) -> World {
    World { acks: Acks { write: Some(1), read: Some(3) }, ..world }
}

/// Declares node 2 lost. The node is still up, and may not know it.
pub(crate) fn with_lost_node(world: World) -> World {
    let plan = vec![(&[0, 1, 3][..], Some(2))];
    World { plan, ..world }
}

pub(crate) fn with_hint(mut before: Before, to: u8) -> Before {
    before.hints.push((to, value()));
    before
}

/// Returns a world in which a put has reached only the receiver. Another node is down, so an append
/// needs the receiver.
pub(crate) fn newer_at_receiver(tries: u8) -> World {
    let world = moves(at_receiver(), vec![(Op::Append(5), tries)]).without(2).open();
    let begun = [Action::Change, Action::Enter(0), Action::Enter(1), Action::Enter(3)];
    World { answers_all: true, ..world }.after(&begun)
}

pub(crate) fn calm() -> Vec<(&'static str, World)> {
    let two = || vec![appends(5), appends(6), gets()];
    let put_two = || put(&[0, 1], 4);
    let put_and_get = || vec![puts(2, 3), gets()];
    let delete_and_get = || vec![deletes(), gets()];
    let append_and_get = || vec![appends(6), gets()];
    let one_stored = || after_unacknowledged_put(&[0], 4);
    let there_and_back = |before| moves(before, vec![gets()]).then(OLD).with_proof();
    let others = |ops| world(put(&[0, 1], 6), OLD, ALL_OTHERS, ops);
    let between = vec![appends(5), puts(2, 2), gets()];
    vec![
        ("a put, a get", moves(absent(4), put_and_get())),
        ("a delete, two gets", moves(put_two(), vec![deletes(), gets(), gets()])),
        ("a put that who leaves stored", moves(one_stored(), vec![gets(), gets()])),
        ("a put that one stored", moves(after_unacknowledged_put(&[1], 4), vec![gets(), gets()])),
        ("two appends", moves(put_two(), two()).open()),
        ("an append, a put, a get", moves(put_two(), between).open()),
        ("an append that one stored", moves(after_unchosen_append(4), append_and_get()).open()),
        (
            "the same, another leaves",
            world(after_unchosen_append(4), OLD, &[0, 1, 3], append_and_get()).open(),
        ),
        ("all others", others(put_and_get())),
        ("all others, two appends", others(two()).open()),
        ("one to three", world(put(&[0], 3), &[0], OLD, put_and_get())),
        ("three to one", world(put_two(), OLD, &[0], put_and_get())),
        ("one is declared lost", with_lost_node(moves(put(&[1, 2], 4), put_and_get()))),
        ("one is declared lost, two appends", with_lost_node(moves(put(&[1, 2], 4), two())).open()),
        ("acks of one of three", one_of_three(moves(put(&[0], 4), put_and_get()))),
        ("aborted, begun again", moves(put_two(), delete_and_get()).then(NEW).with_abort()),
        ("the same, two appends", moves(put_two(), two()).then(NEW).with_abort().open()),
        ("a hint, a delete, a get", moves(with_hint(put_two(), 3), delete_and_get()).with_proof()),
        ("there and back, a hint", there_and_back(with_hint(after_deletion(&[0, 1, 2], 4), 0))),
        ("there and back, a missed delete", there_and_back(with_hint(after_missed_deletion(), 3))),
        ("one becomes three, two appends", world(put(&[0], 3), &[0], OLD, two()).open()),
        ("there and back, two appends", moves(put_two(), two()).then(OLD).open()),
    ]
}

pub(crate) fn faulty() -> Vec<(&'static str, World)> {
    use Fault::{Restart, Wipe};
    let puts = || moves(put(&[0, 1], 4), vec![puts(2, 3), gets()]);
    let two = || moves(put(&[0, 1], 4), vec![appends(5), appends(6), gets()]).open();
    vec![
        ("who leaves restarts", puts().with_fault(Restart(0))),
        ("one restarts", puts().with_fault(Restart(1))),
        ("the receiver restarts", puts().with_fault(Restart(3))),
        ("one restarts, two appends", two().with_fault(Restart(1))),
        ("who leaves loses its disk", puts().with_fault(Wipe(0))),
        ("one loses its disk", puts().with_fault(Wipe(1))),
        ("the receiver loses its disk", puts().with_fault(Wipe(3))),
        ("who leaves loses its disk, two appends", two().with_fault(Wipe(0))),
        ("one loses its disk, two appends", two().with_fault(Wipe(1))),
        ("the receiver loses its disk, two appends", two().with_fault(Wipe(3))),
        ("who leaves is away", puts().open().without(0)),
        ("one is away", puts().without(1)),
        ("the receiver is away", puts().open().without(3)),
        ("one is away, two appends", two().without(1)),
        ("the receiver is away, two appends", two().without(3)),
        ("the receiver holds something newer", newer_at_receiver(6)),
    ]
}
