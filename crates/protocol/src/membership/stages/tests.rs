//! Tests of the first quorum member, with the other nodes played by the test: the reports that must
//! arrive before the member proposes the next stage.

use super::*;
use crate::background::effect::{BackgroundConfig, BackgroundEffect};
use crate::background::{Background, BackgroundEvent};
use crate::clock::{Clock, Now};
use crate::event::{CallId, FailureKind};
use crate::membership::disk_ids::Incarnation;
use crate::membership::layout::{PlanChange, VoteRequest, VoterId};
use crate::membership::logs::Logs;
use crate::membership::state::{Membership, MembershipState};
use crate::placement::topology::{Member, Topology};
use crate::repair::status::RoundConfig;
use crate::shared::Shared;

const NODES: u16 = 4;

/// Node 0 of four, and its calls to the others.
struct Own {
    shared: Arc<Shared>,
    node: Background,
    mono: u64,
    asked: Vec<(CallId, NodeId)>,
    proposed: bool,
}

impl Own {
    /// Starts a transition in *prepare*.
    fn new() -> Self {
        let member = |id: u16| Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
        let topology = Topology::new((0..NODES).map(member).collect(), 3).unwrap();
        let clock = Arc::new(Clock::start(7, 1_000_000, 0));
        let membership = Membership::new(MembershipState::Member, 0, true);
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
        let mut own = Self { shared, node, mono: 1, asked: Vec::new(), proposed: false };
        let weights = vec![("n0".to_owned(), 3)];
        let change = PlanChange { weights, ..PlanChange::default() };
        let prepared = own
            .shared
            .membership
            .layouts
            .known_layout()
            .plan_change(&change, |_| Some(VoterId(5)))
            .unwrap();
        own.adopt_layout(prepared);
        own
    }

    fn adopt_layout(&mut self, layout: Layout) {
        self.shared.membership.layouts.learn(&Arc::new(layout));
        let (_, kept) = self.shared.membership.layouts.encode();
        self.shared.install_layout(&kept);
        self.handle(BackgroundEvent::LayoutsStored { kept: true });
    }

    /// Enters the next stage as if other nodes had decided it. Returns the stage's epoch.
    fn enter_next_stage(&mut self) -> u64 {
        let next = self.shared.membership.layouts.known_layout().next_stage().unwrap();
        let epoch = next.epoch;
        self.adopt_layout(next);
        epoch
    }

    fn handle(&mut self, event: BackgroundEvent) {
        let now = Now { mono: self.mono, wall: 1_000_000 + self.mono };
        let mut out = Vec::new();
        self.node.handle(now, event, &mut out);
        for effect in out {
            match effect {
                BackgroundEffect::Call { call, node, request: Request::Moves, .. } => {
                    self.asked.push((call, node));
                }
                BackgroundEffect::Call { request: Request::Council(request), .. } => {
                    self.proposed |= matches!(request, VoteRequest::Prepare { .. });
                }
                _ => {}
            }
        }
    }

    /// Replies to the polls of all nodes: with an epoch and `has_all`, or with a failure (`None`).
    /// Returns true if this node then proposes the next stage.
    fn proposes_after(&mut self, poll_replies: [Option<(u64, bool)>; NODES as usize]) -> bool {
        self.proposed = false;
        self.mono += POLL_MICROS;
        self.handle(BackgroundEvent::Tick);
        let asked = std::mem::take(&mut self.asked);
        assert_eq!(asked.len(), poll_replies.len());
        for (call, node) in asked {
            let result = poll_replies[usize::from(node.0)].map(|(epoch, has_all)| {
                let state = MovesState { epoch, has_all, ..MovesState::default() };
                Reply::Moves(state)
            });
            let result = result.ok_or(FailureKind::Failed);
            self.handle(BackgroundEvent::CallReturned { call, result });
        }
        self.mono += POLL_MICROS;
        self.handle(BackgroundEvent::Tick);
        for (call, _) in std::mem::take(&mut self.asked) {
            self.handle(BackgroundEvent::CallReturned { call, result: Err(FailureKind::Failed) });
        }
        self.proposed
    }
}

#[test]
fn reads_switch_once_all_nodes_have_pulled_under_this_layout() {
    let mut own = Own::new();
    let epoch = own.enter_next_stage();
    let (has, lacks) = (Some((epoch, true)), Some((epoch, false)));
    assert!(!own.proposes_after([has, has, has, lacks]));
    assert!(!own.proposes_after([has, has, has, None]), "who is away may lack something");
    assert!(
        !own.proposes_after([has, has, has, Some((epoch - 1, true))]),
        "it goes by an earlier one"
    );
    assert!(own.proposes_after([has; 4]));
}

#[test]
fn a_transition_ends_once_a_majority_of_the_previous_nodes_has_entered() {
    let mut own = Own::new();
    let before = own.enter_next_stage();
    let epoch = own.enter_next_stage();
    let (entered, behind) = (Some((epoch, true)), Some((before, true)));
    assert!(!own.proposes_after([entered, entered, behind, None]), "two of four are no majority");
    assert!(own.proposes_after([entered, entered, None, entered]));
}
