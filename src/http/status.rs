//! `GET /v0/status`: fills [`Status`] with what the node knows without waiting for the disk.

use std::fs;
use std::sync::Arc;

use cluster::{NodeId, Standing};

use crate::node::Node;
use crate::status::{Peer, Status};

pub(super) fn encode(node: &Arc<Node>) -> Vec<u8> {
    let stats = node.db.stats();
    let tables = stats.levels.iter().map(|level| level.bytes).sum::<u64>();
    let status = Status {
        name: node.name().to_owned(),
        url: node.url().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: format!("{:016x}", node.identity.incarnation()),
        standing: standing(node).to_owned(),
        uptime_s: node.started.elapsed().as_secs(),
        keys: stats.keys,
        disk_bytes: tables + stats.wal_segments * node.config.memory.segment_bytes,
        memory_bytes: resident(),
        failed: stats.failed,
        peers: peers(node),
    };
    serde_json::to_vec(&status).expect("strings and numbers always serialize")
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

/// Resident memory in bytes; 0 where the kernel does not say.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
