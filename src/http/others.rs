//! Other nodes' pages, fetched by this node for clients that reach no other: a browser at the end
//! of a tunnel, a terminal outside the containers.
//!
//! They are asked for as HTTP/1.0, so that a body comes as it is, to the end of the connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::peers::DialError;
use crate::peers::proof::HEADER;

/// Longest line, in bytes: a snapshot of a node with some hundred peers.
const MAX_LINE: u64 = 256 * 1024;

/// Characters of a foreign status line that are quoted.
const QUOTED: usize = 80;

/// Why another node's page could not be fetched.
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
    #[error("it closed the connection before the end of its response")]
    Ended,
    #[error("cannot parse its response: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Another node's answer, after its head.
pub(super) struct Page {
    stream: BufReader<TcpStream>,
    /// How long it may say nothing.
    silence: Duration,
}

impl Page {
    /// Asks for `target` on a new connection to `authority`. The answer must be a 200. `proof` is
    /// for nodes that want a token.
    pub(super) async fn get(
        mut stream: TcpStream,
        authority: &str,
        target: &'static str,
        proof: Option<&str>,
        silence: Duration,
    ) -> Result<Self, Unread> {
        let proof = proof.map_or(String::new(), |proof| format!("{HEADER}: {proof}\r\n"));
        let request = format!("GET {target} HTTP/1.0\r\nHost: {authority}\r\n{proof}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut page = Self { stream: BufReader::new(stream), silence };
        let mut line = Vec::new();
        page.line(&mut line).await?;
        let answer = String::from_utf8_lossy(&line).trim_end().to_owned();
        if answer.split(' ').nth(1) != Some("200") {
            let answer = answer.chars().take(QUOTED).collect();
            return Err(Unread::Answer { answer, target });
        }
        while !line.trim_ascii_end().is_empty() {
            page.line(&mut line).await?;
        }
        Ok(page)
    }

    /// The next line.
    pub(super) async fn line(&mut self, line: &mut Vec<u8>) -> Result<(), Unread> {
        line.clear();
        let mut bounded = (&mut self.stream).take(MAX_LINE);
        let read = timeout(self.silence, bounded.read_until(b'\n', line)).await;
        read.map_err(|_| Unread::Silent(self.silence))??;
        if line.ends_with(b"\n") { Ok(()) } else { Err(Unread::Ended) }
    }

    /// The whole body, of which `most` bytes are read.
    pub(super) async fn body(mut self, most: u64) -> Result<Vec<u8>, Unread> {
        let mut body = Vec::new();
        let mut bounded = (&mut self.stream).take(most);
        let read = timeout(self.silence, bounded.read_to_end(&mut body)).await;
        read.map_err(|_| Unread::Silent(self.silence))??;
        Ok(body)
    }
}
