//! Text form of a topology, which nodes hash, exchange and store on disk, and a comparison of two
//! such texts.
//!
//! ```text
//! kvorum-topology 1
//! partitions 65536
//! replicas 3
//! node a id 0 weight 1 zone x
//! node b id 7 weight 2 hash 131100
//! ```
//!
//! A hash weight equal to the node's weight and an empty zone are omitted.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{FORMAT_VERSION, HashWeight, Member, PARTITIONS};
use crate::node_id::NodeId;

/// Writes the description. `members` are sorted by name; `ids` and `weights` are in the same order.
pub(super) fn describe(
    members: &[Member],
    ids: &[NodeId],
    weights: &[HashWeight],
    replicas: u8,
) -> String {
    let mut text =
        format!("kvorum-topology {FORMAT_VERSION}\npartitions {PARTITIONS}\nreplicas {replicas}\n");
    for ((member, id), hash) in members.iter().zip(ids).zip(weights) {
        let Member { name, zone, weight } = member;
        let is_weight = *hash == HashWeight::of(*weight);
        let said = if is_weight { String::new() } else { format!(" hash {}", hash.get()) };
        let zone = if zone.is_empty() { String::new() } else { format!(" zone {zone}") };
        writeln!(text, "node {name} id {} weight {weight}{said}{zone}", id.0)
            .expect("writing to a String cannot fail");
    }
    text
}

/// Describes the differences between two descriptions in one line; `None` if they are equal.
/// `whose` names the owner of the second description, for example "the peer's". A text in another
/// format counts as a difference.
pub fn difference(ours: &str, theirs: &str, whose: &str) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (Some(ours), Some(theirs)) = (parse(ours), parse(theirs)) else {
        return Some(format!("{whose} topology has a format that this release does not support"));
    };
    // Ids are positions in a fixed list, so a missing node changes the ids of other nodes. Such
    // changes are not reported.
    let has_same_names = ours.nodes.keys().eq(theirs.nodes.keys());
    let mut found = Vec::new();
    for name in theirs.nodes.keys().filter(|name| !ours.nodes.contains_key(*name)) {
        found.push(format!("node {} is in {whose} list and not in ours", name.escape_debug()));
    }
    for (name, node) in &ours.nodes {
        let shown = name.escape_debug();
        let Some(other) = theirs.nodes.get(name) else {
            found.push(format!("node {shown} is in our list and not in {whose}"));
            continue;
        };
        if node.id != other.id && has_same_names {
            let (here, there) = (node.id, other.id);
            found.push(format!("node {shown} has id {here} in our list, {there} in {whose}"));
        }
        if node.weight != other.weight {
            let (here, there) = (node.weight, other.weight);
            found.push(format!("node {shown} has weight {here} in our list, {there} in {whose}"));
        }
        if node.hash != other.hash && node.weight == other.weight {
            let hash = |node: &DescribedNode<'_>| match node.hash {
                Some(hash) => hash.to_string(),
                None => "that of its weight".to_owned(),
            };
            let (here, there) = (hash(node), hash(other));
            found.push(format!(
                "node {shown} has hash weight {here} in our list, {there} in {whose}"
            ));
        }
        if node.zone != other.zone {
            let zone = |node: &DescribedNode<'_>| match node.zone {
                Some(zone) => format!("zone {}", zone.escape_debug()),
                None => "no zone".to_owned(),
            };
            let (here, there) = (zone(node), zone(other));
            found.push(format!("node {shown} has {here} in our list, {there} in {whose}"));
        }
    }
    for (what, here, there) in [
        ("replicas", ours.replicas, theirs.replicas),
        ("partitions", ours.partitions, theirs.partitions),
    ] {
        if here != there {
            found.push(format!("{what}: {here} in our topology, {there} in {whose}"));
        }
    }
    match found.len() {
        0 => Some(format!("{whose} topology is written differently")),
        1 => found.pop(),
        more => Some(format!("{}; {} more differences", found[0], more - 1)),
    }
}

struct Described<'a> {
    partitions: u32,
    replicas: u32,
    nodes: BTreeMap<&'a str, DescribedNode<'a>>,
}

struct DescribedNode<'a> {
    id: u16,
    weight: u32,
    /// The hash weight, if the description has one.
    hash: Option<u32>,
    zone: Option<&'a str>,
}

fn parse(text: &str) -> Option<Described<'_>> {
    let mut lines = text.lines();
    let mut number = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    let form: u32 = number("kvorum-topology")?;
    if form != FORMAT_VERSION {
        return None;
    }
    let (partitions, replicas) = (number("partitions")?, number("replicas")?);
    let node = |line| {
        let mut words = str::split(line, ' ');
        let mut value = |name: &str| words.next().filter(|word| *word == name).and(words.next());
        let name = value("node")?;
        let id = value("id")?.parse().ok()?;
        let weight = value("weight")?.parse().ok()?;
        let mut next = words.next();
        let mut hash = None;
        if next == Some("hash") {
            hash = Some(words.next()?.parse().ok()?);
            next = words.next();
        }
        let zone = match next {
            None => None,
            Some("zone") => Some(words.next()?),
            Some(_) => return None,
        };
        words.next().is_none().then_some((name, DescribedNode { id, weight, hash, zone }))
    };
    let nodes = lines.map(node).collect::<Option<_>>()?;
    Some(Described { partitions, replicas, nodes })
}
