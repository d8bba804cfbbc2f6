//! Whoever connects and asks to be a peer: a stranger, until it has proved something. Until then
//! it costs a task, a buffer of a few KiB and [`HANDSHAKE_TIME`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::handshake::{Handshake, HandshakeRefused, Nonce, PeerSeen, Reason};
use node::link::HANDSHAKE_MICROS;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::PeerConnections;
use super::facts::Facts;
use crate::transport::Stream;

/// How long a handshake may take, on either side.
pub(super) const HANDSHAKE_TIME: Duration = Duration::from_micros(HANDSHAKE_MICROS);

/// Handshakes at once with whoever connected to one loop. Beyond it the oldest is broken off, which
/// is the one that least looks like a peer's: those take milliseconds.
const MAX_GREETING: usize = 64;

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(HandshakeRefused),
}

/// Greets whoever is behind `stream`, and has it served if it is a peer.
pub(super) fn start(peers: &PeerConnections, stream: Stream, read: Bytes) {
    let this = peers.clone();
    let task = tokio::task::spawn_local(async move { greet(&this, stream, read).await });
    let mut greeting = peers.inner.greeting.borrow_mut();
    greeting.retain(|task| !task.is_finished());
    if greeting.len() >= MAX_GREETING
        && let Some(oldest) = greeting.pop_front()
    {
        peers.inner.counters.peers.refused.add(1);
        oldest.abort();
    }
    greeting.push_back(task.abort_handle());
}

async fn greet(peers: &PeerConnections, mut stream: Stream, read: Bytes) {
    let facts = &peers.inner.facts;
    let shaking = async {
        let handshake = Handshake::accept(Arc::clone(&facts.table.identity), nonce()?);
        let handshake = handshake.over(stream.channel());
        shake(&mut stream, handshake, Vec::new(), read.to_vec()).await
    };
    match timeout(HANDSHAKE_TIME, shaking).await {
        Ok(Ok((seen, rest))) => peers.accept(stream, seen, rest),
        Ok(Err(unmet)) => {
            peers.inner.counters.peers.refused.add(1);
            if let Refusal::Refused(refused) = unmet {
                peers.note_refusal(None, &refused);
                complain(facts, &stream, &refused);
            }
        }
        Err(_) => peers.inner.counters.peers.refused.add(1),
    }
}

fn complain(facts: &Facts, stream: &Stream, refused: &HandshakeRefused) {
    let HandshakeRefused { reason, text } = refused;
    facts.complaints.about(None, reason.label(), || {
        let from =
            stream.socket().peer_addr().map_or_else(|_| String::new(), |from| from.to_string());
        // Anybody can say nonsense; the others have the secret, or believe that they should.
        match reason {
            Reason::Malformed(_) => tracing::info!(from, "refused an unknown peer: {text}"),
            Reason::Removed => tracing::info!(from, "{text}"),
            _ => tracing::error!(from, "refused a peer: {text}"),
        }
    });
}

/// Leads a handshake to its end. `out` is what it has to say first, `input` what came already;
/// returns what came behind it.
pub(super) async fn shake(
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
            Ok(Some(seen)) => return Ok((seen, handshake.rest())),
            Ok(None) => {}
            Err(refused) => return Err(Refusal::Refused(refused)),
        }
        input.clear();
        if stream.read_buf(&mut input).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// Fresh random bytes.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    // As much as this is never given in part, and waits at most for the kernel's own start.
    if getrandom(&mut nonce, GetRandomFlags::empty())? < nonce.len() {
        return Err(io::Error::other("the kernel returned too few random bytes"));
    }
    Ok(nonce)
}
