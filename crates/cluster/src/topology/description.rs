//! A topology as text: what is hashed, what nodes send each other and keep on disk, and what tells
//! people how two of them differ.
//!
//! ```text
//! kvorum-topology 1
//! partitions 65536
//! replicas 3
//! node a weight 1 zone x
//! node b weight 2
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{FORM, Member, PARTITIONS};

/// `members` are sorted by name.
pub(super) fn describe(members: &[Member], replicas: u8) -> String {
    let mut text =
        format!("kvorum-topology {FORM}\npartitions {PARTITIONS}\nreplicas {replicas}\n");
    for Member { name, zone, weight } in members {
        let zone = if zone.is_empty() { String::new() } else { format!(" zone {zone}") };
        writeln!(text, "node {name} weight {weight}{zone}")
            .expect("writing to a String cannot fail");
    }
    text
}

/// What differs between two descriptions, in one line; `None` if nothing does. `whose` the second
/// one is stands in the line: "the peer's". A text that is no description is a difference.
pub fn difference(ours: &str, theirs: &str, whose: &str) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (Some(ours), Some(theirs)) = (parse(ours), parse(theirs)) else {
        return Some(format!("{whose} topology has a format that this release does not support"));
    };
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
        if node.weight != other.weight {
            let (here, there) = (node.weight, other.weight);
            found.push(format!("node {shown} has weight {here} in our list, {there} in {whose}"));
        }
        if node.zone != other.zone {
            let zone = |node: &Node<'_>| match node.zone {
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
    nodes: BTreeMap<&'a str, Node<'a>>,
}

struct Node<'a> {
    weight: u32,
    zone: Option<&'a str>,
}

fn parse(text: &str) -> Option<Described<'_>> {
    let mut lines = text.lines();
    let mut number = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    if number("kvorum-topology")? != FORM {
        return None;
    }
    let (partitions, replicas) = (number("partitions")?, number("replicas")?);
    let node = |line| {
        let words: Vec<&str> = str::split(line, ' ').collect();
        let (name, weight, zone) = match words[..] {
            ["node", name, "weight", weight] => (name, weight, None),
            ["node", name, "weight", weight, "zone", zone] => (name, weight, Some(zone)),
            _ => return None,
        };
        Some((name, Node { weight: weight.parse().ok()?, zone }))
    };
    Some(Described { partitions, replicas, nodes: lines.map(node).collect::<Option<_>>()? })
}
