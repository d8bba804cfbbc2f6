//! Tests of membership changes while requests are unfinished. An unanswered request restarts under
//! the view in force. A node's hints, marks and log claims are never attributed to another node.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    Answer, Background, BackgroundConfig, BackgroundEffect, BackgroundEvent, Body, Class, ClientId,
    Clock, Config, ConnectionId, Effect, Event, FIRST_EPOCH, Filter, Incarnation, Kind, Logs, Mark,
    Member, Membership, MembershipState, NodeId, Now, OpId, OpLookup, Page, PageRequest, Proof,
    Protocol, Quorum, Record, Reply, Request, RoundConfig, RoundId, Scan, ScanStep, Shared,
    Topology, Via, View,
};

use crate::records;
use crate::words::{BASE, BRIEF_BYTES};
use crate::world::{topology, without};

const NOW: Now = Now { mono: 1, wall: BASE + 1 };

/// The joining node. Its name precedes all others, so the positions of all other nodes change.
const JOINED: NodeId = NodeId(9);

const QUORUM: Quorum = Quorum { ack: 2, from: 2 };

/// Returns the topology of the nodes n0, n1 and n2, and the joining node m.
fn add_joined_node(before: &Topology) -> Topology {
    let joined = Member { name: "m".to_owned(), zone: String::new(), weight: 1 };
    let nodes = before.ids().map(|id| (id, before.member(id).clone()));
    let nodes = nodes.chain([(JOINED, joined)]).collect();
    Topology::of(nodes, 3).expect("there is nothing to refuse")
}

struct Cluster {
    shared: Arc<Shared>,
    protocol: Protocol,
    later: Topology,
    /// A key whose first two replicas are n1 and n2 before the join, and include the joining node
    /// afterwards.
    key: Bytes,
}

impl Cluster {
    fn new() -> Self {
        let before = topology(3, 3);
        let later = add_joined_node(&before);
        let clock = Arc::new(Clock::start(7, BASE, 0));
        clock.mark_durable(u64::MAX, 0);
        let membership = Membership::new(MembershipState::Member, 0, true);
        let logs = Arc::new(Logs::first(Incarnation(100)));
        let first = |topology: &Topology, key: &[u8]| {
            let mut replicas = Vec::new();
            topology.replicas(topology.partition_of(key), 2, &mut replicas);
            replicas
        };
        let fits = |key: &String| {
            let (old, new) = (first(&before, key.as_bytes()), first(&later, key.as_bytes()));
            !old.contains(&NodeId(0)) && new.contains(&JOINED) && !new.contains(&NodeId(0))
        };
        let key = (0..10_000).map(|n| format!("key{n}")).find(fits);
        let key = key.expect("some key moves like that").into();
        let shared = Shared::new(before, NodeId(0), clock, membership, 0, logs);
        let shared = Arc::new(shared);
        let config = Config {
            deadline_micros: 1_000_000,
            max_skew_micros: 500_000,
            brief_bytes: BRIEF_BYTES,
        };
        let protocol = Protocol::new(Arc::clone(&shared), config);
        Self { shared, protocol, later, key }
    }

    fn join(&self) {
        let (epoch, topology) = (FIRST_EPOCH + 1, self.later.clone());
        self.shared.membership.views.install(View::new_settled(epoch, epoch, topology));
    }

    /// Removes the node n2 from the cluster.
    fn leave(&self) {
        let (epoch, topology) = (FIRST_EPOCH + 1, without(3, 1 << 2, 3));
        self.shared.membership.views.install(View::new_settled(epoch, epoch, topology));
    }

    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.protocol.handle(NOW, event, &mut effects);
        effects
    }

    /// Starts a write. Returns the nodes that are asked, and the ids of the messages.
    fn put(&mut self, client: u64) -> Vec<(NodeId, u64)> {
        self.put_with(client, QUORUM)
    }

    fn put_with(&mut self, client: u64, quorum: Quorum) -> Vec<(NodeId, u64)> {
        let key = self.key.clone();
        let version = self.shared.clock.issue(NOW).expect("the bound is far");
        let record = records::record(&key, Kind::Value, "new", version, 2);
        let client = ClientId(client);
        let effects = self.handle(Event::Write { client, key, record, quorum: quorum.into() });
        effects.iter().map(sent_message).collect()
    }

    fn reply_stored(&mut self, (peer, id): (NodeId, u64)) -> Vec<Effect> {
        self.handle(Event::Reply { peer, id, reply: Reply::Stored })
    }
}

fn is_written(effects: &[Effect], to: u64) -> bool {
    matches!(effects, [Effect::Answer { client: ClientId(client), answer: Answer::Written(..) }]
        if *client == to)
}

#[test]
fn an_unanswered_write_restarts_under_the_new_view() {
    let mut cluster = Cluster::new();
    let early = cluster.put(1);
    assert!(early.iter().all(|(node, _)| [1, 2].contains(&node.0)), "{early:?}");
    assert!(cluster.reply_stored(early[0]).is_empty());
    cluster.join();
    let again: Vec<(NodeId, u64)> = cluster.handle(Event::Tick).iter().map(sent_message).collect();
    assert!(again.iter().any(|(node, _)| *node == JOINED), "{again:?}");
    let late = cluster.put(2);

    assert!(cluster.reply_stored(early[1]).is_empty(), "what it says is of the view before");
    assert!(cluster.reply_stored(again[1]).is_empty());
    assert!(
        is_written(&cluster.reply_stored(again[0]), 1),
        "its replicas are those of the view now"
    );
    assert!(cluster.reply_stored(late[1]).is_empty());
    assert!(is_written(&cluster.reply_stored(late[0]), 2));
    assert!(cluster.protocol.is_empty());
}

/// A source's report of its moving records, or of its memory of writes with an idempotency key, is
/// complete only once no write can reach it under an earlier view.
#[test]
fn a_source_tells_what_moves_once_it_has_entered() {
    let moved = Filter::Moved { node: JOINED, first: true, seed: 1, known: Vec::new() };
    for filter in [moved, Filter::Remembered { node: JOINED, lost: false }] {
        let mut cluster = Cluster::new();
        let (epoch, before) = (FIRST_EPOCH + 1, topology(3, 3));
        let moving = View::new_moving(epoch, epoch, before, cluster.later.clone());
        let page = PageRequest { start: Bytes::new(), end: None, filter, max_bytes: 1_000 };
        let (connection, id, class) = (ConnectionId(1), 4, Class::Stream);
        let (under, request) = (moving.id(), Request::Page(page));
        let asked = Event::Request { connection, id, class, remaining_ms: 900, under, request };
        let effects = cluster.handle(asked);
        assert!(effects.is_empty(), "it goes by the view before: {effects:?}");
        cluster.shared.membership.views.install(moving);
        let effects = cluster.handle(Event::Tick);
        assert!(matches!(effects[..], [Effect::Page { .. }]), "{effects:?}");
    }
}

/// A node that has not pulled a partition, or did not receive the memory of its previous replicas,
/// must not answer "never" for any write.
#[test]
fn a_node_without_the_memory_of_others_never_reports_never() {
    let mut cluster = Cluster::new();
    let day = 24 * 3600 * 1_000_000;
    let partition = cluster.later.partition_of(&cluster.key);
    let recall = |cluster: &mut Cluster, wall: u64| {
        let (key, id, since) = (cluster.key.clone(), 7, 0);
        let (connection, class, under) =
            (ConnectionId(1), Class::Client, cluster.shared.view().id());
        let request = Request::Recall { key, id, since, digest: 0 };
        let asked = Event::Request { connection, id: 4, class, remaining_ms: 900, under, request };
        let effects = cluster.handle(asked);
        let [Effect::Recall { op, .. }] = &effects[..] else { panic!("{effects:?}") };
        let (event, mut out) = (Event::Recalled { op: *op, result: Ok(None) }, Vec::new());
        cluster.protocol.handle(Now { wall, ..NOW }, event, &mut out);
        match &out[..] {
            [Effect::Respond { reply: Reply::Recalled(recalled), .. }] => *recalled,
            other => panic!("{other:?}"),
        }
    };
    let wall = NOW.wall;
    assert_eq!(recall(&mut cluster, wall), OpLookup::Never);
    let time = Clock::time_of(wall);
    cluster.shared.membership.layouts.mark_forgotten(time, |other| other != partition);
    assert_eq!(recall(&mut cluster, wall), OpLookup::Never, "of this one it was told all");
    cluster.shared.membership.layouts.mark_forgotten(time, |other| other == partition);
    assert_eq!(recall(&mut cluster, wall + day - 1), OpLookup::Forgotten);
    assert_eq!(recall(&mut cluster, wall + day), OpLookup::Never, "it would not be remembered");

    // The partition moves to this node, which has not pulled it yet.
    let mut cluster = Cluster::new();
    let before = without(3, 1, 2);
    let after = topology(3, 3);
    cluster.shared.membership.views.install(View::new_moving(
        FIRST_EPOCH + 1,
        FIRST_EPOCH + 1,
        before,
        after,
    ));
    cluster.shared.membership.lacks.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(recall(&mut cluster, wall + day), OpLookup::Forgotten);
    cluster.shared.membership.lacks.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(recall(&mut cluster, wall + day), OpLookup::Never);
}

/// A round brings a key's newest record to holders of older records. This node is no replica of the
/// newest record. If it replaced its older record while it drops orphaned records, it would keep no
/// record of the key.
#[test]
fn a_round_brings_no_record_that_would_be_dropped() {
    let mut cluster = Cluster::new();
    let round = RoundId { time: 3, node: NodeId(1) };
    cluster.shared.repair.proofs.put_in_force(Proof { seal: round, ..Proof::default() });
    let version = cluster.shared.clock.issue(NOW).unwrap();
    let shared = Arc::clone(&cluster.shared);
    let mut brought = |copies| {
        let (key, class) = (cluster.key.clone(), Class::Repair);
        let record = records::record(&key, Kind::Value, "newer", version, copies);
        let request = Request::Bring { round, key, record };
        let (connection, id, under) = (ConnectionId(1), 4, shared.view().id());
        let asked = Event::Request { connection, id, class, remaining_ms: 900, under, request };
        cluster.handle(asked)
    };
    let stores = |effects: &[Effect]| matches!(effects, [Effect::WriteAll { .. }]);
    let is_busy =
        |effects: &[Effect]| matches!(effects, [Effect::Respond { reply: Reply::Busy, .. }]);
    assert!(stores(&brought(2)), "what it hides is not to be read any more");
    shared.transfer.orphan_drops.request();
    assert!(is_busy(&brought(2)));
    assert!(stores(&brought(3)), "that is placed here");
}

/// While a key moves, a majority of its previous replicas must accept the record too; afterwards,
/// nobody asks those replicas.
#[test]
fn acceptance_while_a_key_moves_is_no_later_proof() {
    let mut cluster = Cluster::new();
    let (before, later) = (topology(3, 3), cluster.later.clone());
    let stays = |key: &String| {
        let partition = before.partition_of(key.as_bytes());
        before.ids().all(|node| later.holds(node, partition, 0))
    };
    let stays = (0..10_000).map(|n| format!("key{n}")).find(stays);
    let stays = Bytes::from(stays.expect("some key stays where it is"));
    let moves = cluster.key.clone();
    let accepted = |cluster: &mut Cluster, key: &Bytes| {
        let version = cluster.shared.clock.issue(NOW).unwrap();
        let record = records::record(key, Kind::Value, "v", version, 0);
        let record = record.with_ballot(key, version, version.time);
        let (connection, id, under) = (ConnectionId(1), 4, cluster.shared.view().id());
        let (class, request) = (Class::Client, Request::Write { key: key.clone(), record });
        let asked = Event::Request { connection, id, class, remaining_ms: 900, under, request };
        let [Effect::Read { op, .. }] = cluster.handle(asked)[..] else { panic!() };
        let stores = cluster.handle(Event::Read { op, result: Ok(None) });
        let [Effect::Write { via, .. }] = stores[..] else { panic!("{stores:?}") };
        cluster.handle(Event::Written { op, result: Ok(None) });
        via
    };
    assert_eq!([&moves, &stays].map(|key| accepted(&mut cluster, key)), [Via::Accept; 2]);
    let (epoch, other) = (FIRST_EPOCH + 1, cluster.later.clone());
    cluster.shared.membership.views.install(View::new_moving(epoch, epoch, before.clone(), other));
    cluster.handle(Event::Tick);
    let both = [&moves, &stays].map(|key| accepted(&mut cluster, key));
    assert_eq!(both, [Via::Replica, Via::Accept]);
}

/// The change affects only the metadata quorum, so no request is repeated.
#[test]
fn a_view_of_the_same_placement_restarts_nothing() {
    let mut cluster = Cluster::new();
    let early = cluster.put(1);
    assert!(cluster.reply_stored(early[0]).is_empty());
    let topology = cluster.shared.view().topology.clone();
    cluster.shared.membership.views.install(View::new_settled(
        FIRST_EPOCH + 1,
        FIRST_EPOCH,
        topology,
    ));
    assert!(cluster.handle(Event::Tick).is_empty());
    let effects = cluster.reply_stored(early[1]);
    assert!(is_written(&effects, 1));
    let Effect::Answer { answer: Answer::Written(_, acks), .. } = &effects[0] else { panic!() };
    assert_eq!(acks.epoch, FIRST_EPOCH + 1);
}

/// A restarted read repairs the node that joined, not a node that is no longer a replica.
#[test]
fn a_read_repairs_whom_it_asked_last() {
    let mut cluster = Cluster::new();
    let (client, key) = (ClientId(1), cluster.key.clone());
    cluster.handle(Event::Get { client, key: key.clone(), quorum: QUORUM.into() });
    cluster.join();
    let asked = cluster.handle(Event::Tick);
    let ids: Vec<(NodeId, u64)> = asked.iter().map(sent_message).collect();
    assert!(ids.iter().any(|(node, _)| *node == JOINED), "{ids:?}");
    let version = cluster.shared.clock.issue(NOW).unwrap();
    let record = records::record(&key, Kind::Value, "held", version, 2);
    let (peer, id) = ids[0];
    let reply = Reply::Found { record, authoritative: true };
    assert!(cluster.handle(Event::Reply { peer, id, reply }).is_empty());
    let (other, id) = ids[1];
    let reply = Reply::Absent { authoritative: true };
    let repair = cluster.handle(Event::Reply { peer: other, id, reply });
    let [Effect::Send { peer, message }] = &repair[..] else { panic!("{repair:?}") };
    assert_eq!(*peer, other);
    assert!(matches!(message.body, Body::Request { class: Class::Repair, .. }));
}

fn hinted_peer(effect: &Effect) -> Option<NodeId> {
    match effect {
        Effect::Hint { peer, .. } => Some(*peer),
        _ => None,
    }
}

fn sent_message(effect: &Effect) -> (NodeId, u64) {
    match effect {
        Effect::Send { peer, message } => (*peer, message.id),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_range_asks_the_nodes_of_the_view_in_force() {
    let cluster = Cluster::new();
    let all = Quorum { ack: 3, from: 3 };
    let asked = |scan: &mut Scan| match scan.step() {
        ScanStep::Ask(_, page) => match page.filter {
            Filter::Chosen { preference, .. } => preference,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let mut early = Scan::new(&cluster.shared, all.into(), Bytes::new(), None);
    cluster.join();
    assert_eq!(asked(&mut early), [0, 1, 2].map(NodeId));
    let mut late = Scan::new(&cluster.shared, all.into(), Bytes::new(), None);
    assert_eq!(asked(&mut late), [0, 1, 2, 9].map(NodeId), "from this node on, by their names");
    early.retry(NodeId(0));
    assert!(early.take_restarted(), "pages of two placements don't fit together");
    assert_eq!(asked(&mut early), [0, 1, 2, 9].map(NodeId));
}

#[test]
fn a_join_moves_no_hints_marks_or_claims_to_another_node() {
    let mut cluster = Cluster::new();
    let (n2, mark) = (NodeId(2), Mark { partition: Some(7), since: 3 });
    let shared = Arc::clone(&cluster.shared);
    shared.transfer.hints.count_found(n2, 5, 500);
    shared.transfer.missed.mark(n2, mark);
    shared.membership.logs.know(n2, Incarnation(77));
    let of_unknown = |cluster: &mut Cluster, id| {
        let (connection, class, remaining_ms) = (ConnectionId(1), Class::Hint, 1000);
        let request = Request::Missed { node: JOINED, marks: vec![mark] };
        let under = cluster.shared.view().id();
        cluster.handle(Event::Request { connection, id, class, remaining_ms, under, request })
    };
    let refused = of_unknown(&mut cluster, 1);
    assert!(matches!(refused[..], [Effect::Respond { reply: Reply::Failed, .. }]), "{refused:?}");

    cluster.join();
    assert_eq!(shared.transfer.hints.waiting_hints(n2), (5, 500));
    assert_eq!(shared.transfer.missed.of(n2)[0].mark, mark);
    assert_eq!(shared.membership.logs.claim(n2).unwrap().incarnation, Incarnation(77));
    assert_eq!(shared.transfer.hints.waiting_hints(JOINED), (0, 0));
    let taken = of_unknown(&mut cluster, 2);
    assert!(matches!(taken[..], [Effect::StoreMissed { node: JOINED, .. }]), "{taken:?}");
}

#[test]
fn a_node_hears_who_joined() {
    let cluster = Cluster::new();
    let mut node = node_of(&cluster);
    let pinged = |node: &mut Background| {
        let mut effects = Vec::new();
        node.handle(NOW, BackgroundEvent::Tick, &mut effects);
        let pings = effects.into_iter().filter_map(|effect| match effect {
            BackgroundEffect::Call { node, request: Request::Ping, .. } => Some(node.0),
            _ => None,
        });
        pings.collect::<Vec<_>>()
    };
    assert_eq!(pinged(&mut node), [1, 2]);
    cluster.join();
    assert_eq!(pinged(&mut node), [9]);
    assert_eq!(node.rebuild_progress(), (3, 3), "nothing is lacking that any of the three has");
}

fn node_of(cluster: &Cluster) -> Background {
    let config = BackgroundConfig {
        deadline_micros: 0,
        syncs_always: true,
        max_skew_micros: 500_000,
        rounds: RoundConfig::NONE,
        stream_rate: None,
        remembered: |_, _| None,
    };
    Background::new(Arc::clone(&cluster.shared), config)
}

/// Returns the effects on hints that an event causes.
fn about_hints(node: &mut Background, event: BackgroundEvent) -> Vec<BackgroundEffect> {
    let mut effects = Vec::new();
    node.handle(NOW, event, &mut effects);
    effects.retain(|effect| match effect {
        BackgroundEffect::Call { class, request, .. } => {
            *class == Class::Hint && matches!(request, Request::Writes { .. })
        }
        BackgroundEffect::ReadHints { .. } | BackgroundEffect::DropHints { .. } => true,
        _ => false,
    });
    effects
}

/// Returns the event with the store's answer to the last read of hints.
fn hints_are(read: &[BackgroundEffect], items: Vec<(Bytes, Record)>) -> BackgroundEvent {
    let Some(BackgroundEffect::ReadHints { call, .. }) = read.last() else { panic!("{read:?}") };
    let page = Page { items, next: None, authoritative: true };
    BackgroundEvent::CallReturned { call: *call, result: Ok(Reply::Page(page)) }
}

#[test]
fn hints_for_who_has_left_are_dropped() {
    let cluster = Cluster::new();
    let (mut node, peer) = (node_of(&cluster), NodeId(2));
    assert!(about_hints(&mut node, BackgroundEvent::Tick).is_empty());
    let version = cluster.shared.clock.issue(NOW).unwrap();
    let record = records::record(&cluster.key, Kind::Value, "late", version, 0);
    let items = vec![(cluster.key.clone(), record)];
    cluster.shared.transfer.hints.count_found(peer, 1, 70);
    cluster.leave();
    let read = about_hints(&mut node, BackgroundEvent::Tick);
    assert!(matches!(read[..], [BackgroundEffect::ReadHints { peer: NodeId(2), .. }]), "{read:?}");
    let effects = about_hints(&mut node, hints_are(&read, items.clone()));
    let [BackgroundEffect::DropHints { items: dropped, .. }, BackgroundEffect::ReadHints { .. }] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(*dropped, items);
    assert!(about_hints(&mut node, hints_are(&effects, Vec::new())).is_empty());
    assert_eq!(cluster.shared.transfer.hints.waiting_hints(peer), (0, 0));
    assert!(about_hints(&mut node, BackgroundEvent::Tick).is_empty());
}

/// While partitions move, a node gets the hints for records that either topology places on it.
#[test]
fn hints_for_joining_and_leaving_nodes_are_sent() {
    let cluster = Cluster::new();
    let (mut node, before) = (node_of(&cluster), cluster.shared.view().topology.clone());
    let (peer, copies) = (NodeId(2), 2);
    let view = View::new_moving(FIRST_EPOCH + 1, FIRST_EPOCH + 1, without(3, 1 << 2, 3), before);
    assert!(
        view.is_replica(peer, &cluster.key, copies) && !view.is_replica(NodeId(5), b"k", copies)
    );
    cluster.shared.membership.views.install(view);
    cluster.shared.transfer.hints.count_found(peer, 1, 70);
    let read = about_hints(&mut node, BackgroundEvent::Tick);
    assert!(matches!(read[..], [BackgroundEffect::ReadHints { .. }]), "{read:?}");
    let version = cluster.shared.clock.issue(NOW).unwrap();
    let record = records::record(&cluster.key, Kind::Value, "late", version, copies);
    let items = vec![(cluster.key.clone(), record)];
    let sent = about_hints(&mut node, hints_are(&read, items));
    assert!(matches!(sent[..], [BackgroundEffect::Call { node: NodeId(2), .. }]), "{sent:?}");
}

/// Requests and replies identify nodes by id, not by position in a list.
#[test]
fn replies_count_for_the_node_that_gives_them() {
    let mut cluster = Cluster::new();
    cluster.join();
    let late = cluster.put(1);
    let (joined, id) = *late.iter().find(|(node, _)| *node == JOINED).unwrap();
    assert!(cluster.reply_stored((NodeId(0), id)).is_empty(), "it was not asked");
    let failed = cluster.handle(Event::Unreachable(joined));
    assert!(failed.is_empty(), "the other one may hold it: {failed:?}");
    let (other, id) = *late.iter().find(|(node, _)| *node != JOINED).unwrap();
    let effects = cluster.reply_stored((other, id));
    let hinted = effects.iter().any(|e| matches!(e, Effect::Hint { peer: JOINED, .. }));
    assert!(hinted, "{effects:?}");
    let (connection, id, partition) = (ConnectionId(1), 1, Some(0));
    let placement = cluster.shared.view().id().placement;
    let read = OpId::Peer { connection, id, partition, placement };
    let reported = cluster.handle(Event::Read { op: read, result: Ok(None) });
    assert!(matches!(
        reported[..],
        [Effect::Respond { reply: Reply::Absent { authoritative: true }, .. }]
    ));
}

/// The hints of an answered request go to the replicas of the view in force. The name of a node
/// that has left is still known.
#[test]
fn no_hints_are_stored_for_a_node_that_has_left() {
    let mut cluster = Cluster::new();
    let quorum = Quorum { ack: 1, from: 2 };
    let sent = cluster.put_with(1, quorum);
    let n2 = NodeId(2);
    let other = *sent.iter().find(|(node, _)| *node != n2).unwrap();
    assert!(is_written(&cluster.reply_stored(other), 1));
    cluster.leave();
    assert!(!cluster.shared.view().topology.contains(n2));
    let effects = cluster.handle(Event::Unreachable(n2));
    let hinted: Vec<NodeId> = effects.iter().filter_map(hinted_peer).collect();
    assert!(hinted.is_empty(), "this node is the other replica, and is marked: {effects:?}");
    assert_eq!(cluster.shared.transfer.missed.partitions(NodeId(0)), 1);
    assert_eq!(cluster.shared.name_of(n2), "n2");
    assert!(cluster.protocol.is_empty());
}
