//! Tests of repair rounds with nodes that cannot read all their records, are down, or were
//! restarted: the healed damage, and the report and the proof of the round.

use std::sync::Arc;

use bytes::Bytes;
use protocol::layout::{Layout, Voter, VoterId};
use protocol::{
    Background, BackgroundConfig, BackgroundEffect, BackgroundEvent, BootId, Clock, CompareRequest,
    Compared, Damage, Detail, FailureKind, Incarnation, Kind, Layouts, Logs, Membership,
    MembershipState, NodeId, Now, Proof, Rank, Record, RecordOutline, Reply, Request, RoundConfig,
    RoundId, RoundReport, RoundState, RoundStep, Shared, Sum, Unhealed, Unrepaired, Version, View,
    partition_of,
};

use crate::records;
use crate::words::BASE;
use crate::world::topology;

mod unrepaired;

const SICK: NodeId = NodeId(1);

const OTHER: NodeId = NodeId(2);

/// Maximum number of ticks and replies until a round must end.
const PATIENCE: usize = 300;

/// Microseconds between ticks. A node that failed is asked again after several ticks.
const TICK_MICROS: u64 = 500_000;

/// The result of a driver's round.
struct Driven {
    report: RoundReport,
    /// The damaged ranges that each node had to discard.
    given_up: Vec<(NodeId, Vec<Damage>)>,
    /// The steps that were requested from nodes.
    steps: Vec<(NodeId, RoundStep)>,
}

impl Driven {
    fn is_asked_to_commit(&self) -> bool {
        self.steps.iter().any(|(_, step)| matches!(step, RoundStep::Commit { .. }))
    }
}

/// A node that drives rounds over three nodes.
struct Driver {
    shared: Arc<Shared>,
    node: Background,
    mono: u64,
}

impl Driver {
    fn new() -> Self {
        Self::with_settling_time(0)
    }

    /// Makes a driver whose rounds omit the records of the last `settled_micros` microseconds.
    fn with_settling_time(settled_micros: u64) -> Self {
        let clock = Arc::new(Clock::start(7, BASE, 0));
        clock.mark_durable(u64::MAX, 0);
        let membership = Membership::new(MembershipState::Member, BASE << 12, false);
        let logs = Arc::new(Logs::first(Incarnation(100)));
        let shared = Arc::new(Shared::new(topology(3, 3), NodeId(0), clock, membership, 0, logs));
        let full_interval_micros = u64::MAX;
        let rounds = RoundConfig { full_interval_micros, settled_micros, ..RoundConfig::NONE };
        let config = BackgroundConfig {
            deadline_micros: 0,
            syncs_always: true,
            max_skew_micros: 0,
            rounds,
            stream_rate: None,
            remembered: |_, _| None,
        };
        let node = Background::new(Arc::clone(&shared), config);
        Self { shared, node, mono: 0 }
    }

    /// Drives a round in which `reply` returns the nodes' replies (`None` = no reply).
    fn round(
        &mut self,
        full: bool,
        mut reply: impl FnMut(NodeId, &Request) -> Option<Reply>,
    ) -> Driven {
        self.shared.repair.rounds.request_round(full, 0);
        let mut events = vec![BackgroundEvent::Tick];
        let (mut given_up, mut steps) = (Vec::new(), Vec::new());
        for _ in 0..PATIENCE {
            self.mono += TICK_MICROS;
            let now = Now { mono: self.mono, wall: BASE + self.mono };
            let mut effects = Vec::new();
            self.node.handle(now, events.pop().unwrap_or(BackgroundEvent::Tick), &mut effects);
            for effect in effects {
                match effect {
                    BackgroundEffect::RoundEnded(report) => {
                        return Driven { report, given_up, steps };
                    }
                    BackgroundEffect::Call { call, node, request, .. } => {
                        match &request {
                            Request::Discard(ranges) => given_up.push((node, ranges.clone())),
                            Request::Round { step, .. } => steps.push((node, *step)),
                            _ => {}
                        }
                        let result = reply(node, &request).ok_or(FailureKind::TooFew);
                        events.push(BackgroundEvent::CallReturned { call, result });
                    }
                    _ => {}
                }
            }
        }
        panic!("the round does not end: {:?}", self.shared.repair.rounds.status());
    }
}

/// Returns the reply of a node that carries out every request and holds no record.
fn willing_reply(request: &Request) -> Reply {
    match request {
        Request::Compare(_) => Reply::Compared(Compared::default()),
        Request::Discard(_) => Reply::Stored,
        Request::Round { round, .. } => Reply::Round(does(*round)),
        _ => Reply::Pong,
    }
}

/// Drives a round over three nodes, in which `reply` returns the nodes' comparisons. Returns the
/// report, and the damaged ranges that each node had to discard.
fn round(
    full: bool,
    mut reply: impl FnMut(NodeId, &CompareRequest) -> Compared,
) -> (RoundReport, Vec<(NodeId, Vec<Damage>)>) {
    let driven = Driver::new().round(full, |node, request| match request {
        Request::Compare(request) => Some(Reply::Compared(reply(node, request))),
        request => Some(willing_reply(request)),
    });
    (driven.report, driven.given_up)
}

/// Returns the state of a node that has carried out all steps of a round.
fn does(round: RoundId) -> RoundState {
    let proof = Proof { seal: round, ready: round, proven: round, ..Proof::default() };
    RoundState { life: BootId(1), proof, promised: 0, is_active: true }
}

fn damage(first: &'static str, last: &'static str) -> Damage {
    Damage { first: first.into(), last: Some(last.into()) }
}

/// A node reports all keys that a damaged block may hold, also keys before the requested range. So
/// a block that spans two ranges is reported twice, but healed once.
#[test]
fn damage_across_parts_of_the_keys_is_counted_once() {
    let rotten = damage("k", "p");
    let (report, given_up) = round(true, |node, request| {
        let first = request.start.is_empty() && request.detail == Detail::Sums;
        let next = (node == NodeId(0) && first).then(|| Bytes::from("m"));
        let damaged = if node == SICK { vec![rotten.clone()] } else { Vec::new() };
        Compared { next, damaged, ..Compared::default() }
    });
    assert_eq!((report.damaged, report.healed), (1, 1), "{report:?}");
    assert!(report.is_equal(), "{report:?}");
    assert_eq!(given_up, [(SICK, vec![rotten])]);
}

/// Old records are read only when a range is healed. If a second node then cannot read them either,
/// nothing is discarded: the two nodes may be the only holders.
#[test]
fn damage_found_on_a_second_node_prevents_the_discard() {
    let (here, there) = (damage("k", "p"), damage("m", "r"));
    let (report, given_up) = round(true, |node, request| {
        let is_list = matches!(request.detail, Detail::Outlines { .. });
        let damaged = match node {
            SICK => vec![here.clone()],
            OTHER if is_list => vec![there.clone()],
            _ => Vec::new(),
        };
        Compared { damaged, ..Compared::default() }
    });
    assert_eq!(given_up, []);
    assert_eq!((report.damaged, report.healed), (2, 0), "{report:?}");
    let expected = [(OTHER, there, Unhealed::Both), (SICK, here, Unhealed::Both)];
    assert_eq!(report.unhealed, expected);
    assert!(!report.is_equal());
}

#[test]
fn nodes_ready_without_a_restart_complete_the_proof() {
    let driven = Driver::new().round(true, |_, request| Some(willing_reply(request)));
    assert!(driven.report.proven && driven.report.is_equal(), "{:?}", driven.report);
    let commits = driven.steps.iter().filter(|(_, s)| matches!(s, RoundStep::Commit { .. }));
    assert_eq!(commits.count(), 3);
}

/// The node may have lost reported records with its memory.
#[test]
fn a_node_restarted_since_its_fence_prevents_the_proof() {
    let driven = Driver::new().round(true, |node, request| match request {
        Request::Round { round, step: RoundStep::Ready } if node == OTHER => {
            Some(Reply::Round(RoundState { life: BootId(2), ..does(*round) }))
        }
        request => Some(willing_reply(request)),
    });
    assert!(!driven.report.proven && !driven.is_asked_to_commit(), "{:?}", driven.report);
    assert_eq!(driven.report.unproven, Some("a node was restarted, or nodes are about to join"));
}

/// A node that joins after the round would find that its directory is older than the proof.
#[test]
fn nothing_is_proven_while_nodes_are_about_to_join() {
    let mut driver = Driver::new();
    let (before, next) = (topology(3, 3), topology(4, 3));
    driver.shared.membership.views.install(View::new_prepared(2, 1, before, next));
    let driven = driver.round(true, |_, request| Some(willing_reply(request)));
    assert!(driven.report.is_equal() && !driven.report.proven, "{:?}", driven.report);
    assert!(!driven.is_asked_to_commit(), "{:?}", driven.steps);
    assert_eq!(driven.report.unproven, Some("nodes are about to join"));
}

/// A coordinator may continue under the 63 ballots after a promised one without new promises, from
/// a record that may be purged by then.
#[test]
fn a_proof_outbids_the_ballots_that_follow_a_promise() {
    let promised = BASE << 12;
    let driven = Driver::new().round(true, |_, request| match request {
        Request::Round { round, step: RoundStep::Ready } => {
            Some(Reply::Round(RoundState { promised, ..does(*round) }))
        }
        request => Some(willing_reply(request)),
    });
    assert!(driven.report.proven, "{:?}", driven.report);
    let floor = |(_, step): &(NodeId, RoundStep)| match step {
        RoundStep::Commit { floor, .. } => Some(*floor),
        _ => None,
    };
    let floors: Vec<_> = driven.steps.iter().filter_map(floor).collect();
    assert_eq!(floors, [promised + 63; 3]);
}

/// The joining node learns of a proof from a participant of the round. It holds no record that the
/// proof concerns.
#[test]
fn a_node_that_is_about_to_join_is_not_outdated_by_what_was_proven_without_it() {
    let (before, next, own) = (topology(3, 3), topology(4, 3), NodeId(3));
    let voter = Voter { node: own, id: Some(VoterId(7)), is_first: false };
    let proven = RoundId { time: 9, node: SICK };
    for (view, is_outdated) in [
        (View::new_prepared(2, 1, before.clone(), next.clone()), false),
        (View::new_moving(3, 3, before, next.clone()), true),
        (View::new_settled(5, 5, next.clone()), true),
    ] {
        let layouts = Layouts::first(voter, Layout::first(&next, |_| String::new()));
        let membership = Membership::new(MembershipState::Member, 0, true);
        let (clock, logs) =
            (Arc::new(Clock::start(7, BASE, 0)), Arc::new(Logs::first(Incarnation(100))));
        let named = (own, "n3".to_owned());
        let shared = Shared::of(named, (view, layouts), clock, membership, 0, logs);
        shared.repair.proofs.put_in_force(Proof::of_new(own, 5));
        shared.note_proof_seen(SICK, proven);
        assert_eq!(shared.membership.state.is_authoritative_for_all(), !is_outdated);
    }
}

/// The records brought to the node may not be durable, or a later round may have raised its fence.
#[test]
fn an_unready_or_silent_node_prevents_the_proof() {
    let silent = |_: RoundId| None;
    let unready = |round| {
        let ready = RoundId::default();
        let proof = Proof { ready, ..does(round).proof };
        Some(Reply::Round(RoundState { proof, ..does(round) }))
    };
    let answers: [&dyn Fn(RoundId) -> Option<Reply>; 2] = [&silent, &unready];
    for answer in answers {
        let driven = Driver::new().round(true, |node, request| match request {
            Request::Round { round, step: RoundStep::Ready } if node == OTHER => answer(*round),
            request => Some(willing_reply(request)),
        });
        assert!(!driven.report.proven && !driven.is_asked_to_commit(), "{:?}", driven.report);
    }
}

/// A promise shows that some clock once showed a time, not that a clock shows it now.
#[test]
fn a_promise_that_is_ahead_is_not_said_to_be_a_clock() {
    let promised = (BASE + 3_600_000_000) << 12;
    let driven = Driver::new().round(true, |_, request| match request {
        Request::Round { round, step: RoundStep::Ready } => {
            Some(Reply::Round(RoundState { promised, ..does(*round) }))
        }
        request => Some(willing_reply(request)),
    });
    assert!(!driven.report.proven && !driven.is_asked_to_commit(), "{:?}", driven.report);
    let why = driven.report.unproven.unwrap();
    assert!(why.starts_with("a node has promised timestamps ahead of this node's clock"), "{why}");
}

/// While a clock is ahead, other nodes refuse the ballots that it promised. So the driver must not
/// commit such ballots either.
#[test]
fn a_driver_whose_clock_is_ahead_commits_nothing() {
    let driven = Driver::new().round(true, |node, request| match request {
        Request::Round { step: RoundStep::Commit { .. }, .. } if node != NodeId(0) => {
            Some(Reply::Ahead)
        }
        request => Some(willing_reply(request)),
    });
    assert!(!driven.report.proven, "{:?}", driven.report);
    let is_own = |(node, step): &(NodeId, RoundStep)| {
        *node == NodeId(0) && matches!(step, RoundStep::Commit { .. })
    };
    assert!(!driven.steps.iter().any(is_own), "{:?}", driven.steps);
}

/// The absent node may hold records that all other nodes have deleted. The next round compares
/// these records again.
#[test]
fn a_node_that_is_away_keeps_the_others_from_a_proof() {
    for is_away_from_the_start in [true, false] {
        let is_missed = |node, request: &Request| {
            node == OTHER && (is_away_from_the_start || matches!(request, Request::Compare(_)))
        };
        let mut driver = Driver::new();
        let driven = driver.round(true, |node, request| {
            (!is_missed(node, request)).then(|| willing_reply(request))
        });
        assert_eq!(driven.report.absent, [OTHER]);
        assert!(!driven.report.proven && !driven.is_asked_to_commit(), "{:?}", driven.report);
        let next = driver.round(false, |_, request| Some(willing_reply(request)));
        assert!(next.report.proven, "{:?}", next.report);
        assert_eq!(next.report.since, 0, "{:?}", next.report);
    }
}

/// The absent node may be the only other holder of the unreadable records.
#[test]
fn nothing_is_given_up_while_a_node_is_away() {
    let rotten = damage("k", "p");
    let driven = Driver::new().round(true, |node, request| match request {
        _ if node == OTHER => None,
        Request::Compare(_) if node == SICK => {
            let damaged = vec![rotten.clone()];
            Some(Reply::Compared(Compared { damaged, ..Compared::default() }))
        }
        request => Some(willing_reply(request)),
    });
    assert_eq!(driven.given_up, []);
    assert_eq!(driven.report.unhealed, [(SICK, rotten, Unhealed::Absent)]);
}

/// A node with an older record gets the newest record, even if the newest record has fewer copies
/// by now than when the nodes listed it.
#[test]
fn a_former_replica_gets_the_newest_record() {
    let key = Bytes::from("k");
    let mut order = Vec::new();
    topology(3, 3).replicas(partition_of(&key), 3, &mut order);
    let [first, second, last] = order[..] else { panic!("{order:?}") };
    let record = record_written_at;
    let mut brought = Vec::new();
    Driver::new().round(true, |node, request| match request {
        Request::Compare(CompareRequest { detail: Detail::Sums, .. }) => {
            let sum = Sum { bucket: 0, place: node.0 as u8, copies: 3, sum: 1 << node.0 };
            Some(Reply::Compared(Compared { sums: vec![sum], ..Compared::default() }))
        }
        Request::Compare(_) => {
            let held = if node == last { record(1, 3) } else { record(2, 2) };
            let outlines = vec![(key.clone(), held.outline())];
            Some(Reply::Compared(Compared { outlines, ..Compared::default() }))
        }
        // The record was rewritten after the list.
        Request::Read { .. } => Some(Reply::Found { record: record(3, 1), authoritative: true }),
        Request::Bring { record, .. } => {
            brought.push((node, record.copies()));
            Some(Reply::Stored)
        }
        request => Some(willing_reply(request)),
    });
    assert_eq!(brought, [(last, 1)], "of {first:?}, {second:?}, {last:?}");
}

/// After the list, one holder has stored a newer record with one copy. It hides the listed record
/// there, and belongs on no other node. The other holder still has the listed record.
#[test]
fn a_record_hidden_on_one_holder_is_read_from_the_next() {
    let key = Bytes::from("k");
    let mut order = Vec::new();
    topology(3, 3).replicas(partition_of(&key), 3, &mut order);
    let lacking = order[2];
    let (mut asked, mut brought) = (Vec::new(), Vec::new());
    let driven = Driver::new().round(true, |node, request| match request {
        Request::Compare(CompareRequest { detail: Detail::Sums, .. }) => {
            let sum = Sum { bucket: 0, place: node.0 as u8, copies: 3, sum: 1 << node.0 };
            Some(Reply::Compared(Compared { sums: vec![sum], ..Compared::default() }))
        }
        Request::Compare(_) if node == lacking => Some(Reply::Compared(Compared::default())),
        Request::Compare(_) => {
            let outlines = vec![(key.clone(), record_written_at(1, 3).outline())];
            Some(Reply::Compared(Compared { outlines, ..Compared::default() }))
        }
        Request::Read { .. } => {
            asked.push(node);
            let record =
                if asked.len() == 1 { record_written_at(2, 1) } else { record_written_at(1, 3) };
            Some(Reply::Found { record, authoritative: true })
        }
        Request::Bring { record, .. } => {
            brought.push((node, record.clone()));
            Some(Reply::Stored)
        }
        request => Some(willing_reply(request)),
    });
    assert_eq!(asked.len(), 2, "each holder once: {asked:?}");
    assert_eq!(brought, [(lacking, record_written_at(1, 3))]);
    assert!(driven.report.is_equal(), "{:?}", driven.report);
}

/// Returns the entry of a list of outlines.
fn list_entry(time: u64, ballot: u64) -> (Bytes, RecordOutline) {
    let version = Version { time, origin: 1 };
    let rank = Rank { version, ballot, kind: Kind::Value, check: 7 };
    (Bytes::from("k"), RecordOutline { rank, copies: 0, bytes: 9 })
}

/// All other nodes have purged the tombstone that hid this record.
#[test]
fn a_record_that_damage_had_hidden_is_deleted_again() {
    let mut brought = Vec::new();
    after_a_full_one().round(true, |node, request| match request {
        Request::Compare(request) if node == SICK => {
            let is_list = matches!(request.detail, Detail::Outlines { .. });
            let outlines = if is_list { vec![list_entry(PROVEN.time, 0)] } else { Vec::new() };
            let damaged = vec![damage("a", "z")];
            Some(Reply::Compared(Compared { damaged, outlines, ..Compared::default() }))
        }
        Request::Bring { record, .. } => {
            brought.push((node, record.kind()));
            Some(Reply::Stored)
        }
        request => Some(since_proof(true, request)),
    });
    assert_eq!(brought, [(SICK, Kind::Tombstone)]);
}

/// A record hidden by damage may be newer than the compared records, and acknowledged by this node
/// and one other node. If the damage were discarded before the record is brought, only the other
/// node would hold it.
#[test]
fn new_records_are_brought_before_damage_is_discarded() {
    let rotten = damage("k", "k");
    let mut young = None;
    let mut brought = Vec::new();
    let driven = Driver::new().round(true, |node, request| match request {
        Request::Compare(CompareRequest { detail: Detail::Sums, .. }) if node == SICK => {
            let damaged = vec![rotten.clone()];
            Some(Reply::Compared(Compared { damaged, ..Compared::default() }))
        }
        Request::Compare(CompareRequest { round, until, .. }) if node == OTHER => {
            let version = Version { time: round.time + 1, origin: 1 };
            let held = records::record(b"k", Kind::Value, "x", version, 0);
            let listed = held.write_time() <= *until;
            let outlines =
                if listed { vec![(Bytes::from("k"), held.outline())] } else { Vec::new() };
            young = Some(held);
            Some(Reply::Compared(Compared { outlines, ..Compared::default() }))
        }
        Request::Read { .. } => {
            let record = young.clone().expect("it was listed");
            Some(Reply::Found { record, authoritative: true })
        }
        Request::Bring { record, .. } => {
            brought.push((node, Some(record.clone())));
            Some(Reply::Stored)
        }
        request => Some(willing_reply(request)),
    });
    assert_eq!(brought, [(NodeId(0), young.clone()), (SICK, young)]);
    assert_eq!(driven.given_up, [(SICK, vec![rotten])]);
}

/// The record may not be chosen, and must not be copied as if it were.
#[test]
fn a_conditional_record_is_read_as_one_that_a_majority_holds() {
    let mut reads = 0;
    Driver::new().round(true, |node, request| match request {
        Request::Compare(CompareRequest { detail: Detail::Sums, .. }) => {
            let sum = Sum { bucket: 0, place: node.0 as u8, copies: 3, sum: 1 << node.0 };
            Some(Reply::Compared(Compared { sums: vec![sum], ..Compared::default() }))
        }
        Request::Compare(_) if node == OTHER => {
            let outlines = vec![list_entry(3, 4)];
            Some(Reply::Compared(Compared { outlines, ..Compared::default() }))
        }
        Request::Read { .. } => panic!("it is read as it is"),
        Request::ReadQuorum { .. } => {
            reads += 1;
            None
        }
        request => Some(willing_reply(request)),
    });
    assert_eq!(reads, 1);
}

/// Returns a node's reply after a proof that is durable on all nodes.
fn since_proof(is_uniform: bool, request: &Request) -> Reply {
    let Request::Round { round, .. } = request else { return willing_reply(request) };
    let state = does(*round);
    let proof = Proof { proven: PROVEN, is_uniform, ..state.proof };
    Reply::Round(RoundState { proof, ..state })
}

/// An earlier proof.
const PROVEN: RoundId = RoundId { time: 1, node: OTHER };

/// Makes a driver that has completed a full round.
fn after_a_full_one() -> Driver {
    let mut driver = Driver::new();
    assert!(driver.round(true, |_, request| Some(willing_reply(request))).report.proven);
    driver
}

fn record_written_at(micros: u64, copies: u8) -> Record {
    let version = Version { time: (BASE + micros) << 12, origin: 1 };
    records::record(b"k", Kind::Value, "x", version, copies)
}

/// Drives a round, and changes the placement after this many replies. Returns `true` if the change
/// stopped the round.
fn is_dropped_after(answers: usize) -> bool {
    let mut driver = Driver::new();
    let (rotten, record) = (damage("a", "z"), record_written_at(1, 0));
    let outlines = vec![(Bytes::from("k"), record.outline())];
    // Node `OTHER` holds a record that the others lack, and node `SICK` has damaged records.
    let reply = |node: NodeId, request: &Request| match request {
        Request::Compare(CompareRequest { detail: Detail::Sums, .. }) => {
            let sum = Sum { bucket: 0, place: node.0 as u8, copies: 3, sum: 1 << node.0 };
            let damaged = if node == SICK { vec![rotten.clone()] } else { Vec::new() };
            Reply::Compared(Compared { sums: vec![sum], damaged, ..Compared::default() })
        }
        Request::Compare(_) if node == OTHER => {
            Reply::Compared(Compared { outlines: outlines.clone(), ..Compared::default() })
        }
        Request::Read { .. } => Reply::Found { record: record.clone(), authoritative: true },
        Request::Bring { .. } => Reply::Stored,
        request => willing_reply(request),
    };
    let mut given = 0;
    let placed = View::new_settled(2, 2, topology(4, 3));
    let shared = Arc::clone(&driver.shared);
    let driven = driver.round(true, |node, request| {
        if shared.repair.rounds.status().current.is_some() {
            if given == answers {
                shared.membership.views.install(placed.clone());
            }
            given += 1;
        }
        Some(reply(node, request))
    });
    let is_dropped = driven.report.stopped.is_some();
    if is_dropped {
        assert_eq!(driven.report.stopped, Some("the members of the cluster change"));
        assert!(!driven.report.proven && driver.shared.repair.rounds.status().current.is_none());
    }
    // Late replies to requests of the dropped round belong to no call.
    let next = driver.round(true, |_, request| Some(willing_reply(request))).report;
    assert!(next.proven && next.is_equal() && next.number == 2, "after {answers}: {next:?}");
    is_dropped
}

/// A round can be dropped wherever it waits.
#[test]
fn a_round_that_is_dropped_leaves_nothing() {
    let dropped: Vec<bool> = (0..40).map(is_dropped_after).collect();
    let waits = dropped.iter().take_while(|is_dropped| **is_dropped).count();
    assert!(waits >= 15, "all are asked for each of its steps: {dropped:?}");
    assert!(dropped[waits..].iter().all(|is_dropped| !is_dropped), "{dropped:?}");
}

/// A comparison under one placement proves nothing about the replicas of another placement. While
/// partitions move, a receiver may also lack records that all others hold.
#[test]
fn a_round_keeps_the_placement_that_it_began_with() {
    let mut driver = after_a_full_one();
    let shared = Arc::clone(&driver.shared);
    let (three, four) = (topology(3, 3), topology(4, 3));
    let begins = View::new_moving(2, 2, three, four.clone());
    let driven = driver.round(false, |_, request| {
        if matches!(request, Request::Compare(_)) && shared.view().epoch == 1 {
            shared.membership.views.install(begins.clone());
        }
        Some(since_proof(true, request))
    });
    assert_eq!(driven.report.stopped, Some("the members of the cluster change"));
    assert!(!driven.report.proven && !driven.is_asked_to_commit(), "{:?}", driven.report);

    shared.repair.rounds.request_round(false, 0);
    for _ in 0..PATIENCE {
        driver.mono += TICK_MICROS;
        let now = Now { mono: driver.mono, wall: BASE + driver.mono };
        let mut effects = Vec::new();
        driver.node.handle(now, BackgroundEvent::Tick, &mut effects);
        let steps = |effect: &BackgroundEffect| {
            matches!(effect, BackgroundEffect::Call { request: Request::Round { .. }, .. })
        };
        assert!(!effects.iter().any(steps), "{effects:?}");
    }
    // The next view changes only the metadata quorum, not the placement.
    shared.membership.views.install(View::new_settled(3, 3, four.clone()));
    let driven = driver.round(false, |_, request| {
        if matches!(request, Request::Compare(_)) && shared.view().epoch == 3 {
            shared.membership.views.install(View::new_settled(4, 3, four.clone()));
        }
        Some(willing_reply(request))
    });
    assert!(driven.report.full && driven.report.proven, "{:?}", driven.report);
}

/// Only a full round finds older records on nodes that are not replicas of their key. Such records
/// exist if a key was written with several numbers of copies.
#[test]
fn an_incremental_round_proves_nothing_where_keys_have_other_numbers_of_copies() {
    let one = Sum { bucket: 0, place: 0, copies: 1, sum: 5 };
    let told = |node, request: &Request, is_there: bool| match request {
        Request::Compare(_) if node == NodeId(0) && is_there => {
            Some(Reply::Compared(Compared { sums: vec![one], ..Compared::default() }))
        }
        request => Some(since_proof(true, request)),
    };
    for (before, since) in [(false, false), (true, false), (false, true)] {
        let proves = !before && !since;
        let mut driver = Driver::new();
        let full = driver.round(true, |node, request| told(node, request, before));
        assert!(full.report.proven, "{:?}", full.report);
        let driven = driver.round(false, |node, request| told(node, request, since));
        assert!(!driven.report.full);
        assert_eq!(driven.report.proven, proves, "{before} {since}: {:?}", driven.report);
        // Records found equal before are not compared again, but the round remembers their numbers
        // of copies.
        let next = driver.round(false, |node, request| told(node, request, false));
        assert_eq!(next.report.since, driven.report.until);
        assert_eq!(next.report.proven, proves, "{before} {since}: {:?}", next.report);
    }
}

/// A node that restarts may lose records that were brought to it. A proof makes them durable.
/// Without a proof, the comparison is worthless after a restart.
#[test]
fn records_are_compared_again_after_a_restart() {
    let mut driver = after_a_full_one();
    let mut round = |life: u64| {
        driver.round(false, |node, request| match since_proof(true, request) {
            Reply::Round(state) if node == OTHER => {
                let is_over = matches!(request, Request::Round { step: RoundStep::Ready, .. });
                Some(Reply::Round(RoundState { life: BootId(life + u64::from(is_over)), ..state }))
            }
            reply => Some(reply),
        })
    };
    assert!(!round(1).report.proven);
    let next = round(2);
    assert_eq!(next.report.since, PROVEN.time, "{:?}", next.report);
}

/// The records that a future record hides are compared again once the future record is gone. Until
/// then, the nodes only seem equal.
#[test]
fn records_that_a_future_record_may_hide_are_compared_again() {
    let version = |micros: u64| Version { time: (BASE + micros) << 12, origin: 1 };
    let outline = |micros| {
        let (version, check) = (version(micros), 7);
        let rank = Rank { version, ballot: 0, kind: Kind::Value, check };
        (Bytes::from("k"), RecordOutline { rank, copies: 0, bytes: 9 })
    };
    let mut driver = after_a_full_one();
    let driven = driver.round(false, |node, request| match request {
        Request::Compare(CompareRequest { detail: Detail::Sums, .. }) => {
            // Only the other nodes have sums of the hidden record.
            let place = node.0 as u8;
            let sum = Sum { bucket: 0, place, copies: 3, sum: u128::from(node != OTHER) };
            Some(Reply::Compared(Compared { sums: vec![sum], ..Compared::default() }))
        }
        Request::Compare(_) => {
            let outlines = vec![outline(if node == OTHER { u64::from(u32::MAX) } else { 1 })];
            Some(Reply::Compared(Compared { outlines, ..Compared::default() }))
        }
        request => Some(since_proof(true, request)),
    });
    assert!(driven.report.is_equal() && !driven.report.proven, "{:?}", driven.report);
    let next = driver.round(false, |_, request| Some(since_proof(true, request)));
    assert_eq!(next.report.since, driven.report.since, "{:?}", next.report);
}

/// If only one node holds a conditional write's record, the round's majority read may miss that
/// node and return an older record. The round must not bring the older record to nodes.
#[test]
fn an_older_record_read_by_quorum_is_not_brought() {
    let key = Bytes::from("k");
    let version = Version { time: 3, origin: 7 };
    let put = records::record(&key, Kind::Value, "put", version, 0);
    let changed = put.with_ballot(&key, version, 4);
    let mut brought = Vec::new();
    let report = Driver::new()
        .round(true, |node, request| {
            Some(match request {
                Request::Compare(request) => {
                    let record = if node == SICK { &changed } else { &put };
                    let sum = u128::from(record.ballot() + 1);
                    let bucket = topology(3, 3).buckets().of(&key);
                    let place = node.0 as u8;
                    let mut compared = Compared::default();
                    match request.detail {
                        Detail::Sums => compared.sums.push(Sum { bucket, place, copies: 3, sum }),
                        Detail::Outlines { .. } => {
                            compared.outlines.push((key.clone(), record.outline()))
                        }
                    }
                    Reply::Compared(compared)
                }
                Request::ReadQuorum { .. } => {
                    Reply::Found { record: put.clone(), authoritative: true }
                }
                Request::Bring { record, .. } => {
                    brought.push((node, record.rank()));
                    Reply::Stored
                }
                Request::Round { round, .. } => Reply::Round(does(*round)),
                _ => Reply::Pong,
            })
        })
        .report;
    assert_eq!(brought, [], "they hold it already");
    assert_eq!((report.differing, report.repaired, report.failed), (1, 0, 1), "{report:?}");
    assert_eq!(report.unrepaired, [((SICK, Unrepaired::Unread), 1)].into());
    assert!(!report.proven);
}

/// If a node is the only replica of some readable keys, it may also be the only replica of
/// unreadable ones. Its unreadable ranges are discarded, so that records of other nodes become
/// readable, but do not count as healed.
#[test]
fn damage_of_a_possibly_sole_replica_is_reported() {
    let rotten = damage("k", "p");
    let sum = |copies| Sum { bucket: 0, place: 0, copies, sum: 7 };
    for (sick_copies, healed) in [(1, 0), (2, 1), (3, 1)] {
        let (report, given_up) = round(true, |node, request| {
            let is_sick = node == SICK && request.detail == Detail::Sums;
            let (damaged, sums) = match is_sick {
                true => (vec![rotten.clone()], vec![sum(sick_copies)]),
                // It does not matter that other nodes are the only replicas of some keys.
                false if request.detail == Detail::Sums => (Vec::new(), vec![sum(1)]),
                false => (Vec::new(), Vec::new()),
            };
            Compared { damaged, sums, ..Compared::default() }
        });
        assert_eq!((report.damaged, report.healed), (1, healed), "{report:?}");
        assert_eq!(given_up, [(SICK, vec![rotten.clone()])]);
        let sole = vec![(SICK, rotten.clone(), Unhealed::Sole)];
        assert_eq!(report.unhealed, if healed == 0 { sole } else { Vec::new() });
        assert_eq!(report.is_equal(), healed == 1, "{report:?}");
    }
}

/// A client that requests a round need not know how long a write takes to reach all replicas: the
/// round starts late enough to include it.
#[test]
fn a_requested_round_includes_all_earlier_writes() {
    const SETTLED: u64 = 1_000_000;
    let begins = |age: u64, waited: i64| {
        let mut driver = Driver::with_settling_time(SETTLED);
        // The first round makes the driver authoritative.
        driver.round(false, |_, request| Some(willing_reply(request)));
        let Driver { shared, mut node, mono } = driver;
        let asked = BASE + mono;
        shared.repair.rounds.request_round(false, Clock::limit(asked - age, 0));
        let now = Now { mono: mono + 1, wall: asked.saturating_add_signed(waited) };
        node.handle(now, BackgroundEvent::Tick, &mut Vec::new());
        shared.repair.rounds.status().current.is_some()
    };
    let settled = SETTLED as i64;
    assert!(!begins(0, 0), "it was written just now");
    assert!(!begins(0, settled - 1));
    assert!(begins(0, settled));
    assert!(begins(SETTLED, 0), "nothing is that young");
    assert!(begins(0, -1), "the clock was set back, by who knows how much");
}
