//! Tests of the metadata quorum under loss, reordering, restarts and lost disks, from a seed: no
//! two layouts of one epoch are ever considered decided, and a change reported as done is known to
//! a majority of the new quorum.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::membership::layout::{Node, Stage};
use crate::placement::topology::{HashWeight, Member};

const NODES: u16 = 5;

fn node(id: u16) -> Node {
    let member = Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
    let hash_weight = HashWeight::new(1 << 16).unwrap();
    Node {
        id: NodeId(id),
        member,
        hash_weight,
        url: String::new(),
        first_disk: None,
        is_lost: false,
    }
}

/// Returns a first layout. Its placement is never computed: only the metadata quorum matters here.
fn first(council: &[Seat]) -> Layout {
    Layout {
        epoch: 1,
        replicas: 3,
        stage: Stage::Settled,
        placement_epoch: 1,
        nodes: (0..NODES).map(node).collect(),
        before: None,
        council: council.to_vec(),
        next_id: u32::from(NODES),
        base: 0,
        decrees: Vec::new(),
        access: Arc::default(),
    }
}

/// Returns the next layout with this metadata quorum; `mark` distinguishes layouts of one epoch.
fn next(base: &Layout, council: Vec<Seat>, mark: u32) -> Layout {
    let epoch = base.epoch + 1;
    let next_id = base.next_id + mark;
    Layout { epoch, council, next_id, base: base.id(), ..base.clone() }
}

fn seat(node: u16, voter: u64) -> Seat {
    Seat { node: NodeId(node), voter: Some(VoterId(voter)) }
}

fn council(seats: &[Seat], known: &Layout) -> Vec<LayoutVoter> {
    let known = Arc::new(known.clone());
    seats.iter().map(|seat| node_of(*seat, &known)).collect()
}

/// Returns the node that has a seat.
fn node_of(seat: Seat, known: &Arc<Layout>) -> LayoutVoter {
    LayoutVoter::new(voter(seat), Arc::clone(known), Vote::default())
}

fn voter(seat: Seat) -> Voter {
    Voter { node: seat.node, id: seat.voter, is_first: false }
}

/// Delivers the requests of a proposal and their replies until it ends. Returns all effects.
fn run(proposal: &mut Proposal, nodes: &mut [LayoutVoter]) -> Vec<ProposalStep> {
    let mut all = Vec::new();
    loop {
        let mut happened = Vec::new();
        for (node, request) in proposal.requests() {
            let (reply, _) = nodes[usize::from(node.0)].handle_request(&request);
            happened.extend(proposal.handle_reply(node, reply));
        }
        let ends = |what: &ProposalStep| {
            !matches!(what, ProposalStep::NextPhase | ProposalStep::Decided(_))
        };
        let is_over = happened.is_empty() || happened.iter().any(ends);
        all.append(&mut happened);
        if is_over {
            return all;
        }
    }
}

#[test]
fn a_layout_is_decided_and_then_known_to_its_own_council() {
    let seats = [seat(0, 1), seat(1, 1), seat(2, 1), seat(3, 1), seat(4, 1)];
    let one = first(&seats[..3]);
    let two = Arc::new(next(&one, seats[2..].to_vec(), 1));
    let mut nodes = council(&seats, &one);
    let mut proposal = Proposal::new(Arc::new(one), Arc::clone(&two), 1);
    let happened = run(&mut proposal, &mut nodes);
    let two = || Arc::clone(&two);
    assert_eq!(
        happened,
        [ProposalStep::NextPhase, ProposalStep::Decided(two()), ProposalStep::Done(two())],
    );
    assert_eq!(
        nodes[0].known_layout().epoch,
        1,
        "it is no councillor any more, and pulls it some time"
    );
    assert!(nodes[2..].iter().all(|node| node.known_layout() == &two()));
}

#[test]
fn a_reply_names_the_state_that_must_first_be_durable() {
    let one = Arc::new(first(&[seat(0, 1)]));
    let two = Arc::new(next(&one, vec![seat(0, 1)], 1));
    let mut node = node_of(seat(0, 1), &one);
    let vote = Keep { layout: false, vote: true };
    let prepare =
        |base: &Arc<Layout>, ballot| VoteRequest::Prepare { base: Arc::clone(base), ballot };
    let accept = |ballot| VoteRequest::Accept { ballot, layout: Arc::clone(&two) };
    assert_eq!(node.handle_request(&prepare(&one, 2)), (VoteReply::Promise(None), vote));
    assert_eq!(node.handle_request(&prepare(&one, 2)), (VoteReply::Outbid(2), Keep::default()));
    assert_eq!(node.handle_request(&accept(1)), (VoteReply::Outbid(2), Keep::default()));
    assert_eq!(node.handle_request(&accept(2)), (VoteReply::Accepted, vote));
    let promise = VoteReply::Promise(Some((2, Arc::clone(&two))));
    assert_eq!(node.handle_request(&prepare(&one, 3)), (promise, vote));
    // *Prepare* carries its base. A node that is behind learns the base and resets its vote.
    let both = Keep { layout: true, vote: true };
    assert_eq!(node.handle_request(&prepare(&two, 1)), (VoteReply::Promise(None), both));
    assert_eq!(
        node.handle_request(&accept(9)),
        (VoteReply::Known(Arc::clone(&two)), Keep::default())
    );
    assert_eq!(node.handle_request(&prepare(&one, 9)).0, VoteReply::Known(Arc::clone(&two)));
}

#[test]
fn a_layout_on_a_fork_is_neither_learned_nor_voted_for() {
    let seats = [seat(0, 1), seat(1, 1), seat(2, 1)];
    let one = first(&seats);
    let decreed = Arc::new(one.plan_forced_layout(NodeId(0), VoterId(9), &[]).unwrap());
    let two = Arc::new(next(&one, seats.to_vec(), 1));
    let mut node = node_of(seat(1, 1), &two);
    assert!(!node.learn(&decreed), "the decree knew nothing of the second layout");
    let decided = VoteRequest::Decided(Arc::clone(&decreed));
    assert_eq!(
        node.handle_request(&decided).0,
        VoteReply::Known(Arc::clone(&two)),
        "it did not learn it"
    );
    let prepare = VoteRequest::Prepare { base: Arc::clone(&decreed), ballot: 1 };
    assert_eq!(node.handle_request(&prepare), (VoteReply::NoVote, Keep::default()));
    assert_eq!(node.known_layout(), &two);

    // A node that is behind learns the forced layout, and drops its vote on the replaced layout.
    let mut late = node_of(seat(2, 1), &Arc::new(one.clone()));
    let base = Arc::new(one);
    late.handle_request(&VoteRequest::Prepare { base: Arc::clone(&base), ballot: 1 });
    late.handle_request(&VoteRequest::Accept { ballot: 1, layout: Arc::clone(&two) });
    assert!(late.learn(&decreed) && late.undecided_proposal().is_none() && !late.has_seat());
    let again = VoteRequest::Prepare { base, ballot: 2 };
    assert_eq!(late.handle_request(&again).0, VoteReply::Known(decreed));
    assert!(!late.learn(&two));
}

#[test]
fn a_new_disk_has_no_vote_until_it_is_seated() {
    let one = Arc::new(first(&[seat(0, 1)]));
    let mut node = node_of(seat(0, 2), &one);
    let ask = |base: &Arc<Layout>| VoteRequest::Prepare { base: Arc::clone(base), ballot: 1 };
    assert_eq!(node.handle_request(&ask(&one)).0, VoteReply::NoVote);
    let seated = Arc::new(next(&one, vec![seat(0, 2)], 1));
    assert_eq!(node.handle_request(&ask(&seated)).0, VoteReply::Promise(None));
}

#[test]
fn a_layout_of_another_base_is_not_accepted() {
    let one = Arc::new(first(&[seat(0, 1)]));
    let stranger = first(&[seat(0, 1), seat(1, 1)]);
    let layout = Arc::new(next(&stranger, vec![seat(0, 1)], 1));
    let mut node = node_of(seat(0, 1), &one);
    assert_eq!(
        node.handle_request(&VoteRequest::Accept { ballot: 1, layout }).0,
        VoteReply::NoVote
    );
}

#[test]
fn a_node_that_accepted_a_layout_completes_it() {
    let seats = [seat(0, 1), seat(1, 1), seat(2, 1)];
    let one = Arc::new(first(&seats));
    let two = Arc::new(next(&one, seats.to_vec(), 1));
    let mut nodes = council(&seats, &one);
    // One member has accepted the layout; the proposer is gone.
    nodes[1].handle_request(&VoteRequest::Prepare { base: Arc::clone(&one), ballot: 4 });
    nodes[1].handle_request(&VoteRequest::Accept { ballot: 4, layout: Arc::clone(&two) });
    assert!(nodes[0].undecided_proposal().is_none());
    let mut proposal = nodes[1].undecided_proposal().unwrap();
    let happened = run(&mut proposal, &mut nodes);
    assert_eq!(happened.last(), Some(&ProposalStep::Done(Arc::clone(&two))));
    // Another plan on the same base is overtaken.
    let other = Arc::new(next(&one, seats.to_vec(), 2));
    let happened = run(&mut Proposal::new(one, other, 9), &mut nodes);
    assert!(
        matches!(&happened[0], ProposalStep::Overtaken(known) if *known == two),
        "{happened:?}"
    );
}

/// The accepted layout of the highest ballot may be decided, so the proposal takes it over, in
/// whatever order the members reply.
#[test]
fn the_layout_of_the_highest_ballot_is_proposed_again_in_any_order_of_replies() {
    let one = Arc::new(first(&[seat(0, 1), seat(1, 1), seat(2, 1)]));
    let planned = |mark| Arc::new(next(&one, one.council.clone(), mark));
    let (earlier, later) = (planned(1), planned(2));
    let accepted = [(5, earlier), (6, Arc::clone(&later))];
    for order in [[0, 1], [1, 0]] {
        let mut proposal = Proposal::new(Arc::clone(&one), planned(3), 9);
        let tells = order.map(|at| VoteReply::Promise(Some(accepted[at].clone())));
        for (node, reply) in tells.into_iter().enumerate() {
            proposal.handle_reply(NodeId(node as u16), reply);
        }
        assert_eq!(proposal.layout(), &later);
    }
}

/// A cluster with three proposers. Each step is an action of a node, a message, or a fault.
struct World {
    nodes: Vec<LayoutVoter>,
    /// The durable state of each node.
    disks: Vec<(Seat, Arc<Layout>, Vote)>,
    proposals: Vec<Option<(u16, Proposal)>>,
    /// Undelivered requests: index and number of the proposal, recipient, and message.
    sent: Vec<(usize, u64, NodeId, VoteRequest)>,
    /// The number of each proposer's current proposal: replies to an earlier proposal are dropped.
    numbers: Vec<u64>,
    decided: BTreeMap<u64, Arc<Layout>>,
    done: u64,
    marks: u32,
    wiped: usize,
}

impl World {
    fn new() -> Self {
        let seats: Vec<Seat> = (0..NODES).map(|node| seat(node, 1)).collect();
        let one = Arc::new(first(&seats[..3]));
        let disks = seats.iter().map(|seat| (*seat, Arc::clone(&one), Vote::default())).collect();
        Self {
            nodes: council(&seats, &one),
            disks,
            proposals: (0..3).map(|_| None).collect(),
            sent: Vec::new(),
            numbers: vec![0; 3],
            decided: BTreeMap::from([(1, one)]),
            done: 1,
            marks: 0,
            wiped: 0,
        }
    }

    fn step(&mut self, (what, a, b): (u8, u8, u16)) {
        let (proposer, at) = (usize::from(a) % 3, usize::from(b) % usize::from(NODES));
        match what % 16 {
            0 => self.propose(proposer, at, b),
            1 => self.complete(proposer, at),
            2 => self.restart(at),
            3 if self.wiped == 0 => self.wipe(at),
            4 => drop(self.take(b)),
            // A message is delivered twice.
            5 => self.deliver(b, true),
            6 => {
                // A node that is behind asks another node.
                let known = Arc::clone(self.nodes[at].known_layout());
                self.learn(usize::from(a) % usize::from(NODES), &known);
            }
            _ => self.deliver(b, false),
        }
    }

    fn propose(&mut self, proposer: usize, at: usize, b: u16) {
        let base = Arc::clone(self.nodes[at].known_layout());
        self.marks += 1;
        let size = [1, 3, 5][usize::from(b) % 3];
        let seats = (0..size).map(|n| self.disks[(at + n) % usize::from(NODES)].0).collect();
        let layout = Arc::new(next(&base, seats, self.marks));
        let ballot = 1 + u64::from(b % 7);
        self.begin(proposer, at, Proposal::new(base, layout, ballot));
    }

    fn complete(&mut self, proposer: usize, at: usize) {
        if let Some(proposal) = self.nodes[at].undecided_proposal() {
            self.begin(proposer, at, proposal);
        }
    }

    fn begin(&mut self, proposer: usize, at: usize, proposal: Proposal) {
        self.numbers[proposer] += 1;
        self.proposals[proposer] = Some((at as u16, proposal));
        self.send(proposer);
    }

    fn send(&mut self, proposer: usize) {
        let Some((_, proposal)) = &self.proposals[proposer] else { return };
        let number = self.numbers[proposer];
        let requests = proposal.requests().into_iter();
        self.sent.extend(requests.map(|(node, request)| (proposer, number, node, request)));
    }

    fn take(&mut self, b: u16) -> Option<(usize, u64, NodeId, VoteRequest)> {
        let count = self.sent.len();
        (count > 0).then(|| self.sent.swap_remove(usize::from(b) % count))
    }

    fn deliver(&mut self, b: u16, twice: bool) {
        let Some(message) = self.take(b) else { return };
        if twice {
            self.sent.push(message.clone());
        }
        let (proposer, number, node, request) = message;
        let at = usize::from(node.0);
        let (reply, keep) = self.nodes[at].handle_request(&request);
        if keep.layout {
            self.disks[at].1 = Arc::clone(self.nodes[at].known_layout());
            self.disks[at].2 = Vote::default();
        }
        if keep.vote {
            self.disks[at].2 = self.nodes[at].vote().clone();
        }
        if number != self.numbers[proposer] {
            return;
        }
        let Some((home, proposal)) = &mut self.proposals[proposer] else { return };
        let home = usize::from(*home);
        match proposal.handle_reply(node, reply) {
            Some(ProposalStep::NextPhase) => self.send(proposer),
            Some(ProposalStep::Decided(layout)) => {
                self.record_decided(&layout);
                self.learn(home, &layout);
                self.send(proposer);
            }
            Some(ProposalStep::Done(layout)) => {
                let knows = |seat: &&Seat| {
                    let (own, known, _) = &self.disks[usize::from(seat.node.0)];
                    own == *seat && known.epoch >= layout.epoch
                };
                let known = layout.council.iter().filter(knows).count();
                let enough = layout.council.len() / 2 + 1;
                assert!(known + self.wiped >= enough, "done, and known to {known}");
                self.done = self.done.max(layout.epoch);
            }
            Some(ProposalStep::Overtaken(layout)) => {
                self.record_decided(&layout);
                self.learn(home, &layout);
            }
            Some(ProposalStep::Outbid(_)) | None => {}
        }
    }

    fn record_decided(&mut self, layout: &Arc<Layout>) {
        let other = self.decided.entry(layout.epoch).or_insert_with(|| Arc::clone(layout));
        assert_eq!(other, layout, "two layouts of one epoch");
    }

    fn learn(&mut self, at: usize, layout: &Arc<Layout>) {
        if self.nodes[at].learn(layout) {
            self.disks[at].1 = Arc::clone(layout);
            self.disks[at].2 = Vote::default();
        }
    }

    /// Restarts a node: its proposals and its state that is not durable are lost.
    fn restart(&mut self, at: usize) {
        let (own, known, vote) = self.disks[at].clone();
        self.nodes[at] = LayoutVoter::new(voter(own), known, vote);
        for proposal in &mut self.proposals {
            proposal.take_if(|(home, _)| usize::from(*home) == at);
        }
    }

    /// Replaces a node's disk. The node then starts from the first layout, built from its settings.
    fn wipe(&mut self, at: usize) {
        self.wiped += 1;
        let own = seat(at as u16, 2);
        let first = Arc::clone(&self.decided[&1]);
        self.disks[at] = (own, first, Vote::default());
        self.restart(at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn an_epoch_has_one_layout_whatever_happens(
        steps in prop::collection::vec(any::<(u8, u8, u16)>(), 1..600),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        for node in &world.nodes {
            let known = node.known_layout();
            let decided = world.decided.get(&known.epoch);
            prop_assert!(decided.is_none_or(|decided| decided == known));
        }
    }
}

/// The random runs are not vacuous: they decide several layouts in a row.
#[test]
fn random_runs_decide_several_layouts_in_a_row() {
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut longest = 0;
    for _ in 0..20 {
        let mut world = World::new();
        for _ in 0..600 {
            let bits = random();
            world.step((bits as u8, (bits >> 8) as u8, (bits >> 16) as u16));
        }
        longest = longest.max(world.done);
    }
    assert!(longest >= 4, "the longest chain of changes that were done ends in epoch {longest}");
}
