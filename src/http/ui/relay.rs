//! Another node's own stream, passed on to a browser that looks at this one.
//!
//! It is asked for as HTTP/1.0, so that the body comes as it is, to the end of the connection.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use cluster::NodeId;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::events::{json, of_node};
use crate::clock::wall_micros;
use crate::event_loop::EventLoop;
use crate::peers::{self, DialError, Lookup};

/// A node that says nothing for so long is lost: three snapshots are missing.
const SILENCE: Duration = Duration::from_millis(3500);

/// How soon a lost node is tried again: as often as it would speak.
const RETRY: Duration = Duration::from_secs(1);

/// Longest line, in bytes: a snapshot of a node with some hundred peers.
const MAX_LINE: u64 = 256 * 1024;

/// Characters of a foreign status line that are quoted.
const QUOTED: usize = 80;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it has said nothing for {} s", SILENCE.as_secs())]
    Silent,
    #[error("it answers {0:?} to /ui/events")]
    Answer(String),
    #[error("it ended its stream")]
    Ended,
}

/// What the browser is told of it.
#[derive(Debug, Serialize)]
struct Notice<'a> {
    node: &'a str,
    why: String,
    since_ms: u64,
}

/// Passes a node's snapshots on until nobody listens.
pub(super) async fn follow(event_loop: Rc<EventLoop>, peer: NodeId, to: mpsc::Sender<Bytes>) {
    let node = &event_loop.node;
    let name = &node.shared.topology.member(peer).name;
    let lookup = RefCell::default();
    let mut since = None;
    loop {
        let attended = async {
            let mut stream = open(node.facts.authority(peer), &lookup).await?;
            attend(&mut stream, name, &to, &mut since).await
        };
        let lost = tokio::select! {
            () = to.closed() => return,
            lost = attended => lost.err().unwrap_or(Lost::Ended),
        };
        let since_ms = *since.get_or_insert_with(|| wall_micros() / 1000);
        let notice = json(&Notice { node: name, why: lost.to_string(), since_ms });
        // If there is no room, the next one will do.
        let _ = to.try_send(Bytes::from(format!("event: lost\ndata: {notice}\n\n")));
        tokio::select! {
            () = to.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Asks for the stream, and reads the head of the answer.
async fn open(
    authority: &str,
    lookup: &RefCell<Option<Lookup>>,
) -> Result<BufReader<TcpStream>, Lost> {
    let mut stream = peers::connect(authority, lookup).await?;
    let request = format!("GET /ui/events?local=true HTTP/1.0\r\nHost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    read_line(&mut stream, &mut line).await?;
    let status = String::from_utf8_lossy(&line).trim_end().to_owned();
    if status.split(' ').nth(1) != Some("200") {
        return Err(Lost::Answer(status.chars().take(QUOTED).collect()));
    }
    while !line.trim_ascii_end().is_empty() {
        read_line(&mut stream, &mut line).await?;
    }
    Ok(stream)
}

/// Passes on what comes, to the end. `since` is when it was lost, if it was.
async fn attend(
    stream: &mut BufReader<TcpStream>,
    name: &str,
    to: &mpsc::Sender<Bytes>,
    since: &mut Option<u64>,
) -> Result<(), Lost> {
    let name = json(name);
    let mut line = Vec::new();
    loop {
        read_line(stream, &mut line).await?;
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        let Some(snapshot) = text.strip_prefix("data: ") else { continue };
        *since = None;
        // If there is no room, the next one will do.
        let _ = to.try_send(Bytes::from(of_node(&name, snapshot.trim_end())));
    }
}

async fn read_line(stream: &mut BufReader<TcpStream>, line: &mut Vec<u8>) -> Result<(), Lost> {
    line.clear();
    let mut bounded = stream.take(MAX_LINE);
    let read = timeout(SILENCE, bounded.read_until(b'\n', line)).await;
    read.map_err(|_| Lost::Silent)??;
    if line.ends_with(b"\n") { Ok(()) } else { Err(Lost::Ended) }
}
