//! For each rule, a world in which a property fails if the rule is off. Most worlds begin during a
//! transition.

use crate::layout::Nodes;
use crate::replica::Record;
use crate::rules::{RULES, Rules};
use crate::scenes::*;
use crate::world::{Action, ENDED, KEPT, LINEARIZABLE, Message, PURGED};
use crate::worlds::*;

/// The rule that is switched off, a world, and the property that fails in it.
pub(crate) type LeftOut = (&'static str, World, &'static str);

macro_rules! without {
    ($rule:ident, $world:expr, $property:expr) => {
        (stringify!($rule), World { rules: Rules { $rule: false, ..RULES }, ..$world }, $property)
    };
}

fn enter(nodes: &[u8]) -> Vec<Action> {
    nodes.iter().map(|node| Action::Enter(*node)).collect()
}

fn take(from: u8, to: u8) -> Action {
    Action::Take { from, to }
}

/// Returns the actions with which a transition begins and the nodes `by` enter it.
fn begin_transition(by: &[u8]) -> Vec<Action> {
    [vec![Action::Change], enter(by)].concat()
}

/// Returns the actions after which the receiver has pulled all records.
fn pull_all() -> Vec<Action> {
    [begin_transition(&[0, 1, 2, 3]), vec![take(0, 3), take(1, 3)]].concat()
}

/// Returns the actions after which the cluster has decided to read the new set.
fn switch_reads() -> Vec<Action> {
    [pull_all(), vec![Action::Switch]].concat()
}

fn a_put() -> World {
    moves(put(&[0, 1], 4), vec![puts(2, 3)])
}

fn a_put_and_a_get() -> World {
    moves(put(&[0, 1], 4), vec![puts(2, 3), gets()])
}

fn message(to: u8, epoch: u8, message: Message) -> Action {
    Action::Deliver { asker: 0, to, epoch, message }
}

/// Returns the actions after which an append has its promises under the first layout of the
/// transition, while the second layout is in force.
fn promise_append() -> Vec<Action> {
    let promise = |to| message(to, 1, Message::Prepare(3));
    let asked = vec![Action::Begin(0, 1), promise(0), promise(1), Action::Switch];
    [pull_all(), asked, enter(&[0, 1, 2, 3]), vec![Action::End], enter(&[2, 3])].concat()
}

/// Returns the actions of a move from one node to three. The old set, of one node, has promised an
/// append. Other nodes read the new set already, and two of them have accepted a second append
/// under a lower ballot.
fn promise_append_apart() -> Vec<Action> {
    let to = |asker, to, epoch, message| Action::Deliver { asker, to, epoch, message };
    let record = Record { time: 1, ballot: 2, value: vec![1, 6] };
    let accept = |node| to(1, node, 2, Message::Accept(record.clone()));
    let first = vec![Action::Begin(0, 1), to(0, 0, 1, Message::Prepare(9)), Action::Switch];
    let asked = vec![Action::Begin(1, 2), to(1, 1, 2, Message::Prepare(2))];
    let second = [asked, vec![to(1, 2, 2, Message::Prepare(2)), accept(1), accept(2)]].concat();
    let late = Record { time: 1, ballot: 9, value: vec![1, 5] };
    let third = vec![to(0, 0, 1, Message::Accept(late)), Action::Enter(0), Action::End];
    let taken = vec![take(0, 1), take(0, 2)];
    let all = [
        begin_transition(&[0, 1, 2]),
        taken,
        first,
        enter(&[1, 2]),
        second,
        third,
        enter(&[0, 1, 2]),
    ];
    all.concat()
}

/// Returns the actions after which the receiver has pulled an append that only one node stored,
/// while a second append is unfinished.
fn took_unchosen() -> Vec<Action> {
    let promise = |to| message(to, 1, Message::Prepare(3));
    let record = Record { time: 1, ballot: 3, value: vec![1, 6] };
    let one = [
        vec![Action::Begin(0, 1), promise(1), promise(2), promise(3), take(0, 3), take(2, 3)],
        vec![message(1, 1, Message::Accept(record)), Action::Switch],
    ];
    let all = [0, 1, 2, 3];
    [begin_transition(&all), one.concat(), enter(&all), vec![Action::End], enter(&[0, 1, 3])]
        .concat()
}

pub(crate) fn without_coordinator_rules() -> Vec<LeftOut> {
    let takes = (3..6).flat_map(|to| (0..3).map(move |from| take(from, to)));
    let all_taken = [begin_transition(&[0, 1, 2, 3, 4, 5]), takes.collect()].concat();
    let others = world(put(&[0, 1], 6), OLD, ALL_OTHERS, vec![puts(2, 3)]).after(&all_taken);
    let append =
        moves(after_chosen_append(), vec![appends(6)]).after(&begin_transition(&[0, 1, 2, 3]));
    let new: Nodes = &[0, 1, 3];
    let unchosen =
        world(after_unchosen_append(4), OLD, new, vec![appends(6), gets()]).after(&took_unchosen());
    vec![
        without!(requests_bear_their_layout, a_put().after(&pull_all()), KEPT),
        without!(acks_are_counted_in_sets, others, KEPT),
        without!(writes_need_new, a_put().after(&pull_all()), KEPT),
        without!(writes_need_old, a_put().after(&switch_reads()), KEPT),
        without!(reads_confirm_new, a_put_and_a_get().after(&pull_all()), KEPT),
        without!(reads_confirm_old, a_put_and_a_get().after(&switch_reads()), KEPT),
        without!(promises_are_of_read_set, append, LINEARIZABLE),
        without!(refused_write_continues, newer_at_receiver(2), ENDED),
        without!(only_chosen_is_pulled, unchosen.open(), LINEARIZABLE),
    ]
}

/// Returns rules whose effect shows only after many states.
pub(crate) fn without_promise_rules() -> Vec<LeftOut> {
    let two = moves(put(&[0, 1, 2], 4), vec![appends(5), appends(6)]);
    let two = World { skewed: Some(3), ..two }.after(&promise_append());
    // If both sets must promise, no property fails without `rounds_keep_their_layout`.
    let one_set =
        Rules { rounds_keep_their_layout: false, promises_are_of_both_sets: false, ..RULES };
    let apart = world(put(&[0], 3), &[0], &[0, 1, 2], vec![appends(5), appends(6), gets(), gets()]);
    let apart = World { skewed: Some(9), ..apart }.after(&promise_append_apart());
    vec![
        ("rounds_keep_their_layout", World { rules: one_set, ..two }, LINEARIZABLE),
        without!(promises_are_of_both_sets, apart.open(), LINEARIZABLE),
    ]
}

pub(crate) fn without_move_rules() -> Vec<LeftOut> {
    use Fault::{Restart, Wipe};
    let still = |by: &[u8]| moves(put(by, 4), Vec::new());
    let unread = || moves(with_leftover(), Vec::new());
    let again = a_put().then(NEW).with_abort().after(&pull_all());
    let fewer = world(put(&[1, 2], 3), OLD, &[0], Vec::new());
    let hint = moves(with_hint(after_deletion(&[0, 1, 2], 4), 3), Vec::new()).with_proof();
    let lost = still(&[0, 1]).with_fault(Wipe(3)).after(&pull_all());
    vec![
        without!(sources_have_entered, a_put().after(&begin_transition(&[3])), KEPT),
        without!(majority_is_pulled, with_lost_node(still(&[0, 2])), KEPT),
        without!(leavers_are_pulled, one_of_three(still(&[0])), KEPT),
        without!(stayers_pull_if_fewer, fewer, KEPT),
        without!(data_before_cursor, still(&[0, 1]).with_fault(Restart(3)), KEPT),
        without!(progress_is_on_receiver, lost, KEPT),
        without!(progress_names_transition, again, KEPT),
        without!(receiver_begins_empty, unread(), PURGED),
        without!(receiver_is_sealed, hint, PURGED),
    ]
}

pub(crate) fn without_stage_rules() -> Vec<LeftOut> {
    let sources = [begin_transition(&[0, 1, 3]), vec![take(0, 3), take(1, 3)]].concat();
    let restart = a_put().with_fault(Fault::Restart(0)).after(&sources);
    let leftover = moves(with_leftover(), vec![puts(2, 3), gets()]);
    let missed = || moves(after_missed_deletion(), Vec::new()).with_proof();
    vec![
        without!(earlier_is_refused, a_put().after(&pull_all()), KEPT),
        without!(entering_is_durable, restart, KEPT),
        without!(later_is_entered, leftover, LINEARIZABLE),
        without!(switch_waits, a_put().after(&begin_transition(&[3])), KEPT),
        without!(end_waits, a_put().after(&switch_reads()), KEPT),
        without!(abort_before_switch, a_put().with_abort().after(&switch_reads()), KEPT),
        without!(no_proof_meanwhile, missed(), PURGED),
        without!(proofs_bear_a_layout, missed(), PURGED),
    ]
}
