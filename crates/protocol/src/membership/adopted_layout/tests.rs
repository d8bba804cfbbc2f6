//! Tests of the layout record on disk.

use super::*;
use crate::membership::layout::PlanChange;
use crate::placement::topology::Member;

fn first() -> Layout {
    let member = |name: &str| Member { name: name.to_owned(), zone: String::new(), weight: 1 };
    let topology = Topology::new(vec![member("a"), member("b")], 2).unwrap();
    Layout::first(&topology, |id| format!("http://{}", id.0))
}

fn next(base: &Layout) -> Arc<Layout> {
    let council = Some(vec!["b".to_owned()]);
    Arc::new(
        base.plan_change(&PlanChange { council, ..PlanChange::default() }, |_| Some(VoterId(9)))
            .unwrap(),
    )
}

/// Returns a node that has accepted the second layout, and its record.
fn accept_second_layout() -> (Layouts, Vec<u8>) {
    let own = Voter { node: NodeId(0), id: Some(VoterId(0x0102_0304_0506_0708)), is_first: true };
    let layouts = Layouts::first(own, first());
    let (base, layout) = (layouts.known_layout(), next(&first()));
    layouts.handle_request(&VoteRequest::Prepare { base, ballot: 0x11 });
    layouts.handle_request(&VoteRequest::Accept { ballot: 0x12, layout });
    let (record, _) = layouts.encode();
    (layouts, record)
}

/// Pins the record's bytes, so that later releases can read it.
#[test]
fn a_layout_record_encodes_to_the_documented_bytes() {
    let (layouts, record) = accept_second_layout();
    let mut expected = vec![1, 1, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    expected.extend([0x12, 0, 0, 0, 0, 0, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0]);
    for layout in [&*next(&first()), &*layouts.known_layout()] {
        let bytes = layout.to_bytes();
        expected.extend((bytes.len() as u32).to_le_bytes());
        expected.extend(bytes);
    }
    // The rebalance progress is empty.
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0; 34]);
    assert_eq!(record, expected);
    let again = Layouts::decode(&record, first()).unwrap();
    assert_eq!((again.encode().0, again.voter()), (record, layouts.voter()));
}

#[test]
fn damaged_records_are_distinguished_from_later_formats() {
    let (_, record) = accept_second_layout();
    let why = |bytes: &[u8]| Layouts::decode(bytes, first()).unwrap_err();
    for cut in 0..record.len() {
        assert!(matches!(why(&record[..cut]), Unreadable::Damaged(_)), "cut at {cut}");
    }
    assert!(matches!(why(&[&record[..], &[0]].concat()), Unreadable::Damaged(_)));
    assert_eq!(why(&[&[2], &record[1..]].concat()), Unreadable::LaterFormat(2));
}

#[test]
fn only_a_later_layout_than_the_first_overrides_the_settings() {
    let (layouts, record) = accept_second_layout();
    assert_eq!(Layouts::overriding_layout(&record), Ok(None), "it is accepted only");
    layouts.learn(&next(&first()));
    let (record, _) = layouts.encode();
    let (node, layout) = Layouts::overriding_layout(&record).unwrap().unwrap();
    assert_eq!((node, layout.id()), (NodeId(0), next(&first()).id()));
}

#[test]
fn a_copied_record_has_no_votes_and_uses_the_decided_layout() {
    let (_, record) = accept_second_layout();
    let record = Layouts::without_votes(&record).unwrap();
    let copy = Layouts::decode(&record, first()).unwrap();
    assert!(!copy.has_votes() && !copy.has_seat() && copy.undecided_proposal().is_none());
    assert_eq!(copy.known_layout().id(), first().id());
    assert!(copy.renew_voter(VoterId(3)) && !copy.renew_voter(VoterId(3)), "it is news once");
    assert!(copy.has_votes() && copy.is_unsaved());
}

/// The first record was encoded before the second change. Its storage does not make that change
/// durable, in whatever order the two records are stored.
#[test]
fn a_change_after_the_encoding_is_not_durable_with_the_record() {
    let own = Voter { node: NodeId(0), id: Some(VoterId(5)), is_first: true };
    let (layouts, views) = (Layouts::first(own, first()), View::first(topology_of(&first())));
    let views = Views::new(views);
    let prepare = |ballot| VoteRequest::Prepare { base: layouts.known_layout(), ballot };
    assert!(layouts.handle_request(&prepare(1)).1);
    let (_, early) = layouts.encode();
    let later = next(&first());
    assert!(layouts.handle_request(&VoteRequest::Decided(Arc::clone(&later))).1);
    let (_, late) = layouts.encode();
    assert!(!layouts.on_stored(&early, &views) && layouts.is_unsaved());
    assert!(layouts.handle_request(&VoteRequest::Ask).1, "what it would tell is not durable");
    assert!(layouts.on_stored(&late, &views) && !layouts.on_stored(&early, &views));
    assert_eq!((layouts.is_unsaved(), views.epoch()), (false, 2));
    assert!(!layouts.handle_request(&VoteRequest::Ask).1);
}

fn topology_of(layout: &Layout) -> Topology {
    cached_topology(&layout.nodes, layout.replicas).unwrap()
}
