//! Dials another node: a TCP connection, an HTTP upgrade, and the handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use protocol::NodeId;
use protocol::handshake::{ConnectionKind, Handshake, HandshakeRefused, PeerSeen, Reason};
use serde_json::Value;
use server::link::{NotPeer, Upgrade};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::facts::PeerFacts;
use super::greet::{self, HANDSHAKE_TIMEOUT, Refusal};
use super::lookup::Lookups;
use crate::counters::Counters;
use crate::settings::members::authority_of;
use crate::transport::{self, Stream};

/// Time limit of a TCP connection, and of a name lookup. A running node accepts within a round
/// trip, and the requests that wait for the connection have little more time.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// Time limit for the rest of an answer that declines the upgrade.
const DETAIL_TIMEOUT: Duration = Duration::from_millis(250);

/// Maximum length of an answer that declines the upgrade, in bytes.
const PROBLEM_MAX: usize = 4096;

/// Maximum number of characters of the decline that are logged, because its sender is not
/// authenticated.
const DETAIL_CHARS: usize = 400;

/// A connection to a node that has completed the handshake.
pub(super) struct Connected {
    pub(super) stream: Stream,
    pub(super) seen: PeerSeen,
    /// Bytes received after the handshake.
    pub(super) rest: Vec<u8>,
}

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no response within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    NoPeer(#[from] NotPeer),
    #[error("unexpected response {line:?} instead of HTTP/1.1 101: {detail:?}")]
    Declined {
        /// The status line.
        line: String,
        /// The reason, from the problem document of the answer.
        detail: String,
    },
    #[error("{0}")]
    Refused(HandshakeRefused),
}

impl From<Refusal> for DialError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Io(error) => Self::Io(error),
            Refusal::Refused(refused) => Self::Refused(refused),
        }
    }
}

impl DialError {
    /// Returns the reason for which one side refused the other; `None` for all other failures.
    pub(super) fn refusal(&self) -> Option<Reason> {
        let Self::Refused(refused) = self else { return None };
        Some(refused.reason)
    }

    /// Logs the error of a dial to a peer's URL, at a limited rate.
    pub(super) fn log_error(
        &self,
        facts: &PeerFacts,
        counters: &Counters,
        peer: NodeId,
        url: &str,
    ) {
        let (name, at) = (facts.name(peer), authority_of(url));
        match self {
            Self::Refused(HandshakeRefused { reason, text }) => {
                counters.peers.refused.add(1);
                facts.complaints.log_unless_recent(peer, reason.label(), || match reason {
                    Reason::Removed => tracing::info!(peer = name, at, "{text}"),
                    _ => tracing::error!(peer = name, at, "peer refused: {text}"),
                });
            }
            Self::NoPeer(_) | Self::Declined { .. } => {
                facts.complaints.log_unless_recent(peer, "no peer", || {
                    tracing::error!(peer = name, at, "cannot connect to a peer: {self}");
                })
            }
            Self::Late(_) | Self::Io(_) => {
                facts.complaints.log_unless_recent(peer, "unreachable", || {
                    tracing::info!(peer = name, at, "cannot reach a peer: {self}");
                })
            }
        }
    }
}

/// Connects to the URL of a node. The node is not authenticated.
pub(crate) async fn connect(url: &str, lookups: &Lookups) -> Result<Stream, DialError> {
    let authority = authority_of(url);
    let addresses = lookups.addresses(authority, CONNECT_TIMEOUT).await;
    let addresses = addresses.ok_or(DialError::Late(CONNECT_TIMEOUT))??;
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(&addresses[..])).await;
    let stream = connecting.map_err(|_| DialError::Late(CONNECT_TIMEOUT))??;
    stream.set_nodelay(true)?;
    if !url.starts_with("https://") {
        return Ok(stream.into());
    }
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let handshake_outcome = timeout(HANDSHAKE_TIMEOUT, transport::connect(stream, host)).await;
    Ok(handshake_outcome.map_err(|_| DialError::Late(HANDSHAKE_TIMEOUT))??)
}

/// Dials a node at `url`: connects, upgrades, and performs the handshake.
pub(super) async fn dial(
    facts: &Arc<PeerFacts>,
    peer: NodeId,
    url: &str,
    kind: ConnectionKind,
    lookups: &Lookups,
) -> Result<Connected, DialError> {
    let mut stream = connect(url, lookups).await?;
    let handshaking = async {
        let early = upgrade(&mut stream, authority_of(url)).await?;
        let mut hello = Vec::new();
        let identity = Arc::clone(&facts.table.identity);
        let handshake = Handshake::dial(identity, peer, kind, greet::nonce()?, &mut hello);
        let handshake = handshake.bind_to_channel(stream.channel());
        greet::run_handshake(&mut stream, handshake, hello, early).await.map_err(DialError::from)
    };
    let handshake_outcome = timeout(HANDSHAKE_TIMEOUT, handshaking).await;
    let (seen, rest) = handshake_outcome.map_err(|_| DialError::Late(HANDSHAKE_TIMEOUT))??;
    Ok(Connected { stream, seen, rest })
}

/// Requests the upgrade. Returns the bytes received after the answer.
async fn upgrade(stream: &mut Stream, authority: &str) -> Result<Vec<u8>, DialError> {
    stream.write_all(Upgrade::request(authority).as_bytes()).await?;
    stream.flush().await?;
    let (mut answer, mut input) = (Upgrade::default(), Vec::with_capacity(256));
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match answer.receive(&input) {
            Ok(Some(rest)) => return Ok(rest),
            Ok(None) => input.clear(),
            Err(no_peer) => {
                return Err(match timeout(DETAIL_TIMEOUT, problem_detail(stream, input)).await {
                    Ok(Some(detail)) => DialError::Declined { line: no_peer.0, detail },
                    _ => no_peer.into(),
                });
            }
        }
    }
}

/// Returns the `detail` of the problem document that a node sends with an error; `None` if there is
/// none. `input` is the received part of the answer, up to the end of the header or further.
async fn problem_detail(stream: &mut Stream, mut input: Vec<u8>) -> Option<String> {
    loop {
        let end = input.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
        if let Ok(Value::Object(problem)) = serde_json::from_slice(&input[end..]) {
            let detail = problem.get("detail")?.as_str()?;
            return Some(detail.chars().take(DETAIL_CHARS).collect());
        }
        if input.len() >= PROBLEM_MAX || stream.read_buf(&mut input).await.ok()? == 0 {
            return None;
        }
    }
}
