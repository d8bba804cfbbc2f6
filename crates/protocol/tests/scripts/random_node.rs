//! Random tests of a node's background work: events in any order, arbitrary replies, members that
//! join and leave. The tests check that nothing panics, and that no step precedes the durability of
//! the state on which it depends.

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::{
    Background, BackgroundConfig, BackgroundEffect, BackgroundEvent, Boot, BootHistory, BootId,
    CallId, Claim, Clock, ClusterId, EncodedLayouts, FailureKind, Incarnation, Kind, LogPosition,
    Logs, MAX_LISTED, Mark, Membership, MembershipState, NodeId, Now, Page, Record, Reply,
    Reported, Request, RoundConfig, Shared, Version, View,
};

use crate::records;
use crate::words::BASE;
use crate::world::{topology, without};

const COPIES: u8 = 3;

const SKEW: u64 = 500_000;

/// An effect whose result the node awaits.
#[derive(Debug)]
enum Waits {
    Call(CallId),
    Hints(CallId),
    Stand(MembershipState),
    Missed(NodeId),
    Layouts(EncodedLayouts),
    /// A removal of a node's hints; only a failure is reported.
    Drop(NodeId),
}

struct RandomNode {
    nodes: u16,
    shared: Arc<Shared>,
    node: Background,
    mono: u64,
    waits: Vec<Waits>,
}

impl RandomNode {
    fn new(nodes: u16, state: MembershipState) -> Self {
        Self::with(nodes, state, Logs::first(Incarnation(100)))
    }

    fn with(nodes: u16, state: MembershipState, logs: Logs) -> Self {
        let clock = Arc::new(Clock::start(7, BASE, 0));
        clock.mark_durable(u64::MAX, 0);
        let membership = Membership::new(state, BASE << 12, nodes == 1);
        let (topology, logs) = (topology(nodes, COPIES), Arc::new(logs));
        let shared = Arc::new(Shared::new(topology, NodeId(0), clock, membership, 0, logs));
        let node = Background::new(
            Arc::clone(&shared),
            BackgroundConfig {
                deadline_micros: 0,
                syncs_always: true,
                max_skew_micros: SKEW,
                rounds: RoundConfig::NONE,
                stream_rate: None,
                remembered: |_, _| None,
            },
        );
        Self { nodes, shared, node, mono: 1, waits: Vec::new() }
    }

    fn step(&mut self, (what, a, b): (u8, u16, u16)) {
        let peer = NodeId(a % self.nodes);
        match (what % 12, peer.0 > 0) {
            (0, true) => self.peer_seen(peer, b),
            (1, true) => self.shared.transfer.hints.count_found(peer, 1, u64::from(b)),
            (2, _) => {
                let partition = (!b.is_multiple_of(4)).then_some(b);
                self.shared.transfer.missed.mark(peer, Mark { partition, since: time(b) });
            }
            (3, _) if b.is_multiple_of(8) => self.handle(BackgroundEvent::Fenced),
            (4, _) if b.is_multiple_of(8) => {
                let epoch = self.shared.view().epoch + 1;
                let topology = without(self.nodes, a & !1, COPIES);
                self.shared.membership.views.install(View::new_settled(epoch, epoch, topology));
            }
            (5, _) => {
                // The reply belongs to a call that was never made.
                let call = CallId(1_000_000 + u64::from(a));
                self.handle(BackgroundEvent::CallReturned { call, result: result(b) });
            }
            (6 | 7, _) => {
                self.mono += u64::from(b) * 16;
                self.handle(BackgroundEvent::Tick);
            }
            _ if !self.waits.is_empty() => {
                let waits = self.waits.swap_remove(usize::from(a) % self.waits.len());
                self.answer(waits, b);
            }
            _ => self.handle(BackgroundEvent::Tick),
        }
    }

    fn peer_seen(&mut self, peer: NodeId, b: u16) {
        let incarnation = Incarnation(200 + u64::from(b % 2));
        let [life, position, late] = [b >> 2 & 3, b >> 4 & 7, b >> 7 & 7].map(u64::from);
        let (position, late) = (LogPosition(position), LogPosition(late));
        let reported = Reported { life: BootId::of_number(life), position, late };
        let knows_us = Claim { incarnation: Incarnation(100 + u64::from(b >> 10 & 1)), reported };
        let knows_us = Some(knows_us).filter(|_| b & 2 == 0);
        let knew_only_this_disk = b & 1 << 11 == 0;
        let cluster = ClusterId::of_number(u64::from(b >> 12 & 3));
        let seen =
            BackgroundEvent::PeerSeen { peer, incarnation, knows_us, knew_only_this_disk, cluster };
        self.handle(seen);
    }

    fn answer(&mut self, waits: Waits, b: u16) {
        let kept = !b.is_multiple_of(4);
        self.handle(match waits {
            Waits::Call(call) => BackgroundEvent::CallReturned { call, result: result(b) },
            Waits::Hints(call) => {
                let page = Page { items: items(b % 5, b), next: None, authoritative: true };
                BackgroundEvent::CallReturned { call, result: Ok(Reply::Page(page)) }
            }
            Waits::Stand(state) => BackgroundEvent::StateStored { state, kept },
            Waits::Missed(node) => BackgroundEvent::MissedStored { node, kept },
            Waits::Layouts(record) => {
                if kept {
                    self.shared.install_layout(&record);
                }
                BackgroundEvent::LayoutsStored { kept }
            }
            Waits::Drop(peer) => {
                BackgroundEvent::HintRemovalFailed { peer, hints: 1, bytes: u64::from(b) }
            }
        });
    }

    fn handle(&mut self, event: BackgroundEvent) {
        let stood = matches!(
            event,
            BackgroundEvent::StateStored { state: MembershipState::Member, kept: true }
        );
        let before = self.shared.membership.state.state();
        let mut effects = Vec::new();
        let now = Now { mono: self.mono, wall: BASE + self.mono };
        self.node.handle(now, event, &mut effects);
        let is_member = self.shared.membership.state.state() == MembershipState::Member;
        assert!(!is_member || stood || before == MembershipState::Member, "before that is durable");
        for effect in effects {
            self.check_effect(effect);
        }
        let (done, of) = self.node.rebuild_progress();
        assert!(done <= of);
    }

    /// Looks up a node's name, as the embedder does, even for a node that has left.
    fn check_name(&self, peer: NodeId) -> NodeId {
        assert_eq!(self.shared.name_of(peer), format!("n{}", peer.0));
        peer
    }

    fn check_effect(&mut self, effect: BackgroundEffect) {
        let own = self.shared.own;
        self.waits.push(match effect {
            BackgroundEffect::Call { call, node, request, .. } => {
                // A node calls itself only to store records, and to read its own history.
                let asks_itself = matches!(request, Request::Writes { .. } | Request::Page(_));
                assert!(node != own || asks_itself);
                if let Request::Missed { marks, .. } = &request {
                    assert!((1..=MAX_LISTED + 1).contains(&marks.len()));
                }
                Waits::Call(call)
            }
            BackgroundEffect::ReadHints { call, peer, .. } => {
                self.check_name(peer);
                Waits::Hints(call)
            }
            BackgroundEffect::StoreState(state) => Waits::Stand(state),
            BackgroundEffect::StoreRemembered { call, .. } => Waits::Call(call),
            BackgroundEffect::StoreMissed { node } => Waits::Missed(node),
            BackgroundEffect::StoreLayouts => {
                Waits::Layouts(self.shared.membership.layouts.encode().1)
            }
            BackgroundEffect::DropHints { peer, .. } => Waits::Drop(self.check_name(peer)),
            BackgroundEffect::StoreClaim { peer, .. } => {
                self.check_name(peer);
                return;
            }
            BackgroundEffect::RoundEnded(_)
            | BackgroundEffect::Waits(_)
            | BackgroundEffect::Outdated { .. }
            | BackgroundEffect::StoreClusterId(_)
            | BackgroundEffect::DropOrphans => {
                unreachable!("none is driven, nor wanted")
            }
        });
    }
}

/// Returns a time near the present, sometimes ahead by more than the allowed skew.
fn time(b: u16) -> u64 {
    (BASE + u64::from(b) * 64) << 12
}

fn items(count: u16, b: u16) -> Vec<(Bytes, Record)> {
    let item = |n: u16| {
        let key = Bytes::from(format!("key{n}"));
        let version = Version { time: time(b.wrapping_mul(n + 1)), origin: 1 };
        (key.clone(), records::record(&key, Kind::Value, "held", version, 0))
    };
    (0..count).map(item).collect()
}

fn result(b: u16) -> Result<Reply, FailureKind> {
    let next = (b & 64 > 0).then(|| Bytes::from("next"));
    Ok(match b % 16 {
        0 => return Err(FailureKind::TooFew),
        1 => Reply::Ahead,
        2 => Reply::Busy,
        3 => Reply::TopologyMismatch,
        4 => Reply::Pong,
        5 => Reply::Absent { authoritative: true },
        6 => Reply::Newer { time: time(b) },
        7..11 => Reply::Page(Page { items: items(b >> 8 & 3, b), next, authoritative: true }),
        _ => Reply::Stored,
    })
}

/// Two peers report different losses. A peer that receives this node's log position forgets its
/// claim about earlier processes. So the node reports no position before all its marks are durable.
#[test]
fn no_peer_is_told_of_the_log_before_all_that_is_lost_is_durable() {
    let life = |id, begins| {
        let (id, begins) = (BootId(id), LogPosition(begins));
        Boot { id, begins, newest: BASE << 12 }
    };
    let boot_history = BootHistory::new(vec![life(10, 0)], life(20, 80));
    let logs = Logs::new(Incarnation(100), boot_history, &[]);
    let mut random = RandomNode::with(3, MembershipState::Member, logs);
    let (n1, n2) = (NodeId(1), NodeId(2));
    let claim = |incarnation| {
        let (life, position) = (Some(BootId(10)), LogPosition(81));
        let reported = Reported { life, position, late: LogPosition::START };
        Some(Claim { incarnation, reported })
    };
    let incarnation = Incarnation(200);
    let cluster = ClusterId::of_number(1);
    let seen = |peer, knows_us| BackgroundEvent::PeerSeen {
        peer,
        incarnation,
        knows_us,
        knew_only_this_disk: false,
        cluster,
    };
    random.handle(seen(n1, claim(Incarnation(100))));
    let end = random.shared.transfer.missed.of(NodeId(0))[0].mark;
    random.handle(seen(n2, claim(Incarnation(77))));
    let all = random.shared.transfer.missed.of(NodeId(0))[0].mark;
    assert!(end.since > 0 && all.since == 0, "the log's end; another disk: everything");

    let told = |random: &RandomNode| {
        [n1, n2].map(|peer| random.shared.membership.logs.position_for(peer).0)
    };
    let stood = || BackgroundEvent::StateStored { state: MembershipState::Rebuilding, kept: true };
    random.handle(stood());
    assert_eq!(told(&random), [0, 0], "what was kept may be without the second mark");
    random.handle(stood());
    assert_eq!(told(&random), [80, 80]);
    let is_stand = |waits: &&Waits| matches!(waits, Waits::Stand(_));
    assert_eq!(random.waits.iter().filter(is_stand).count(), 2, "it was kept twice");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_node_takes_events_in_any_order(
        nodes in 1u16..6,
        code in 0u8..4,
        steps in vec(any::<(u8, u16, u16)>(), 1..200),
    ) {
        let state = MembershipState::of_code(code).expect("there are four");
        let mut random = RandomNode::new(nodes, state);
        for step in steps {
            random.step(step);
        }
    }
}
