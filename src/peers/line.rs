//! What leads to one peer: its lanes, and what waits for them to be dialed.
//!
//! ```text
//!     first message, keeper          proved                  lost, refused, silent
//!   down ───────────────▶ dialing ───────────▶ up: Up ──────────────▶ down: Lost
//!                            └──────────────────────────────────────▶ down: Unreachable
//! ```

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cluster::handshake::LaneKind;
use cluster::wire::{WHOLE_MAX, message_len};
use cluster::{Body, Event, Message, NodeId, Request};
use tokio::task::AbortHandle;

use super::dial::{self, Connected, DialError};
use super::driver::Driver;
use super::lane::{Lane, shorten};
use super::{FromPeers, Peers};

/// Least time between a dial that failed and the next. What is sent in between waits for that one,
/// so that a peer that refuses connections does not cost one for each request.
const DIAL_SPACING: Duration = Duration::from_millis(2);

/// The same after a handshake that was refused. That is a matter of settings, and costs both nodes
/// more than a connection that is refused.
const REFUSED_SPACING: Duration = Duration::from_millis(50);

/// The lanes to one peer.
#[derive(Default)]
pub(super) struct Line {
    small: Slot,
    bulk: Slot,
    /// Counts how often it fell: whatever belongs to an earlier life is told by that.
    life: u64,
    /// When it may be dialed again, if that failed or it fell.
    not_before: Option<Instant>,
}

#[derive(Default)]
struct Slot {
    link: Link,
    /// What is to be sent once there is a lane, and since when.
    waiting: VecDeque<(Message, Instant)>,
    bytes: usize,
}

#[derive(Default)]
enum Link {
    #[default]
    Down,
    Dialing(AbortHandle),
    Up(Rc<Lane>),
}

impl Line {
    fn slot(&mut self, kind: LaneKind) -> &mut Slot {
        match kind {
            LaneKind::Small => &mut self.small,
            LaneKind::Bulk => &mut self.bulk,
        }
    }

    /// Begins to make a lane, unless it stands or is being made.
    fn dial(&mut self, peers: &Peers, peer: NodeId, kind: LaneKind) {
        if matches!(self.slot(kind).link, Link::Down) {
            let dialing = tokio::task::spawn_local(serve(peers.clone(), peer, kind, self.life));
            self.slot(kind).link = Link::Dialing(dialing.abort_handle());
        }
    }

    /// The lanes that stand.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &Rc<Lane>> {
        [&self.small, &self.bulk].into_iter().filter_map(|slot| match &slot.link {
            Link::Up(lane) => Some(lane),
            Link::Down | Link::Dialing(_) => None,
        })
    }
}

/// Which lane a request takes. Long requests, pages and hints are not to stand in the way of what
/// somebody waits for; nor are the replies to them.
fn lane_of(message: &Message) -> LaneKind {
    let bulk = match &message.body {
        Body::Request { request, .. } => {
            matches!(request, Request::Writes { .. } | Request::Page(_))
        }
        Body::Reply(_) => false,
    };
    if bulk || message_len(message) > WHOLE_MAX { LaneKind::Bulk } else { LaneKind::Small }
}

/// Sends, or keeps until there is a lane; `false` if too much waits, or the peer is leaving.
pub(super) fn send(peers: &Peers, peer: NodeId, message: Message) -> bool {
    let kind = lane_of(&message);
    let mut line = peers.inner.lines[usize::from(peer.0)].borrow_mut();
    if line.lanes().any(|lane| lane.is_leaving()) {
        return false;
    }
    let slot = line.slot(kind);
    if let Link::Up(lane) = &slot.link {
        return lane.push(message);
    }
    let length = message_len(&message);
    if slot.bytes > 0 && slot.bytes + length > peers.inner.facts.room.queue_bytes {
        return false;
    }
    slot.bytes += length;
    slot.waiting.push_back((message, Instant::now()));
    // The small one too: that it stands is what others are told.
    for kind in [LaneKind::Small, kind] {
        line.dial(peers, peer, kind);
    }
    true
}

/// Makes a connection if there is none, with nothing to send.
pub(super) fn raise(peers: &Peers, peer: NodeId) {
    let mut line = peers.inner.lines[usize::from(peer.0)].borrow_mut();
    line.dial(peers, peer, LaneKind::Small);
}

/// Makes a connection and serves it to its end.
async fn serve(peers: Peers, peer: NodeId, kind: LaneKind, life: u64) {
    let line = &peers.inner.lines[usize::from(peer.0)];
    let not_before = line.borrow().not_before;
    if let Some(not_before) = not_before {
        tokio::time::sleep_until(not_before.into()).await;
    }
    let facts = &peers.inner.facts;
    let connected =
        match dial::dial(facts, peer, kind, &peers.inner.lookups[usize::from(peer.0)]).await {
            Ok(connected) => connected,
            Err(error) => {
                error.complain(facts, &peers.inner.counters, peer);
                if let DialError::Refused(refused) = &error {
                    peers.note_refusal(refused);
                }
                let refused = matches!(error, DialError::Refused(_));
                let spacing = if refused { REFUSED_SPACING } else { DIAL_SPACING };
                return fall(&peers, peer, life, spacing, &error.to_string());
            }
        };
    let Some(driver) = rise(&peers, peer, life, connected) else { return };
    let lane = driver.lane();
    let end = driver.run(&peers).await;
    peers.note_end(&lane, &end);
    fall(&peers, peer, life, DIAL_SPACING, &end.to_string());
}

/// A lane stands: what waited for it goes out.
fn rise(peers: &Peers, peer: NodeId, life: u64, connected: Connected) -> Option<Driver> {
    let (facts, counters) = (&peers.inner.facts, &peers.inner.counters);
    let Connected { stream, met, rest } = connected;
    let lane = Lane::dialed(facts, counters, met);
    {
        let mut line = peers.inner.lines[usize::from(peer.0)].borrow_mut();
        if line.life != life {
            return None;
        }
        line.not_before = None;
        // Clocks are compared before anything is answered: see `Facts::is_ahead_of_most`.
        lane.beat(peers.inner.began.elapsed().as_micros() as u64, true, 1);
        let slot = line.slot(met.lane);
        slot.bytes = 0;
        for (mut message, since) in slot.waiting.drain(..) {
            let id = message.id;
            if shorten(&mut message, since) && !lane.push(message) {
                peers.tell_later(FromPeers::Event(Event::Overflow { peer, id }));
            }
        }
        slot.link = Link::Up(Rc::clone(&lane));
    }
    counters.peers.connected.add(1);
    let first = met.lane == LaneKind::Small && facts.seen(peer).line_up();
    if first {
        tracing::info!(peer = facts.name(peer), "connected to a peer");
    }
    peers.tell_met(met);
    if met.lane == LaneKind::Small {
        peers.tell(FromPeers::Event(Event::Up(peer)));
    }
    Some(Driver::new(stream, lane, rest))
}

/// The line, or an attempt to make it, is at its end: for all of it, and once.
fn fall(peers: &Peers, peer: NodeId, life: u64, spacing: Duration, why: &str) {
    let fallen = {
        let mut line = peers.inner.lines[usize::from(peer.0)].borrow_mut();
        if line.life != life {
            return;
        }
        let Line { small, bulk, .. } = std::mem::take(&mut *line);
        (line.life, line.not_before) = (life + 1, Some(Instant::now() + spacing));
        [small, bulk]
    };
    let stood = matches!(fallen[0].link, Link::Up(_));
    // What went out over a bulk lane may have been done, be there a small one or not.
    let sent = fallen.iter().any(|slot| matches!(slot.link, Link::Up(_)));
    let left = matches!(&fallen[0].link, Link::Up(lane) if lane.is_leaving());
    for slot in fallen {
        match slot.link {
            Link::Up(lane) => lane.close("another connection to the same peer was lost"),
            Link::Dialing(dialing) => dialing.abort(),
            Link::Down => {}
        }
    }
    let facts = &peers.inner.facts;
    if stood && facts.seen(peer).line_down() && !peers.inner.leaving.get() {
        let name = facts.name(peer);
        if left {
            tracing::info!(peer = name, "peer stopped");
        } else {
            tracing::warn!(peer = name, why, "lost connection to peer");
        }
    }
    let event = if sent { Event::Lost(peer) } else { Event::Unreachable(peer) };
    peers.tell(FromPeers::Event(event));
}
