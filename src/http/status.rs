//! `GET /v0/status`: fills [`Status`] with what the node knows without waiting for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{NodeId, Standing};
use serde_json::Value;

use crate::node::Node;
use crate::operations::status::{Peer, Status};
use crate::operations::usage;
use crate::settings::config::Config;

pub(super) fn encode(node: &Arc<Node>) -> Vec<u8> {
    let status = status(node, node.db.stats());
    serde_json::to_vec(&status).expect("strings and numbers always serialize")
}

/// The node as it is now, its store's part being `stats`.
pub(super) fn status(node: &Node, stats: lsm::Stats) -> Status {
    Status {
        name: node.name().to_owned(),
        url: node.url().to_owned(),
        version: env!("KVORUM_VERSION").to_owned(),
        incarnation: format!("{:016x}", node.identity.incarnation()),
        membership: membership(node).to_owned(),
        uptime_s: node.started.elapsed().as_secs(),
        keys: stats.keys,
        disk_bytes: usage::disk_bytes(node, &stats),
        memory_bytes: usage::resident_bytes(),
        settings: settings(&node.config),
        partitions_to_repair: node.shared.missed.partitions(node.shared.own),
        failed: stats.failed,
        peers: Some(peers(node)),
    }
}

/// What changes how the node performs, by the names of its flags.
fn settings(config: &Config) -> BTreeMap<String, Value> {
    let sync = match config.sync {
        lsm::SyncMode::Always => "always".to_owned(),
        lsm::SyncMode::Interval(interval) => format!("interval {interval:?}"),
        lsm::SyncMode::Never => "never".to_owned(),
    };
    let memory = &config.memory;
    let all = [
        ("sync", sync.into()),
        ("replicas", config.replicas.into()),
        ("loops", config.loops.into()),
        ("read-threads", config.read_threads.into()),
        ("queue", config.queue.into()),
        ("connections", config.connections.into()),
        ("deadline", format!("{:?}", config.deadline).into()),
        ("memory", memory.budget_bytes.into()),
        ("memtable", memory.memtable_bytes.into()),
        ("cache", memory.cache_bytes.into()),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The node's membership state, as clients and operators know it.
fn membership(node: &Node) -> &'static str {
    let vouching = &node.shared.vouching;
    match vouching.standing() {
        _ if vouching.is_fenced() => "fenced",
        Standing::Member if !vouching.sure_of_all() => "starting",
        Standing::Member => "member",
        Standing::New => "joining",
        Standing::Copied => "verifying",
        Standing::Amnesiac => "rebuilding",
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
                name: shared.name_of(id),
                url: url.clone(),
                incarnation: seen.incarnation().map_or(String::new(), |i| format!("{i:016x}")),
                up: seen.lines() > 0,
                rtt_us: seen.rtt_micros(),
                clock_skew_us: node.facts.skew_micros(id),
                hints,
                hint_bytes,
                hints_ahead_of_clock: shared.hints.of_the_future(id),
                hints_dropped: shared.hints.dropped(id),
                partitions_to_repair: shared.missed.partitions(id),
            }
        })
        .collect()
}
