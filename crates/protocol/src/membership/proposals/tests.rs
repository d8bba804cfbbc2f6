//! Tests of one node with the other nodes played by the test: its requests about layouts, and the
//! effect of the replies.

use super::*;
use crate::background::effect::{BackgroundConfig, BackgroundEffect};
use crate::background::{Background, BackgroundEvent};
use crate::clock::{Clock, Now};
use crate::event::CallId;
use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_ids::{Incarnation, LogPosition};
use crate::membership::layout::{PlanChange as Wanted, VoterId};
use crate::membership::logs::{Claim, Logs, Reported};
use crate::membership::state::{Membership, MembershipState};
use crate::placement::topology::{Member, Topology};
use crate::repair::status::RoundConfig;
use crate::shared::Shared;

const NODES: u16 = 3;

/// This node, its calls, and its effects.
struct Own {
    shared: Arc<Shared>,
    node: Background,
    mono: u64,
    asked: Vec<(CallId, NodeId, VoteRequest)>,
    layout_stores: usize,
    stored_states: Vec<MembershipState>,
}

impl Own {
    fn new(state: MembershipState) -> Self {
        let member = |id: u16| Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
        let topology = Topology::new((0..NODES).map(member).collect(), 3).unwrap();
        let clock = Arc::new(Clock::start(7, 1_000_000, 0));
        let membership = Membership::new(state, 1, false);
        let logs = Arc::new(Logs::first(Incarnation(100)));
        let shared = Arc::new(Shared::new(topology, NodeId(0), clock, membership, 0, logs));
        let config = BackgroundConfig {
            deadline_micros: 0,
            syncs_always: true,
            max_skew_micros: 500_000,
            rounds: RoundConfig::NONE,
            stream_rate: None,
            remembered: |_, _| None,
        };
        let node = Background::new(Arc::clone(&shared), config);
        Self {
            shared,
            node,
            mono: 1,
            asked: Vec::new(),
            layout_stores: 0,
            stored_states: Vec::new(),
        }
    }

    fn handle(&mut self, event: BackgroundEvent) {
        let now = Now { mono: self.mono, wall: 1_000_000 + self.mono };
        let mut out = Vec::new();
        self.node.handle(now, event, &mut out);
        for effect in out {
            match effect {
                BackgroundEffect::Call {
                    call, node, request: Request::Council(request), ..
                } => {
                    self.asked.push((call, node, request));
                }
                BackgroundEffect::StoreLayouts => self.layout_stores += 1,
                BackgroundEffect::StoreState(state) => self.stored_states.push(state),
                _ => {}
            }
        }
    }

    fn after(&mut self, micros: u64) {
        self.mono += micros;
        self.handle(BackgroundEvent::Tick);
    }

    /// Replies to all requests since the last call, or lets them fail if `reply` returns `None`.
    fn answer_requests(&mut self, reply: impl Fn(NodeId, &VoteRequest) -> Option<VoteReply>) {
        for (call, node, request) in std::mem::take(&mut self.asked) {
            let result = reply(node, &request).map(Reply::Council).ok_or(FailureKind::Failed);
            self.handle(BackgroundEvent::CallReturned { call, result });
        }
    }

    /// Returns the recipients and phases of the requests since the last call, and drops them
    /// unanswered.
    fn steps(&mut self) -> Vec<(u16, &'static str)> {
        let step = |request: &VoteRequest| match request {
            VoteRequest::Ask => "ask",
            VoteRequest::Prepare { .. } => "prepare",
            VoteRequest::Accept { .. } => "accept",
            VoteRequest::Decided(_) => "decided",
        };
        self.asked.drain(..).map(|(_, node, request)| (node.0, step(&request))).collect()
    }

    /// Makes the node's layouts durable.
    fn store_layouts(&mut self) {
        let (_, kept) = self.shared.membership.layouts.encode();
        self.shared.membership.layouts.on_stored(&kept, &self.shared.membership.views);
        self.handle(BackgroundEvent::LayoutsStored { kept: true });
    }

    /// Returns the successor of the known layout with this metadata quorum.
    fn plan(&self, council: &[&str]) -> Arc<Layout> {
        let council = council.iter().map(|name| (*name).to_owned()).collect();
        let change = Wanted { council: Some(council), ..Wanted::default() };
        Arc::new(
            self.shared
                .membership
                .layouts
                .known_layout()
                .plan_change(&change, |_| Some(VoterId(5)))
                .unwrap(),
        )
    }

    fn progress(&self) -> (u64, Progress) {
        let change = self.shared.membership.layouts.change().unwrap();
        (change.layout.epoch, change.progress)
    }
}

/// Votes for any request.
fn votes(_: NodeId, request: &VoteRequest) -> Option<VoteReply> {
    Some(match request {
        VoteRequest::Ask => return None,
        VoteRequest::Prepare { .. } => VoteReply::Promise(None),
        VoteRequest::Accept { .. } => VoteReply::Accepted,
        VoteRequest::Decided(_) => VoteReply::Learned,
    })
}

fn silent(_: NodeId, _: &VoteRequest) -> Option<VoteReply> {
    None
}

const ALL_PREPARE: [(u16, &str); 3] = [(0, "prepare"), (1, "prepare"), (2, "prepare")];

#[test]
fn a_plan_that_is_applied_twice_is_one_change() {
    let mut own = Own::new(MembershipState::Member);
    let plan = own.plan(&["n0"]);
    own.handle(BackgroundEvent::Propose(Arc::clone(&plan)));
    assert_eq!(own.steps(), ALL_PREPARE);
    // No quorum member replies. Neither a repeated request for the same change nor another plan
    // displaces the change.
    for again in [plan, own.plan(&["n1"])] {
        own.handle(BackgroundEvent::Propose(again));
        assert_eq!((own.steps(), own.progress()), (vec![], (2, Progress::Asking)));
    }
}

#[test]
fn a_change_that_is_decided_and_not_known_everywhere_does_not_hold_up_the_next() {
    let mut own = Own::new(MembershipState::Member);
    let first = own.plan(&["n2"]);
    own.handle(BackgroundEvent::Propose(Arc::clone(&first)));
    // The only member of the new metadata quorum is away.
    let but_decided = |node, request: &VoteRequest| {
        votes(node, request).filter(|reply| *reply != VoteReply::Learned)
    };
    (0..3).for_each(|_| own.answer_requests(but_decided));
    assert_eq!(own.progress(), (2, Progress::Decided));
    // A repeated request does not make the change *done*: perhaps no other node knows it.
    own.handle(BackgroundEvent::Propose(Arc::clone(&first)));
    assert_eq!(own.progress(), (2, Progress::Decided));
    own.store_layouts();
    let second = own.plan(&["n0", "n1", "n2"]);
    own.handle(BackgroundEvent::Propose(second));
    assert_eq!(own.progress(), (3, Progress::Asking));
    (0..3).for_each(|_| own.answer_requests(votes));
    assert_eq!(own.progress(), (3, Progress::Done));
}

#[test]
fn a_layout_known_already_is_done_once_its_quorum_knows_it() {
    let mut own = Own::new(MembershipState::Member);
    let plan = own.plan(&["n1", "n2", "n0"]);
    own.shared.membership.layouts.learn(&plan);
    own.handle(BackgroundEvent::Propose(plan));
    assert_eq!(own.progress(), (2, Progress::Decided));
    own.answer_requests(|node, request| votes(node, request).filter(|_| node.0 == 1));
    assert_eq!(own.progress(), (2, Progress::Decided), "one of three");
    own.after(250_000);
    own.answer_requests(votes);
    assert_eq!(own.progress(), (2, Progress::Done));
}

/// *Accepted* does not imply that the node knows the decision.
#[test]
fn a_late_accepted_reply_does_not_count_as_learned() {
    let mut own = Own::new(MembershipState::Member);
    own.handle(BackgroundEvent::Propose(own.plan(&["n0", "n1", "n2"])));
    own.answer_requests(votes);
    own.answer_requests(votes);
    assert_eq!(own.progress(), (2, Progress::Decided));
    own.answer_requests(|_, _| Some(VoteReply::Accepted));
    assert_eq!(own.progress(), (2, Progress::Decided));
    own.after(250_000);
    own.answer_requests(votes);
    assert_eq!(own.progress(), (2, Progress::Done));
}

#[test]
fn each_time_a_proposal_is_outbid_its_backoff_grows() {
    let mut own = Own::new(MembershipState::Member);
    own.handle(BackgroundEvent::Propose(own.plan(&["n0"])));
    let mut waits = Vec::new();
    for ballot in 1..=7 {
        own.answer_requests(|_, _| Some(VoteReply::Outbid(10 * ballot)));
        let begun = own.mono;
        while own.asked.is_empty() {
            own.after(10_000);
        }
        waits.push((own.mono - begun) / 1000);
        assert_eq!(own.progress(), (2, Progress::Asking));
    }
    assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 1600], "milliseconds");
}

#[test]
fn the_nodes_without_a_vote_are_reported() {
    let mut own = Own::new(MembershipState::Member);
    own.handle(BackgroundEvent::Propose(own.plan(&["n0"])));
    let one_votes = |node: NodeId, request: &VoteRequest| match node.0 {
        0 => votes(node, request),
        _ => Some(VoteReply::NoVote),
    };
    own.answer_requests(one_votes);
    let without = |own: &Own| own.shared.membership.layouts.change().unwrap().without_vote;
    assert_eq!(without(&own), [NodeId(1), NodeId(2)]);
    own.after(PROPOSAL_MICROS);
    own.answer_requests(silent);
    own.after(1);
    assert_eq!(own.progress(), (2, Progress::GivenUp));
    assert_eq!(without(&own), [NodeId(1), NodeId(2)]);
}

/// If the task of a change is dropped, a caller that waits for the change learns that it was given
/// up. The caller may then repeat the request.
#[test]
fn a_decision_whose_task_is_dropped_is_given_up() {
    let mut own = Own::new(MembershipState::Member);
    let wanted = own.plan(&["n0", "n1", "n2"]);
    own.handle(BackgroundEvent::Propose(Arc::clone(&wanted)));
    own.answer_requests(silent);
    assert_eq!(own.progress(), (2, Progress::Asking));
    while own.node.drop_task(0).is_some() {}
    own.after(1_000);
    assert_eq!(own.progress(), (2, Progress::GivenUp));
    own.handle(BackgroundEvent::Propose(wanted));
    assert_eq!(own.progress(), (2, Progress::Asking));
    assert!(!own.steps().is_empty(), "councillors are asked again");
}

#[test]
fn a_node_that_is_behind_pulls_the_later_layout() {
    let mut own = Own::new(MembershipState::Member);
    let later = own.plan(&["n1"]);
    assert!(own.shared.membership.layouts.note_epoch(NodeId(2), 2));
    own.handle(BackgroundEvent::Behind);
    assert_eq!((own.asked[0].1, own.asked.len()), (NodeId(2), 1));
    own.answer_requests(|_, _| Some(VoteReply::Known(Arc::clone(&later))));
    assert_eq!(
        (own.layout_stores, own.shared.membership.views.epoch()),
        (1, 1),
        "it is not durable yet"
    );
    own.store_layouts();
    assert_eq!(own.shared.membership.views.epoch(), 2);
    own.after(250_000);
    assert_eq!(own.steps(), []);
}

#[test]
fn a_node_that_lost_its_later_layout_is_not_asked_forever() {
    let mut own = Own::new(MembershipState::Member);
    let (first, later) = (own.shared.membership.layouts.known_layout(), own.plan(&["n1"]));
    assert!(own.shared.membership.layouts.note_epoch(NodeId(2), 2));
    own.handle(BackgroundEvent::Behind);
    // The node has a new disk by now.
    own.answer_requests(|_, _| Some(VoteReply::Known(Arc::clone(&first))));
    own.after(250_000);
    assert_eq!(own.steps(), []);
    assert!(
        own.shared.membership.layouts.note_epoch(NodeId(1), 2),
        "whoever says so next is asked"
    );
    own.handle(BackgroundEvent::Behind);
    assert_eq!(own.asked[0].1, NodeId(1));
    own.answer_requests(|_, _| Some(VoteReply::Known(Arc::clone(&later))));
    assert_eq!(own.shared.membership.layouts.known_layout(), later);
}

#[test]
fn an_accepted_layout_of_unknown_outcome_is_completed() {
    let mut own = Own::new(MembershipState::Member);
    let (base, layout) = (own.shared.membership.layouts.known_layout(), own.plan(&["n1"]));
    for request in [
        VoteRequest::Prepare { base, ballot: 4 },
        VoteRequest::Accept { ballot: 4, layout: Arc::clone(&layout) },
    ] {
        own.shared.membership.layouts.handle_request(&request);
    }
    own.store_layouts();
    own.after(250_000);
    assert_eq!(own.steps(), [], "its proposer is given time");
    own.after(COMPLETE_AFTER_MICROS + 16 * 4 * OUTBID_WAIT_MICROS);
    assert_eq!(own.asked.len(), usize::from(NODES));
    (0..3).for_each(|_| own.answer_requests(votes));
    assert_eq!(own.shared.membership.layouts.known_layout(), layout);
    assert!(own.shared.membership.layouts.change().is_none(), "nobody wanted it here");
}

/// A layout may seat a node that is being rebuilt. If the node's directory is then restored to an
/// earlier state, the node loses its votes, but no further data.
#[test]
fn a_rebuilding_node_loses_its_votes_again() {
    let mut own = Own::new(MembershipState::Rebuilding);
    let layouts = Arc::clone(&own.shared.membership.layouts);
    let seated = layouts.voter();
    assert_ne!(seated.id, Some(own.shared.membership.logs.voter()));
    let claim = Claim { incarnation: Incarnation(99), reported: Reported::default() };
    let met = |peer| BackgroundEvent::PeerSeen {
        peer,
        incarnation: Incarnation(7),
        knows_us: Some(claim),
        knew_only_this_disk: false,
        cluster: ClusterId::of_number(1),
    };
    own.shared.membership.logs.mark_doubted(NodeId(1));
    own.handle(met(NodeId(1)));
    assert_eq!(layouts.voter().id, Some(own.shared.membership.logs.voter()));
    assert!(!layouts.voter().is_first);
    assert_eq!(own.stored_states, [MembershipState::Rebuilding], "it is stored");
    own.shared.membership.logs.raise_position(LogPosition(9));
    let reported = || own.shared.membership.logs.position_for(NodeId(1));
    assert_eq!(reported(), LogPosition::START, "and only then may a peer forget it");
    assert!(own.shared.membership.logs.is_in_doubt(), "nor does it vote before");
    own.handle(BackgroundEvent::StateStored { state: MembershipState::Rebuilding, kept: true });
    assert_eq!(own.shared.membership.logs.position_for(NodeId(1)), LogPosition(9));
    assert!(!own.shared.membership.logs.is_in_doubt());
    own.handle(met(NodeId(2)));
    assert_eq!(own.stored_states.len(), 1, "nothing more is lost");
}
