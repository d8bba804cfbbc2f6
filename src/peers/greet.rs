//! Handshakes with incoming peer connections. An unauthenticated connection costs a task, a buffer
//! of a few KiB and at most [`HANDSHAKE_TIME`].

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
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_micros(HANDSHAKE_MICROS);

/// Maximum number of concurrent handshakes of incoming connections on one loop. Beyond it the
/// oldest one is aborted: because peers complete a handshake in milliseconds, it is the least
/// likely to be a peer's.
const MAX_GREETING: usize = 64;

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(HandshakeRefused),
}

/// Starts the handshake on `stream`, and serves the connection if the other end is a peer.
pub(crate) fn start(peers: &PeerConnections, stream: Stream, read: Bytes) {
    let this = peers.clone();
    let task = tokio::task::spawn_local(async move { greet(&this, stream, read).await });
    let mut greeting = peers.inner.greeting.borrow_mut();
    greeting.retain(|task| !task.is_finished());
    if greeting.len() >= MAX_GREETING
        && let Some(oldest) = greeting.pop_front()
    {
        peers.inner.counters.peers.unfinished.add(1);
        oldest.abort();
    }
    greeting.push_back(task.abort_handle());
}

async fn greet(peers: &PeerConnections, mut stream: Stream, read: Bytes) {
    let facts = &peers.inner.facts;
    let shaking = async {
        let handshake = Handshake::accept(Arc::clone(&facts.table.identity), nonce()?);
        let handshake = handshake.bind_to_channel(stream.channel());
        run_handshake(&mut stream, handshake, Vec::new(), read.to_vec()).await
    };
    match timeout(HANDSHAKE_TIME, shaking).await {
        Ok(Ok((seen, rest))) => peers.accept(stream, seen, rest),
        Ok(Err(Refusal::Refused(refused))) => {
            peers.inner.counters.peers.refused.add(1);
            peers.note_refusal(None, &refused);
            complain(facts, &stream, &refused);
        }
        // Nobody was refused. After a pause of this process, for example, the connections that wait
        // to be accepted are closed already.
        Ok(Err(Refusal::Io(_))) | Err(_) => peers.inner.counters.peers.unfinished.add(1),
    }
}

fn complain(facts: &PeerFacts, stream: &Stream, refused: &HandshakeRefused) {
    let HandshakeRefused { reason, text } = refused;
    facts.complaints.log_unless_recent(None, reason.label(), || {
        let from =
            stream.socket().peer_addr().map_or_else(|_| String::new(), |from| from.to_string());
        // Anyone can send malformed data. For another reason only a node is refused that knows the
        // secret, or believes that it should.
        match reason {
            Reason::Malformed(_) => tracing::info!(from, "refused an unknown peer: {text}"),
            Reason::Removed => tracing::info!(from, "{text}"),
            _ => tracing::error!(from, "refused a peer: {text}"),
        }
    });
}

/// Runs a handshake to its end. `out` is sent first; `input` has already been received. Returns the
/// peer, and the bytes received behind the handshake.
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

/// Returns fresh random bytes.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    // The kernel never satisfies so small a request in part, and lets it wait only during its own
    // start.
    if getrandom(&mut nonce, GetRandomFlags::empty())? < nonce.len() {
        return Err(io::Error::other("the kernel returned too few random bytes"));
    }
    Ok(nonce)
}
