use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn member(name: &str) -> Member {
    Member { name: name.to_owned(), zone: String::new(), weight: 1 }
}

fn members_named(names: &[&str]) -> Vec<Member> {
    names.iter().map(|name| member(name)).collect()
}

fn numbered_members(nodes: usize) -> Vec<Member> {
    (0..nodes).map(|n| member(&format!("node-{n}"))).collect()
}

fn topology(members: Vec<Member>) -> Topology {
    Topology::new(members, 3).unwrap()
}

/// Returns the names of all nodes in their order for a partition.
fn order(topology: &Topology, partition: u16) -> Vec<&str> {
    let mut nodes = Vec::new();
    topology.replicas(partition, u8::MAX, &mut nodes);
    nodes.iter().map(|node| topology.member(*node).name.as_str()).collect()
}

/// Returns, for each node, the number of partitions with the node among their first `from` nodes,
/// divided by the node's fair share.
fn loads(topology: &Topology, from: u8) -> Vec<f64> {
    let mut counts = vec![0_u64; topology.nodes()];
    let mut nodes = Vec::new();
    for partition in 0..=u16::MAX {
        topology.replicas(partition, from, &mut nodes);
        nodes.iter().for_each(|node| counts[usize::from(node.0)] += 1);
    }
    let weights = (0..counts.len()).map(|node| topology.member(NodeId(node as u16)).weight);
    let all = f64::from(weights.clone().sum::<u32>());
    let share = |weight: u32| f64::from(weight) / all * (PARTITIONS * usize::from(from)) as f64;
    counts.iter().zip(weights).map(|(count, weight)| *count as f64 / share(weight)).collect()
}

#[test]
fn invalid_members_are_refused() {
    use TopologyError as E;
    let with = |change: fn(&mut Member)| {
        let mut members = members_named(&["a", "b"]);
        change(&mut members[1]);
        Topology::new(members, 3).unwrap_err()
    };
    assert_eq!(Topology::new(Vec::new(), 3).unwrap_err(), E::NoNodes);
    assert_eq!(Topology::new(numbered_members(65_536), 3).unwrap_err(), E::TooManyNodes(65_536));
    assert_eq!(Topology::new(members_named(&["a"]), 0).unwrap_err(), E::NoReplicas);
    assert_eq!(with(|b| b.name.clear()), E::EmptyName);
    assert_eq!(with(|b| b.name = "a".to_owned()), E::Duplicate("a".to_owned()));
    for bad in ["b c".to_owned(), "b\n".to_owned(), "\u{1b}[2J".to_owned(), "b".repeat(256)] {
        assert_eq!(Topology::new(members_named(&["a", &bad]), 3).unwrap_err(), E::BadName(bad));
    }
    assert_eq!(with(|b| b.zone = " ".to_owned()), E::BadName(" ".to_owned()));
    for (change, weight) in [(0, 0), (1001, 1001)] {
        let mut members = members_named(&["a", "b"]);
        members[1].weight = change;
        let bad = E::BadWeight { name: "b".to_owned(), weight };
        assert_eq!(Topology::new(members, 3).unwrap_err(), bad);
    }
}

#[test]
fn names_with_equal_hashes_are_refused() {
    let mut seen = std::collections::HashMap::new();
    let pair = (0..).find_map(|n: u32| {
        let name = format!("node-{n}");
        seen.insert(origin_of(&name), name.clone()).map(|other| (other, name))
    });
    let (first, second) = pair.unwrap();
    let refused = Topology::new(members_named(&["a", &second, &first]), 3).unwrap_err();
    assert!(matches!(refused, TopologyError::Collision(..)), "{refused}");
    assert!(!refused.to_string().contains('\n'));
}

#[test]
fn ids_are_positions_in_the_sorted_list_of_names() {
    let cluster = topology(members_named(&["c", "a", "b"]));
    for (place, name) in ["a", "b", "c"].into_iter().enumerate() {
        let id = NodeId(place as u16);
        assert_eq!(cluster.find(name), Some(id));
        assert_eq!(cluster.member(id).name, name);
    }
    assert_eq!((cluster.find("d"), cluster.nodes()), (None, 3));
    assert_eq!(topology(members_named(&["a"])).default_copies(), 1);
    assert_eq!(topology(numbered_members(5)).default_copies(), 3);
    assert_eq!(Topology::new(numbered_members(300), 255).unwrap().default_copies(), 255);
}

#[test]
fn a_request_for_more_replicas_than_nodes_returns_all_nodes() {
    let cluster = topology(numbered_members(3));
    let mut nodes = vec![NodeId(9)];
    cluster.replicas(7, 255, &mut nodes);
    nodes.sort_unstable();
    assert_eq!(nodes, [NodeId(0), NodeId(1), NodeId(2)]);
    cluster.replicas(7, 0, &mut nodes);
    assert_eq!(nodes, []);
}

/// Pins the placement that all releases and platforms must compute. After a change of the
/// placement, clusters can't be upgraded node by node, and `FORMAT_VERSION` must change.
#[test]
fn placement_and_digest_are_pinned() {
    let mut members = numbered_members(12);
    for (n, member) in members.iter_mut().enumerate() {
        member.zone = ["x", "y", "z", ""][n % 4].to_owned();
        member.weight = 1 + n as u32 * 90;
    }
    let cluster = Topology::new(members, 5).unwrap();
    assert_eq!(cluster.partition_of(b"k1"), 33_199);
    assert_eq!(order(&cluster, 0)[..4], ["node-4", "node-10", "node-3", "node-9"]);
    let mut all = Vec::new();
    let mut nodes = Vec::new();
    for partition in 0..=u16::MAX {
        cluster.replicas(partition, 12, &mut nodes);
        all.extend(nodes.iter().flat_map(|node| node.0.to_le_bytes()));
    }
    let pinned = (7_564_500_428_087_340_760, 17_980_162_977_940_906_694);
    assert_eq!((xxh3_64(&all), cluster.digest()), pinned);
}

#[test]
fn the_description_is_pinned() {
    let mut members = members_named(&["b", "http://127.0.0.1:8080"]);
    members[0].zone = "x".to_owned();
    members[0].weight = 7;
    let cluster = topology(members);
    let text = "kvorum-topology 1\npartitions 65536\nreplicas 3\nnode b id 0 weight 7 zone x\n\
                node http://127.0.0.1:8080 id 1 weight 1\n";
    assert_eq!(cluster.describe(), text);
    assert_eq!(cluster.digest(), xxh3_64(text.as_bytes()));
    assert_eq!(cluster.digest(), 16_439_443_301_257_253_681);
}

#[test]
fn the_differences_of_two_topologies_are_described_in_one_line() {
    let ours = topology(members_named(&["a", "b"])).describe();
    let differs = |theirs: &str| difference(&ours, theirs, "the peer's").unwrap();
    assert_eq!(difference(&ours, &ours, "the peer's"), None);
    let other = |change: fn(&mut Vec<Member>)| {
        let mut members = members_named(&["a", "b"]);
        change(&mut members);
        differs(&topology(members).describe())
    };
    let comes_first = "node 0 is in the peer's list and not in ours";
    assert_eq!(other(|m| m.push(member("0"))), comes_first, "not that the others' ids differ");
    assert_eq!(other(|m| m.push(member("c"))), "node c is in the peer's list and not in ours");
    assert_eq!(other(|m| drop(m.pop())), "node b is in our list and not in the peer's");
    assert_eq!(other(|m| m[0].weight = 5), "node a has weight 1 in our list, 5 in the peer's");
    assert_eq!(
        other(|m| m[0].zone = "x".to_owned()),
        "node a has no zone in our list, zone x in the peer's"
    );
    assert_eq!(
        other(|m| *m = members_named(&["c", "d"])),
        "node c is in the peer's list and not in ours; 3 more differences"
    );
    let fewer = Topology::new(members_named(&["a", "b"]), 2).unwrap().describe();
    assert_eq!(differs(&fewer), "replicas: 3 in our topology, 2 in the peer's");
    for strange in ["", "kvorum-topology 2\n", "kvorum-topology 1\npartitions 65536\n", "x\ny\n"] {
        assert!(differs(strange).contains("does not support"), "{strange:?}");
    }
    let forged = ours.replace("node b", "node \u{1b}[2Jb");
    assert!(!differs(&forged).contains('\u{1b}'), "a peer does not write on our terminal");
}

#[test]
fn shares_follow_weights() {
    for weights in [&[1, 1, 1][..], &[1, 2, 3], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1], &[999, 1000, 500]]
    {
        let mut members = numbered_members(weights.len());
        members.iter_mut().zip(weights).for_each(|(member, weight)| member.weight = *weight);
        let cluster = topology(members);
        for load in loads(&cluster, 1) {
            assert!((0.95..1.05).contains(&load), "{weights:?}: {load}");
        }
    }
    for load in loads(&topology(numbered_members(10)), 3) {
        assert!((0.95..1.05).contains(&load), "all copies: {load}");
    }
}

#[test]
fn copies_go_to_different_zones_first() {
    let mut members = numbered_members(9);
    for (n, member) in members.iter_mut().enumerate() {
        member.zone = ["x", "x", "x", "x", "x", "y", "y", "z", ""][n].to_owned();
    }
    let cluster = topology(members);
    for partition in 0..=u16::MAX {
        let mut nodes = Vec::new();
        cluster.replicas(partition, 9, &mut nodes);
        let zones: Vec<&str> =
            nodes.iter().map(|node| cluster.member(*node).zone.as_str()).collect();
        let mut rounds = [&zones[..4], &zones[4..6], &zones[6..]].map(<[&str]>::to_vec);
        rounds.iter_mut().for_each(|round| round.sort_unstable());
        assert_eq!(rounds[0], ["", "x", "y", "z"]);
        assert_eq!(rounds[1], ["x", "y"]);
        assert_eq!(rounds[2], ["x", "x", "x"]);
    }
}

#[test]
fn two_nodes_without_a_zone_are_in_different_ones() {
    let mut members = members_named(&["a", "b", "c", "d"]);
    members[2].zone = "x".to_owned();
    members[3].zone = "x".to_owned();
    let cluster = topology(members);
    for partition in 0..1000 {
        let first = &order(&cluster, partition)[..3];
        assert!(first.contains(&"a") && first.contains(&"b"), "{first:?}");
    }
}

fn arbitrary_members(most: usize) -> impl Strategy<Value = Vec<Member>> {
    let member = ("[a-z]{1,6}", prop::sample::select(vec!["", "", "x", "y", "z"]), 1..=1000_u32);
    let member =
        member.prop_map(|(name, zone, weight)| Member { name, zone: zone.to_owned(), weight });
    prop::collection::vec(member, 1..=most).prop_map(|mut members| {
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members.dedup_by(|a, b| a.name == b.name);
        members
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn fewer_replicas_are_a_prefix(members in arbitrary_members(20), partition: u16) {
        let cluster = topology(members);
        let (mut longer, mut shorter) = (Vec::new(), Vec::new());
        cluster.replicas(partition, u8::MAX, &mut longer);
        prop_assert_eq!(longer.len(), cluster.nodes());
        for from in 0..=cluster.nodes() as u8 {
            cluster.replicas(partition, from, &mut shorter);
            prop_assert_eq!(&shorter[..], &longer[..usize::from(from)]);
        }
        let mut once = longer.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), longer.len(), "no node twice");
    }

    #[test]
    fn holds_agrees_with_replicas(
        members in arbitrary_members(20), partition: u16, from in 0u8..30, node in 0u16..22,
    ) {
        let topology = topology(members);
        let wanted = if from == 0 { topology.default_copies() } else { from };
        let mut replicas = Vec::new();
        topology.replicas(partition, wanted, &mut replicas);
        let holds = topology.holds(NodeId(node), partition, from);
        prop_assert_eq!(holds, replicas.contains(&NodeId(node)));
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(members in arbitrary_members(12), partition: u16) {
        let reversed = members.iter().rev().cloned().collect();
        let (one, other) = (topology(members), topology(reversed));
        prop_assert_eq!(order(&one, partition), order(&other, partition));
        prop_assert_eq!(one.digest(), other.digest());
        prop_assert_eq!(difference(&one.describe(), &other.describe(), "the other's"), None);
    }

    /// If every node has a zone of its own, the old nodes keep their order, so nothing moves
    /// between old nodes.
    #[test]
    fn a_new_node_leaves_the_order_of_the_old_nodes_unchanged(
        members in arbitrary_members(12),
        weight in 1..=1000_u32,
    ) {
        let mut members = members;
        members.iter_mut().for_each(|member| member.zone.clear());
        let before = topology(members.clone());
        members.push(Member { weight, ..member("NEW") });
        let after = topology(members);
        for partition in (0..=u16::MAX).step_by(97) {
            let mut now = order(&after, partition);
            now.retain(|name| *name != "NEW");
            prop_assert_eq!(order(&before, partition), now);
        }
    }

    #[test]
    fn different_members_have_different_digests(
        one in arbitrary_members(6),
        other in arbitrary_members(6),
    ) {
        let (same, one, other) = (one == other, topology(one), topology(other));
        prop_assert_eq!(one.digest() == other.digest(), same);
        let reported = difference(&one.describe(), &other.describe(), "the other's");
        prop_assert_eq!(reported.is_none(), same);
        prop_assert!(reported.is_none_or(|reported| !reported.contains('\n')));
    }
}

#[test]
fn a_node_added_takes_its_share_and_no_more() {
    for nodes in [3, 5, 10] {
        let (before, after) =
            (topology(numbered_members(nodes)), topology(numbered_members(nodes + 1)));
        let moved = (0..=u16::MAX)
            .filter(|partition| order(&before, *partition)[0] != order(&after, *partition)[0])
            .count();
        let moved = moved as f64 / PARTITIONS as f64;
        let most = 1.0 / (nodes + 1) as f64 + 0.01;
        assert!(moved <= most, "{nodes} nodes and one: {moved}");
    }
}

/// A node that joins changes no id of the other nodes, whatever its place in the order of names. It
/// moves only the partitions of which it becomes a replica.
#[test]
fn ids_stay_when_a_node_joins() {
    let three = topology(members_named(&["a", "c", "d"]));
    let id = |name: &str| three.find(name).unwrap();
    assert_eq!(["a", "c", "d"].map(id), [NodeId(0), NodeId(1), NodeId(2)]);
    let with = |new: &str, number| {
        let mut nodes: Vec<_> = three.ids().map(|id| (id, three.member(id).clone())).collect();
        nodes.push((NodeId(number), member(new)));
        Topology::of(nodes, 3)
    };
    let four = with("b", 9).unwrap();
    assert_eq!(four.ids().collect::<Vec<_>>(), [0, 9, 1, 2].map(NodeId));
    assert_eq!(four.member(NodeId(9)).name, "b");
    assert!(four.contains(NodeId(9)) && !four.contains(NodeId(3)) && !three.contains(NodeId(9)));
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for partition in 0..=u16::MAX {
        three.replicas(partition, 3, &mut before);
        four.replicas(partition, 4, &mut after);
        after.retain(|node| *node != NodeId(9));
        assert_eq!(before, after, "{partition}");
    }
    let same = with("b", 2).unwrap_err();
    assert_eq!(same, TopologyError::SameId("b".to_owned(), "d".to_owned()));
}

/// In a fixed list the ids are the positions.
#[test]
fn ids_are_described() {
    let member = |name: &str| Member { zone: "x".to_owned(), ..member(name) };
    let of = |ids: [u16; 2]| {
        let nodes = ids.map(NodeId).into_iter().zip(["a", "b"].map(member));
        Topology::of(nodes.collect(), 3).unwrap()
    };
    let fixed = Topology::new(["b", "a"].map(member).into(), 3).unwrap();
    assert_eq!(of([0, 1]).digest(), fixed.digest());
    let other = of([0, 7]);
    let text = "kvorum-topology 1\npartitions 65536\nreplicas 3\nnode a id 0 weight 1 zone x\n\
                node b id 7 weight 1 zone x\n";
    assert_eq!(other.describe(), text);
    assert_eq!(
        difference(&fixed.describe(), text, "the peer's").unwrap(),
        "node b has id 1 in our list, 7 in the peer's"
    );
    assert_eq!(difference(text, text, "the peer's"), None);
}
