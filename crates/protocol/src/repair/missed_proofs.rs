//! Exchange of proofs outside of rounds: a node adopts the proofs that it missed, and sends its own
//! proof to nodes that missed it.

use crate::background::effect::BackgroundEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::message::{Class, NodeId, Reply, Request};
use crate::repair::watermark::{MissedRound, RoundId, RoundStep};

/// The exchange of proofs with other nodes, outside of rounds.
#[derive(Debug, Default)]
pub(crate) struct MissedProofs {
    /// The task that adopts a proof reported by another node.
    take_over: Option<TaskId>,
}

/// Asks a node for a step of a round, and notes the proof in the node's reply.
async fn exchange(cx: Context, node: NodeId, round: RoundId, step: RoundStep) {
    let result = cx.call(node, Class::Repair, Request::Round { round, step }).await;
    if let Ok(Reply::Round(state)) = result
        && node != cx.shared().own
    {
        cx.shared().note_proof(node, state.proof);
    }
}

impl MissedProofs {
    /// Asks a newly connected peer for its proof, if there may be one.
    pub(crate) fn on_connect(&self, tasks: &mut Tasks, peer: NodeId) {
        let cx = tasks.context().clone();
        if cx.config().rounds.interval_micros != 0 || cx.shared().repair.proofs.seal() != 0 {
            tasks.spawn("proof", exchange(cx, peer, RoundId::default(), RoundStep::Ask));
        }
    }

    /// Adopts a proof that another node reported, and sends this node's own to lagging nodes.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        let cx = tasks.context().clone();
        let (proofs, own) = (&cx.shared().repair.proofs, cx.shared().own);
        let known = proofs.known_proof();
        let step = RoundStep::Commit { floor: known.floor, is_uniform: known.is_uniform };
        for node in proofs.take_lagging() {
            tasks.spawn("proof", exchange(cx.clone(), node, known.proven, step));
        }
        let Some(reported) = proofs.newer_reported() else { return };
        let takes_over = self.take_over.is_some_and(|task| tasks.is_under_way(task));
        match proofs.classify_proof(reported.proven) {
            MissedRound::Known => {}
            MissedRound::TakesOver if takes_over => {}
            MissedRound::TakesOver => {
                let step =
                    RoundStep::Commit { floor: reported.floor, is_uniform: reported.is_uniform };
                let take_over = exchange(cx.clone(), own, reported.proven, step);
                self.take_over = Some(tasks.spawn("proof", take_over));
            }
            MissedRound::Outdated => {
                cx.effect(BackgroundEffect::Outdated { proven: reported.proven.time })
            }
        }
    }
}
