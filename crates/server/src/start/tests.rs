//! Tests of a start: the layout on the node's disk determines the node's identity, and whether the
//! node is alone in its cluster.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

use std::cell::RefCell;
use std::io;

use lsm::{Engine, Fields, Kind, MemDisk, Options, Record, Space, Version};
use protocol::layout::{Joiner, Layout, PlanChange, VoterId};
use protocol::{Member, Topology};

use super::*;
use crate::identity::Marker;
use crate::store::purge_rule;

const WALL: u64 = 1_700_000_000_000_000;
const SKEW: u64 = 500_000;

/// The marker file that distinguishes a directory from its copies.
#[derive(Default)]
struct Files(RefCell<Vec<Marker>>);

impl Directory for Files {
    fn holds(&self, marker: &Marker) -> io::Result<bool> {
        Ok(self.0.borrow().contains(marker))
    }

    fn make_next(&self, number: u64) -> io::Result<Marker> {
        let marker = Marker { inode: number, made: 1, number };
        self.0.borrow_mut().push(marker);
        Ok(marker)
    }

    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

fn store(disk: &MemDisk) -> Engine {
    let purge = Arc::new(purge_rule(|| WALL));
    Engine::open(Arc::new(disk.clone()), Options { purge, ..Options::default() }).unwrap()
}

fn member(name: &str) -> Member {
    Member { name: name.to_owned(), zone: String::new(), weight: 1 }
}

fn list(names: &[&str]) -> Topology {
    Topology::new(names.iter().map(|name| member(name)).collect(), 3).unwrap()
}

/// Returns the settings of node `own` of a list.
fn node_settings<'a>(topology: &'a Topology, own: &str) -> NodeSettings<'a> {
    NodeSettings { topology, own: topology.find(own).unwrap(), named: true, urls: &[] }
}

/// Returns the settings of a single node that the settings do not name.
fn alone(topology: &Topology) -> NodeSettings<'_> {
    NodeSettings { topology, own: NodeId(0), named: false, urls: &[] }
}

fn open(store: &Engine, named: NodeSettings<'_>) -> Result<StartingNode, StartError> {
    StartingNode::open(store, named, Incarnation(9), MembershipState::Joining, WALL, SKEW)
}

fn start(store: &Engine, files: &Files, named: NodeSettings<'_>, number: u64) -> StartedNode {
    open(store, named).unwrap().begin(store, files, named, WALL, number).unwrap()
}

/// Makes the node learn a decided layout, and stores the layout.
fn learn(store: &Engine, started: &StartedNode, layout: Layout) {
    assert!(started.shared.membership.layouts.learn(&Arc::new(layout)));
    let (batch, keeps) = started.identity.keep_layouts(&started.shared);
    Store::commit(store, batch).unwrap();
    started.identity.apply_durable(&started.shared, &keeps);
}

fn layout_with_changes(layout: &Layout, add: &[&str], remove: &[&str]) -> Layout {
    let joins = |name: &&str| Joiner {
        member: member(name),
        url: format!("http://{name}"),
        disk: Some(Incarnation(7)),
    };
    let change = PlanChange {
        add: add.iter().map(joins).collect(),
        remove: remove.iter().map(|name| (*name).to_owned()).collect(),
        replicas: Some(1),
        ..PlanChange::default()
    };
    layout.plan_change(&change, |_| Some(VoterId(5))).unwrap()
}

fn final_layout(mut layout: Layout) -> Layout {
    while let Some(next) = layout.next_stage() {
        layout = next;
    }
    layout
}

/// Returns true if a day-old tombstone may be purged.
fn may_purge_old_tombstone(store: &Engine) -> bool {
    let version = Version { time: Clock::time_of(WALL - 86_400_000_000), origin: 1 };
    let record = Record::new(b"k", &Fields::new(Kind::Tombstone, version), b"");
    store.purge_rule().may_purge(Space::Data, record.view())
}

#[test]
fn no_tombstone_is_purged_by_age_once_another_node_joins() {
    let (disk, files, one) = (MemDisk::new(), Files::default(), list(&["n1"]));
    let engine = store(&disk);
    assert!(!may_purge_old_tombstone(&engine), "who else there is is not known before the start");
    let started = start(&engine, &files, alone(&one), 1);
    assert!(may_purge_old_tombstone(&engine) && started.shared.is_alone());
    let joins =
        layout_with_changes(&started.shared.membership.layouts.known_layout(), &["n2"], &[]);
    learn(&engine, &started, joins.clone());
    assert!(!may_purge_old_tombstone(&engine) && started.shared.nodes() == 2);
    engine.close().unwrap();

    let engine = store(&disk);
    assert!(!may_purge_old_tombstone(&engine));
    let starting = open(&engine, alone(&one)).unwrap();
    assert_eq!(starting.nodes(), 2, "its settings say nothing of the other one");
    let started = starting.begin(&engine, &files, alone(&one), WALL, 2).unwrap();
    assert!(!may_purge_old_tombstone(&engine) && !started.shared.is_alone());
    assert_eq!(started.shared.membership.layouts.active_layout().id(), joins.id());
    assert!(!started.shared.membership.state.is_confirmed(), "there is somebody to ask");

    learn(&engine, &started, joins.plan_abort(|_| Some(VoterId(5))).unwrap());
    assert!(started.shared.is_alone());
    start(&engine, &files, alone(&one), 3);
    assert!(may_purge_old_tombstone(&engine), "it is alone again from a start on");
}

/// A copy lacks the records that other nodes acknowledged since it was made.
#[test]
fn a_copy_of_the_directory_of_a_former_single_node_is_detected() {
    let (engine, files, one) = (store(&MemDisk::new()), Files::default(), list(&["n1"]));
    let started = start(&engine, &files, alone(&one), 1);
    let joins = final_layout(layout_with_changes(
        &started.shared.membership.layouts.known_layout(),
        &["n2"],
        &[],
    ));
    learn(&engine, &started, joins);
    let state =
        |files, number| start(&engine, files, alone(&one), number).shared.membership.state.state();
    let copy = Files::default();
    assert_eq!(state(&copy, 3), MembershipState::Verifying);
    assert_eq!(state(&copy, 4), MembershipState::Verifying);
}

#[test]
fn a_node_takes_its_identity_from_the_stored_layout() {
    let (engine, files, two) = (store(&MemDisk::new()), Files::default(), list(&["a", "c"]));
    let started = start(&engine, &files, node_settings(&two, "c"), 1);
    let layout = final_layout(layout_with_changes(
        &started.shared.membership.layouts.known_layout(),
        &["b"],
        &[],
    ));
    learn(&engine, &started, layout);
    for list in [list(&["c"]), list(&["a", "c"]), list(&["a", "b", "c", "d"])] {
        let starting = open(&engine, node_settings(&list, "c")).unwrap();
        assert_eq!((starting.nodes(), starting.identity().name()), (3, "c"));
        assert_eq!(starting.identity().own(), NodeId(1), "not its place in the list");
    }
    let error = open(&engine, node_settings(&two, "a")).unwrap_err().to_string();
    assert!(error.contains("this is node a, but the directory belongs to node c"), "{error}");
    let listens = list(&["http://127.0.0.1:7"]);
    assert_eq!(open(&engine, alone(&listens)).unwrap().identity().name(), "c");
}

#[test]
fn a_removed_node_stays_removed_after_a_restart() {
    let (engine, files, two) = (store(&MemDisk::new()), Files::default(), list(&["a", "b"]));
    let started = start(&engine, &files, node_settings(&two, "a"), 1);
    let leaves =
        layout_with_changes(&started.shared.membership.layouts.known_layout(), &[], &["a"]);
    learn(&engine, &started, leaves.clone());
    assert!(!started.shared.is_removed(), "it hands over what it holds");
    learn(&engine, &started, final_layout(leaves));
    assert!(started.shared.is_removed());
    let started = start(&engine, &files, node_settings(&two, "a"), 2);
    assert!(started.shared.is_removed() && !may_purge_old_tombstone(&engine));
    assert_eq!(started.shared.name_of(NodeId(0)), "a");
    // A node that joins later with the same name is another node.
    let again = final_layout(layout_with_changes(
        &started.shared.membership.layouts.known_layout(),
        &["a"],
        &[],
    ));
    assert_eq!(again.find_node("a").unwrap().id, NodeId(2));
    learn(&engine, &started, again);
    assert!(start(&engine, &files, node_settings(&two, "a"), 3).shared.is_removed());
}
