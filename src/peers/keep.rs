//! Keeps one connection to each peer, whether anything is asked of it or not: that it stands is
//! what `/v0/status`, metrics and alerts call *up*.
//!
//! ```text
//!  no line of any loop ──▶ dial ──▶ stands: nothing to do
//!          ▲                └─▶ fails: again after 0.5 s, 1 s, 2 s, 4 s, 8 s, 8 s …
//!          └── it has dialed this node: at once
//! ```
//!
//! One loop does so for its process. Requests do not wait for it: they dial by themselves, at once.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use cluster::NodeId;

use super::{BEAT, Peers, line};

/// Longest time between two attempts to reach a peer. One that comes back dials this node by
/// itself; this is for one that can't, as behind a network that was cut in one direction.
const MOST_BETWEEN: Duration = Duration::from_secs(8);

/// Peers that are dialed in one beat, so that the first beat of a large cluster does not hold up
/// its requests: a handshake takes some 0.1 ms.
const DIALED_AT_ONCE: usize = 64;

/// What was tried for one peer.
#[derive(Debug, Default)]
struct Attempts {
    failed: u32,
    /// When the next one is due.
    next: Option<Instant>,
}

/// Keeps the connections of a process. Empty for the loops that do not.
#[derive(Debug, Default)]
pub(super) struct Keeper(RefCell<Vec<Attempts>>);

impl Keeper {
    /// This loop is the one that does it.
    pub(super) fn begin(&self, nodes: usize) {
        self.0.borrow_mut().resize_with(nodes, Attempts::default);
    }

    /// Dials who is not connected to any loop, if it is time to.
    pub(super) fn beat(&self, peers: &Peers) {
        let now = Instant::now();
        let mut dialed = 0;
        for (place, attempts) in self.0.borrow_mut().iter_mut().enumerate() {
            let peer = NodeId(place as u16);
            let seen = peers.inner.facts.seen(peer);
            if peer == peers.inner.facts.own() || seen.lines() > 0 {
                *attempts = Attempts::default();
                continue;
            }
            let due = attempts.next.is_none_or(|next| now >= next);
            if dialed == DIALED_AT_ONCE || !(due || seen.take_knock()) {
                continue;
            }
            dialed += 1;
            attempts.next = Some(now + pause(attempts.failed));
            attempts.failed = attempts.failed.saturating_add(1);
            line::raise(peers, peer);
        }
    }
}

/// How long after an attempt the next one is due if it fails, as so many before it did.
fn pause(failed: u32) -> Duration {
    BEAT.saturating_mul(1 << failed.min(16)).min(MOST_BETWEEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_peer_is_tried_ever_more_rarely_but_always_again() {
        let pauses: Vec<_> = (0..7).map(|failed| pause(failed).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(pause(u32::MAX), MOST_BETWEEN);
    }
}
