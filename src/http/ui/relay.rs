//! Another node's own stream, passed on to a browser that looks at this one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use cluster::NodeId;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use super::events::{PAST, json, of_node, past_of};
use crate::counters::clocks::wall_micros;
use crate::http::others::{Page, Unread};
use crate::node::requests::Requests;
use crate::peers::{self, Lookup};

/// A node that says nothing for so long is lost: three snapshots are missing.
const SILENCE: Duration = Duration::from_millis(3500);

/// How soon a lost node is tried again: as often as it would speak.
const RETRY: Duration = Duration::from_secs(1);

const TARGET: &str = "/ui/events?local=true";

/// What the browser is told of it.
#[derive(Debug, Serialize)]
struct Notice<'a> {
    node: &'a str,
    why: String,
    since_ms: u64,
}

/// What the browser is told of one that has left the cluster.
#[derive(Debug, Serialize)]
struct Left<'a> {
    node: &'a str,
}

/// Passes on the snapshots of all other nodes, whoever comes and goes, until nobody listens.
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
                let notice = json(&Left { node: &requests.name(*peer) });
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

/// Passes a node's snapshots on until nobody listens.
async fn follow(requests: Rc<Requests>, peer: NodeId, to: mpsc::Sender<Bytes>) {
    let name = &requests.name(peer);
    let lookup = RefCell::default();
    let mut since = None;
    loop {
        let attended = async {
            let mut page = open(&requests, peer, &lookup).await?;
            attend(&mut page, name, &to, &mut since).await
        };
        let lost = tokio::select! {
            () = to.closed() => return,
            lost = attended => lost.err().unwrap_or(Unread::Ended),
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

/// Asks for the stream.
async fn open(
    requests: &Requests,
    peer: NodeId,
    lookup: &RefCell<Option<Lookup>>,
) -> Result<Page, Unread> {
    let stream = peers::connect(&requests.url(peer), lookup).await?;
    Page::get(stream, requests, peer, TARGET, SILENCE).await
}

/// Passes on what comes, to the end. `since` is when it was lost, if it was.
async fn attend(
    page: &mut Page,
    name: &str,
    to: &mpsc::Sender<Bytes>,
    since: &mut Option<u64>,
) -> Result<(), Unread> {
    let name = json(name);
    let mut line = Vec::new();
    loop {
        page.line(&mut line).await?;
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        if let Some(past) = text.strip_prefix(PAST) {
            // It comes once: it waits for room. Nobody listens = this task is about to be dropped.
            let _ = to.send(past_of(&name, past.trim_end())).await;
            continue;
        }
        let Some(snapshot) = text.strip_prefix("data: ") else { continue };
        *since = None;
        // If there is no room, the next one will do.
        let _ = to.try_send(Bytes::from(of_node(&name, snapshot.trim_end())));
    }
}
