use super::*;
use crate::membership::disk_ids::Incarnation;
use crate::membership::layout::{Joiner, PlanChange};
use crate::placement::topology::{Member, Topology};

fn member(name: &str) -> Member {
    Member { name: name.to_owned(), zone: String::new(), weight: 1 }
}

fn first() -> Layout {
    let members = ["a", "b", "c"].map(member).to_vec();
    Layout::first(&Topology::new(members, 3).unwrap(), |id| format!("http://{}", id.0))
}

fn seat(node: u16, voter: u64) -> Seat {
    Seat { node: NodeId(node), voter: Some(VoterId(voter)) }
}

/// Returns the next layout with the metadata quorum `council`, as decided on `base`.
fn decide_council(base: &Layout, council: &[&str]) -> Layout {
    let council = Some(council.iter().map(|name| (*name).to_owned()).collect());
    base.plan_change(&PlanChange { council, ..PlanChange::default() }, |_| Some(VoterId(5)))
        .unwrap()
}

fn plan_move(base: &Layout) -> Layout {
    let add = vec![Joiner {
        member: member("d"),
        url: "http://d".to_owned(),
        disk: Some(Incarnation(9)),
    }];
    let remove = vec!["c".to_owned()];
    base.plan_change(&PlanChange { add, remove, ..PlanChange::default() }, |_| Some(VoterId(5)))
        .unwrap()
}

#[test]
fn the_node_of_a_forced_layout_decides_the_next_layouts_alone() {
    let first = first();
    let decreed = first.plan_forced_layout(NodeId(0), VoterId(77), &[]).unwrap();
    assert_eq!((decreed.epoch, decreed.stage), (1_000_000, Stage::Settled));
    assert_eq!((&decreed.council[..], decreed.base), (&[seat(0, 77)][..], first.id()));
    assert_eq!(
        (&decreed.nodes, decreed.placement_epoch),
        (&first.nodes, first.placement_epoch),
        "no key moves"
    );
    assert_eq!(decreed.decrees, [Decree { base: 1, epoch: 1_000_000, number: 77 }]);
    assert_eq!(Layout::from_bytes(&decreed.to_bytes()), Ok(decreed.clone()));
    let next = decide_council(&decreed, &["a", "b", "c"]);
    assert_eq!((next.epoch, &next.decrees), (1_000_001, &decreed.decrees));
    let again = next.plan_forced_layout(NodeId(1), VoterId(78), &[]).unwrap();
    assert_eq!((again.epoch, again.decrees.len()), (2_000_000, 2));
    assert_eq!(Layout::from_bytes(&again.to_bytes()), Ok(again.clone()));
    assert_eq!(first.plan_forced_layout(NodeId(9), VoterId(1), &[]), Err(DecreeError::NoMember));
    let mut full = next;
    full.decrees = vec![full.decrees[0]; MAX_DECREES];
    assert_eq!(full.plan_forced_layout(NodeId(0), VoterId(1), &[]), Err(DecreeError::TooMany));
}

#[test]
fn a_forced_layout_aborts_a_transition_until_reads_have_switched() {
    let prepare = plan_move(&first());
    let read_old = prepare.next_stage().unwrap();
    let read_new = read_old.next_stage().unwrap();
    let back = prepare.plan_forced_layout(NodeId(0), VoterId(1), &[]).unwrap();
    assert_eq!((back.stage, back.placement_epoch, back.before.as_ref()), (Stage::Settled, 1, None));
    assert_eq!(back.next_id, prepare.next_id, "ids that were given stay given");
    let back = read_old.plan_forced_layout(NodeId(0), VoterId(1), &[]).unwrap();
    assert_eq!((back.stage, back.placement_epoch), (Stage::Settled, 1_000_000));
    assert_eq!(back.nodes.len(), 3);
    assert_eq!(
        read_old.plan_forced_layout(NodeId(3), VoterId(1), &[]),
        Err(DecreeError::NoMember),
        "it has not joined"
    );

    let forward = read_new.plan_forced_layout(NodeId(3), VoterId(1), &[NodeId(1)]).unwrap();
    assert_eq!(
        (forward.stage, forward.placement_epoch),
        (Stage::ReadNew, read_new.placement_epoch)
    );
    assert_eq!(forward.nodes, read_new.nodes);
    let lost: Vec<bool> = forward.before.unwrap().nodes.iter().map(|node| node.is_lost).collect();
    assert_eq!(lost, [false, true, false], "the end does not wait for it");
    assert_eq!(
        read_new.plan_forced_layout(NodeId(2), VoterId(1), &[]),
        Err(DecreeError::NoMember),
        "it leaves"
    );
}

#[test]
fn a_node_with_a_layout_unknown_to_the_forced_one_is_on_a_fork() {
    let first = first();
    let second = decide_council(&first, &["a", "b", "c"]);
    let third = decide_council(&second, &["b"]);
    let decreed = second.plan_forced_layout(NodeId(0), VoterId(7), &[]).unwrap();
    let next = decide_council(&decreed, &["a"]);
    let of_another =
        decide_council(&second.plan_forced_layout(NodeId(1), VoterId(8), &[]).unwrap(), &["a"]);
    let again = next.plan_forced_layout(NodeId(2), VoterId(9), &[]).unwrap();
    let shares_lineage_with = |one: &Layout, other: &Layout| {
        assert_eq!(one.shares_lineage_with(other), other.shares_lineage_with(one));
        one.shares_lineage_with(other)
    };
    for late in [&decreed, &next, &again] {
        assert!(shares_lineage_with(&first, late) && shares_lineage_with(&second, late));
        assert!(!shares_lineage_with(&third, late), "the decree did not know of it");
        assert!(late.forks_from(third.epoch));
        assert!(!late.forks_from(second.epoch) && !late.forks_from(late.epoch));
    }
    assert!(shares_lineage_with(&next, &again) && shares_lineage_with(&decreed, &again));
    assert!(!shares_lineage_with(&decide_council(&next, &["b"]), &again));
    for other in [&decreed, &next, &again] {
        assert!(!shares_lineage_with(&of_another, other), "two decrees for one layout");
    }
    assert!(shares_lineage_with(&second, &of_another));
}

#[test]
fn inconsistent_forced_layouts_are_refused() {
    let decreed = first().plan_forced_layout(NodeId(0), VoterId(7), &[]).unwrap();
    let again = decreed.plan_forced_layout(NodeId(0), VoterId(8), &[]).unwrap();
    let refused = |change: &dyn Fn(&mut Layout)| {
        let mut layout = again.clone();
        change(&mut layout);
        let why = Layout::from_bytes(&layout.to_bytes()).unwrap_err();
        assert_eq!(why, "its decrees don't follow on each other");
    };
    refused(&|layout| layout.decrees.swap(0, 1));
    refused(&|layout| layout.decrees[0].base = 2_000_000);
    refused(&|layout| layout.epoch = 1_999_999);
    refused(&|layout| layout.decrees[1].base = 5);
}
