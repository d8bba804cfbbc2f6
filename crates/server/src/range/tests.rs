use lsm::{Fields, Kind, Version};
use protocol::{Clock, Quorum};

use super::*;
use crate::PageWork;
use crate::test_node::{TestNode, WALL, value};

fn pages() -> Pages {
    Pages::new(1 << 20, PageWork::SERVING)
}

fn range(stage: &TestNode) -> Range {
    let quorum = Quorum { ack: 2, from: 3 };
    Range::new(Arc::clone(&stage.shared), &pages(), quorum.into(), Bytes::new(), None).unwrap()
}

/// Returns the nodes that the range asks until it waits.
fn asks(range: &mut Range) -> Vec<u16> {
    let mut asks = Vec::new();
    loop {
        match range.step(|| WALL) {
            RangeStep::Ask(node, _) => asks.push(node.0),
            RangeStep::Wait => return asks,
            step => panic!("{step:?}"),
        }
    }
}

fn page(items: Vec<(Bytes, protocol::Record)>) -> Page {
    Page { items, next: None, authoritative: true }
}

#[test]
fn a_busy_node_is_asked_again_and_every_fourth_retry_releases_all_pages() {
    let stage = TestNode::new();
    let mut range = range(&stage);
    let asked = asks(&mut range);
    assert!(asked.len() >= 2, "{asked:?}");
    for retry in 1..=8 {
        let anew = range.take(NodeId(asked[0]), PageResult::Busy);
        assert_eq!(anew, retry % HOLDING_RETRIES == 0);
        let again = asks(&mut range);
        assert_eq!(again, if anew { asked.clone() } else { vec![asked[0]] });
    }
    assert!(range.is_retrying());
    assert!(!range.take(NodeId(asked[0]), PageResult::Page(page(Vec::new()))));
    assert!(!range.is_retrying());
}

#[test]
fn a_node_that_stays_busy_is_replaced() {
    let stage = TestNode::new();
    let mut range = range(&stage);
    let busy = NodeId(asks(&mut range)[0]);
    for _ in 0..RETRIES {
        let _ = range.take(busy, PageResult::Busy);
    }
    asks(&mut range);
    assert!(range.take(busy, PageResult::Busy), "others are asked, from where it is");
    assert!(!asks(&mut range).contains(&busy.0));
}

/// With every fourth retry, the other nodes send their pages again.
#[test]
fn pages_of_other_nodes_do_not_reset_the_retries_of_a_busy_node() {
    let stage = TestNode::new();
    let mut range = range(&stage);
    let asked = asks(&mut range);
    let busy = NodeId(asked[0]);
    let mut open = asked;
    for _ in 0..RETRIES {
        for node in open.drain(..).map(NodeId).filter(|node| *node != busy) {
            assert!(!range.take(node, PageResult::Page(page(Vec::new()))));
        }
        let _ = range.take(busy, PageResult::Busy);
        open = asks(&mut range);
    }
    assert!(range.take(busy, PageResult::Busy), "others are asked");
    assert!(!asks(&mut range).contains(&busy.0));
}

#[test]
fn a_damaged_page_counts_as_failed() {
    let stage = TestNode::new();
    let item = |key: &'static [u8]| (Bytes::from_static(key), value(b"k", 10, 1));
    let asked = |node, item| {
        Range::page_result(&stage.shared, NodeId(node), Ok(Reply::Page(page(vec![item]))))
    };
    assert!(matches!(asked(1, item(b"k")), PageResult::Page(_)));
    assert!(matches!(asked(1, item(b"other")), PageResult::Failed));
    assert!(matches!(asked(0, item(b"other")), PageResult::Page(_)), "its own it has verified");
    let said = |result| Range::page_result(&stage.shared, NodeId(1), result);
    assert!(matches!(said(Ok(Reply::Busy)), PageResult::Busy));
    assert!(matches!(said(Err(FailureKind::Busy)), PageResult::Busy));
    assert!(matches!(said(Ok(Reply::Failed)), PageResult::Failed));
    assert!(matches!(said(Err(FailureKind::TooFew)), PageResult::Failed));
}

#[test]
fn expired_values_are_skipped() {
    let stage = TestNode::of(&["a"]);
    let mut range = Range::local(Arc::clone(&stage.shared), &pages(), Bytes::new(), None).unwrap();
    assert_eq!(asks(&mut range), [0]);
    let record = |key: &[u8], expiry_ms| {
        let version = Version { time: Clock::time_of(WALL), origin: 7 };
        let fields = Fields { expiry_ms, ..Fields::new(Kind::Value, version) };
        (Bytes::copy_from_slice(key), Record::new(key, &fields, b"v"))
    };
    let items = vec![record(b"k", WALL / 1000), record(b"l", WALL / 1000 + 1), record(b"m", 0)];
    assert!(!range.take(NodeId(0), PageResult::Page(page(items))));
    for expected in [b"l", b"m"] {
        match range.step(|| WALL) {
            RangeStep::Item(key, record) => {
                assert_eq!((&key[..], &record.value()[..]), (&expected[..], &b"v"[..]));
            }
            step => panic!("{step:?}"),
        }
    }
    assert!(matches!(range.step(|| WALL), RangeStep::End));
}

#[test]
fn a_range_without_memory_for_its_pages_is_refused() {
    let (stage, pages) = (TestNode::new(), pages());
    let new = || {
        let quorum = Quorum { ack: 2, from: 3 };
        Range::new(Arc::clone(&stage.shared), &pages, quorum.into(), Bytes::new(), None)
    };
    let first = new().unwrap();
    assert_eq!(pages.reserved_bytes(), 3 * protocol::PAGE_BYTES as usize);
    let rest: Vec<_> = std::iter::from_fn(new).collect();
    assert_eq!(rest.len(), 1);
    drop(first);
    assert!(new().is_some());
}

#[test]
fn a_failed_store_is_the_cause_if_no_other_node_may_serve_the_range() {
    for (names, is_local, own_fault) in [
        (&["a"][..], false, true),
        (&["a", "b", "c"], true, true),
        (&["a", "b", "c"], false, false),
    ] {
        let stage = TestNode::of(names);
        let (shared, all) = (Arc::clone(&stage.shared), names.len() as u8);
        let quorum = Quorum { ack: all, from: all };
        let mut range = match is_local {
            true => Range::local(shared, &pages(), Bytes::new(), None),
            false => Range::new(shared, &pages(), quorum.into(), Bytes::new(), None),
        }
        .unwrap();
        asks(&mut range);
        assert!(range.take(NodeId(0), PageResult::Failed));
        assert!(matches!(range.step(|| WALL), RangeStep::OutOfReach));
        assert_eq!(range.has_store_failed(), own_fault, "{names:?}");
    }
}

#[test]
fn a_range_reports_the_position_at_which_it_continues() {
    let stage = TestNode::of(&["a"]);
    let pages = pages();
    let start = Bytes::from_static(b"b");
    let mut range = Range::local(Arc::clone(&stage.shared), &pages, start, None).unwrap();
    let at = |range: &Range| range.position().map(|key| key.to_vec());
    assert_eq!(at(&range), Some(b"b".to_vec()), "nothing came yet");
    asks(&mut range);
    let empty = Page { next: Some(Bytes::from_static(b"m")), ..page(Vec::new()) };
    assert!(!range.take(NodeId(0), PageResult::Page(empty)));
    assert_eq!(at(&range), Some(b"m".to_vec()), "a page of tombstones was passed");
    asks(&mut range);
    let version = Version { time: Clock::time_of(WALL), origin: 7 };
    let record = |key: &'static [u8]| {
        let record = Record::new(key, &Fields::new(Kind::Value, version), b"v");
        (Bytes::from_static(key), record)
    };
    assert!(!range.take(NodeId(0), PageResult::Page(page(vec![record(b"n"), record(b"p")]))));
    assert_eq!(at(&range), Some(b"n".to_vec()));
    assert!(matches!(range.step(|| WALL), RangeStep::Item(..)));
    assert_eq!(at(&range), Some(b"p".to_vec()));
    let held = pages.reserved_bytes();
    assert!(range.reserve_gathering(&pages));
    assert_eq!(pages.reserved_bytes(), held + protocol::PAGE_BYTES as usize);
    range.stop();
    assert!(matches!(range.step(|| WALL), RangeStep::End));
    assert_eq!(at(&range), None);
    drop(range);
    assert_eq!(pages.reserved_bytes(), 0, "the reserved memory is given back");
}
