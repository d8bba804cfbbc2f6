//! Measures the balance of a million keys over the nodes of a cluster, the number of keys that move
//! when a node is added, and the time and memory of a topology. Prints the tables of
//! `docs/design/scale.md`, in which only the times differ from run to run.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::Instant;

use bench_table::Table;
use protocol::{Member, NodeFill, NodeId, PARTITIONS, Topology};

const KEYS: u32 = 1_000_000;
const COPIES: u8 = 3;

fn main() {
    let mut balance = Table::new(&["nodes", "first replicas", "all 3 copies", "of partitions"]);
    let mut moved = Table::new(&["nodes", "keys whose first replica moves", "1/(n+1)", "copies"]);
    let mut cost = Table::new(&["nodes", "made in", "held"]);
    for nodes in [3, 5, 10, 100, 1000] {
        let begun = Instant::now();
        let cluster = of(nodes);
        let millis = begun.elapsed().as_secs_f64() * 1e3;
        // Memory of both tables: the replicas of each partition, and the partitions of each node.
        let tables = 2 * PARTITIONS * nodes.min(8) * size_of::<u16>();
        let held = tables + nodes * size_of::<Member>();
        cost.row(row([
            nodes.to_string(),
            format!("{millis:.1} ms"),
            format!("{:.0} KiB", held as f64 / 1024.0),
        ]));
        balance.row(row([
            nodes.to_string(),
            spread(&keys_held(&cluster, 1)),
            spread(&keys_held(&cluster, COPIES)),
            spread(&partitions_held(&cluster, COPIES)),
        ]));
        let [first, copies] = moves(&cluster, &of(nodes + 1));
        moved.row(row([
            nodes.to_string(),
            format!("{:.2} %", first * 100.0),
            format!("{:.2} %", 100.0 / (nodes + 1) as f64),
            format!("{:.2} %", copies * 100.0),
        ]));
    }
    println!("{balance}\n{moved}\n{cost}\n{}", growth());
}

/// Measures changes of the number of nodes, for tuned hash weights: the balance of partitions, the
/// number of copies that move, compared with the least possible number, and the duration of the
/// tuning.
fn growth() -> Table {
    let mut grown = Table::new(&[
        "change",
        "fullest before",
        "fullest after",
        "moved",
        "least",
        "ratio",
        "took",
    ]);
    let changes =
        [(3, 4), (3, 5), (5, 3), (10, 11), (100, 110), (110, 100), (1000, 1001), (1001, 1000)];
    for (nodes, then) in changes {
        // The topology before the change has tuned hash weights too.
        let before =
            Topology::rebalance_from(&of(1), members(nodes), COPIES).expect("these are a cluster");
        let begun = Instant::now();
        let after =
            Topology::rebalance_from(&before, members(then), COPIES).expect("these are a cluster");
        let took = begun.elapsed().as_secs_f64();
        let (moved, least) = copies_moved(&before, &after);
        grown.row(row([
            format!("{nodes} → {then}"),
            format!("{:.3}", fullest(&before)),
            format!("{:.3}", fullest(&after)),
            moved.to_string(),
            format!("{least:.0}"),
            format!("{:.3}", moved as f64 / least),
            format!("{took:.2} s"),
        ]));
    }
    grown
}

/// Returns the greatest fill of a node, relative to the node's share.
fn fullest(cluster: &Topology) -> f64 {
    cluster.fill().iter().map(NodeFill::ratio).fold(0.0, f64::max)
}

/// Returns the number of copies of partitions that move to another node, and the least possible
/// number: the copies that nodes lack, before the change, to have their shares after it.
fn copies_moved(before: &Topology, after: &Topology) -> (u64, f64) {
    let (mut was, mut is, mut moved) = (Vec::new(), Vec::new(), 0);
    for partition in 0..=u16::MAX {
        before.replicas(partition, COPIES, &mut was);
        after.replicas(partition, COPIES, &mut is);
        moved += is.iter().filter(|node| !was.contains(node)).count() as u64;
    }
    let held: HashMap<NodeId, usize> =
        before.fill().iter().map(|fill| (fill.node, fill.held)).collect();
    let lacks =
        |fill: &NodeFill| fill.share - held.get(&fill.node).map_or(0.0, |held| *held as f64);
    (moved, after.fill().iter().map(lacks).filter(|lacks| *lacks > 0.0).sum())
}

fn row<const N: usize>(cells: [String; N]) -> Vec<Option<String>> {
    cells.into_iter().map(Some).collect()
}

fn of(nodes: usize) -> Topology {
    Topology::of(members(nodes), COPIES).expect("these are a cluster")
}

fn members(nodes: usize) -> Vec<(NodeId, Member)> {
    let member = |n| Member { name: format!("node-{n}"), zone: String::new(), weight: 1 };
    (0..nodes).map(|n| (NodeId(n as u16), member(n))).collect()
}

fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..KEYS).map(|n| format!("k{n}").into_bytes())
}

/// Returns, for each node, the number of keys for which the node is among the first `from`
/// replicas.
fn keys_held(cluster: &Topology, from: u8) -> Vec<u64> {
    count_copies(cluster, from, keys().map(|key| cluster.partition_of(&key)))
}

fn partitions_held(cluster: &Topology, from: u8) -> Vec<u64> {
    count_copies(cluster, from, 0..=u16::MAX)
}

fn count_copies(cluster: &Topology, from: u8, partitions: impl Iterator<Item = u16>) -> Vec<u64> {
    let mut counts = vec![0; cluster.nodes()];
    let mut nodes = Vec::new();
    for partition in partitions {
        cluster.replicas(partition, from, &mut nodes);
        nodes.iter().for_each(|node| counts[usize::from(node.0)] += 1);
    }
    counts
}

/// Formats the least and the greatest count as differences from the mean, in percent.
fn spread(counts: &[u64]) -> String {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let off = |count: Option<&u64>| (count.map_or(mean, |c| *c as f64) / mean - 1.0) * 100.0;
    format!("{:+.1} … {:+.1} %", off(counts.iter().min()), off(counts.iter().max()))
}

/// Returns the share of keys whose first replica changes, and the share of copies that move to
/// another node.
fn moves(before: &Topology, after: &Topology) -> [f64; 2] {
    let (mut was, mut is) = (Vec::new(), Vec::new());
    let (mut first, mut copies) = (0_u64, 0_u64);
    let name = |cluster: &Topology, node: NodeId| cluster.member(node).name.clone();
    for key in keys() {
        let partition = before.partition_of(&key);
        before.replicas(partition, COPIES, &mut was);
        after.replicas(partition, COPIES, &mut is);
        let was: Vec<String> = was.iter().map(|node| name(before, *node)).collect();
        let is: Vec<String> = is.iter().map(|node| name(after, *node)).collect();
        first += u64::from(was[0] != is[0]);
        copies += is.iter().filter(|node| !was.contains(node)).count() as u64;
    }
    let all = f64::from(KEYS);
    [first as f64 / all, copies as f64 / (all * f64::from(COPIES))]
}
