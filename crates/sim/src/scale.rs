//! Costs of a cluster by its number of nodes: the messages of an operation, the hints for a node
//! that was away, and the memory of the protocol's data structures.

use std::sync::Arc;

use protocol::{
    Background, BackgroundConfig, Clock, Config, Incarnation, Logs, Member, Membership,
    MembershipState, NodeId, Protocol, RoundConfig, Shared, Topology,
};

use crate::plan::Plan;
use crate::records::BRIEF_BYTES;
use crate::world::World;

/// Simulated seconds of each part of a measurement.
const SECONDS: u64 = 5;

/// An interval in microseconds that is longer than any run, so that no change happens.
const NEVER: u64 = 1 << 60;

/// The counts of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Number of requests that were answered without an error.
    pub answered: u64,
    /// Number of messages between nodes while those requests ran, replies included.
    pub messages: u64,
    /// Number of connections at the end.
    pub connections: u64,
    /// Number of hints stored for a node that was away.
    pub hints: u64,
    /// Number of nodes that stored those hints.
    pub holders: u64,
    /// Simulated microseconds from the node's return until it had all hints.
    pub hint_micros: u64,
}

/// Runs a cluster of `nodes` nodes without faults, then stops one node and starts it again.
pub fn measure(nodes: usize, seed: u64) -> Scale {
    let mut plan = Plan::from_seed(seed);
    plan.nodes = nodes;
    (plan.loops, plan.replicas, plan.clients) = (2, 3, 100);
    (plan.hot_keys, plan.own_keys, plan.think_micros) = (10_000, 1_000, 40_000);
    (plan.faults, plan.founded, plan.named_quorums, plan.ranges) = (Vec::new(), true, 0, 0);
    (plan.skew_micros, plan.clock_micros, plan.cold_reads) = (0, 1, 0);
    plan.memtable_bytes = 4 << 20;
    plan.keeps_links = false;
    plan.contenders = 0;
    World::new(plan).measure_scale(SECONDS * 1_000_000)
}

/// Traffic between nodes about the membership of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    /// Number of messages of all nodes, replies included.
    pub messages: u64,
    /// Bytes on connections, pings and handshakes included.
    pub bytes: u64,
    /// Duration in simulated microseconds.
    pub micros: u64,
}

/// Traffic of a cluster that grows without clients: at rest before the change, from the plan until
/// all nodes use the last layout, and at rest afterwards.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// Number of nodes before the change.
    pub nodes: usize,
    /// Number of nodes that join, all at once.
    pub joiners: usize,
    /// Traffic at rest, before the plan.
    pub before: Traffic,
    /// Traffic from the plan on.
    pub change: Traffic,
    /// Traffic at rest, after the change.
    pub after: Traffic,
}

/// Runs a cluster of `nodes` nodes with `loops` loops each, without faults, clients or repair
/// rounds. `joiners` nodes join the cluster.
pub fn measure_join_traffic(nodes: usize, joiners: usize, loops: usize, seed: u64) -> Growth {
    let mut plan = Plan::from_seed(seed);
    (plan.nodes, plan.joiners, plan.loops, plan.replicas) = (nodes, joiners, loops, 3);
    (plan.clients, plan.contenders, plan.faults, plan.founded) = (0, 0, Vec::new(), true);
    (plan.skew_micros, plan.clock_micros, plan.rounds) = (0, 1, RoundConfig::NONE);
    (plan.change_micros, plan.moves, plan.members) = (NEVER, 1000, 1000);
    plan.disk_micros = (50, 200);
    World::new(plan).measure_join_traffic(joiners, SECONDS * 1_000_000)
}

/// The protocol's data structures for one node of a cluster. All nodes share one topology, which is
/// measured separately.
#[derive(Debug)]
pub struct ProtocolInstances {
    _protocols: Vec<Protocol>,
    _node: Background,
}

/// Creates the protocol's data structures of `sets` nodes.
pub fn protocol_instances(
    topology: &Topology,
    loops: usize,
    sets: usize,
) -> Vec<ProtocolInstances> {
    let config =
        Config { deadline_micros: 1_000_000, max_skew_micros: 500_000, brief_bytes: BRIEF_BYTES };
    let make = |_| {
        let clock = Arc::new(Clock::start(1, 0, 0));
        let membership = Membership::new(MembershipState::Member, 0, true);
        let logs = Arc::new(Logs::first(Incarnation(1)));
        let shared = Arc::new(Shared::new(topology.clone(), NodeId(0), clock, membership, 0, logs));
        let protocol = |_| Protocol::new(Arc::clone(&shared), config);
        ProtocolInstances {
            _protocols: (0..loops).map(protocol).collect(),
            _node: Background::new(
                Arc::clone(&shared),
                BackgroundConfig {
                    deadline_micros: config.deadline_micros,
                    syncs_always: true,
                    max_skew_micros: config.max_skew_micros,
                    rounds: RoundConfig::NONE,
                    stream_rate: None,
                    remembered: server::decode_entry,
                },
            ),
        }
    };
    (0..sets).map(make).collect()
}

impl Scale {
    /// Returns the members of a cluster of `nodes` nodes.
    pub fn members(nodes: usize) -> Vec<Member> {
        let member = |n| Member { name: format!("node-{n:04}"), zone: String::new(), weight: 1 };
        (0..nodes).map(member).collect()
    }
}
