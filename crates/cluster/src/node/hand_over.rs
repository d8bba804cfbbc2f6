//! Marks of other nodes are handed over to those nodes, which repair themselves. This node's own
//! marks are deposited with another node while its own store can't keep them.

use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::event::FailureKind;
use crate::message::{Class, NodeId, Reply, Request};
use crate::missed::{Mark, Numbered};

/// How long after a failure the next attempt is made at first, in microseconds …
const FIRST_WAIT: u64 = 250_000;

/// … and at most, while the node does not take them.
const MOST_WAIT: u64 = 4_000_000;

/// The marks of one node on their way to it.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    /// The marks under way.
    sent: Option<Vec<Numbered>>,
    not_before: u64,
    wait: u64,
}

/// This node's own marks on their way to another one.
#[derive(Debug, Default)]
pub(super) struct Deposit {
    /// Whether this node's store refused them, so that another node has to keep them.
    pub(super) wanted: bool,
    /// The node that they were sent to, and the greatest number among them.
    sent: Option<(NodeId, u64)>,
    /// The greatest number of those that another node keeps.
    kept: u64,
    /// The turn of the node that is asked next.
    turn: usize,
    not_before: u64,
}

fn request(node: NodeId, marks: &[Numbered]) -> Request {
    let marks: Vec<Mark> = marks.iter().map(|numbered| numbered.mark).collect();
    Request::Missed { node, marks }
}

impl Node {
    pub(super) fn hand_over_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        for peer in self.others() {
            let hand_over = &mut self.peers.of(peer).hand_over;
            if hand_over.sent.is_some() || hand_over.not_before > now.mono {
                continue;
            }
            let marks = self.shared.missed.of(peer);
            if !marks.is_empty() {
                let request = request(peer, &marks);
                hand_over.sent = Some(marks);
                self.call(Caller::HandOver(peer), peer, Class::Hint, request, out);
            }
        }
    }

    pub(super) fn handed_over(
        &mut self,
        now: Now,
        peer: NodeId,
        result: Result<Reply, FailureKind>,
    ) {
        let hand_over = &mut self.peers.of(peer).hand_over;
        let Some(marks) = hand_over.sent.take() else { return };
        match result {
            Ok(Reply::Stored) => {
                hand_over.wait = FIRST_WAIT;
                for Numbered { mark, number } in marks {
                    self.shared.missed.done(peer, mark.partition, number);
                }
                self.shared.logs.stored_late(peer);
            }
            Ok(_) => {
                hand_over.wait = (hand_over.wait * 2).clamp(FIRST_WAIT, MOST_WAIT);
                hand_over.not_before = now.mono + hand_over.wait;
            }
            Err(_) => {
                hand_over.wait = FIRST_WAIT;
                hand_over.not_before = now.mono + FIRST_WAIT;
            }
        }
    }

    pub(super) fn deposit_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let own = self.shared.own;
        let deposit = &mut self.deposit;
        // They may be stored here by now: marks that another node hands over are stored before they
        // are acknowledged. If they were deposited nevertheless, they would come back for ever.
        deposit.wanted &= self.shared.missed.is_unkept(own);
        if !deposit.wanted || deposit.sent.is_some() || deposit.not_before > now.mono {
            return;
        }
        let marks = self.shared.missed.of(own);
        let greatest = marks.iter().map(|marked| marked.number).max().unwrap_or(0);
        if greatest <= deposit.kept {
            return;
        }
        let turn = deposit.turn;
        // Who leaves would take them along, and who joins may be sent away again.
        let stays = |node: &NodeId| self.view.keeps(*node);
        let others: Vec<NodeId> = self.others().filter(stays).collect();
        let Some(peer) = others.get(turn % others.len().max(1)).copied() else { return };
        self.deposit.sent = Some((peer, greatest));
        self.deposit.turn = turn + 1;
        self.call(Caller::Deposit(peer), peer, Class::Hint, request(own, &marks), out);
    }

    pub(super) fn deposited(&mut self, now: Now, result: &Result<Reply, FailureKind>) {
        let Some((_, greatest)) = self.deposit.sent.take() else { return };
        if matches!(result, Ok(Reply::Stored)) {
            self.deposit.kept = greatest;
        } else {
            self.deposit.not_before = now.mono + FIRST_WAIT;
        }
    }
}
