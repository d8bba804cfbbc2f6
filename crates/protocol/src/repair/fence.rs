//! Steps of a round before and after its comparisons. The first step raises the *repair fence*
//! (identifier: `seal`) of all nodes, so that the nodes accept no new records up to the round's
//! time. The last steps make the exchanged records durable on all nodes, and advance the watermark
//! to the round's time.
//!
//! ```text
//!  1 Seal to all ─▶ all fences are raised
//!       └─ a node has a later round's fence ─▶ pause, then Seal again with a later time
//!  2 Commit of an earlier round to nodes that missed it ─▶ all nodes have the same watermark
//!  3 compare, exchange, heal (round.rs) ─▶ all nodes are equal
//!  4 Ready to all ─▶ all are ready, and none has restarted since its fence was raised
//!  5 Commit to all
//! ```

use std::collections::BTreeMap;

use super::round::{BUSY_RETRIES, OTHER_NODE_DRIVES, RETRY_MICROS, Round, RoundEnd, is_given_up};
use crate::background::task;
use crate::clock::last_following_ballot;
use crate::message::{Class, NodeId, Reply, Request};
use crate::repair::status::BACK_OFF_MICROS;
use crate::repair::watermark::{RoundId, RoundState, RoundStep};

/// States reported by nodes that one round has fenced.
type States = BTreeMap<NodeId, RoundState>;

/// The reason why a node has not done a step after repeated requests.
enum StepFailure {
    /// The round's time is ahead of the node's clock.
    Ahead,
    /// The node did not answer, or refused.
    Other,
}

/// The result of asking all nodes to raise their fences.
enum SealResult {
    Raised(States),
    /// A node is fenced by a later round.
    Later(RoundState),
}

impl Round {
    /// Raises the fences of all nodes and brings the nodes to one watermark. From then on the nodes
    /// accept no new records from before the fence.
    pub(super) async fn fence(&mut self) -> Result<(), RoundEnd> {
        let mut states = self.seal_all().await?;
        let greatest = loop {
            let proofs = states.values().map(|state| state.proof);
            let Some(greatest) = proofs.max_by_key(|proof| proof.proven) else {
                return Err(RoundEnd::Stopped("no other node takes part"));
            };
            let lags = |state: &RoundState| state.proof.proven < greatest.proven;
            let lagging: Vec<NodeId> =
                states.iter().filter(|(_, state)| lags(state)).map(|(node, _)| *node).collect();
            if lagging.is_empty() {
                break greatest;
            }
            let (missed, floor, is_uniform) =
                (greatest.proven, greatest.floor, greatest.is_uniform);
            let commit = RoundStep::Commit { floor, is_uniform };
            let asked =
                lagging.into_iter().map(async |node| (node, self.step(node, missed, commit).await));
            for (node, result) in task::join_all(asked).await {
                match result {
                    Ok(state) if state.proof.proven >= missed => states.insert(node, state),
                    // The node may have an older copy of its directory, and then detects that by
                    // itself.
                    _ => {
                        self.continue_without(node)?;
                        states.remove(&node)
                    }
                };
            }
        };
        self.lives = states.iter().map(|(node, state)| (*node, state.life)).collect();
        self.watermark = greatest.proven.time;
        // Nodes that an earlier round made equal are still equal, because they have been fenced
        // since.
        let (mut since, mut is_uniform) = (self.watermark, greatest.is_uniform);
        let past = self.past.borrow();
        if past.equal.up_to > since && past.equal.lives == self.lives {
            (since, is_uniform) = (past.equal.up_to, past.equal.is_uniform);
        }
        drop(past);
        self.report.full |= since == 0;
        self.report.since = if self.report.full { 0 } else { since };
        self.is_uniform = is_uniform;
        self.context.shared().repair.rounds.publish(&self.report);
        Ok(())
    }

    /// Raises the fences of all nodes, with a later time if a node is fenced by a later round that
    /// no node drives any more.
    async fn seal_all(&mut self) -> Result<States, RoundEnd> {
        let mut tries = 0;
        loop {
            let later = match self.seal().await? {
                SealResult::Raised(states) => return Ok(states),
                SealResult::Later(state) => state,
            };
            tries += 1;
            if !self.report.is_requested && later.is_active || tries >= BUSY_RETRIES {
                return Err(RoundEnd::Stopped(OTHER_NODE_DRIVES));
            }
            let (own, seal) = (self.context.shared().own, later.proof.seal);
            let time = seal.time + 1;
            let is_driven = later.is_active && seal.node != own;
            if !is_driven && !self.context.is_ahead(time) && time > self.id.time {
                self.id.time = time;
                self.report.until = time;
            }
            // If two drivers have fenced some nodes each, the driver with the greater node id backs
            // off.
            let yields = is_driven && seal.node < own;
            self.context.pause(if yields { BACK_OFF_MICROS } else { RETRY_MICROS }).await;
        }
    }

    /// Asks all nodes to raise their fences. This node comes last, because the clocks of the other
    /// nodes show whether this node's clock is right.
    async fn seal(&mut self) -> Result<SealResult, RoundEnd> {
        let mut states = States::new();
        for nodes in self.others_first() {
            let round = self.id;
            let asked = nodes.into_iter().map(async |node| {
                match self.step(node, round, RoundStep::Seal).await {
                    Ok(state) if state.proof.seal != round => Err(state),
                    result => Ok((node, result.ok())),
                }
            });
            let reported = match task::try_join_all(asked).await {
                Ok(reported) => reported,
                // The other nodes' answers are outdated: all are asked again.
                Err(later) => return Ok(SealResult::Later(later)),
            };
            for (node, state) in reported {
                match state {
                    Some(state) => drop(states.insert(node, state)),
                    None => self.continue_without(node)?,
                }
            }
        }
        Ok(SealResult::Raised(states))
    }

    /// Makes the exchanged records durable on all nodes, then advances their watermarks to the
    /// round's time.
    pub(super) async fn prove(&mut self) -> Result<(), RoundEnd> {
        let floor = self.ready().await?;
        // From here on any queried node may commit, even if this node fails.
        self.report.proven = true;
        self.context.shared().repair.rounds.publish(&self.report);
        let commit = RoundStep::Commit { floor, is_uniform: self.is_uniform };
        for nodes in self.others_first() {
            let asked = nodes.into_iter().map(async |node| {
                match self.step(node, self.id, commit).await {
                    Err(StepFailure::Ahead) => Err(()),
                    // A node that did not answer learns of the commit when it is back.
                    _ => Ok(()),
                }
            });
            if task::try_join_all(asked).await.is_err() {
                // This node's clock has jumped forward since the last step. No node can adopt the
                // proof before the other clocks catch up.
                self.report.proven = false;
                return Err(RoundEnd::Unproven("this node's clock is ahead of the others"));
            }
        }
        Ok(())
    }

    /// Makes the exchanged records durable on all nodes. Returns the floor: the greatest ballot
    /// under which a leader may continue a conditional write by a promise that some node has given.
    async fn ready(&self) -> Result<u64, RoundEnd> {
        for _ in 0..BUSY_RETRIES {
            let asked = self.nodes.iter().map(async |node| {
                match self.step(*node, self.id, RoundStep::Ready).await {
                    Ok(state) if self.is_ready(*node, &state) => Ok(state.promised),
                    Ok(_) => Err("a node was restarted, or nodes are about to join"),
                    Err(_) => Err("a node did not answer in the end"),
                }
            });
            let promised = task::try_join_all(asked).await.map_err(RoundEnd::Unproven)?;
            // A key's leader may have cached a ballot that follows a promised ballot and that no
            // replica knows.
            let floor = last_following_ballot(promised.into_iter().max().unwrap_or_default());
            if !self.context.is_ahead(floor) {
                return Ok(floor);
            }
            // The floor is ahead after a process start, or if a clock is wrong. A floor that is
            // ahead would stop conditional writes until the clocks reach it.
            self.context.pause(RETRY_MICROS).await;
        }
        Err(RoundEnd::Unproven(
            "a node has promised timestamps ahead of this node's clock: the clock of one of the \
             two is wrong, or was",
        ))
    }

    /// True if a node is ready, in the same process whose fence the round raised.
    fn is_ready(&self, node: NodeId, state: &RoundState) -> bool {
        state.proof.ready == self.id && self.lives.get(&node) == Some(&state.life)
    }

    /// Asks a node to do a step, with retries.
    async fn step(
        &self,
        node: NodeId,
        round: RoundId,
        step: RoundStep,
    ) -> Result<RoundState, StepFailure> {
        let mut failures = 0;
        loop {
            let request = Request::Round { round, step };
            let result = self.context.call(node, Class::Repair, request).await;
            if let Ok(Reply::Round(state)) = result {
                return Ok(state);
            }
            failures += 1;
            if is_given_up(&result, failures) {
                let is_ahead = matches!(result, Ok(Reply::Ahead));
                return Err(if is_ahead { StepFailure::Ahead } else { StepFailure::Other });
            }
            self.context.pause(RETRY_MICROS).await;
        }
    }

    /// Returns all other nodes, and then this node.
    fn others_first(&self) -> [Vec<NodeId>; 2] {
        let own = self.context.shared().own;
        [self.nodes.iter().copied().filter(|node| *node != own).collect(), vec![own]]
    }
}
