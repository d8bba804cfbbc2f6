//! `GET /v0/status`: fills [`Status`] with what the node knows without waiting for the disk.

use std::sync::Arc;

use cluster::{NodeId, Standing};

use crate::node::Node;
use crate::status::{Peer, Status};
use crate::usage;

pub(super) fn encode(node: &Arc<Node>) -> Vec<u8> {
    let status = status(node, node.db.stats());
    serde_json::to_vec(&status).expect("strings and numbers always serialize")
}

/// The node as it is now, its store's part being `stats`.
pub(super) fn status(node: &Node, stats: lsm::Stats) -> Status {
    Status {
        name: node.name().to_owned(),
        url: node.url().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: format!("{:016x}", node.identity.incarnation()),
        standing: standing(node).to_owned(),
        uptime_s: node.started.elapsed().as_secs(),
        keys: stats.keys,
        disk_bytes: usage::disk_bytes(node, &stats),
        memory_bytes: usage::resident_bytes(),
        failed: stats.failed,
        peers: peers(node),
    }
}

fn standing(node: &Node) -> &'static str {
    match node.shared.vouching.standing() {
        Standing::New => "new",
        Standing::Member => "member",
        Standing::Amnesiac => "amnesiac",
    }
}

fn peers(node: &Node) -> Vec<Peer> {
    let shared = &node.shared;
    let all = node.urls.iter().enumerate().map(|(place, url)| (NodeId(place as u16), url));
    let others = all.filter(|(id, _)| *id != shared.own);
    others
        .map(|(id, url)| {
            let (hints, hint_bytes) = shared.hints.waiting(id);
            let seen = node.facts.seen(id);
            Peer {
                name: shared.topology.member(id).name.clone(),
                url: url.clone(),
                incarnation: seen.incarnation().map_or(String::new(), |i| format!("{i:016x}")),
                up: seen.lines() > 0,
                rtt_us: seen.rtt_micros(),
                clock_skew_us: seen.skew_micros(),
                hints,
                hint_bytes,
                hints_dropped: shared.hints.dropped(id),
                partitions_to_repair: shared.hints.marked(id),
            }
        })
        .collect()
}
