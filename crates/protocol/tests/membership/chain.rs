//! The chain of layouts: the metadata quorum (`council`) of layout e decides layout e + 1, as the
//! replicas of a write-once register decide the register's value.
//!
//! ```text
//!   plan on layout e ─▶ prepare ─▶ a majority of e's quorum promises ─▶ accept ─▶ a majority
//!   stores: layout e + 1 is decided ─▶ a majority of *its* quorum knows it ─▶ done
//! ```

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

/// A seat in the metadata quorum: a node, and the number of the node's disk (`life`).
pub(crate) type Seat = (u8, u8);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Layout {
    pub(crate) epoch: u8,
    /// The plan that made the layout, and the plan that made the layout before it.
    pub(crate) plan: u8,
    pub(crate) base: u8,
    pub(crate) council: Vec<Seat>,
}

/// The rules of the chain, each of which can be switched off.
#[derive(Debug, Clone)]
pub(crate) struct ChainRules {
    /// The metadata quorum of the previous layout decides a layout. If the rule is off, the
    /// layout's own quorum decides.
    pub(crate) council_of_base: bool,
    /// A promise survives a restart.
    pub(crate) promise_is_durable: bool,
    /// An accepted layout survives a restart.
    pub(crate) accept_is_durable: bool,
    /// A proposer puts a layout accepted under a lower ballot before its own plan.
    pub(crate) accepted_goes_first: bool,
    /// Seats name disks: a quorum member with a new disk has no vote.
    pub(crate) seats_name_lives: bool,
    /// A node adopts a layout once it knows that the layout is decided. If the rule is off, the
    /// node adopts a layout that it accepts.
    pub(crate) decided_before_known: bool,
    /// A plan whose base was overtaken is made anew. If the rule is off, the unchanged plan is
    /// proposed on the next layout.
    pub(crate) plan_has_one_base: bool,
    /// A quorum member learns whether a layout that it accepted was decided.
    pub(crate) accepted_is_completed: bool,
    /// A change counts as done, and removed nodes may stop, once a majority of the new quorum knows
    /// the layout.
    pub(crate) done_is_known: bool,
}

pub(crate) const CHAIN_RULES: ChainRules = ChainRules {
    council_of_base: true,
    promise_is_durable: true,
    accept_is_durable: true,
    accepted_goes_first: true,
    seats_name_lives: true,
    decided_before_known: true,
    plan_has_one_base: true,
    accepted_is_completed: true,
    done_is_known: true,
};

/// A quorum member's vote on one layout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Vote {
    promise: u8,
    accepted: Option<(u8, Layout)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    life: u8,
    is_off: bool,
    /// The latest layout that the node knows to be decided.
    known: Option<Layout>,
    votes: BTreeMap<u8, Vote>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Prepare { epoch: u8, ballot: u8, seat: Seat },
    Accept { ballot: u8, seat: Seat, layout: Layout },
    Decided(Layout),
}

enum Reply {
    Promise(Option<(u8, Layout)>),
    Accepted,
    Outbid,
    /// The node knows a layout of the requested epoch, or a later one.
    Known(Layout),
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Ready,
    Preparing(BTreeMap<u8, Option<(u8, Layout)>>),
    Accepting { layout: Layout, stored: BTreeSet<u8> },
    HandingOver { layout: Layout, known: BTreeSet<u8> },
    Done,
}

/// A node that proposes a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Proposer {
    phase: Phase,
    tries: u8,
    refused: bool,
    plan: Option<Layout>,
    /// The seats of the quorum that votes on the plan.
    voters: Vec<Seat>,
}

/// A fault that happens at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// A node restarts, and drops the plan that it proposes.
    Restart,
    /// The disk of a node of the first metadata quorum is replaced by an empty one.
    Wipe,
    /// The nodes that are not in the metadata quorum of the last done change stop for good.
    Retire,
}

/// The proposing node, the metadata quorum that it proposes, and its maximum number of tries.
pub(crate) type Wish = (u8, Vec<u8>, u8);

#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) rules: ChainRules,
    pub(crate) nodes: u8,
    pub(crate) first: Vec<u8>,
    pub(crate) wishes: Vec<Wish>,
    pub(crate) faults: Vec<Fault>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: Vec<Node>,
    proposers: Vec<Proposer>,
    sent: BTreeSet<(u8, u8, Message)>,
    faults: Vec<Fault>,
    /// All layouts that some node took for decided.
    decided: BTreeSet<Layout>,
    /// The last change reported as done.
    done: Option<Layout>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Begin(usize),
    Deliver {
        asker: u8,
        to: u8,
        message: Message,
    },
    /// A node pulls a later layout from another node.
    Pull {
        from: usize,
        to: usize,
    },
    /// A quorum member learns that a majority has accepted the layout that it accepted.
    Complete(usize),
    /// A proposer learns that its node knows a decided layout.
    Notice(usize),
    Restart(usize),
    Wipe(usize),
    Retire,
}

impl Node {
    fn epoch(&self) -> u8 {
        self.known.as_ref().map_or(0, |known| known.epoch)
    }

    fn learn(&mut self, layout: &Layout) {
        if self.known.as_ref().is_none_or(|known| known.epoch < layout.epoch) {
            self.known = Some(layout.clone());
        }
    }

    fn ask(&mut self, own: u8, message: &Message, rules: &ChainRules) -> Reply {
        let (epoch, seat) = match message {
            Message::Decided(layout) => {
                self.learn(layout);
                return Reply::Accepted;
            }
            Message::Prepare { epoch, seat, .. } => (*epoch, *seat),
            Message::Accept { layout, seat, .. } => (layout.epoch, *seat),
        };
        if seat != (own, self.life) && rules.seats_name_lives {
            return Reply::Nothing;
        }
        if let Some(known) = self.known.as_ref().filter(|known| known.epoch >= epoch) {
            return Reply::Known(known.clone());
        }
        let vote = self.votes.entry(epoch).or_default();
        match message {
            Message::Prepare { ballot, .. } if *ballot > vote.promise => {
                vote.promise = *ballot;
                Reply::Promise(vote.accepted.clone())
            }
            Message::Accept { ballot, layout, .. } if *ballot >= vote.promise => {
                *vote = Vote { promise: *ballot, accepted: Some((*ballot, layout.clone())) };
                if !rules.decided_before_known {
                    self.learn(layout);
                }
                Reply::Accepted
            }
            _ => Reply::Outbid,
        }
    }

    fn restart(&mut self, rules: &ChainRules) {
        for vote in self.votes.values_mut() {
            if !rules.accept_is_durable {
                vote.accepted = None;
            }
            if !rules.promise_is_durable {
                vote.promise = vote.accepted.as_ref().map_or(0, |(ballot, _)| *ballot);
            }
        }
    }
}

impl State {
    fn decide(&mut self, layout: &Layout) {
        self.decided.insert(layout.clone());
    }

    fn ballot(&self, number: usize) -> u8 {
        let tries = self.proposers[number].tries;
        tries * self.proposers.len() as u8 + number as u8
    }

    fn begin(&mut self, number: usize, (at, council, _): &Wish, rules: &ChainRules) {
        let known = self.nodes[usize::from(*at)].known.clone().expect("it knows a layout");
        let old = self.proposers[number].plan.take();
        let seats = |council: &[u8]| -> Vec<Seat> {
            council.iter().map(|node| (*node, self.nodes[usize::from(*node)].life)).collect()
        };
        let tries = self.proposers[number].tries + 1;
        let mut plan = Layout {
            epoch: known.epoch + 1,
            plan: number as u8 * 8 + tries,
            base: known.plan,
            council: seats(council),
        };
        if let Some(old) = old.filter(|old| old.epoch == plan.epoch || !rules.plan_has_one_base) {
            plan = Layout { epoch: plan.epoch, ..old };
        }
        let voters = if rules.council_of_base { known.council } else { plan.council.clone() };
        self.proposers[number] = Proposer {
            phase: Phase::Preparing(BTreeMap::new()),
            tries,
            refused: false,
            plan: Some(plan.clone()),
            voters: voters.clone(),
        };
        let ballot = self.ballot(number);
        self.sent.retain(|(asker, _, _)| usize::from(*asker) != number);
        for seat in voters {
            let message = Message::Prepare { epoch: plan.epoch, ballot, seat };
            self.sent.insert((number as u8, seat.0, message));
        }
    }

    fn on_reply(&mut self, number: usize, from: u8, asked: &Message, reply: Reply, chain: &Chain) {
        let at = usize::from(chain.wishes[number].0);
        let ballot = self.ballot(number);
        let proposer = &mut self.proposers[number];
        let majority = proposer.voters.len() / 2 + 1;
        match (&mut proposer.phase, reply) {
            (_, Reply::Known(layout)) => self.nodes[at].learn(&layout),
            (Phase::Preparing(_) | Phase::Accepting { .. }, Reply::Outbid) => {
                proposer.refused = true;
            }
            (Phase::Preparing(got), Reply::Promise(accepted)) => {
                got.insert(from, accepted);
                if got.len() < majority {
                    return;
                }
                let plan = proposer.plan.clone().expect("it has one");
                let accepted = got.values().flatten().max_by_key(|(ballot, _)| *ballot);
                let accepted = accepted.filter(|_| chain.rules.accepted_goes_first);
                let layout = accepted.map_or(plan, |(_, layout)| layout.clone());
                let stored = BTreeSet::new();
                proposer.phase = Phase::Accepting { layout: layout.clone(), stored };
                for seat in proposer.voters.clone() {
                    let message = Message::Accept { ballot, seat, layout: layout.clone() };
                    self.sent.insert((number as u8, seat.0, message));
                }
            }
            (Phase::Accepting { layout, stored }, Reply::Accepted)
                if matches!(asked, Message::Accept { .. }) =>
            {
                stored.insert(from);
                if stored.len() >= majority {
                    let layout = layout.clone();
                    self.was_decided(number, at, layout, &chain.rules);
                }
            }
            (Phase::HandingOver { layout, known }, Reply::Accepted) => {
                known.insert(from);
                let knows = |seat: &&Seat| known.contains(&seat.0);
                if layout.council.iter().filter(knows).count() > layout.council.len() / 2 {
                    self.done = Some(layout.clone());
                    proposer.phase = Phase::Done;
                }
            }
            _ => {}
        }
    }

    /// Handles a layout that a majority of the metadata quorum has accepted.
    fn was_decided(&mut self, number: usize, at: usize, layout: Layout, rules: &ChainRules) {
        self.decide(&layout);
        self.nodes[at].learn(&layout);
        for node in 0..self.nodes.len() as u8 {
            self.sent.insert((number as u8, node, Message::Decided(layout.clone())));
        }
        let proposer = &mut self.proposers[number];
        if !rules.done_is_known {
            self.done = Some(layout);
            proposer.phase = Phase::Done;
        } else if proposer.plan.as_ref() == Some(&layout) {
            proposer.phase = Phase::HandingOver { layout, known: BTreeSet::new() };
        } else {
            (proposer.phase, proposer.refused) = (Phase::Ready, true);
        }
    }

    /// Handles a decided layout that the proposer's node has learned: the proposer's own plan or
    /// another plan.
    fn notice(&mut self, number: usize, at: usize) {
        let known = self.nodes[at].known.clone().expect("it knows one");
        let proposer = &mut self.proposers[number];
        if proposer.plan.as_ref() == Some(&known) {
            self.decided.insert(known.clone());
            proposer.phase = Phase::HandingOver { layout: known.clone(), known: BTreeSet::new() };
            for seat in &known.council {
                let message = Message::Decided(known.clone());
                self.sent.insert((number as u8, seat.0, message));
            }
        } else {
            (proposer.phase, proposer.refused) = (Phase::Ready, true);
        }
    }

    /// Returns the layout that a node has accepted; `None` = no majority of the metadata quorum has
    /// accepted it.
    fn majority_layout(&self, node: usize) -> Option<Layout> {
        let known = self.nodes[node].known.as_ref()?;
        let vote = |node: &Node| node.votes.get(&(known.epoch + 1))?.accepted.clone();
        let accepted = vote(&self.nodes[node])?;
        let has_it = |seat: &&Seat| {
            let node = &self.nodes[usize::from(seat.0)];
            !node.is_off && node.life == seat.1 && vote(node).as_ref() == Some(&accepted)
        };
        let count = known.council.iter().filter(has_it).count();
        (count > known.council.len() / 2).then_some(accepted.1)
    }

    fn retire(&mut self) {
        let done = self.done.clone().expect("a change is done");
        // A node that has left gets no seat again, so a node with a seat in a later layout has not
        // left.
        let mut since: Vec<&Layout> = vec![&done];
        since.extend(self.decided.iter().filter(|layout| layout.epoch > done.epoch));
        for (n, node) in self.nodes.iter_mut().enumerate() {
            let mut seats = since.iter().flat_map(|layout| &layout.council);
            node.is_off |= !seats.any(|seat| usize::from(seat.0) == n);
        }
    }

    /// True if every running node knows the last layout, and no proposer waits, unless the metadata
    /// quorum has lost its majority.
    fn has_ended(&self, chain: &Chain) -> bool {
        let last = self.decided.iter().max_by_key(|layout| layout.epoch).expect("the first");
        let is_there = |seat: &&Seat| {
            let node = &self.nodes[usize::from(seat.0)];
            !node.is_off && node.life == seat.1
        };
        let council = last.council.iter().filter(is_there).count() > last.council.len() / 2;
        let knows = |node: &Node| node.is_off || node.epoch() == last.epoch;
        let waits = |(n, proposer): (usize, &Proposer)| {
            let is_on = !self.nodes[usize::from(chain.wishes[n].0)].is_off;
            let is_asking = !matches!(proposer.phase, Phase::Ready | Phase::Done);
            is_on && is_asking && !proposer.refused
        };
        let mut proposers = self.proposers.iter().enumerate();
        self.nodes.iter().all(knows) && (!council || !proposers.any(waits))
    }
}

impl crate::search::Searched for Chain {}

impl Model for Chain {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let council = self.first.iter().map(|node| (*node, 0)).collect();
        let first = Layout { epoch: 1, plan: 0, base: 0, council };
        let node = |_| {
            let known = Some(first.clone());
            Node { life: 0, is_off: false, known, votes: BTreeMap::new() }
        };
        let proposer = |_: &Wish| {
            let (phase, voters) = (Phase::Ready, Vec::new());
            Proposer { phase, tries: 0, refused: false, plan: None, voters }
        };
        vec![State {
            nodes: (0..self.nodes).map(node).collect(),
            proposers: self.wishes.iter().map(proposer).collect(),
            sent: BTreeSet::new(),
            faults: self.faults.clone(),
            decided: [first].into(),
            done: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_on = |n: usize| !state.nodes[n].is_off;
        for (n, (at, _, tries)) in self.wishes.iter().enumerate() {
            let (proposer, at) = (&state.proposers[n], usize::from(*at));
            let knows = is_on(at) && state.nodes[at].known.is_some();
            let waits = proposer.phase == Phase::Ready || proposer.refused;
            if knows && waits && proposer.tries < *tries {
                actions.push(Action::Begin(n));
            }
            let epoch = proposer.plan.as_ref().map_or(u8::MAX, |plan| plan.epoch);
            let is_asking = matches!(proposer.phase, Phase::Preparing(_) | Phase::Accepting { .. });
            if knows && is_asking && state.nodes[at].epoch() >= epoch {
                actions.push(Action::Notice(n));
            }
        }
        for (asker, to, message) in &state.sent {
            if is_on(usize::from(*to)) && is_on(usize::from(self.wishes[usize::from(*asker)].0)) {
                let (asker, to, message) = (*asker, *to, message.clone());
                actions.push(Action::Deliver { asker, to, message });
            }
        }
        let on = || (0..state.nodes.len()).filter(|n| is_on(*n));
        for to in on() {
            let newest = on().max_by_key(|from| state.nodes[*from].epoch());
            let is_newer = |from: &usize| state.nodes[*from].epoch() > state.nodes[to].epoch();
            actions.extend(newest.filter(is_newer).map(|from| Action::Pull { from, to }));
        }
        let completes = |n: &usize| state.majority_layout(*n).is_some();
        if self.rules.accepted_is_completed {
            actions.extend(on().filter(completes).map(Action::Complete));
        }
        for fault in &state.faults {
            match fault {
                Fault::Restart => actions.extend(on().map(Action::Restart)),
                Fault::Wipe => {
                    actions.extend(self.first.iter().map(|n| Action::Wipe(usize::from(*n))));
                }
                Fault::Retire if state.done.is_some() => actions.push(Action::Retire),
                Fault::Retire => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let mut is_over = |fault: Fault| state.faults.retain(|left| *left != fault);
        match action {
            Action::Begin(n) => state.begin(n, &self.wishes[n], &self.rules),
            Action::Deliver { asker, to, message } => {
                state.sent.remove(&(asker, to, message.clone()));
                let reply = state.nodes[usize::from(to)].ask(to, &message, &self.rules);
                state.on_reply(usize::from(asker), to, &message, reply, self);
            }
            Action::Pull { from, to } => {
                let known = state.nodes[from].known.clone().expect("it is newer");
                state.nodes[to].learn(&known);
            }
            Action::Complete(n) => {
                let layout = state.majority_layout(n).expect("it can happen");
                state.nodes[n].learn(&layout);
            }
            Action::Notice(n) => state.notice(n, usize::from(self.wishes[n].0)),
            Action::Restart(n) => {
                is_over(Fault::Restart);
                state.nodes[n].restart(&self.rules);
                state.crash(n, self);
            }
            Action::Wipe(n) => {
                is_over(Fault::Wipe);
                let life = state.nodes[n].life + 1;
                let votes = BTreeMap::new();
                state.nodes[n] = Node { life, is_off: false, known: None, votes };
                state.crash(n, self);
            }
            Action::Retire => {
                is_over(Fault::Retire);
                state.retire();
            }
        }
        let known: Vec<Layout> = state.nodes.iter().filter_map(|node| node.known.clone()).collect();
        state.decided.extend(known);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CHAIN, |_, state: &State| {
                let mut decided = state.decided.iter();
                decided.all(|layout| {
                    let is_one = |other: &Layout| other.epoch != layout.epoch || other == layout;
                    let follows = |other: &Layout| {
                        other.epoch + 1 != layout.epoch || other.plan == layout.base
                    };
                    state.decided.iter().all(|other| is_one(other) && follows(other))
                })
            }),
            Property::always(CONVERGED, |chain: &Chain, state: &State| {
                state.has_ended(chain) || !chain.next_steps(state).is_empty()
            }),
            Property::sometimes(CHANGED, |_, state: &State| {
                state.proposers.iter().all(|proposer| proposer.phase == Phase::Done)
            }),
        ]
    }
}

impl State {
    /// Ends the proposals of a node that crashes.
    fn crash(&mut self, node: usize, chain: &Chain) {
        for (n, proposer) in self.proposers.iter_mut().enumerate() {
            if usize::from(chain.wishes[n].0) == node && proposer.phase != Phase::Done {
                (proposer.phase, proposer.plan) = (Phase::Ready, None);
                self.sent.retain(|(asker, _, _)| usize::from(*asker) != n);
            }
        }
    }
}

/// Property: each epoch has one layout, whose base is the layout of the epoch before.
pub(crate) const CHAIN: &str = "a chain";

/// Property: in a state without further actions, all nodes know the last layout.
pub(crate) const CONVERGED: &str = "converged";

/// Property: some path completes every change.
pub(crate) const CHANGED: &str = "all is changed";
