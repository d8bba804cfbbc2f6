//! Relays another node's event stream to a browser that is connected to this node.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use protocol::NodeId;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use super::events::{PAST, history_event, json, snapshot_event};
use crate::counters::clocks::wall_micros;
use crate::http::others::{FetchError, NodePage, NodeRequest};
use crate::node::requests::Requests;
use crate::peers::{self, Lookups};

/// Silence after which a node counts as lost: three missing snapshots.
const STREAM_TIMEOUT: Duration = Duration::from_millis(3500);

/// Interval of attempts to reach a lost node, the same as the interval of snapshots.
const RETRY: Duration = Duration::from_secs(1);

const TARGET: &str = "/ui/events?local=true";

/// The data of the event for an unreachable node.
#[derive(Debug, Serialize)]
struct UnreachableNotice<'a> {
    node: &'a str,
    why: String,
    since_ms: u64,
}

/// The data of the event for a node that has left the cluster.
#[derive(Debug, Serialize)]
struct LeftNotice<'a> {
    node: &'a str,
}

/// Relays the snapshots of all other members until the receiver is dropped. Follows changes of the
/// membership.
pub(super) async fn follow_all(requests: Rc<Requests>, to: mpsc::Sender<Bytes>) {
    let mut followed: BTreeMap<NodeId, JoinHandle<()>> = BTreeMap::new();
    loop {
        let others = requests.others();
        for peer in &others {
            let follow = || spawn_local(follow(Rc::clone(&requests), *peer, to.clone()));
            followed.entry(*peer).or_insert_with(follow);
        }
        followed.retain(|peer, task| {
            let stays = others.contains(peer);
            if !stays {
                task.abort();
                let notice = json(&LeftNotice { node: &requests.name(*peer) });
                let _ = to.try_send(Bytes::from(format!("event: left\ndata: {notice}\n\n")));
            }
            stays
        });
        tokio::select! {
            () = to.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Relays one node's snapshots until the receiver is dropped.
async fn follow(requests: Rc<Requests>, peer: NodeId, to: mpsc::Sender<Bytes>) {
    let name = &requests.name(peer);
    let lookups = Lookups::default();
    let mut since = None;
    loop {
        let attended = async {
            let mut page = open(&requests, peer, &lookups).await?;
            relay_stream(&mut page, name, &to, &mut since).await
        };
        let lost = tokio::select! {
            () = to.closed() => return,
            lost = attended => lost.err().unwrap_or(FetchError::Ended),
        };
        let since_ms = *since.get_or_insert_with(|| wall_micros() / 1000);
        let notice = json(&UnreachableNotice { node: name, why: lost.to_string(), since_ms });
        // If the channel is full, the browser gets the next notice instead.
        let _ = to.try_send(Bytes::from(format!("event: lost\ndata: {notice}\n\n")));
        tokio::select! {
            () = to.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Requests the event stream of `peer`.
async fn open(
    requests: &Requests,
    peer: NodeId,
    lookups: &Lookups,
) -> Result<NodePage, FetchError> {
    let stream = peers::connect(&requests.url(peer), lookups).await?;
    NodePage::fetch(stream, requests, peer, NodeRequest::Get(TARGET), STREAM_TIMEOUT).await
}

/// Relays the stream to its end. `since` is the time at which the node was lost, in milliseconds
/// since 1970. A snapshot resets it.
async fn relay_stream(
    page: &mut NodePage,
    name: &str,
    to: &mpsc::Sender<Bytes>,
    since: &mut Option<u64>,
) -> Result<(), FetchError> {
    let name = json(name);
    let mut line = Vec::new();
    loop {
        page.line(&mut line).await?;
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        if let Some(past) = text.strip_prefix(PAST) {
            // Each sample is sent once, so it waits for room. An error means that this task is
            // about to be dropped.
            let _ = to.send(history_event(&name, past.trim_end())).await;
            continue;
        }
        let Some(snapshot) = text.strip_prefix("data: ") else { continue };
        *since = None;
        // If the channel is full, the browser gets the next snapshot instead.
        let _ = to.try_send(Bytes::from(snapshot_event(&name, snapshot.trim_end())));
    }
}
