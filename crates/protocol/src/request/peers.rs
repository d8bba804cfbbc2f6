//! An event loop's measurements of the other nodes: the state of the link to each node, and the
//! node's latency. The measurements order the replicas, and exclude none.

use crate::message::NodeId;

/// The number of answers after which the hedge delay is computed again, and the counts of all
/// answers so far are halved.
const WINDOW: u32 = 256;

/// The number of latency buckets, a quarter of an octave each, from 1 µs to about 16 s.
const BUCKETS: usize = 96;

/// The reciprocal of the share of answers that exceed the hedge delay: one request in a hundred is
/// hedged.
const LATE_SHARE: u32 = 100;

/// The hedge delay of a peer without known latencies, in microseconds.
const FIRST_HEDGE: u64 = 20_000;

/// The least hedge delay, in microseconds: with a shorter delay, second requests cost more than
/// they save.
const LEAST_HEDGE: u64 = 1_000;

/// The greatest hedge delay, in microseconds: the default deadline is a second.
const MOST_HEDGE: u64 = 200_000;

/// The outcome of the last attempt to reach a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reachability {
    NotTried,
    Up,
    Failed,
}

#[derive(Debug)]
struct Peer {
    reached: Reachability,
    /// The moving average of the peer's answer times, in microseconds.
    mean: u64,
    hedge_delay: u64,
    seen: u32,
    buckets: [u32; BUCKETS],
}

/// The reachability and latencies of other nodes, by their ids.
#[derive(Debug, Default)]
pub(crate) struct PeerLatencies {
    peers: Vec<Peer>,
}

fn bucket_of(micros: u64) -> usize {
    let micros = micros.max(4);
    let octave = micros.ilog2();
    let quarter = micros >> (octave - 2) & 3;
    (((octave - 2) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

/// Returns the least time, in microseconds, that is above all times of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4, bucket as u64 % 4);
    (5 + quarter) << octave
}

impl Peer {
    fn new() -> Self {
        let hedge_delay = FIRST_HEDGE;
        let reached = Reachability::NotTried;
        Self { reached, mean: 0, hedge_delay, seen: 0, buckets: [0; BUCKETS] }
    }

    fn record_latency(&mut self, micros: u64) {
        self.mean = if self.mean == 0 { micros } else { self.mean - self.mean / 8 + micros / 8 };
        self.buckets[bucket_of(micros)] += 1;
        self.seen += 1;
        if self.seen < WINDOW {
            return;
        }
        self.seen = 0;
        let all: u32 = self.buckets.iter().sum();
        let mut later = all / LATE_SHARE;
        for (bucket, count) in self.buckets.iter_mut().enumerate().rev() {
            if *count > later {
                self.hedge_delay = bucket_end(bucket).clamp(LEAST_HEDGE, MOST_HEDGE);
                break;
            }
            later -= *count;
        }
        for count in &mut self.buckets {
            *count /= 2;
        }
    }
}

impl PeerLatencies {
    fn of(&mut self, node: NodeId) -> &mut Peer {
        let place = usize::from(node.0);
        if place >= self.peers.len() {
            self.peers.resize_with(place + 1, Peer::new);
        }
        &mut self.peers[place]
    }

    fn peer(&self, node: NodeId) -> Option<&Peer> {
        self.peers.get(usize::from(node.0))
    }

    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.peer(node).is_some_and(|peer| peer.reached == Reachability::Up)
    }

    pub(crate) fn mark_up(&mut self, node: NodeId) {
        self.of(node).reached = Reachability::Up;
    }

    pub(crate) fn mark_down(&mut self, node: NodeId) {
        self.of(node).reached = Reachability::Failed;
    }

    /// Records the latency of an answer to a read. (Writes and refusals do not count: a write waits
    /// for a sync, and a refusal comes early.)
    pub(crate) fn record_latency(&mut self, node: NodeId, micros: u64) {
        self.of(node).record_latency(micros);
    }

    /// Returns the time after which a node's answer is late, in microseconds.
    pub(crate) fn hedge_delay(&self, node: NodeId) -> u64 {
        self.peer(node).map_or(FIRST_HEDGE, |peer| peer.hedge_delay)
    }

    /// Returns a node's rank; the node with the least rank is asked first.
    pub(crate) fn rank(&self, node: NodeId) -> (bool, u64) {
        self.peer(node).map_or((false, 0), |peer| (peer.reached == Reachability::Failed, peer.mean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_a_bucket_that_ends_after_it() {
        for micros in (0..4096).chain([10_000, 123_456, 999_999, 15_000_000]) {
            let bucket = bucket_of(micros);
            assert!(bucket_end(bucket) > micros, "{micros} in {bucket}");
            assert!(bucket_end(bucket) <= micros.max(4) + micros.max(4) / 4 + 1, "{micros}");
        }
    }

    #[test]
    fn the_hedge_delay_is_what_one_answer_in_a_hundred_exceeds() {
        let mut peers = PeerLatencies::default();
        let node = NodeId(0);
        assert_eq!(peers.hedge_delay(node), FIRST_HEDGE);
        for n in 0..WINDOW {
            peers.record_latency(node, if n % 64 == 0 { 50_000 } else { 2_000 });
        }
        let late = peers.hedge_delay(node);
        assert!((50_000..65_000).contains(&late), "1.5 % take long, more than one in 100: {late}");
        for _ in 0..WINDOW * 8 {
            peers.record_latency(node, 2_000);
        }
        assert!((2_000..3_000).contains(&peers.hedge_delay(node)));
    }

    #[test]
    fn a_failed_node_is_asked_last_until_it_is_back() {
        let mut peers = PeerLatencies::default();
        peers.record_latency(NodeId(0), 10);
        peers.record_latency(NodeId(1), 1_000);
        assert!(peers.rank(NodeId(0)) < peers.rank(NodeId(1)));
        peers.mark_down(NodeId(0));
        assert!(peers.rank(NodeId(0)) > peers.rank(NodeId(1)));
        peers.mark_up(NodeId(0));
        assert!(peers.rank(NodeId(0)) < peers.rank(NodeId(1)));
    }
}
