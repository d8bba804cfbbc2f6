//! Dialing another node: TCP, an HTTP upgrade, the handshake.

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
use super::greet::{self, HANDSHAKE_TIME, Refusal};
use super::lookup::Lookups;
use crate::counters::Counters;
use crate::settings::members::authority_of;
use crate::transport::{self, Stream};

/// Time limit for a TCP connection, and for the lookup of a name. A node that is up accepts within
/// a round trip, and the requests that wait for the connection have little more time than this.
const CONNECT_TIME: Duration = Duration::from_millis(250);

/// Time limit for the rest of an answer that refuses the upgrade.
const DETAIL_TIME: Duration = Duration::from_millis(250);

/// Maximum length of such an answer, in bytes.
const PROBLEM_MAX: usize = 4096;

/// Number of characters of such a refusal that are shown: the other end is not authenticated.
const DETAIL_CHARS: usize = 400;

/// A connection to a node that has authenticated.
pub(super) struct Connected {
    pub(super) stream: Stream,
    pub(super) seen: PeerSeen,
    /// Bytes received behind the handshake.
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
        /// The reason that the answer gives.
        detail: String,
    },
    #[error("{0}")]
    Refused(HandshakeRefused),
}

impl From<Refusal> for DialError {
    fn from(unmet: Refusal) -> Self {
        match unmet {
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

    /// Logs the error of dialing a peer at a URL, rate-limited.
    pub(super) fn complain(&self, facts: &PeerFacts, counters: &Counters, peer: NodeId, url: &str) {
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

/// Connects to a node's URL. The other end is not authenticated.
pub(crate) async fn connect(url: &str, lookups: &Lookups) -> Result<Stream, DialError> {
    let authority = authority_of(url);
    let addresses = lookups.addresses(authority, CONNECT_TIME).await;
    let addresses = addresses.ok_or(DialError::Late(CONNECT_TIME))??;
    let connecting = timeout(CONNECT_TIME, TcpStream::connect(&addresses[..])).await;
    let stream = connecting.map_err(|_| DialError::Late(CONNECT_TIME))??;
    stream.set_nodelay(true)?;
    if !url.starts_with("https://") {
        return Ok(stream.into());
    }
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let shaken = timeout(HANDSHAKE_TIME, transport::connect(stream, host)).await;
    Ok(shaken.map_err(|_| DialError::Late(HANDSHAKE_TIME))??)
}

/// Dials a node at a URL: connects, upgrades, and performs the handshake.
pub(super) async fn dial(
    facts: &Arc<PeerFacts>,
    peer: NodeId,
    url: &str,
    kind: ConnectionKind,
    lookups: &Lookups,
) -> Result<Connected, DialError> {
    let mut stream = connect(url, lookups).await?;
    let shaking = async {
        let early = upgrade(&mut stream, authority_of(url)).await?;
        let mut hello = Vec::new();
        let identity = Arc::clone(&facts.table.identity);
        let handshake = Handshake::dial(identity, peer, kind, greet::nonce()?, &mut hello);
        let handshake = handshake.bind_to_channel(stream.channel());
        greet::run_handshake(&mut stream, handshake, hello, early).await.map_err(DialError::from)
    };
    let shaken = timeout(HANDSHAKE_TIME, shaking).await;
    let (seen, rest) = shaken.map_err(|_| DialError::Late(HANDSHAKE_TIME))??;
    Ok(Connected { stream, seen, rest })
}

/// Requests the upgrade; returns the bytes received behind the answer.
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
                return Err(match timeout(DETAIL_TIME, problem_detail(stream, input)).await {
                    Ok(Some(detail)) => DialError::Declined { line: no_peer.0, detail },
                    _ => no_peer.into(),
                });
            }
        }
    }
}

/// Returns the `detail` of a problem document, as a node sends with an error, or `None`. `input` is
/// the part of the answer with the end of its header.
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
