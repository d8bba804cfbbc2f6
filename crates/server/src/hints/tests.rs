use protocol::{HintId, NodeId, Topology, View};

use super::*;
use crate::test_node::{TestNode, conditional, value};

/// Stores a hint without counting it.
fn keep(stage: &TestNode, peer: NodeId, key: &'static [u8]) {
    store_hint(stage, peer, key, &value(key, 10, 100));
}

fn store_hint(stage: &TestNode, peer: NodeId, key: &'static [u8], record: &Record) {
    let key = Bytes::from_static(key);
    let hint = Hint::of(HintId(0), peer, key, record);
    let mut batch = Batch::new();
    put(&stage.shared, &mut batch, &hint, record).unwrap();
    Store::commit(&stage.engine, batch).unwrap();
}

fn keys(stage: &TestNode, peer: NodeId, after: Option<&[u8]>, max_bytes: usize) -> Vec<Bytes> {
    let read = read(&stage.engine, &stage.shared, peer, after, max_bytes).unwrap();
    read.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn hints_are_read_by_node_in_the_order_of_their_keys() {
    // The name `b` is a prefix of `bb`.
    let stage = TestNode::of(&["a", "b", "bb"]);
    let (b, bb) = (NodeId(1), NodeId(2));
    for key in [b"m", b"k", b"l"] {
        keep(&stage, b, key);
    }
    keep(&stage, bb, b"x");
    assert_eq!(keys(&stage, b, None, 10_000), ["k", "l", "m"]);
    assert_eq!(keys(&stage, bb, None, 10_000), ["x"]);
    assert_eq!(keys(&stage, b, Some(b"k"), 10_000), ["l", "m"], "after a key");
    assert_eq!(keys(&stage, b, None, 1), ["k"], "one is always read");
    assert_eq!(keys(&stage, b, None, 200), ["k", "l"]);
    assert_eq!(keys(&stage, b, Some(b"m"), 1), Vec::<Bytes>::new());
    count(&stage.engine, &stage.shared).unwrap();
    let counted = |peer| stage.shared.transfer.hints.waiting_hints(peer);
    let one = hint_bytes(b"k", &value(b"k", 10, 100));
    assert_eq!((counted(b), counted(bb)), ((3, 3 * one), (1, one)));
}

#[test]
fn of_hints_with_one_version_the_greatest_ballot_stays() {
    let made = [value(b"k", 10, 1), conditional(b"k", 10, 1 << 60), conditional(b"k", 10, 1 << 61)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (stage, b) = (TestNode::of(&["a", "b"]), NodeId(1));
        order.iter().for_each(|i: &usize| store_hint(&stage, b, b"k", &made[*i]));
        let kept = || read(&stage.engine, &stage.shared, b, None, 1000).unwrap();
        let drop = |record: &Record| {
            let mut batch = Batch::new();
            let items = [(Bytes::from_static(b"k"), record.clone())];
            remove(&stage.shared, &mut batch, b, &items).unwrap();
            Store::commit(&stage.engine, batch).unwrap();
        };
        for delivered in &made[..2] {
            drop(delivered);
            assert_eq!(kept(), [(Bytes::from_static(b"k"), made[2].clone())], "{order:?}");
        }
        drop(&made[2]);
        assert_eq!(kept(), []);
    }
}

#[test]
fn hints_for_nodes_that_left_are_removed_at_the_next_start() {
    let stage = TestNode::of(&["a", "b", "bb", "c"]);
    let nodes = [1, 2, 3].map(NodeId);
    for (n, key) in [b"k", b"l", b"m", b"n"].into_iter().enumerate() {
        nodes.iter().for_each(|node| keep(&stage, *node, key));
        store_hint(&stage, nodes[n % 3], key, &conditional(key, 10, 1 << 60));
    }
    let kept = |shared: &Shared| {
        nodes.map(|peer| read(&stage.engine, shared, peer, None, 10_000).unwrap().len())
    };
    remove_hints_of_leavers(&stage.engine, &stage.shared);
    assert_eq!(kept(&stage.shared), [4, 4, 4], "a list has nobody who has left");
    let left = |names: &[&str]| {
        let all = stage.shared.view().topology.clone();
        let stay = all.ids().filter(|id| names.contains(&&all.member(*id).name[..]));
        Topology::of(stay.map(|id| (id, all.member(id).clone())).collect(), 3).unwrap()
    };
    let view = View::new_moving(2, 2, left(&["a", "b"]), left(&["a", "b", "c"]));
    stage.shared.membership.views.install(view);
    remove_hints_of_leavers(&stage.engine, &stage.shared);
    assert_eq!(kept(&stage.shared), [4, 0, 4], "c is about to go, or to come");
    count(&stage.engine, &stage.shared).unwrap();
    assert_eq!(nodes.map(|peer| stage.shared.transfer.hints.waiting_hints(peer).0), [4, 0, 4]);
    stage.shared.membership.views.install(View::new_settled(3, 3, left(&["a"])));
    remove_hints_of_leavers(&stage.engine, &stage.shared);
    assert_eq!(kept(&stage.shared), [0, 0, 0]);
}

#[test]
fn old_marks_are_converted_once() {
    let stage = TestNode::new();
    let c = NodeId(2);
    let mark = mark_of(&key_of(&stage.shared, c, b"k")).unwrap();
    let mut batch = Batch::new();
    batch.put(Space::Node, &mark, lsm::Version { time: 1, origin: 0 }, &[]).unwrap();
    Store::commit(&stage.engine, batch).unwrap();
    convert_old_marks(&stage.engine, &stage.identity, &stage.shared).unwrap();
    let partition = Some(protocol::partition_of(b"k"));
    let marks = stage.shared.transfer.missed.of(c);
    let marks: Vec<_> = marks.iter().map(|numbered| numbered.mark).collect();
    assert_eq!(marks, [Mark { partition, since: 0 }]);
    assert!(!stage.shared.transfer.missed.is_unsaved(c), "they are kept as this release does");
    let again = TestNode::new();
    stage.identity.load_missed(&stage.engine, &again.shared).unwrap();
    assert_eq!(again.shared.transfer.missed.partitions(c), 1);
    stage.shared.transfer.missed.drop_mark(c, partition, u64::MAX);
    convert_old_marks(&stage.engine, &stage.identity, &stage.shared).unwrap();
    assert_eq!(stage.shared.transfer.missed.partitions(c), 0, "and gone in the earlier form");
    assert_eq!(mark_of(b"\x05ab"), None);
}
