//! Dials the connections that a [`Link`](server::link::Link) requests, and serves each connection
//! to its end.

use std::rc::Rc;

use protocol::handshake::ConnectionKind;
use protocol::{Event, Message, NodeId};
use server::link::{Attempt, DialStage, Direction, DownLink};
use tokio::task::AbortHandle;

use super::connection::PeerConnection;
use super::dial::{self, Connected, DialError};
use super::driver::Driver;
use super::{PeerConnections, PeerInput};
use crate::counters::clocks;

/// Close reason for connections with a node of another cluster.
const FOREIGN: &str = "it belongs to another cluster";

/// Close reason for connections with a node that has left the cluster.
const LEFT: &str = "it is not a member of the cluster any more";

/// The link to one peer.
pub(super) type DialedLink = server::link::Link<AbortHandle, Rc<PeerConnection>>;

/// Sends a message, or queues it until a connection is up. Returns false if the queue is full, or
/// if the peer is leaving or has left the cluster.
pub(super) fn send(peers: &PeerConnections, peer: NodeId, message: Message) -> bool {
    let facts = &peers.inner.facts;
    let Some(entry) = peers.entry(peer) else { return false };
    entry.link.borrow_mut().send(
        message,
        facts.table.bounds.queue_bytes,
        clocks::mono_micros,
        |connection, message| connection.push(message),
        |attempt| begin(peers, peer, attempt),
    )
}

/// Dials the peer if there is no connection, although no message waits.
pub(super) fn dial_if_down(peers: &PeerConnections, peer: NodeId) {
    let dial = |attempt| begin(peers, peer, attempt);
    if let Some(entry) = peers.entry(peer) {
        entry.link.borrow_mut().dial(ConnectionKind::Small, dial);
    }
}

/// Closes the links and accepted connections of nodes that have left the cluster.
pub(super) fn close_links_of_leavers(peers: &PeerConnections) {
    let facts = &peers.inner.facts;
    let is_left = |peer: &&NodeId| !facts.table.has(**peer);
    let left: Vec<NodeId> = peers.inner.entries.borrow().keys().filter(is_left).copied().collect();
    for peer in left {
        let generation = peers.entry(peer).map_or(0, |entry| entry.link.borrow().generation());
        handle_link_end(peers, peer, generation, false, LEFT);
        peers.inner.entries.borrow_mut().remove(&peer);
    }
    for connection in peers.inner.accepted.borrow().values() {
        if !facts.table.has(connection.peer) {
            connection.close(LEFT);
        }
    }
}

/// Closes the links to nodes that have turned out to belong to another cluster. The next handshake
/// with such a node is refused for that reason.
pub(super) fn close_links_to_other_clusters(peers: &PeerConnections) {
    let table = &peers.inner.facts.table;
    let is_foreign = |peer: &&NodeId| table.is_foreign(**peer);
    let entries = peers.inner.entries.borrow();
    let foreign: Vec<NodeId> = entries.keys().filter(is_foreign).copied().collect();
    drop(entries);
    for peer in foreign {
        let generation = peers.entry(peer).map_or(0, |entry| entry.link.borrow().generation());
        handle_link_end(peers, peer, generation, true, FOREIGN);
    }
}

fn begin(peers: &PeerConnections, peer: NodeId, attempt: Attempt) -> AbortHandle {
    tokio::task::spawn_local(serve(peers.clone(), peer, attempt)).abort_handle()
}

/// Dials a connection and serves it to its end.
async fn serve(peers: PeerConnections, peer: NodeId, attempt: Attempt) {
    let Attempt { kind, generation, not_before } = attempt;
    let facts = &peers.inner.facts;
    if let Some(not_before) = not_before {
        tokio::time::sleep_until(clocks::instant(not_before).into()).await;
    }
    let Some(entry) = peers.entry(peer) else { return };
    let url = facts.next_url(peer);
    let dialed = dial::dial(facts, peer, &url, kind, &entry.lookups).await;
    facts.record_dial(peer, &url, dialed.as_ref().err());
    let connected = match dialed {
        Ok(connected) => connected,
        Err(error) => {
            error.log_error(facts, &peers.inner.counters, peer, &url);
            if let DialError::Refused(refused) = &error {
                peers.note_refusal(Some(peer), refused);
            }
            let refused = matches!(error, DialError::Refused(_));
            return handle_link_end(&peers, peer, generation, refused, &error.to_string());
        }
    };
    let Some(driver) = handle_connected(&peers, peer, generation, connected) else { return };
    let connection = driver.connection();
    let end = driver.run(&peers).await;
    peers.note_end(&connection, &end);
    handle_link_end(&peers, peer, generation, false, &end.to_string());
}

/// Processes an established connection: sends the messages that waited for it, and reports the peer
/// as up. Returns `None` if the connection is not needed any more.
fn handle_connected(
    peers: &PeerConnections,
    peer: NodeId,
    generation: u64,
    connected: Connected,
) -> Option<Driver> {
    let (facts, counters) = (&peers.inner.facts, &peers.inner.counters);
    let Connected { stream, seen, rest } = connected;
    let connection = PeerConnection::new(facts, counters, &seen, Direction::Dialed);
    let own = Rc::clone(&connection);
    let entry = peers.entry(peer)?;
    let waited =
        entry.link.borrow_mut().up(seen.connection, generation, own, clocks::mono_micros())?;
    for message in waited {
        let id = message.id;
        if !connection.push(message) {
            peers.queue_for_sink(PeerInput::Event(Event::MessageDropped { peer, id }));
        }
    }
    counters.peers.connected.add(1);
    let first = seen.connection == ConnectionKind::Small && facts.table.link_up(peer);
    if first {
        tracing::info!(peer = facts.name(peer), "connected to a peer");
    }
    peers.dispatch_seen(seen);
    if seen.connection == ConnectionKind::Small {
        peers.dispatch(PeerInput::Event(Event::LinkUp(peer)));
    }
    Some(Driver::new(stream, connection, rest))
}

/// Processes the end of a link, or of a dial attempt: closes all connections of the link, and
/// reports the loss. Does nothing if the link has already down since its count was `generation`.
fn handle_link_end(
    peers: &PeerConnections,
    peer: NodeId,
    generation: u64,
    refused: bool,
    why: &str,
) {
    let facts = &peers.inner.facts;
    let Some(entry) = peers.entry(peer) else { return };
    let down = entry.link.borrow_mut().take_down(peer, generation, refused, clocks::mono_micros());
    let Some(down) = down else { return };
    let was_up = down.was_up();
    let DownLink { stages, left, event } = down;
    for stage in stages {
        match stage {
            DialStage::Up(connection) => {
                connection.close("another connection to the same peer was lost")
            }
            DialStage::Dialing(dialing) => dialing.abort(),
            DialStage::Down => {}
        }
    }
    if was_up && facts.table.link_down(peer) && !peers.inner.leaving.get() {
        let name = facts.name(peer);
        if left {
            tracing::info!(peer = name, "peer stopped");
        } else {
            tracing::warn!(peer = name, why, "lost connection to peer");
        }
    }
    peers.dispatch(PeerInput::Event(event));
}
