//! Forwards requests to the pages of other nodes, for clients that reach only this node, such as a
//! browser behind a tunnel, or a terminal outside the containers.
//!
//! Requests are HTTP/1.0, so a body arrives unencoded, and ends with the connection.

use std::io;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderValue};
use protocol::NodeId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::node::requests::Requests;
use crate::peers::DialError;
use crate::peers::proof::{HEADER, WINDOW_MS};
use crate::transport::Stream;

/// Maximum number of concurrent requests, which bounds the descriptors and memory for a large
/// cluster.
const MAX_CONCURRENT: usize = 16;

/// Longest line, in bytes: enough for a snapshot of a node with some hundred peers.
const MAX_LINE: u64 = 256 * 1024;

/// Maximum length of the reason for a refusal, in bytes.
const MAX_PROBLEM: u64 = 16 * 1024;

/// Number of characters quoted from an unexpected status line.
const MAX_QUOTED_CHARS: usize = 80;

/// The reason why another node's page could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no response for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("unexpected response {answer:?} to {target}: is this a kvorum node?")]
    Answer { answer: String, target: String },
    #[error("it has store format {0}")]
    NotRaised(u32),
    #[error("it refuses ({status}): {detail}")]
    Refused { status: u16, detail: String },
    #[error("it refuses this node's proof ({status}): {}", cause(*.skew_us))]
    ProofRefused { status: u16, skew_us: Option<i64> },
    #[error("it serves nothing yet: it waits for a place in the cluster, or is about to stop")]
    ServesNothing,
    #[error("it does not know this node's cluster secret: is somebody between the two?")]
    Stranger,
    #[error("it closed the connection before the end of its response")]
    Ended,
    #[error("cannot parse its response: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl FetchError {
    /// True if the node answered, and refused this node's proof.
    pub(super) fn refuses_proof(&self) -> bool {
        matches!(self, Self::ProofRefused { .. })
    }
}

/// Describes why a node refuses this node's proof. `skew_us` is the time by which its clock is
/// ahead of this node's, in microseconds; `None` = not measured.
fn cause(skew_us: Option<i64>) -> String {
    let most_s = WINDOW_MS / 1000;
    let differs = |skew_us: i64| {
        let side = if skew_us > 0 { "ahead of" } else { "behind" };
        format!("its clock is {:.1} s {side} this node's", skew_us.unsigned_abs() as f64 / 1e6)
    };
    match skew_us {
        // The tolerance of one second is for the time from the proof to the measurement of the
        // clock.
        Some(skew_us) if skew_us.unsigned_abs() + 1_000_000 >= WINDOW_MS * 1000 => format!(
            "{}, and nodes accept a proof for {most_s} s. Correct the clock that is wrong (date -u \
             shows it)",
            differs(skew_us)
        ),
        measured => {
            let measured = measured.map(|us| format!(" (when last measured, {})", differs(us)));
            format!(
                "the clocks of the two nodes differ by {most_s} s or more{}, or their secrets \
                 (--cluster-secret-file) differ, or another node answers at this URL",
                measured.unwrap_or_default()
            )
        }
    }
}

/// The parsed part of another node's problem document.
#[derive(Debug, Deserialize)]
struct Refusal {
    status: u16,
    detail: String,
}

/// A request to another node.
pub(crate) enum NodeRequest<'a> {
    /// A request for a page.
    Get(&'static str),
    /// An act of administration. In a cluster without a secret, nodes have no proofs, so the
    /// request carries the client's own right.
    Post { target: &'a str, authorization: Option<&'a HeaderValue> },
}

impl<'a> NodeRequest<'a> {
    fn target(&self) -> &'a str {
        match self {
            Self::Get(target) => target,
            Self::Post { target, .. } => target,
        }
    }

    fn method(&self) -> &'static str {
        if let Self::Get(_) = self { "GET" } else { "POST" }
    }
}

/// Asks nodes, at most [`MAX_CONCURRENT`] at a time. Passes each arriving answer to `answered`.
pub(crate) async fn ask_each<A, F>(
    nodes: impl IntoIterator<Item = NodeId>,
    ask: impl Fn(NodeId) -> F,
    mut answered: impl FnMut(NodeId, A),
) where
    A: 'static,
    F: Future<Output = A> + 'static,
{
    let mut nodes = nodes.into_iter();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < MAX_CONCURRENT
            && let Some(node) = nodes.next()
        {
            let answer = ask(node);
            asked.spawn_local(async move { (node, answer.await) });
        }
        let Some(done) = asked.join_next().await else { break };
        // An error means that the task panicked, and a panic ends the process.
        let Ok((node, answer)) = done else { continue };
        answered(node, answer);
    }
}

/// Sends a request to a node, and parses the JSON of its answer, which has at most `most` bytes.
/// The time limit `max_wait` includes the connection.
pub(crate) async fn fetch_json<T: DeserializeOwned>(
    requests: &Requests,
    node: NodeId,
    request: NodeRequest<'_>,
    (max_wait, most): (Duration, u64),
) -> Result<T, FetchError> {
    let fetched = async {
        let stream = requests.connect_to(node).await?;
        let page = NodePage::fetch(stream, requests, node, request, max_wait).await?;
        Ok(serde_json::from_slice(&page.body(most).await?)?)
    };
    timeout(max_wait, fetched).await.unwrap_or(Err(FetchError::Silent(max_wait)))
}

/// The answer of another node, of which the head was read.
pub(crate) struct NodePage {
    stream: BufReader<Stream>,
    /// Time limit for each read.
    silence: Duration,
}

impl NodePage {
    /// Sends a request on a new connection to a node. The answer must have status 200. If the
    /// request has a proof and the connection uses TLS, the answer must prove that it is from a
    /// node of the cluster.
    pub(crate) async fn fetch(
        mut stream: Stream,
        requests: &Requests,
        asked: NodeId,
        request: NodeRequest<'_>,
        silence: Duration,
    ) -> Result<Self, FetchError> {
        let authority = requests.authority(asked);
        let (method, target) = (request.method(), request.target());
        let asks = requests.page_proof(asked, target, stream.channel())?;
        let right = match (&asks, &request) {
            (Some(asks), _) => format!("{HEADER}: {}\r\n", asks.header),
            (None, NodeRequest::Post { authorization: Some(value), .. }) => {
                let value = value.to_str().unwrap_or_default();
                format!("{AUTHORIZATION}: {value}\r\n")
            }
            (None, _) => String::new(),
        };
        let request = format!("{method} {target} HTTP/1.0\r\nHost: {authority}\r\n{right}\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut page = Self { stream: BufReader::new(stream), silence };
        let mut line = Vec::new();
        page.line(&mut line).await?;
        let answer = String::from_utf8_lossy(&line).trim_end().to_owned();
        match answer.split(' ').nth(1) {
            Some("200") => {}
            Some("503") if method == "GET" => return Err(FetchError::ServesNothing),
            // 403 is the answer to a rejected proof if clients must show a certificate.
            Some(status @ ("401" | "403")) if asks.is_some() => {
                let status = if status == "401" { 401 } else { 403 };
                return Err(FetchError::ProofRefused {
                    status,
                    skew_us: requests.skew_micros(asked),
                });
            }
            _ => return Err(page.refusal(&answer, target).await),
        }
        let mut shown = None;
        while !line.trim_ascii_end().is_empty() {
            page.line(&mut line).await?;
            let header =
                str::from_utf8(&line).ok().and_then(|line| line.trim_end().split_once(": "));
            let value = header.filter(|(name, _)| name.eq_ignore_ascii_case(HEADER));
            shown = value.map(|(_, value)| value.to_owned()).or(shown);
        }
        if asks.is_some_and(|asks| !asks.is_answered(shown.as_deref())) {
            return Err(FetchError::Stranger);
        }
        Ok(page)
    }

    /// Reads the reason why a node refuses. `answer` is the status line that was read already.
    async fn refusal(mut self, answer: &str, target: &str) -> FetchError {
        let mut line = answer.as_bytes().to_vec();
        while !line.trim_ascii_end().is_empty() {
            if let Err(error) = self.line(&mut line).await {
                return error;
            }
        }
        let problem = self.body(MAX_PROBLEM).await.ok();
        let problem = problem.and_then(|body| serde_json::from_slice::<Refusal>(&body).ok());
        match problem {
            Some(Refusal { status, detail }) => FetchError::Refused { status, detail },
            None => {
                let answer = answer.chars().take(MAX_QUOTED_CHARS).collect();
                FetchError::Answer { answer, target: target.to_owned() }
            }
        }
    }

    /// Reads the next line, with its line feed. A line without a line feed is an error.
    pub(super) async fn line(&mut self, line: &mut Vec<u8>) -> Result<(), FetchError> {
        line.clear();
        let mut bounded = (&mut self.stream).take(MAX_LINE);
        let read = timeout(self.silence, bounded.read_until(b'\n', line)).await;
        read.map_err(|_| FetchError::Silent(self.silence))??;
        if line.ends_with(b"\n") { Ok(()) } else { Err(FetchError::Ended) }
    }

    /// Reads the body, up to `most` bytes.
    pub(crate) async fn body(mut self, most: u64) -> Result<Vec<u8>, FetchError> {
        let mut body = Vec::new();
        let mut bounded = (&mut self.stream).take(most);
        let read = timeout(self.silence, bounded.read_to_end(&mut body)).await;
        read.map_err(|_| FetchError::Silent(self.silence))??;
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_proof_names_the_clocks_or_the_secrets() {
        let said = |skew_us| FetchError::ProofRefused { status: 401, skew_us }.to_string();
        assert!(
            said(Some(-120_000_000)).contains("its clock is 120.0 s behind this node's, and"),
            "{}",
            said(Some(-120_000_000))
        );
        assert!(said(Some(60_000_000)).contains("60.0 s ahead of this node's"));
        for unclear in [None, Some(-7_000_000)] {
            let said = said(unclear);
            assert!(said.contains("differ by 60 s or more") && said.contains("secrets"), "{said}");
            assert_eq!(said.contains("7.0 s behind"), unclear.is_some(), "{said}");
        }
    }
}
