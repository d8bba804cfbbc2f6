use super::*;
use crate::placement::topology::{Topology, partition_of};

fn joiner(name: &str) -> Joiner {
    let member = Member { name: name.to_owned(), zone: String::new(), weight: 1 };
    Joiner { member, url: format!("http://{name}:8080"), disk: Some(Incarnation(7)) }
}

fn first(names: &[&str], replicas: u8) -> Layout {
    let members = names.iter().map(|name| joiner(name).member).collect();
    let topology = Topology::new(members, replicas).unwrap();
    let url = |id| format!("http://{}:8080", topology.member(id).name);
    let mut layout = Layout::first(&topology, url);
    for seat in &mut layout.council {
        seat.voter = Some(VoterId(u64::from(seat.node.0) + 100));
    }
    layout
}

/// Plans a change with every node up and on its original disk.
fn plan_change(layout: &Layout, change: &PlanChange) -> Result<Layout, PlanError> {
    layout.plan_change(change, voter_of)
}

fn voter_of(name: &str) -> Option<VoterId> {
    Some(VoterId(99 + "_abcd".find(name).unwrap_or(77) as u64))
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_first_layout_of_a_list_places_keys_as_its_topology() {
    let list = ["c", "a", "b"];
    let members = list.iter().map(|name| joiner(name).member).collect();
    let topology = Topology::new(members, 3).unwrap();
    let layout = first(&list, 3);
    assert_eq!(layout.topology().unwrap().describe(), topology.describe());
    assert_eq!((layout.epoch, layout.next_id), (1, 3));
    assert_eq!(layout.council.iter().map(|seat| seat.node.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(layout.council[1].voter, Some(VoterId(101)));
}

#[test]
fn a_plan_carries_the_current_urls() {
    let one = first(&["a", "b", "c"], 3);
    let at = |id, url: &str| (NodeId(id), url.to_owned());
    let urls = vec![at(0, "http://new"), at(1, "http://b:8080"), at(2, "http://gone")];
    let moved =
        plan_change(&one, &PlanChange { urls: urls.clone(), ..PlanChange::default() }).unwrap();
    assert_eq!(
        (moved.epoch, moved.stage, moved.placement_epoch),
        (2, Stage::Settled, 1),
        "no key moves"
    );
    let of = |nodes: &[Node]| nodes.iter().map(|node| node.url.clone()).collect::<Vec<_>>();
    assert_eq!(of(&moved.nodes), ["http://new", "http://b:8080", "http://gone"]);
    assert_eq!(moved.council, one.council);
    let again = plan_change(&moved, &PlanChange { urls: urls.clone(), ..PlanChange::default() });
    assert_eq!(again, Err(PlanError::Nothing));
    let change =
        PlanChange { add: vec![joiner("d")], remove: names(&["c"]), urls, ..PlanChange::default() };
    let joins = plan_change(&one, &change).unwrap();
    assert_eq!(of(&joins.nodes), ["http://new", "http://b:8080", "http://d:8080"]);
    assert_eq!(of(&joins.before.unwrap().nodes), of(&moved.nodes), "who leaves is asked too");
}

#[test]
fn joining_and_leaving_nodes_go_through_all_stages() {
    let one = first(&["a", "b", "c"], 3);
    let change =
        PlanChange { add: vec![joiner("aa")], remove: names(&["b"]), ..PlanChange::default() };
    let prepared = plan_change(&one, &change).unwrap();
    assert_eq!((prepared.epoch, prepared.stage, prepared.placement_epoch), (2, Stage::Prepare, 1));
    assert_eq!(prepared.base, one.id());
    let back = prepared.plan_abort(|_| Some(VoterId(5))).unwrap();
    assert_eq!(
        (back.epoch, back.stage, back.placement_epoch),
        (3, Stage::Settled, 1),
        "as if nothing was"
    );
    let old = prepared.next_stage().unwrap();
    assert_eq!((old.epoch, old.stage, old.placement_epoch), (3, Stage::ReadOld, 3));
    let ids: Vec<(u16, &str)> =
        old.nodes.iter().map(|node| (node.id.0, node.member.name.as_str())).collect();
    assert_eq!(ids, [(0, "a"), (3, "aa"), (2, "c")]);
    assert_eq!(old.before.as_ref().unwrap().nodes, one.nodes);
    assert_eq!(old.base, prepared.id());
    // A node that leaves loses its seat.
    assert_eq!(old.council.iter().map(|seat| seat.node.0).collect::<Vec<_>>(), [0, 2, 3]);
    assert!(!old.is_retired(NodeId(1)), "it still holds what moves");
    let again = plan_change(&old, &PlanChange { add: vec![joiner("d")], ..PlanChange::default() });
    assert_eq!(again, Err(PlanError::Moving { began: 2 }));

    let new = old.next_stage().unwrap();
    assert_eq!((new.epoch, new.stage, new.placement_epoch), (4, Stage::ReadNew, 3));
    assert_eq!(new.plan_abort(|_| Some(VoterId(5))), None, "reads have switched");
    let settled = new.next_stage().unwrap();
    assert_eq!((settled.epoch, settled.stage, settled.before.clone()), (5, Stage::Settled, None));
    assert!(settled.is_retired(NodeId(1)) && !settled.is_retired(NodeId(4)));
    assert_eq!(settled.next_stage(), None);

    let back = old.plan_abort(|_| Some(VoterId(5))).unwrap();
    assert_eq!((back.epoch, back.placement_epoch, &back.nodes), (4, 4, &one.nodes));
    assert!(back.is_retired(NodeId(3)), "an id is given once, though its node never held anything");
    // A node of the same name with another disk is another node, with a new id.
    let later =
        plan_change(&settled, &PlanChange { add: vec![joiner("b")], ..PlanChange::default() })
            .unwrap();
    assert_eq!(later.find_node("b").unwrap().id, NodeId(4));
}

/// A metadata quorum without members could decide no further layout, and a quorum of two would need
/// both members.
#[test]
fn an_aborted_change_gives_the_joiners_seats_to_staying_nodes() {
    let one = first(&["a", "b", "c"], 3);
    let add = vec![joiner("d"), joiner("e")];
    for (council, back) in [(&["d"][..], &[0, 1, 2][..]), (&["a", "d", "e"], &[0, 1, 2])] {
        let council = Some(names(council));
        let change = PlanChange { add: add.clone(), council, ..PlanChange::default() };
        let prepared = one.plan_change(&change, |_| Some(VoterId(5))).unwrap();
        let aborted = prepared.plan_abort(|_| Some(VoterId(5))).unwrap();
        let seats: Vec<u16> = aborted.council.iter().map(|seat| seat.node.0).collect();
        assert_eq!(seats, back);
        let only_a = prepared.plan_abort(|name| (name == "a").then_some(VoterId(5))).unwrap();
        assert_eq!(only_a.council, [Seat { node: NodeId(0), voter: Some(VoterId(5)) }]);
    }
    let change = PlanChange { add, council: Some(names(&["d"])), ..PlanChange::default() };
    let prepared = one.plan_change(&change, |_| Some(VoterId(5))).unwrap();
    assert_eq!(prepared.plan_abort(|_| None), None, "nobody could decide anything afterwards");
}

#[test]
fn a_plan_says_who_is_down_when_the_council_cannot_grow() {
    let mut layout = first(&["a", "b", "c"], 3);
    layout.council = vec![Seat { node: NodeId(2), voter: Some(VoterId(5)) }];
    let seen = |up: &'static [&str]| move |name: &str| up.contains(&name).then_some(VoterId(5));
    let refused = layout.plan_change(&PlanChange::default(), seen(&["a", "c"])).unwrap_err();
    let (council, down) = (names(&["c"]), names(&["b"]));
    assert_eq!(refused, PlanError::SmallCouncil { council, down });
    let grown = layout.plan_change(&PlanChange::default(), seen(&["a", "b", "c"])).unwrap();
    assert_eq!(grown.council.len(), 3);
}

#[test]
fn an_impossible_plan_is_refused_with_its_reason() {
    let layout = first(&["a", "b", "c"], 3);
    let refused = |change: PlanChange| plan_change(&layout, &change).unwrap_err();
    assert_eq!(refused(PlanChange::default()), PlanError::Nothing);
    let no_change = PlanChange { weights: vec![("a".to_owned(), 1)], ..PlanChange::default() };
    assert_eq!(refused(no_change), PlanError::Nothing);
    let remove = PlanChange { remove: names(&["x"]), ..PlanChange::default() };
    assert_eq!(refused(remove), PlanError::Unknown("x".to_owned()));
    let add = PlanChange { add: vec![joiner("a")], ..PlanChange::default() };
    assert_eq!(refused(add.clone()), PlanError::IsMember("a".to_owned()));
    let replaced = PlanChange { remove_lost: vec!["a".to_owned()], ..add };
    assert_eq!(refused(replaced), PlanError::NameStays("a".to_owned()));
    let twice = PlanChange { add: vec![joiner("d"), joiner("d")], ..PlanChange::default() };
    assert_eq!(refused(twice), PlanError::IsMember("d".to_owned()));
    let few = PlanChange { remove: names(&["a"]), ..PlanChange::default() };
    assert_eq!(refused(few), PlanError::TooFew { left: 2, replicas: 3 });
    let fewer = PlanChange { remove: names(&["a"]), replicas: Some(2), ..PlanChange::default() };
    assert_eq!(plan_change(&layout, &fewer).unwrap().nodes.len(), 2);
    let all =
        PlanChange { remove: names(&["a", "b", "c"]), replicas: Some(1), ..PlanChange::default() };
    assert_eq!(refused(all), PlanError::TooFew { left: 0, replicas: 1 });
    let council =
        |list: &[&str]| PlanChange { council: Some(names(list)), ..PlanChange::default() };
    assert_eq!(refused(council(&["a", "b"])), PlanError::CouncilSize(2));
    assert_eq!(refused(council(&[])), PlanError::CouncilSize(0));
    assert_eq!(refused(council(&["x"])), PlanError::Unknown("x".to_owned()));
    let weight = PlanChange { weights: vec![("a".to_owned(), 0)], ..PlanChange::default() };
    assert!(matches!(refused(weight), PlanError::Topology(TopologyError::BadWeight { .. })));
    let long = Joiner { url: "u".repeat(256), ..joiner("d") };
    let long = PlanChange { add: vec![long], ..PlanChange::default() };
    assert_eq!(refused(long), PlanError::LongUrl("d".to_owned()));
    let twin = Joiner { url: joiner("d").url, ..joiner("e") };
    let url = twin.url.clone();
    let twins = PlanChange { add: vec![joiner("d"), twin], ..PlanChange::default() };
    assert_eq!(refused(twins), PlanError::SameUrl("d".to_owned(), "e".to_owned(), url));
    let a = |weight| ("a".to_owned(), weight);
    let both = PlanChange { remove_lost: names(&["a"]), ..fewer.clone() };
    let weighed = PlanChange { weights: vec![a(2)], ..fewer };
    let weighed_twice = PlanChange { weights: vec![a(2), a(3)], ..PlanChange::default() };
    for change in [both, weighed, weighed_twice] {
        let refused = refused(change);
        assert!(
            matches!(refused, PlanError::Contradiction(ref name, _) if name == "a"),
            "{refused}"
        );
    }
    let same_twice = PlanChange { weights: vec![a(2), a(2)], ..PlanChange::default() };
    assert!(plan_change(&layout, &same_twice).is_ok());
    let full = Layout { next_id: u32::from(u16::MAX), ..layout.clone() };
    let add = PlanChange { add: vec![joiner("d")], ..PlanChange::default() };
    assert_eq!(plan_change(&full, &add), Err(PlanError::NoIds));
    let bigger = PlanChange { add: vec![joiner("d")], ..PlanChange::default() };
    let a_is_down = |name: &str| voter_of(name).filter(|_| name != "a");
    let unseen = layout.plan_change(&bigger, a_is_down).unwrap();
    assert_eq!(unseen.council[0].voter, Some(VoterId(100)), "the disk that has the seat already");
    let add = PlanChange {
        add: vec![joiner("d")],
        council: Some(names(&["d"])),
        ..PlanChange::default()
    };
    assert_eq!(layout.plan_change(&add, |_| None), Err(PlanError::NotSeen("d".to_owned())));
}

#[test]
fn a_single_node_that_grows_to_three_gets_three_replicas() {
    let alone = first(&["a"], 3);
    assert_eq!(alone.council.len(), 1);
    let change = PlanChange { add: vec![joiner("b"), joiner("c")], ..PlanChange::default() };
    let grown = plan_change(&alone, &change).unwrap();
    assert_eq!(grown.council.len(), 3);
    let mut replicas = Vec::new();
    let partition = partition_of(b"k1");
    grown.topology().unwrap().replicas(partition, 3, &mut replicas);
    assert_eq!(replicas.len(), 3);
    let before = grown.before.as_ref().unwrap();
    let before =
        crate::membership::layout::cached_topology(&before.nodes, before.replicas).unwrap();
    before.replicas(partition, 3, &mut replicas);
    assert_eq!(replicas, [NodeId(0)]);
}

#[test]
fn lost_nodes_are_not_awaited_and_lost_quorum_members_are_replaced() {
    let layout = first(&["a", "b", "c", "d"], 3);
    let change = PlanChange { remove_lost: names(&["b"]), ..PlanChange::default() };
    let without = plan_change(&layout, &change).unwrap();
    let lost: Vec<bool> =
        without.before.as_ref().unwrap().nodes.iter().map(|node| node.is_lost).collect();
    assert_eq!(lost, [false, true, false, false]);
    // Another disk under the same name: nothing moves, but the node may vote again.
    let other_disk = |name: &str| if name == "a" { Some(VoterId(7)) } else { voter_of(name) };
    let seated = layout.plan_change(&PlanChange::default(), other_disk).unwrap();
    assert_eq!((seated.stage, seated.before.clone()), (Stage::Settled, None));
    assert_eq!(seated.council[0].voter, Some(VoterId(7)));
}

/// A node that is down may have lost its disk and thus its vote. No seat is reassigned while keys
/// move, so the transition might never end.
#[test]
fn a_council_whose_majority_is_down_is_not_seated() {
    let layout = first(&["a", "b", "c", "d"], 3);
    let up = |up: &'static [&str]| move |name: &str| voter_of(name).filter(|_| up.contains(&name));
    let grow = PlanChange { add: vec![joiner("e")], ..PlanChange::default() };
    let alone = PlanChange { council: Some(names(&["a"])), ..grow.clone() };
    let down = |list: &[&str]| Err(PlanError::CouncilDown(names(list)));
    assert_eq!(layout.plan_change(&alone, up(&["b", "c", "d", "e"])), down(&["a"]));
    let three = PlanChange { council: Some(names(&["a", "b", "c"])), ..grow.clone() };
    assert_eq!(layout.plan_change(&three, up(&["c", "d", "e"])), down(&["a", "b", "c"]));
    assert!(layout.plan_change(&three, up(&["b", "c", "e"])).is_ok());
    assert_eq!(layout.plan_change(&grow, |_| None), down(&["a", "b", "c"]));
    // Two of three members stay, so the member that is down loses its seat.
    let three = first(&["a", "b", "c"], 2);
    let fewer = PlanChange { remove: names(&["b"]), ..PlanChange::default() };
    let fewer = three.plan_change(&fewer, up(&["b", "c"])).unwrap();
    assert_eq!(fewer.council.iter().map(|seat| seat.node).collect::<Vec<_>>(), [NodeId(2)]);
}

#[test]
fn councillors_come_from_different_zones() {
    let node = |n: u16, zone: &str| Node {
        id: NodeId(n),
        member: Member { name: format!("n{n}"), zone: zone.to_owned(), weight: 1 },
        hash_weight: crate::placement::topology::HashWeight::new(1 << 16).unwrap(),
        url: String::new(),
        first_disk: Some(Incarnation(7)),
        is_lost: false,
    };
    let zones = ["x", "x", "x", "x", "y", "y", "z"];
    let nodes: Vec<Node> = (0..).zip(zones).map(|(n, zone)| node(n, zone)).collect();
    let ids = |chosen: Vec<NodeId>| chosen.iter().map(|id| id.0).collect::<Vec<_>>();
    assert_eq!(ids(choose_council(&nodes, &[], |_| true, |_| true)), [0, 1, 4, 5, 6]);
    assert_eq!(
        ids(choose_council(&nodes, &[NodeId(3), NodeId(9)], |_| true, |_| true)),
        [0, 3, 4, 5, 6]
    );
    assert_eq!(ids(choose_council(&nodes[..2], &[], |_| true, |_| true)), [0]);
    assert_eq!(ids(choose_council(&nodes, &[], |node| node.id.0 < 4, |_| true)), [0, 1, 2]);
}
