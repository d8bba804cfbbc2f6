//! Handshakes of incoming peer connections. An unauthenticated connection costs a task and a buffer
//! of a few KiB, for at most [`HANDSHAKE_TIMEOUT`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::handshake::{Handshake, HandshakeRefused, Nonce, PeerSeen, Reason};
use rustix::rand::{GetRandomFlags, getrandom};
use server::link::HANDSHAKE_MICROS;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::PeerConnections;
use super::facts::PeerFacts;
use crate::transport::Stream;

/// Time limit for a handshake, on either side.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_micros(HANDSHAKE_MICROS);

/// Maximum number of concurrent handshakes of incoming connections on one loop. Above it the oldest
/// handshake is aborted. Peers complete a handshake in milliseconds, so the oldest handshake is the
/// least likely to be from a peer.
const MAX_HANDSHAKES: usize = 64;

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(HandshakeRefused),
}

/// Starts the handshake on `stream`, and serves the connection if the client is a peer. `read` is
/// input that was already received.
pub(crate) fn start(peers: &PeerConnections, stream: Stream, read: Bytes) {
    let this = peers.clone();
    let task = tokio::task::spawn_local(async move { greet(&this, stream, read).await });
    let mut greeting = peers.inner.greeting.borrow_mut();
    greeting.retain(|task| !task.is_finished());
    if greeting.len() >= MAX_HANDSHAKES
        && let Some(oldest) = greeting.pop_front()
    {
        peers.inner.counters.peers.unfinished.add(1);
        oldest.abort();
    }
    greeting.push_back(task.abort_handle());
}

async fn greet(peers: &PeerConnections, mut stream: Stream, read: Bytes) {
    let facts = &peers.inner.facts;
    let handshaking = async {
        let handshake = Handshake::accept(Arc::clone(&facts.table.identity), nonce()?);
        let handshake = handshake.bind_to_channel(stream.channel());
        run_handshake(&mut stream, handshake, Vec::new(), read.to_vec()).await
    };
    match timeout(HANDSHAKE_TIMEOUT, handshaking).await {
        Ok(Ok((seen, rest))) => peers.accept(stream, seen, rest),
        Ok(Err(Refusal::Refused(refused))) => {
            peers.inner.counters.peers.refused.add(1);
            peers.note_refusal(None, &refused);
            log_refusal(facts, &stream, &refused);
        }
        // Nobody was refused. After a pause of this process, for example, the connections that wait
        // to be accepted are closed already.
        Ok(Err(Refusal::Io(_))) | Err(_) => peers.inner.counters.peers.unfinished.add(1),
    }
}

fn log_refusal(facts: &PeerFacts, stream: &Stream, refused: &HandshakeRefused) {
    let HandshakeRefused { reason, text } = refused;
    facts.complaints.log_unless_recent(None, reason.label(), || {
        let from =
            stream.socket().peer_addr().map_or_else(|_| String::new(), |from| from.to_string());
        // Anyone can send malformed data. The other reasons apply only to nodes that know the
        // secret, or that were started with a wrong secret.
        match reason {
            Reason::Malformed(_) => tracing::info!(from, "refused an unknown peer: {text}"),
            Reason::Removed => tracing::info!(from, "{text}"),
            _ => tracing::error!(from, "refused a peer: {text}"),
        }
    });
}

/// Runs a handshake to its end. `out` is sent first; `input` was already received. Returns the
/// peer, and the bytes received after the handshake.
pub(crate) async fn run_handshake(
    stream: &mut Stream,
    mut handshake: Handshake,
    mut out: Vec<u8>,
    input: Vec<u8>,
) -> Result<(PeerSeen, Vec<u8>), Refusal> {
    let mut input = input;
    loop {
        let received = handshake.receive(&input, &mut out);
        if !out.is_empty() {
            stream.write_all(&out).await?;
            stream.flush().await?;
            out.clear();
        }
        match received {
            Ok(Some(seen)) => return Ok((seen, handshake.remaining_bytes())),
            Ok(None) => {}
            Err(refused) => return Err(Refusal::Refused(refused)),
        }
        input.clear();
        if stream.read_buf(&mut input).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// Returns 32 random bytes from the kernel.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    // For such a small request the kernel never returns fewer bytes, and blocks only while the
    // system boots.
    if getrandom(&mut nonce, GetRandomFlags::empty())? < nonce.len() {
        return Err(io::Error::other("the kernel returned too few random bytes"));
    }
    Ok(nonce)
}
