//! The join request of a node that belongs to no cluster, and its answer. With proofs both sides
//! show that they know the cluster's secret. In the drawing,
//! is a line break.
//!
//! ```text
//!  joining node                                                  member
//!  POST /admin/join ¶ X-Kvorum-Join: NONCE PROOF ¶ the node   ─▶ lists the node for operators
//!  202 ¶ X-Kvorum-Join: PROOF ¶ the members                   ◀─ no layout has the node yet
//!  200 ¶ X-Kvorum-Join: PROOF ¶ cluster, id, layout           ◀─ a layout has the node
//! ```
//!
//! Both proofs cover the fresh nonce, the body, and with TLS the connection. So a recorded answer
//! does not fit another request, and an attacker in the middle can't relay an answer. Without a
//! secret there are no proofs.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use protocol::handshake::{Channel, Nonce, Secret, Secrets};
use protocol::layout::{Layout, MAX_BYTES};
use protocol::{ClusterId, Member, NodeId};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::peers::Lookups;
use crate::peers::dial::{DialError, connect};
use crate::peers::greet::nonce;
use crate::settings::members::authority_of;

/// Path of the join request.
const PATH: &str = "/admin/join";

/// Header with nonce and proof.
pub(crate) const HEADER: &str = "x-kvorum-join";

/// Time limit of a request with its answer. A node answers from memory.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of an answer's head, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Maximum size of an answer, in bytes. The largest answer is a layout, with two hexadecimal digits
/// for each byte.
const MAX_ANSWER: usize = 2 * MAX_BYTES + MAX_HEAD;

const ASKS: &[u8] = b"kvorum-join/1 ask";
const ANSWERS: &[u8] = b"kvorum-join/1 answer";

/// A request to join, which describes the node that asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// Requested name of the node.
    pub(crate) name: String,
    /// URL at which the other nodes reach the node.
    pub(crate) url: String,
    /// The node's zone; empty = none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) zone: String,
    /// The node's weight, 1 to 1000.
    pub(crate) weight: u32,
    /// Incarnation of the data directory, 16 hexadecimal digits.
    pub(crate) incarnation: String,
    /// Voter id, 16 hexadecimal digits.
    pub(crate) voter: String,
    /// The node's wall clock, in milliseconds since 1970.
    pub(crate) clock_ms: u64,
    /// The node's wall clock at its first request, in milliseconds since 1970.
    pub(crate) began_ms: u64,
}

/// The answer to a join request, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum JoinAnswer {
    /// The node is in the layout.
    Placed {
        /// The cluster's id, 16 hexadecimal digits; 0 = the cluster has none yet.
        cluster: String,
        /// The node's id.
        id: u16,
        /// The layout that has the node, in hexadecimal digits.
        layout: String,
    },
    /// The node must wait.
    Waits {
        /// Epoch of the layout in force on the asked node.
        epoch: u64,
        /// URLs of the members. The node asks each of them, so an operator can plan on any member.
        members: Vec<String>,
        /// The reason why the asked node does not list the joining node yet; missing = it lists the
        /// joining node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        because: Option<String>,
    },
}

/// The decoded answer to a join request.
#[derive(Debug)]
pub(crate) enum JoinReply {
    /// The node is a member: the cluster's id, the node's id, and the layout.
    Placed(Option<ClusterId>, NodeId, Layout),
    /// The joining node must wait. The values are the members' URLs, and the reason if the asked
    /// node does not list the joining node yet.
    Waits(Vec<String>, Option<String>),
}

/// The reason why a join request got no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskFailure {
    /// The connection could not be established. The request may be retried.
    #[error("{0}")]
    Dial(#[from] DialError),
    /// The connection failed. The request may be retried.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No answer arrived in time. The request may be retried.
    #[error("no response for {} s", JOIN_TIMEOUT.as_secs())]
    Late,
    /// The response is unexpected. Either the node is about to stop, or it is not a kvorum node.
    /// The request may be retried.
    #[error("unexpected response: {0}")]
    Unexpected(String),
    /// The node can't join this cluster, or not with its current settings.
    #[error("{0}")]
    Refused(String),
}

impl JoinRequest {
    /// Returns the node as a member of a layout.
    pub(crate) fn member(&self) -> Member {
        Member { name: self.name.clone(), zone: self.zone.clone(), weight: self.weight }
    }
}

/// The content that a proof covers: the body of a request or answer, the nonce, and the TLS
/// connection if there is one.
#[derive(Debug, Clone, Copy)]
struct ProofContent<'a> {
    nonce: &'a Nonce,
    channel: Option<&'a Channel>,
    body: &'a [u8],
}

impl<'a> ProofContent<'a> {
    fn parts(&self) -> [&'a [u8]; 3] {
        [self.nonce, self.body, self.channel.map_or(&[], |channel| channel)]
    }

    /// Returns the number of parts that a proof covers. A plaintext connection has no channel.
    fn count(&self) -> usize {
        2 + usize::from(self.channel.is_some())
    }

    fn prove(self, secret: &Secret, label: &[u8]) -> String {
        let parts = self.parts();
        hex(&secret.prove(label, &parts[..self.count()]))
    }

    fn is_proven(self, secret: &Secret, label: &[u8], proof: &[u8]) -> bool {
        secret.is_proven(label, &self.parts()[..self.count()], proof)
    }
}

/// A request whose sender has proved that it knows a secret.
#[derive(Debug)]
pub(crate) struct ProvenRequest {
    nonce: Nonce,
    /// The one of this node's secrets that the sender knows.
    secret: Secret,
    channel: Option<Channel>,
}

/// Returns the value of a request's proof header; `None` without a secret.
fn proof_of(secret: Option<&Secret>, about: ProofContent<'_>) -> Option<String> {
    Some(format!("{} {}", hex(about.nonce), about.prove(secret?, ASKS)))
}

/// Verifies the proof of a request; `None` if the proof is invalid under all of this node's
/// secrets.
pub(crate) fn verify_proof(
    secrets: &Secrets,
    channel: Option<Channel>,
    header: &[u8],
    body: &[u8],
) -> Option<ProvenRequest> {
    let (nonce, proof) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    let (nonce, proof): (Nonce, _) = (unhex(nonce)?.try_into().ok()?, unhex(proof)?);
    let about = ProofContent { nonce: &nonce, channel: channel.as_ref(), body };
    let secret = secrets.find(|secret| about.is_proven(secret, ASKS, &proof))?;
    Some(ProvenRequest { nonce, secret, channel })
}

impl ProvenRequest {
    /// Returns the value of the answer's proof header.
    pub(crate) fn proof_of_answer(&self, body: &[u8]) -> String {
        let about = ProofContent { nonce: &self.nonce, channel: self.channel.as_ref(), body };
        about.prove(&self.secret, ANSWERS)
    }
}

/// Sends a join request to the node at `url`, and returns the answer. `token` is for a node that
/// requires a token.
pub(crate) async fn ask(
    url: &str,
    asker: &JoinRequest,
    secret: Option<&Secret>,
    token: Option<&[u8]>,
) -> Result<JoinReply, AskFailure> {
    let body = serde_json::to_vec(asker).expect("strings and numbers always serialize");
    let nonce = nonce()?;
    let exchange = async {
        let mut stream = connect(url, &Lookups::default()).await?;
        let (channel, authority) = (stream.channel(), authority_of(url));
        let about = ProofContent { nonce: &nonce, channel: channel.as_ref(), body: &body };
        let mut head = format!(
            "POST {PATH} HTTP/1.0\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n",
            body.len()
        );
        if let Some(proof) = proof_of(secret, about) {
            let _ = write!(head, "{HEADER}: {proof}\r\n");
        }
        let bearer = token.map(|token| [b"Authorization: Bearer ", token, b"\r\n"].concat());
        let bearer = bearer.unwrap_or_default();
        stream.write_all(&[head.as_bytes(), &bearer, b"\r\n", &body].concat()).await?;
        stream.flush().await?;
        let mut received = Vec::new();
        (&mut stream).take(MAX_ANSWER as u64).read_to_end(&mut received).await?;
        Ok::<_, AskFailure>((received, channel))
    };
    let exchanged = timeout(JOIN_TIMEOUT, exchange).await.map_err(|_| AskFailure::Late)?;
    let (received, channel) = exchanged?;
    read(&received, secret, (&nonce, channel.as_ref()))
}

/// Parses and verifies an answer.
fn read(
    received: &[u8],
    secret: Option<&Secret>,
    (nonce, channel): (&Nonce, Option<&Channel>),
) -> Result<JoinReply, AskFailure> {
    let unexpected = |what: &str| AskFailure::Unexpected(what.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        _ => return Err(unexpected("it is not HTTP")),
    };
    let (status, body) = (head.code.unwrap_or(0), &received[length..]);
    if !matches!(status, 200 | 202) {
        return Err(problem(status, body));
    }
    if let Some(secret) = secret {
        let proof = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(HEADER));
        let proof = proof.and_then(|proof| unhex(std::str::from_utf8(proof.value).ok()?));
        let about = ProofContent { nonce, channel, body };
        if !proof.is_some_and(|proof| about.is_proven(secret, ANSWERS, &proof)) {
            return Err(AskFailure::Refused(
                "it does not know this node's cluster secret: give all nodes the same one"
                    .to_owned(),
            ));
        }
    }
    match serde_json::from_slice(body).map_err(|error| unexpected(&error.to_string()))? {
        JoinAnswer::Waits { members, because, .. } => Ok(JoinReply::Waits(members, because)),
        JoinAnswer::Placed { cluster, id, layout } => {
            let cluster = u64::from_str_radix(&cluster, 16).map_err(|_| unexpected("its id"))?;
            let layout = unhex(&layout).ok_or_else(|| unexpected("its layout"))?;
            let layout = Layout::from_bytes(&layout).map_err(unexpected)?;
            if layout.node(NodeId(id)).is_none() {
                return Err(unexpected("its layout does not have this node"));
            }
            Ok(JoinReply::Placed(ClusterId::of_number(cluster), NodeId(id), layout))
        }
    }
}

/// Converts an error response into the reason of the failure.
fn problem(status: u16, body: &[u8]) -> AskFailure {
    let problem: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let detail = problem.as_ref().and_then(|problem| problem["detail"].as_str());
    let detail = detail.unwrap_or("is this a kvorum node?").to_owned();
    match status {
        400 | 403 | 409 => AskFailure::Refused(detail),
        _ => AskFailure::Unexpected(format!("{status}: {detail}")),
    }
}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_covers_one_request_and_its_answer() {
        let [secret, other] =
            ["open sesame, please", "another secret!!"].map(|text| Secret::new(text.into()));
        let (nonce, body) = ([7; 32], br#"{"epoch":3,"members":["http://h:1"]}"#);
        let about = ProofContent { nonce: &nonce, channel: None, body };
        let header = proof_of(Some(&secret), about).unwrap();
        let knows = |own: &Secret, also: Option<&Secret>, channel, header: &[u8], body: &[u8]| {
            let secrets = Secrets::new(own.clone(), also.cloned());
            verify_proof(&secrets, channel, header, body)
        };
        let header_bytes = header.as_bytes();
        assert!(knows(&other, None, None, header_bytes, body).is_none());
        assert!(knows(&secret, None, None, header_bytes, b"{}").is_none());
        assert!(knows(&secret, None, Some([1; 32]), header_bytes, body).is_none(), "not there");
        assert!(knows(&secret, None, None, b"07 aa", body).is_none());
        let proven = knows(&other, Some(&secret), None, header_bytes, body).unwrap();
        assert_eq!((proven.nonce, &proven.secret), (nonce, &secret));

        let answer = |proof: &str| {
            let head = format!("HTTP/1.0 202 Accepted\r\nX-Kvorum-Join: {proof}\r\n\r\n");
            read(&[head.as_bytes(), body].concat(), Some(&secret), (&nonce, None))
        };
        let is_taken = |proof: &str| matches!(answer(proof), Ok(JoinReply::Waits(..)));
        assert!(is_taken(&proven.proof_of_answer(body)));
        for bad in [
            ProofContent { nonce: &[8; 32], ..about }.prove(&secret, ANSWERS),
            ProofContent { channel: Some(&[1; 32]), ..about }.prove(&secret, ANSWERS),
            about.prove(&other, ANSWERS),
            header.split_once(' ').unwrap().1.to_owned(),
            String::new(),
        ] {
            assert!(matches!(answer(&bad), Err(AskFailure::Refused(_))), "{bad}");
        }
    }

    #[test]
    fn a_malformed_answer_is_distinguished_from_a_refusal() {
        let read = |text: &str| read(text.as_bytes(), None, (&[0; 32], None)).unwrap_err();
        let refused = r#"{"type":"join-refused","detail":"node a is a member already"}"#;
        let refused = read(&format!("HTTP/1.1 409 Conflict\r\n\r\n{refused}"));
        assert!(
            matches!(&refused, AskFailure::Refused(why) if why == "node a is a member already")
        );
        for text in ["", "nonsense", "HTTP/1.0 404 Not Found\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n{}"]
        {
            assert!(matches!(read(text), AskFailure::Unexpected(_)), "{text:?}");
        }
        let layout = r#"{"cluster":"07","id":1,"layout":"00"}"#;
        let unread = read(&format!("HTTP/1.0 200 OK\r\n\r\n{layout}"));
        assert!(matches!(unread, AskFailure::Unexpected(_)), "{unread}");
    }
}
