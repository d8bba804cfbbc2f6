//! Keep-alive of connections: keeps a connection to each peer, with or without requests, because
//! `/v0/status`, metrics and alerts call the peer *up* while a connection is open. Also schedules
//! pings.
//!
//! ```text
//!  no event loop has a link to the peer ─▶ dial ─┬─ the dial succeeds ─▶ nothing to do
//!                                                └─ the dial fails ─▶ dial again after 0.5 s, 1 s,
//!                                                                     2 s, 4 s, 8 s, 8 s …
//!  the peer dials this node ─▶ dial at once
//! ```
//!
//! One event loop keeps the connections of its process. A request does not wait for that loop: the
//! request's own loop dials at once.

use std::collections::BTreeMap;

use protocol::NodeId;

use super::{PING_MICROS, PeerTable};

/// Longest time between two attempts to dial a peer, in microseconds. A restarted peer dials this
/// node itself. The attempts are for a peer that cannot, for example because the network between
/// the two nodes fails in one direction.
const MAX_BACKOFF: u64 = 8_000_000;

/// Limit on the peers dialed in one round, so that the first round of a large cluster does not
/// delay its requests: a handshake takes some 0.1 ms.
const MAX_DIALS_PER_ROUND: usize = 64;

/// Number of peers for each round of pings that an idle connection skips. In a large cluster most
/// connections are idle, and two pings a second on each would be most of a node's work. Up to this
/// number of peers, an idle connection pings in every round; a connection with an unanswered
/// message always does.
const PEERS_PER_SKIP: usize = 64;

/// Attempts to dial one peer.
#[derive(Debug, Default)]
struct Attempts {
    failed: u32,
    /// Time of the next attempt, by the monotonic clock.
    next: Option<u64>,
}

/// Keeps the connections of a process, in the loop that called [`Redialer::begin`]; does nothing in
/// the other loops.
#[derive(Debug, Default)]
pub struct Redialer {
    keeps: bool,
    attempts: BTreeMap<NodeId, Attempts>,
}

impl Redialer {
    /// Makes this loop keep the process's connections. Call it in exactly one loop.
    pub fn begin(&mut self) {
        self.keeps = true;
    }

    /// Returns the peers to dial now: peers to which no loop has a link, and whose next attempt is
    /// due or that have dialed this node.
    pub fn due(&mut self, table: &PeerTable, mono: u64) -> Vec<NodeId> {
        let mut due = Vec::new();
        if !self.keeps {
            return due;
        }
        let others = table.others();
        self.attempts.retain(|node, _| table.has(*node));
        for peer in others {
            let attempts = self.attempts.entry(peer).or_default();
            let seen = table.observations(peer);
            if seen.links() > 0 {
                *attempts = Attempts::default();
                continue;
            }
            let is_due = attempts.next.is_none_or(|next| mono >= next);
            if due.len() == MAX_DIALS_PER_ROUND || !(is_due || seen.take_dialed()) {
                continue;
            }
            attempts.next = Some(mono + backoff(attempts.failed));
            attempts.failed = attempts.failed.saturating_add(1);
            due.push(peer);
        }
        due
    }
}

/// Returns the microseconds from an attempt to the next one, if `failed` attempts failed before.
fn backoff(failed: u32) -> u64 {
    PING_MICROS.saturating_mul(1 << failed.min(16)).min(MAX_BACKOFF)
}

/// The ping rounds of a loop.
#[derive(Debug, Default)]
pub struct Pings {
    rounds: u64,
}

/// A ping round.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    number: u64,
    /// An idle connection pings in one of `skips` rounds.
    pub skips: u32,
}

impl Pings {
    /// Returns the next round, in a cluster of `nodes` nodes.
    pub fn next_round(&mut self, nodes: usize) -> Round {
        let round = Round { number: self.rounds, skips: nodes.div_ceil(PEERS_PER_SKIP) as u32 };
        self.rounds += 1;
        round
    }
}

impl Round {
    /// True if a peer's idle connections ping in this round; they take turns.
    pub fn is_turn_of(self, peer: NodeId) -> bool {
        (self.number + u64::from(peer.0)).is_multiple_of(u64::from(self.skips))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_peer_is_dialed_with_growing_but_bounded_backoff() {
        let pauses: Vec<_> = (0..7).map(|failed| backoff(failed) / 1000).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(backoff(u32::MAX), MAX_BACKOFF);
    }

    #[test]
    fn in_a_large_cluster_idle_connections_ping_in_turns() {
        let mut pings = Pings::default();
        let turns = |round: Round| (0..256).filter(|n| round.is_turn_of(NodeId(*n))).count();
        let rounds: Vec<_> = (0..4).map(|_| turns(pings.next_round(256))).collect();
        assert_eq!(rounds, [64; 4]);
        assert_eq!(turns(pings.next_round(3)), 256);
    }
}
