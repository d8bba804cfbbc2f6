//! Pages of other nodes, fetched by this node for clients that reach no other: a browser at the end
//! of a tunnel, a terminal outside the containers.
//!
//! Requests are HTTP/1.0, so that a body comes unencoded, to the end of the connection.

use std::io;
use std::time::Duration;

use protocol::NodeId;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::node::requests::Requests;
use crate::peers::DialError;
use crate::peers::proof::HEADER;
use crate::transport::Stream;

/// Longest line, in bytes: a snapshot of a node with some hundred peers.
const MAX_LINE: u64 = 256 * 1024;

/// Characters of an unexpected status line that are quoted.
const QUOTED: usize = 80;

/// The reason why another node's page could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no response for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("unexpected response {answer:?} to {target}: is this a kvorum node?")]
    Answer { answer: String, target: &'static str },
    #[error("it serves nothing yet: it waits for a place in the cluster, or is about to stop")]
    ServesNothing,
    #[error("it does not know this node's cluster secret: is somebody between the two?")]
    Stranger,
    #[error("it closed the connection before the end of its response")]
    Ended,
    #[error("cannot parse its response: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Another node's answer, after its head.
pub(super) struct NodePage {
    stream: BufReader<Stream>,
    /// Time limit for each read.
    silence: Duration,
}

impl NodePage {
    /// Requests `target` on a new connection to a node. The answer must be a 200 from a node of the
    /// cluster.
    pub(super) async fn get(
        mut stream: Stream,
        requests: &Requests,
        asked: NodeId,
        target: &'static str,
        silence: Duration,
    ) -> Result<Self, Unread> {
        let authority = requests.authority(asked);
        let asks = requests.asks(asked, target, stream.channel())?;
        let proof = asks.as_ref().map(|asks| format!("{HEADER}: {}\r\n", asks.header));
        let proof = proof.unwrap_or_default();
        let request = format!("GET {target} HTTP/1.0\r\nHost: {authority}\r\n{proof}\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut page = Self { stream: BufReader::new(stream), silence };
        let mut line = Vec::new();
        page.line(&mut line).await?;
        let answer = String::from_utf8_lossy(&line).trim_end().to_owned();
        if answer.split(' ').nth(1) == Some("503") {
            return Err(Unread::ServesNothing);
        }
        if answer.split(' ').nth(1) != Some("200") {
            let answer = answer.chars().take(QUOTED).collect();
            return Err(Unread::Answer { answer, target });
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
            return Err(Unread::Stranger);
        }
        Ok(page)
    }

    /// Reads the next line.
    pub(super) async fn line(&mut self, line: &mut Vec<u8>) -> Result<(), Unread> {
        line.clear();
        let mut bounded = (&mut self.stream).take(MAX_LINE);
        let read = timeout(self.silence, bounded.read_until(b'\n', line)).await;
        read.map_err(|_| Unread::Silent(self.silence))??;
        if line.ends_with(b"\n") { Ok(()) } else { Err(Unread::Ended) }
    }

    /// Reads the body, at most `most` bytes of it.
    pub(super) async fn body(mut self, most: u64) -> Result<Vec<u8>, Unread> {
        let mut body = Vec::new();
        let mut bounded = (&mut self.stream).take(most);
        let read = timeout(self.silence, bounded.read_to_end(&mut body)).await;
        read.map_err(|_| Unread::Silent(self.silence))??;
        Ok(body)
    }
}
