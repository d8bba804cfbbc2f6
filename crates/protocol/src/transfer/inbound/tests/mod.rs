//! Tests of a node to which partitions move, with sources played by the test: the node's requests,
//! their order, and the time at which the node reports that it holds all records.

mod ahead;
mod remembered;

use std::sync::Arc;

use bytes::Bytes;

use super::*;

use crate::background::effect::{BackgroundConfig, BackgroundEffect, NODE_TICK_MICROS};
use crate::background::{Background, BackgroundEvent};
use crate::clock::{Clock, Now};
use crate::event::CallId;
use crate::event::FailureKind;
use crate::membership::adopted_layout::PullNeed;
use crate::membership::disk_ids::{BootId, Incarnation};
use crate::membership::layout::{Layout, PlanChange, VoterId};
use crate::membership::logs::Logs;
use crate::membership::state::Membership;
use crate::message::{Filter, MovesState, NodeId, Page, PageRequest, Reply, Request, Waits};
use crate::placement::topology::partition_of;
use crate::placement::topology::{Member, Topology};
use crate::repair::status::RoundConfig;
use crate::repair::watermark::{Proof, RoundId, RoundState, RoundStep};
use crate::shared::Shared;
use crate::transfer::idempotency_memory::Remembered;
use crate::transfer::{LONGEST_REST_MICROS, MAX_FAILURES, RETRY_MICROS, UNHINDERED_MICROS};
use record::{Fields, Kind, Rank, Record, RecordOutline, Version};

/// A request of the node under test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ObservedRequest {
    /// To a source: whether this node's clock is ahead of the source's.
    Clock(u16),
    Seal,
    /// To a source, or to the node itself to list its own records: whether the page is of the first
    /// pass, its range, and the number of records that the node reports to hold.
    Page {
        of: u16,
        first: bool,
        start: String,
        end: Option<String>,
        known: usize,
    },
    /// To a source: the record that a majority holds.
    Settle(u16, String, u32),
    /// Records to be stored on the node itself.
    Write(Vec<String>),
    /// To a source, or to the node itself: its history of writes, from the entry with this name on
    /// (`Remembered::name`).
    Recollections(u16, Bytes),
    /// History entries to be stored on the node itself.
    Keep(Vec<Remembered>),
    /// To a source: the records that this node is marked to lack.
    Lacking(u16),
    Other,
}

struct Own {
    shared: Arc<Shared>,
    node: Background,
    mono: u64,
    open: Vec<(CallId, ObservedRequest)>,
    keeps: usize,
    stored_states: Vec<MembershipState>,
    /// Waits that the node has reported.
    told: Vec<Waits>,
}

/// Node 0 of four nodes. Some partitions of nodes 1, 2 and 3 move to it.
impl Own {
    fn new() -> Self {
        Self::at_rate(None)
    }

    /// Returns a node with a limit on the bytes per second that it pulls.
    fn at_rate(stream_rate: Option<u64>) -> Self {
        let mut own = Self::new_settled(MembershipState::Member, stream_rate);
        let prepared = own.layout_with_more_weight();
        own.learns(prepared.clone());
        assert!(own.state().has_all, "nothing moves yet");
        own.learns(prepared.next_stage().unwrap());
        own
    }

    /// Returns a node for which no partition moves.
    fn new_settled(state: MembershipState, stream_rate: Option<u64>) -> Self {
        let member = |id: u16| Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
        let topology = Topology::new((0..4).map(member).collect(), 3).unwrap();
        let clock = Arc::new(Clock::start(7, 1_000_000, 0));
        clock.mark_durable(u64::MAX, 0);
        let membership = Membership::new(state, 0, true);
        let logs = Arc::new(Logs::first(Incarnation(100)));
        let shared = Arc::new(Shared::new(topology, NodeId(0), clock, membership, 0, logs));
        let config = BackgroundConfig {
            deadline_micros: 0,
            syncs_always: true,
            max_skew_micros: 500_000,
            rounds: RoundConfig::NONE,
            stream_rate,
            remembered: remembered::parse_item,
        };
        let node = Background::new(Arc::clone(&shared), config);
        let (open, stored_states, told) = (Vec::new(), Vec::new(), Vec::new());
        Self { shared, node, mono: 1, open, keeps: 0, stored_states, told }
    }

    fn layout_with_more_weight(&self) -> Layout {
        let weights = vec![("n0".to_owned(), 3)];
        let change = PlanChange { weights, ..PlanChange::default() };
        self.shared
            .membership
            .layouts
            .known_layout()
            .plan_change(&change, |_| Some(VoterId(5)))
            .unwrap()
    }

    fn learns(&mut self, layout: Layout) {
        self.shared.membership.layouts.learn(&Arc::new(layout));
        self.store_layouts();
    }

    fn handle(&mut self, event: BackgroundEvent) {
        let now = Now { mono: self.mono, wall: 1_000_000 + self.mono };
        let mut out = Vec::new();
        self.node.handle(now, event, &mut out);
        for effect in out {
            match effect {
                // The queried source knows this node's disk.
                BackgroundEffect::Call { call, request: Request::KnowsDisk { .. }, .. } => {
                    self.reply(call, Reply::Pong);
                }
                BackgroundEffect::Call { call, node, request, .. } => {
                    self.open.push((call, observe_request(node, request)));
                }
                BackgroundEffect::StoreRemembered { call, remembered } => {
                    self.open.push((call, ObservedRequest::Keep(remembered)));
                }
                BackgroundEffect::StoreLayouts => self.keeps += 1,
                BackgroundEffect::StoreState(state) => self.stored_states.push(state),
                BackgroundEffect::Waits(waits) => self.told.push(waits),
                _ => {}
            }
        }
    }

    fn after(&mut self, micros: u64) {
        self.mono += micros;
        self.handle(BackgroundEvent::Tick);
    }

    /// Makes the node's layout state durable.
    fn store_layouts(&mut self) {
        let (_, kept) = self.shared.membership.layouts.encode();
        self.shared.install_layout(&kept);
        self.handle(BackgroundEvent::LayoutsStored { kept: true });
    }

    /// Returns the requests since the last call.
    fn take_requests(&mut self) -> Vec<(CallId, ObservedRequest)> {
        let open = std::mem::take(&mut self.open);
        let is_of_taking = |asked: &ObservedRequest| {
            !matches!(asked, ObservedRequest::Other | ObservedRequest::Lacking(_))
        };
        open.into_iter().filter(|(_, asked)| is_of_taking(asked)).collect()
    }

    /// Returns the call of the only request.
    fn only(&mut self, expected: ObservedRequest) -> CallId {
        let asked = self.take_requests();
        assert_eq!(asked.iter().map(|(_, asked)| asked).collect::<Vec<_>>(), [&expected]);
        asked[0].0
    }

    fn reply(&mut self, call: CallId, reply: Reply) {
        self.handle(BackgroundEvent::CallReturned { call, result: Ok(reply) });
    }

    fn fails(&mut self, call: CallId) {
        self.handle(BackgroundEvent::CallReturned { call, result: Err(FailureKind::Failed) });
    }

    /// Lets the third source fail until the pass continues without it.
    fn fail_third_source(&mut self, call: CallId, first: bool) {
        let mut call = call;
        for _ in 1..MAX_FAILURES {
            self.fails(call);
            assert_eq!(self.take_requests(), [], "it is left alone for a moment");
            self.after(RETRY_MICROS);
            call = self.only(page_of(3, first, ""));
        }
        self.fails(call);
    }

    fn state(&self) -> MovesState {
        self.shared.moves_state()
    }

    /// Expects the node to ask its sources about its clock.
    fn asks_for_clocks(&mut self) -> Vec<CallId> {
        let (calls, asked): (Vec<_>, Vec<_>) = self.take_requests().into_iter().unzip();
        let sources = sources(&self.shared.membership.layouts.active_layout(), self.shared.own);
        let expected: Vec<_> =
            sources.into_iter().map(|node| ObservedRequest::Clock(node.0)).collect();
        assert_eq!(asked, expected);
        calls
    }

    /// Lets all sources confirm the node's clock; expects the node to raise its repair fence.
    fn confirm_clock(&mut self) -> CallId {
        self.after(1);
        for call in self.asks_for_clocks() {
            self.reply(call, seal_reply(0));
        }
        self.only(ObservedRequest::Seal)
    }

    /// Raises the fence; returns the requests for the first pages.
    fn raise_fence(&mut self) -> Vec<(CallId, ObservedRequest)> {
        let call = self.confirm_clock();
        self.reply(call, seal_reply(self.shared.clock.now(Now { mono: 0, wall: 2_000_000 })));
        self.store_layouts();
        self.take_requests()
    }
}

fn observe_request(node: NodeId, request: Request) -> ObservedRequest {
    let text = |key: &Bytes| String::from_utf8(key.to_vec()).unwrap();
    match request {
        Request::Round { step: RoundStep::Seal, .. } => ObservedRequest::Seal,
        Request::Round { round, step: RoundStep::Ask } if round.time > 0 => {
            ObservedRequest::Clock(node.0)
        }
        Request::Page(PageRequest { start, end, filter, .. }) => {
            let (to, first, known) = match filter {
                Filter::Moved { node, first, known, .. } => (node, first, known),
                Filter::HeldBy { .. } => return ObservedRequest::Lacking(node.0),
                Filter::Remembered { .. } => return ObservedRequest::Recollections(node.0, start),
                _ => return ObservedRequest::Other,
            };
            assert_eq!(to, NodeId(0));
            let (start, end) = (text(&start), end.as_ref().map(text));
            ObservedRequest::Page { of: node.0, first, start, end, known: known.len() }
        }
        Request::ReadQuorum { key, most } => ObservedRequest::Settle(node.0, text(&key), most),
        Request::Writes { items } => {
            assert_eq!(node, NodeId(0), "it stores what it takes");
            ObservedRequest::Write(items.iter().map(|(key, _)| text(key)).collect())
        }
        _ => ObservedRequest::Other,
    }
}

fn seal_reply(time: u64) -> Reply {
    let proof = Proof { seal: RoundId { time, node: NodeId(0) }, ..Proof::default() };
    Reply::Round(RoundState { life: BootId(1), proof, promised: 0, is_active: false })
}

fn page_of(of: u16, first: bool, start: &str) -> ObservedRequest {
    ObservedRequest::Page { of, first, start: start.to_owned(), end: None, known: 0 }
}

fn record(key: &'static str, ballot: u64) -> (Bytes, Record) {
    let version = Version { time: 5, origin: 1 };
    let fields = Fields { ballot, ..Fields::new(Kind::Value, version) };
    (Bytes::from(key), Record::new(key.as_bytes(), &fields, b"value"))
}

/// Returns the bytes that the pull counts for the plain record of key "a".
fn bytes_of_a() -> u64 {
    let (key, record) = record("a", 0);
    (key.len() + record.byte_len()) as u64
}

fn page(items: Vec<(Bytes, Record)>, next: Option<&'static str>) -> Reply {
    Reply::Page(Page { items, next: next.map(Bytes::from), authoritative: true })
}

/// Answers all requests with empty pages until there are none.
fn reply_with_empty_pages(own: &mut Own, mut open: Vec<(CallId, ObservedRequest)>) {
    while !open.is_empty() {
        for (call, asked) in open {
            assert!(
                matches!(asked, ObservedRequest::Page { .. } | ObservedRequest::Recollections(..)),
                "{asked:?}"
            );
            own.reply(call, page(Vec::new(), None));
        }
        open = own.take_requests();
    }
}

/// The limit per second is the size of the page's only record.
#[test]
fn with_a_rate_limit_the_next_page_waits_for_the_last_one() {
    let mut own = Own::at_rate(Some(bytes_of_a()));
    let first = own.raise_fence();
    own.reply(first[0].0, page(vec![record("a", 0)], Some("b")));
    let call = own.only(ObservedRequest::Write(vec!["a".to_owned()]));
    own.reply(call, Reply::Stored);
    assert_eq!(own.take_requests(), [], "it came at once");
    own.after(1_000_000 - NODE_TICK_MICROS - 1);
    assert_eq!(own.take_requests(), [], "a tick more and it would be due before the next one");
    own.after(1);
    own.only(page_of(1, true, "b"));
}

/// The third page takes a second to be stored, after the first took a millisecond.
#[test]
fn the_next_page_waits_while_the_disk_is_busy() {
    let mut own = Own::new();
    let first = own.raise_fence();
    let wrote = |own: &mut Own, call, next, micros| {
        own.reply(call, page(vec![record("a", 0)], Some(next)));
        let call = own.only(ObservedRequest::Write(vec!["a".to_owned()]));
        own.mono += micros;
        own.reply(call, Reply::Stored);
    };
    wrote(&mut own, first[0].0, "b", 1_000);
    let call = own.only(page_of(1, true, "b"));
    wrote(&mut own, call, "c", UNHINDERED_MICROS);
    let call = own.only(page_of(1, true, "c"));
    wrote(&mut own, call, "d", 1_000_000);
    own.after(LONGEST_REST_MICROS - NODE_TICK_MICROS - 1);
    assert_eq!(own.take_requests(), [], "clients have the disk");
    own.after(1);
    own.only(page_of(1, true, "d"));
}

#[test]
fn a_pull_from_all_sources_is_reported_once_it_is_durable() {
    let mut own = Own::new();
    assert!(!own.state().has_all);
    let first = own.raise_fence();
    let expected: Vec<ObservedRequest> = [1, 2, 3].map(|of| page_of(of, true, "")).into();
    assert_eq!(first.iter().map(|(_, asked)| asked.clone()).collect::<Vec<_>>(), expected);

    // Key `b` has a conditional write's record: the node stores the record that a majority holds.
    own.reply(first[0].0, page(vec![record("a", 0), record("b", 9)], Some("c")));
    let call = own.only(ObservedRequest::Settle(1, "b".to_owned(), 0));
    let outline = RecordOutline { bytes: 7, ..record("b", 12).1.outline() };
    own.reply(call, Reply::Long { outline, authoritative: true });
    let call = own.only(ObservedRequest::Settle(1, "b".to_owned(), 7));
    let found = record("b", 12).1;
    own.reply(call, Reply::Found { record: found, authoritative: true });
    let call = own.only(ObservedRequest::Write(vec!["a".to_owned(), "b".to_owned()]));
    own.reply(call, Reply::Stored);
    let call = own.only(page_of(1, true, "c"));
    own.reply(call, page(Vec::new(), None));
    own.reply(first[1].0, page(Vec::new(), None));
    assert_eq!(own.take_requests(), [], "the pass goes on with the third");
    own.reply(first[2].0, page(Vec::new(), None));

    // The node reports its own records, range by range.
    let call = own.only(page_of(0, false, ""));
    own.reply(call, page(vec![record("a", 0), record("b", 12)], Some("m")));
    let second = own.take_requests();
    let page_with = |of| ObservedRequest::Page {
        of,
        first: false,
        start: String::new(),
        end: Some("m".to_owned()),
        known: 2,
    };
    let expected: Vec<ObservedRequest> = [1, 2, 3].map(page_with).into();
    assert_eq!(second.iter().map(|(_, asked)| asked.clone()).collect::<Vec<_>>(), expected);
    for (call, _) in second {
        own.reply(call, page(Vec::new(), None));
    }
    let call = own.only(page_of(0, false, "m"));
    own.reply(call, page(Vec::new(), None));
    let third = own.take_requests();
    own.reply(third[0].0, page(vec![record("z", 0)], None));
    own.reply(third[1].0, page(Vec::new(), None));
    own.reply(third[2].0, page(Vec::new(), None));
    let call = own.only(ObservedRequest::Write(vec!["z".to_owned()]));
    assert_eq!(
        own.shared.membership.layouts.pull_progress().1.len(),
        0,
        "what it has not stored it has not taken"
    );
    let (_, early) = own.shared.membership.layouts.encode();
    own.reply(call, Reply::Stored);
    assert_eq!(own.shared.membership.layouts.pull_progress().1.len(), 3);
    let open = own.take_requests();
    reply_with_empty_pages(&mut own, open);
    own.shared.install_layout(&early);
    assert!(!own.state().has_all, "it is not durable yet");
    own.store_layouts();
    own.after(1);
    own.store_layouts();
    assert!(own.state().has_all);
    assert_eq!(own.state().records, 3);
}

#[test]
fn nothing_is_pulled_before_the_fence_is_raised() {
    let mut own = Own::new();
    let call = own.confirm_clock();
    own.reply(call, seal_reply(1));
    own.store_layouts();
    assert_eq!(own.take_requests(), [], "it is sealed by an earlier round only");
    let call = own.confirm_clock();
    own.fails(call);
    own.store_layouts();
    assert_eq!(own.take_requests(), []);
    assert_eq!(own.raise_fence().len(), 3);
}

/// If the node raised its fence to its own clock, it would refuse other nodes' writes until their
/// clocks reach the fence.
#[test]
fn a_node_ahead_of_a_source_does_not_raise_its_fence() {
    let mut own = Own::new();
    own.after(1);
    let calls = own.asks_for_clocks();
    own.reply(calls[0], Reply::Ahead);
    own.reply(calls[1], seal_reply(0));
    assert_eq!(own.take_requests(), []);
    own.fails(calls[2]);
    own.after(1);
    assert_eq!(own.take_requests(), [], "it is left alone for a moment");
    own.after(RETRY_MICROS);
    let calls = own.asks_for_clocks();
    calls.iter().for_each(|call| own.fails(*call));
    assert_eq!(own.take_requests(), [], "nobody says that it is right");
    own.after(RETRY_MICROS);
    let calls = own.asks_for_clocks();
    own.reply(calls[0], seal_reply(0));
    calls[1..].iter().for_each(|call| own.fails(*call));
    own.only(ObservedRequest::Seal);
}

#[test]
fn a_source_that_does_not_answer_is_asked_again_and_waited_for() {
    let mut own = Own::new();
    let first = own.raise_fence();
    own.reply(first[0].0, page(Vec::new(), None));
    own.reply(first[1].0, page(Vec::new(), None));
    own.fail_third_source(first[2].0, true);
    // The second pass of the other sources.
    let open = own.take_requests();
    reply_with_empty_pages(&mut own, open);
    let (step, done) = own.shared.membership.layouts.pull_progress();
    assert_eq!(
        (step, done.into_iter().collect::<Vec<_>>()),
        (PullStep::Pulling, vec![NodeId(1), NodeId(2)])
    );
    own.store_layouts();
    own.after(RETRY_MICROS);
    let call = own.only(page_of(0, false, ""));
    own.reply(call, page(Vec::new(), None));
    let call = own.only(page_of(3, false, ""));
    own.reply(call, page(Vec::new(), None));
    let open = own.take_requests();
    reply_with_empty_pages(&mut own, open);
    own.store_layouts();
    own.after(1);
    own.store_layouts();
    assert!(own.state().has_all);
}

#[test]
fn a_source_that_fails_in_the_second_pass_is_not_pulled() {
    let mut own = Own::new();
    for (call, _) in own.raise_fence() {
        own.reply(call, page(Vec::new(), None));
    }
    let call = own.only(page_of(0, false, ""));
    own.reply(call, page(Vec::new(), None));
    let second = own.take_requests();
    own.reply(second[0].0, page(Vec::new(), None));
    own.reply(second[1].0, page(Vec::new(), None));
    own.fail_third_source(second[2].0, false);
    let (step, done) = own.shared.membership.layouts.pull_progress();
    assert_eq!((step, done), (PullStep::Pulling, [NodeId(1), NodeId(2)].into()));
}

#[test]
fn after_a_restart_only_the_remaining_sources_are_pulled() {
    let mut own = Own::new();
    let first = own.raise_fence();
    own.reply(first[0].0, page(Vec::new(), None));
    own.reply(first[1].0, page(Vec::new(), None));
    own.fail_third_source(first[2].0, true);
    let open = own.take_requests();
    reply_with_empty_pages(&mut own, open);
    let (record, _) = own.shared.membership.layouts.encode();
    let first = Layout {
        ..own.shared.membership.layouts.known_layout().plan_abort(|_| Some(VoterId(5))).unwrap()
    };
    let again = crate::membership::adopted_layout::Layouts::decode(&record, first).unwrap();
    assert_eq!(again.pull_progress(), own.shared.membership.layouts.pull_progress());
    assert_eq!(again.pull_need(NodeId(0)), PullNeed::Pull, "what came since stays");
}

#[test]
fn a_node_that_is_rebuilt_drops_its_orphaned_records() {
    let mut own = Own::new_settled(MembershipState::Rebuilding, None);
    // The node does not know the previous layout.
    let layout = own.layout_with_more_weight().next_stage().unwrap();
    own.learns(Layout {
        epoch: layout.epoch + 1,
        placement_epoch: layout.placement_epoch + 1,
        base: 7,
        ..layout
    });
    assert!(own.shared.must_drop_orphans());
    own.after(1);
    assert!(
        own.shared.transfer.orphan_drops.is_pending(),
        "else it never stores what is streamed back to it"
    );
    assert_eq!(own.take_requests(), [], "it takes later");
}

#[test]
fn a_change_of_placement_stops_the_pull() {
    let mut own = Own::new();
    let first = own.raise_fence();
    let back =
        own.shared.membership.layouts.known_layout().plan_abort(|_| Some(VoterId(5))).unwrap();
    own.shared.membership.layouts.learn(&Arc::new(back));
    own.store_layouts();
    own.reply(first[0].0, page(vec![record("a", 0)], None));
    own.after(1_000_000);
    assert_eq!(own.take_requests(), [], "nothing of it is stored");
    assert!(own.shared.membership.layouts.has_orphans(), "what it took is of no use here");
}

/// A plan announces the amount of data that one change moves. A sum over all changes since the
/// start could not be compared with that amount.
#[test]
fn pulled_records_are_counted_for_each_change() {
    let mut own = Own::new();
    let first = own.raise_fence();
    own.reply(first[0].0, page(vec![record("a", 0)], None));
    assert_eq!((own.state().records, own.state().bytes), (1, bytes_of_a()));
    let back =
        own.shared.membership.layouts.known_layout().plan_abort(|_| Some(VoterId(5))).unwrap();
    own.learns(back);
    assert_eq!(own.state().records, 1, "until another change begins");
    let again = own.layout_with_more_weight();
    own.learns(again.clone());
    assert_eq!(own.state().records, 0, "of this one");
    own.learns(again.next_stage().unwrap());
    assert_eq!((own.state().records, own.state().bytes), (0, 0));
}

/// Two of three replicas are declared lost: no node can determine the record that a majority holds.
#[test]
fn remaining_records_are_pulled_where_no_majority_is_left() {
    let mut own = Own::new_settled(MembershipState::Member, None);
    let remove_lost = vec!["n2".to_owned(), "n3".to_owned()];
    let change = PlanChange { remove_lost, replicas: Some(2), ..PlanChange::default() };
    let prepared = own
        .shared
        .membership
        .layouts
        .known_layout()
        .plan_change(&change, |_| Some(VoterId(5)))
        .unwrap();
    own.learns(prepared.clone());
    own.learns(prepared.next_stage().unwrap());
    let before = own.shared.view().topology.clone();
    let is_of = |key: &str, node| before.holds(NodeId(node), partition_of(key.as_bytes()), 3);
    let key = |wanted: [bool; 4]| {
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"];
        keys.into_iter().find(|key| [0, 1, 2, 3].map(|node| is_of(key, node)) == wanted).unwrap()
    };
    let (without, with) = (key([false, true, true, true]), key([true, true, false, true]));
    let first = own.raise_fence();
    assert_eq!(first.len(), 1);
    own.reply(first[0].0, page(vec![record(without, 9), record(with, 9)], None));
    let call = own.only(ObservedRequest::Settle(1, with.to_owned(), 0));
    own.reply(call, Reply::Absent { authoritative: true });
    own.only(ObservedRequest::Write(vec![without.to_owned()]));
}

/// The walk over the departed node's records will never end.
#[test]
fn a_node_that_has_left_is_not_waited_for() {
    let mut own = Own::new_settled(MembershipState::Rebuilding, None);
    own.after(1);
    own.after(1);
    let asked = std::mem::take(&mut own.open);
    for (call, asked) in asked {
        if matches!(asked, ObservedRequest::Lacking(1 | 2)) {
            own.reply(call, page(Vec::new(), None));
        }
    }
    let lacks = |own: &Own| own.shared.transfer.missed.partitions(NodeId(0)) > 0;
    assert!(lacks(&own), "the third may be the only one that has something");
    let known = own.shared.membership.layouts.known_layout();
    let mut layout =
        Layout { epoch: known.epoch + 1, placement_epoch: known.epoch + 1, ..(*known).clone() };
    layout.nodes.retain(|node| node.id != NodeId(3));
    own.stored_states.clear();
    own.learns(layout);
    own.after(1);
    assert!(!lacks(&own));
    assert_eq!(own.stored_states, [MembershipState::Member]);
}

/// With more copies, a staying node is a new replica of some keys. With fewer copies, a staying
/// node may lack records that a majority of the previous replicas held. If only nodes without zones
/// join, a staying node gains nothing.
#[test]
fn a_staying_node_pulls_where_the_number_of_copies_changes() {
    let base =
        Own::new_settled(MembershipState::Member, None).shared.membership.layouts.known_layout();
    let member = Member { name: "n4".to_owned(), zone: String::new(), weight: 1 };
    let joiner = crate::membership::layout::Joiner {
        member,
        url: "http://n4".to_owned(),
        disk: Some(Incarnation(9)),
    };
    for (change, stays, joins) in [
        (PlanChange { replicas: Some(4), ..PlanChange::default() }, true, false),
        (PlanChange { replicas: Some(2), ..PlanChange::default() }, true, false),
        (PlanChange { replicas: Some(1), ..PlanChange::default() }, true, false),
        (PlanChange { remove: vec!["n3".to_owned()], ..PlanChange::default() }, true, false),
        (PlanChange { add: vec![joiner], ..PlanChange::default() }, false, true),
    ] {
        let prepared = base.plan_change(&change, |_| Some(VoterId(5))).unwrap();
        assert!(!may_gain_records(&prepared, NodeId(0)), "nothing moves in prepare: {change:?}");
        let moving = prepared.next_stage().unwrap();
        assert_eq!(may_gain_records(&moving, NodeId(0)), stays, "{change:?}");
        assert!(!joins || may_gain_records(&moving, NodeId(4)), "{change:?}");
        assert!(
            !may_gain_records(&moving.next_stage().unwrap(), NodeId(0)),
            "read new: {change:?}"
        );
    }
}
