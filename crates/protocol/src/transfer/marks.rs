//! Delivery of marks. This node hands over the marks of another node to that node, which then
//! repairs itself. This node's own marks are deposited with another node while its own store cannot
//! keep them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::rc::Rc;

use super::pages::retry;
use super::{FIRST_WAIT_MICROS, MAX_WAIT_MICROS, PageFailure};
use crate::background::effect::BackgroundEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::message::{Class, NodeId, Reply, Request};
use crate::transfer::missed::{Mark, NumberedMark};

/// Marks on their way to other nodes.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    hand_overs: BTreeMap<NodeId, TaskId>,
    deposit: Option<TaskId>,
    /// True if this node's store refused its own marks, so that another node must keep them.
    deposit_wanted: bool,
    deposited: Rc<DepositedMarks>,
    /// Nodes whose marks are being stored on this node.
    keeping: BTreeSet<NodeId>,
}

/// This node's marks that other nodes keep.
#[derive(Debug, Default)]
struct DepositedMarks {
    /// The greatest number among the marks that another node keeps.
    greatest: Cell<u64>,
    /// The round-robin position of the next node to be asked.
    turn: Cell<usize>,
}

impl DepositedMarks {
    /// Returns the next node in round-robin order; `None` if there is no candidate. A leaving node
    /// would take the marks along, and a joining node may have to leave after an abort, so neither
    /// is asked.
    fn next_node(&self, context: &Context) -> Option<NodeId> {
        let (view, turn) = (context.view(), self.turn.get());
        let others = context.others().into_iter().filter(|node| view.is_staying_member(*node));
        let others: Vec<NodeId> = others.collect();
        let node = others.get(turn % others.len().max(1)).copied();
        self.turn.set(turn + usize::from(node.is_some()));
        node
    }
}

impl Marks {
    /// Notes whether a node's marks were stored on this node.
    pub(crate) fn on_marks_stored(&mut self, context: &Context, node: NodeId, is_stored: bool) {
        self.keeping.remove(&node);
        if node == context.shared().own {
            self.deposit_wanted = !is_stored;
        }
    }

    /// Stores the marks that are not stored on this node yet.
    pub(crate) fn keep(&mut self, context: &Context) {
        for node in context.view().ids() {
            if context.shared().transfer.missed.is_unsaved(node) && self.keeping.insert(node) {
                context.effect(BackgroundEffect::StoreMissed { node });
            }
        }
    }

    /// Hands over the marks of each other node, and deposits this node's own if necessary.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        let context = tasks.context().clone();
        let (missed, others) = (&context.shared().transfer.missed, context.others());
        // A node that has left accepts no marks any more.
        self.hand_overs.retain(|node, task| {
            let stays = others.contains(node);
            if !stays {
                tasks.stop(*task);
            }
            stays && tasks.is_under_way(*task)
        });
        for node in others {
            if !self.hand_overs.contains_key(&node) && !missed.of(node).is_empty() {
                let task = tasks.spawn("marks", hand_over(context.clone(), node));
                self.hand_overs.insert(node, task);
            }
        }
        // This node's own marks may have been stored since its store refused them: marks that
        // another node hands over are stored before they are acknowledged. Stored marks must not be
        // deposited, or the other node would hand them back, and so on forever.
        self.deposit_wanted &= missed.is_unsaved(context.shared().own);
        self.deposit.take_if(|task| !tasks.is_under_way(*task));
        if self.deposit_wanted && self.deposit.is_none() {
            let deposit = deposit(context.clone(), Rc::clone(&self.deposited));
            self.deposit = Some(tasks.spawn("deposit", deposit));
        }
    }
}

/// Sends a node its marks until the node has stored them.
async fn hand_over(context: Context, node: NodeId) {
    let shared = context.shared();
    let wait = Cell::new(0);
    let send = async || {
        let marks = shared.transfer.missed.of(node);
        match context.call(node, Class::Hint, request(node, &marks)).await {
            Ok(Reply::Stored) => return Ok(marks),
            Ok(_) => wait.set((wait.get() * 2).clamp(FIRST_WAIT_MICROS, MAX_WAIT_MICROS)),
            Err(_) => wait.set(FIRST_WAIT_MICROS),
        }
        Err(PageFailure)
    };
    let Ok(stored) = retry(&context, send, |_| Ok::<_, Infallible>(wait.get())).await;
    for NumberedMark { mark, number } in stored {
        shared.transfer.missed.drop_mark(node, mark.partition, number);
    }
    shared.membership.logs.note_late_write(node);
}

/// Sends this node's own marks to other nodes in turn, until another node or this node has stored
/// them all.
async fn deposit(context: Context, deposited: Rc<DepositedMarks>) {
    let shared = context.shared();
    while shared.transfer.missed.is_unsaved(shared.own) {
        let marks = shared.transfer.missed.of(shared.own);
        let greatest = marks.iter().map(|marked| marked.number).max().unwrap_or(0);
        if greatest <= deposited.greatest.get() {
            return;
        }
        let Some(node) = deposited.next_node(&context) else { return };
        match context.call(node, Class::Hint, request(shared.own, &marks)).await {
            Ok(Reply::Stored) => return deposited.greatest.set(greatest),
            _ => context.pause(FIRST_WAIT_MICROS).await,
        }
    }
}

fn request(node: NodeId, marks: &[NumberedMark]) -> Request {
    let marks: Vec<Mark> = marks.iter().map(|numbered| numbered.mark).collect();
    Request::Missed { node, marks }
}
