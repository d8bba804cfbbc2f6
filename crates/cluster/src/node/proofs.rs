//! Proofs that other nodes know and this one does not, and the other way round.

use super::{Caller, Node, NodeEffect};
use crate::event::FailureKind;
use crate::message::{Class, NodeId, Reply, Request};
use crate::proof::{Missed, RoundId, RoundStep};

impl Node {
    /// A peer was seen: what it knows of proofs is asked for, where there may be any.
    pub(super) fn ask_for_proof(&mut self, peer: NodeId, out: &mut Vec<NodeEffect>) {
        if self.config.rounds.interval_micros == 0 && self.shared.proofs.seal() == 0 {
            return;
        }
        let request = Request::Round { round: RoundId::default(), step: RoundStep::Ask };
        self.call(Caller::Proof(peer), peer, Class::Repair, request, out);
    }

    /// A node has reported what it knows of proofs.
    pub(super) fn received_proof(&mut self, node: NodeId, result: &Result<Reply, FailureKind>) {
        if node == self.shared.own {
            self.takes_over = false;
        } else if let Ok(Reply::Round(state)) = result {
            self.shared.received_proof(node, state.proof);
        }
    }

    /// Takes over a proof that another node reported, and hands over its own to those that lag.
    pub(super) fn proofs_due(&mut self, out: &mut Vec<NodeEffect>) {
        let proofs = &self.shared.proofs;
        let known = proofs.known();
        let step = RoundStep::Commit { floor: known.floor, is_uniform: known.is_uniform };
        for node in proofs.take_lagging() {
            let request = Request::Round { round: known.proven, step };
            self.call(Caller::Proof(node), node, Class::Repair, request, out);
        }
        let Some(reported) = self.shared.proofs.reported() else { return };
        match self.shared.proofs.missed(reported.proven) {
            Missed::Known => {}
            Missed::TakesOver if self.takes_over => {}
            Missed::TakesOver => {
                self.takes_over = true;
                let own = self.shared.own;
                let step =
                    RoundStep::Commit { floor: reported.floor, is_uniform: reported.is_uniform };
                let request = Request::Round { round: reported.proven, step };
                self.call(Caller::Proof(own), own, Class::Repair, request, out);
            }
            Missed::Outdated => out.push(NodeEffect::Outdated { proven: reported.proven.time }),
        }
    }
}
