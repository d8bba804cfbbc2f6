//! Keeps one connection to each peer, whether anything is asked of it or not: while it is open,
//! `/v0/status`, metrics and alerts call the peer *up*. And which connections ping when.
//!
//! ```text
//!  no link of any loop ──▶ dial ──▶ open: nothing to do
//!          ▲                └─▶ fails: again after 0.5 s, 1 s, 2 s, 4 s, 8 s, 8 s …
//!          └── it has dialed this node: at once
//! ```
//!
//! One loop does so for its process. Requests do not wait for it: they dial by themselves, at once.

use std::collections::BTreeMap;

use cluster::NodeId;

use super::{PING_MICROS, PeerTable};

/// Longest time between two attempts to reach a peer, in microseconds. One that comes back dials
/// this node by itself; this is for one that can't, as behind a network that was cut in one
/// direction.
const MOST_BETWEEN: u64 = 8_000_000;

/// Peers that are dialed in one round, so that the first round of a large cluster does not hold up
/// its requests: a handshake takes some 0.1 ms.
const DIALED_AT_ONCE: usize = 64;

/// Peers for each round of pings that an idle connection leaves out: in a large cluster most
/// connections are idle, and each of them pinging twice a second would be most of what a node does.
/// Up to so many peers an idle one pings each time; one on which something was sent always does,
/// until that is answered.
const PEERS_PER_SKIP: usize = 64;

/// What was tried for one peer.
#[derive(Debug, Default)]
struct Attempts {
    failed: u32,
    /// When the next one is due.
    next: Option<u64>,
}

/// Keeps the connections of a process; or not, in the loops that don't.
#[derive(Debug, Default)]
pub struct Keeper {
    keeps: bool,
    attempts: BTreeMap<NodeId, Attempts>,
}

impl Keeper {
    /// This loop is the one that does it.
    pub fn begin(&mut self) {
        self.keeps = true;
    }

    /// Who is to be dialed: those that no loop is connected to, if it is time to.
    pub fn due(&mut self, table: &PeerTable, mono: u64) -> Vec<NodeId> {
        let mut due = Vec::new();
        if !self.keeps {
            return due;
        }
        let others = table.others();
        self.attempts.retain(|node, _| table.has(*node));
        for peer in others {
            let attempts = self.attempts.entry(peer).or_default();
            let seen = table.seen(peer);
            if seen.links() > 0 {
                *attempts = Attempts::default();
                continue;
            }
            let late = attempts.next.is_none_or(|next| mono >= next);
            if due.len() == DIALED_AT_ONCE || !(late || seen.take_knock()) {
                continue;
            }
            attempts.next = Some(mono + pause(attempts.failed));
            attempts.failed = attempts.failed.saturating_add(1);
            due.push(peer);
        }
        due
    }
}

/// Microseconds after an attempt until the next one if it fails, as so many before it did.
fn pause(failed: u32) -> u64 {
    PING_MICROS.saturating_mul(1 << failed.min(16)).min(MOST_BETWEEN)
}

/// The rounds of pings of a loop.
#[derive(Debug, Default)]
pub struct Pings {
    rounds: u64,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    number: u64,
    /// Rounds in which an idle connection pings once.
    pub skips: u32,
}

impl Pings {
    /// The next round, of a node of so many.
    pub fn next_round(&mut self, nodes: usize) -> Round {
        let round = Round { number: self.rounds, skips: nodes.div_ceil(PEERS_PER_SKIP) as u32 };
        self.rounds += 1;
        round
    }
}

impl Round {
    /// Whether it is the turn of a peer's idle connections: not that of all at once.
    pub fn is_turn_of(self, peer: NodeId) -> bool {
        (self.number + u64::from(peer.0)).is_multiple_of(u64::from(self.skips))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_peer_is_tried_ever_more_rarely_but_always_again() {
        let pauses: Vec<_> = (0..7).map(|failed| pause(failed) / 1000).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(pause(u32::MAX), MOST_BETWEEN);
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
