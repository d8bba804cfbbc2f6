//! CPU cost of the protocol: CPU time per request in [`Protocol::handle`], including the creation
//! of its events and the drop of its effects. The benchmark itself plays the store, the peers and
//! the clock, whose cost is not included.
//!
//!     cargo run --release -p bench-coordinator
//!
//! The goal is 300 ns for a request whose only replica is this node. A second table shows the time
//! that a range read takes until its first page is requested. If a node fails, the range read
//! starts again with the other nodes, and takes about this time again.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use bench_table::{Spread, Table};
use bytes::Bytes;
use protocol::{
    Body, Class, ClientId, Clock, Config, ConnectionId, Effect, Event, Incarnation, Logs, Member,
    Membership, MembershipState, Message, NodeId, Now, Protocol, Quorum, Record, Reply, Request,
    Scan, Shared, Topology, Version, ViewId,
};
use record::Fields;

const REQUESTS: u64 = 244 * KEYS;
const RANGES: u64 = 200;
const REPEATS: usize = 7;
const KEYS: u64 = 4096;
const VALUE: &[u8] = &[b'v'; 100];
const WALL: u64 = 1_700_000_000_000_000;

/// Number of concurrent requests, as many as an event loop under load has connections.
const IN_FLIGHT: u64 = 64;

#[derive(Clone, Copy)]
enum Kind {
    Get,
    Put,
    /// A write from another node.
    Replica,
}

fn main() {
    println!("{}\n", bench_table::describe(Path::new(".")));
    let mut table = Table::new(&["request", "nodes", "ack/from", "ns: median (least–most)"]);
    for (name, kind, nodes, ack) in [
        ("GET", Kind::Get, 1, 1),
        ("PUT", Kind::Put, 1, 1),
        ("GET", Kind::Get, 3, 1),
        ("GET", Kind::Get, 3, 2),
        ("PUT", Kind::Put, 3, 2),
        ("a replica's write", Kind::Replica, 3, 2),
    ] {
        let mut bench = Bench::new(nodes, Quorum { ack, from: nodes });
        bench.run(kind, 24 * KEYS);
        let nanos: Vec<f64> = (0..REPEATS).map(|_| bench.run(kind, REQUESTS)).collect();
        table.row(vec![
            Some(name.to_owned()),
            Some(nodes.to_string()),
            Some(format!("{ack}/{nodes}")),
            Spread::of(&nanos).map(|spread| spread.to_string()),
        ]);
    }
    println!("{table}");
    println!("{}", ranges());
}

/// Measures the CPU time that an event loop spends on a range read before it requests the first
/// page.
fn ranges() -> Table {
    let mut table = Table::new(&["range", "nodes", "ack/from", "ns: median (least–most)"]);
    for (nodes, ack, from) in [(3, 2, 3), (3, 1, 2), (5, 2, 3), (20, 2, 3), (20, 6, 10)] {
        let shared = create_shared(nodes);
        let quorum = Quorum { ack, from };
        for (name, failed) in [("begun", None), ("begun, one node failed", Some(NodeId(1)))] {
            let begin = || {
                let begun = cpu_nanos();
                for _ in 0..RANGES {
                    let mut scan = Scan::new(&shared, quorum.into(), Bytes::new(), None);
                    if let Some(node) = failed {
                        scan.exclude_node(node);
                    }
                    black_box(scan.step());
                }
                (cpu_nanos() - begun) as f64 / RANGES as f64
            };
            let nanos: Vec<f64> = (0..REPEATS).map(|_| begin()).collect();
            table.row(vec![
                Some(name.to_owned()),
                Some(nodes.to_string()),
                Some(format!("{ack}/{from}")),
                Spread::of(&nanos).map(|spread| spread.to_string()),
            ]);
        }
    }
    table
}

/// Creates the state that the coordinators of a node share.
fn create_shared(nodes: u8) -> Arc<Shared> {
    let name = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
    let topology =
        Topology::new((0..nodes).map(name).collect(), 3).expect("there is nothing to refuse");
    let clock = Arc::new(Clock::start(7, WALL, 0));
    let membership = Membership::new(MembershipState::Member, 0, true);
    let logs = Arc::new(Logs::first(Incarnation(1)));
    Arc::new(Shared::new(topology, NodeId(0), clock, membership, 0, logs))
}

struct Bench {
    protocol: Protocol,
    quorum: Quorum,
    under: ViewId,
    items: Vec<(Bytes, Record)>,
    micros: u64,
    requests: u64,
}

impl Bench {
    fn new(nodes: u8, quorum: Quorum) -> Self {
        let shared = create_shared(nodes);
        let under = shared.view().id();
        let (deadline_micros, max_skew_micros, brief_bytes) = (1_000_000, 500_000, 16 << 10);
        let config = Config { deadline_micros, max_skew_micros, brief_bytes };
        let item = |n| {
            let key = Bytes::from(format!("key{n:09}"));
            let record = record(&key, n);
            (key, record)
        };
        let items = (0..KEYS).map(item).collect();
        let mut protocol = Protocol::new(shared, config);
        for peer in 1..nodes {
            let up = Event::LinkUp(NodeId(peer.into()));
            protocol.handle(Now { mono: 0, wall: WALL }, up, &mut Vec::new());
        }
        Self { protocol, quorum, under, items, micros: 0, requests: 0 }
    }

    /// Runs `requests` requests. Returns the CPU time per request in nanoseconds.
    fn run(&mut self, kind: Kind, requests: u64) -> f64 {
        let (mut requested_effects, mut out) = (Vec::new(), Vec::new());
        let mut nanos = 0;
        for _ in 0..requests / KEYS {
            self.renew_items();
            let begun = cpu_nanos();
            self.run_once(kind, (&mut requested_effects, &mut out));
            nanos += cpu_nanos() - begun;
        }
        assert!(self.protocol.is_empty(), "all was answered");
        nanos as f64 / requests as f64
    }

    /// Replaces each key's record by a newer one, outside of the measured time, because the
    /// replacement costs more than the coordinator.
    fn renew_items(&mut self) {
        for (number, (key, item)) in (self.requests..).zip(&mut self.items) {
            *item = record(key, number);
        }
    }

    /// Runs one request for each key, [`IN_FLIGHT`] at a time.
    fn run_once(
        &mut self,
        kind: Kind,
        (requested_effects, out): (&mut Vec<Effect>, &mut Vec<Effect>),
    ) {
        for _ in 0..KEYS / IN_FLIGHT {
            self.micros += 300;
            let now = Now { mono: self.micros, wall: WALL + self.micros };
            for _ in 0..IN_FLIGHT {
                let event = self.request(kind);
                self.protocol.handle(now, event, requested_effects);
            }
            let now = Now { mono: self.micros + 100, ..now };
            for effect in requested_effects.drain(..) {
                self.protocol.handle(now, self.answer(effect), out);
            }
            black_box(&*out);
            out.clear();
            if self.protocol.next_wake().is_some_and(|wake| wake <= now.mono) {
                self.protocol.handle(now, Event::Tick, out);
            }
        }
    }

    fn request(&mut self, kind: Kind) -> Event {
        self.requests += 1;
        let (key, record) = &self.items[(self.requests % KEYS) as usize];
        let (client, key) = (ClientId(self.requests), key.clone());
        let quorum = self.quorum.into();
        let record = record.clone();
        match kind {
            Kind::Get => Event::Get { client, key, quorum },
            Kind::Put => Event::Write { client, key, record, quorum },
            Kind::Replica => {
                let (connection, id, class) = (ConnectionId(1), self.requests, Class::Client);
                let (remaining_ms, request) = (1000, Request::Write { key, record });
                let under = self.under;
                Event::Request { connection, id, class, remaining_ms, under, request }
            }
        }
    }

    /// Returns the store's or a peer's answer to an effect.
    fn answer(&self, effect: Effect) -> Event {
        match effect {
            Effect::Read { op, .. } => Event::Read { op, result: Ok(None) },
            Effect::Write { op, .. } => Event::Written { op, result: Ok(None) },
            Effect::Send { peer, message: Message { id, body: Body::Request { request, .. } } } => {
                let reply = match request {
                    Request::Read { .. } => Reply::Absent { authoritative: true },
                    _ => Reply::Stored,
                };
                Event::Reply { peer, id, reply }
            }
            other => unreachable!("{other:?} before any answer"),
        }
    }
}

/// Returns the CPU time of this process in nanoseconds. Unlike wall time, it excludes other
/// processes on the machine.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux tells");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.expect("the first field is nanoseconds on a CPU")
}

/// Creates the record of a write. A greater number makes a newer record.
fn record(key: &[u8], number: u64) -> Record {
    let version = Version { time: (WALL << 12) + number, origin: 7 };
    Record::new(key, &Fields::new(record::Kind::Value, version), VALUE)
}
