//! Votes of a metadata quorum member, and copies of its data directory. If an earlier copy replaces
//! the directory, the member has lost its later votes. Other nodes' claims about the end of the
//! member's log reveal the loss. The member then becomes a new voter without a seat, because a seat
//! belongs to a voter that remembers all its votes.
//!
//! ```text
//!   directory copied ─▶ member votes ─▶ directory replaced by the copy
//!     ─▶ another node claims more of the member's log than exists ─▶ new voter id
//! ```
//!
//! The model has one vote: two nodes ask the same voter, once each.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::STATES;
use crate::search::{search_breadth_first, states_from_env, steps_to, walk_randomly};

/// The number of other nodes. Each of them knows a position of the member's log.
const OTHERS: usize = 2;

/// A boot of the directory: its id, and the end of the log at its start.
type Life = (u8, u8);

/// The rules for voters, each of which can be switched off.
#[derive(Debug, Clone)]
struct VoterRules {
    /// A quorum member that may have lost votes becomes a new voter.
    loss_makes_another_voter: bool,
    /// A claim about a boot before the voter was made proves nothing about the voter's votes.
    earlier_claims_keep_the_voter: bool,
    /// A member votes only after the consequences of all received claims are durable.
    claims_are_settled_first: bool,
    /// A member votes only after it has met all reachable nodes.
    others_are_met_first: bool,
}

const VOTER_RULES: VoterRules = VoterRules {
    loss_makes_another_voter: true,
    earlier_claims_keep_the_voter: true,
    claims_are_settled_first: true,
    others_are_met_first: true,
};

#[derive(Debug, Clone)]
struct Voters {
    rules: VoterRules,
    copies: u8,
    restarts: u8,
    returns: u8,
    absences: u8,
}

/// A data directory, or a copy of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Directory {
    lives: Vec<Life>,
    /// Number of groups in the log.
    log: u8,
    /// The boot that made the voter.
    maker: u8,
    /// The node that received the vote.
    vote: Option<usize>,
}

impl Directory {
    fn life(&self) -> u8 {
        self.lives.last().expect("a life is under way").0
    }

    fn begin(&mut self, life: u8) {
        self.lives.push((life, self.log));
    }

    /// True if the directory lacks a part of the log that a boot reported
    /// (`BootHistory::find_loss`).
    fn lacks(&self, (life, position): Life) -> bool {
        if life == self.life() {
            return false;
        }
        let Some(next) = self.lives.iter().find(|next| next.0 > life) else { return true };
        let is_known = self.lives.iter().any(|known| known.0 == life);
        position > next.1 || !is_known
    }
}

/// Another node, which knows a position of the member's log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Other {
    is_away: bool,
    claim: Life,
    /// True if the member's present process has met the node.
    is_met: bool,
    /// True if the consequences of the node's claim are durable. From then on, the member reports
    /// its log position to the node.
    is_settled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    directory: Directory,
    copy: Option<Directory>,
    others: [Other; OTHERS],
    left: [u8; 4],
    next_life: u8,
    /// The votes: each voter, and the node that asked it.
    given: BTreeSet<(u8, usize)>,
    /// True if the directory was restored since the voter was made.
    was_put_back: bool,
    /// True if a voter was replaced although no copy of its directory had been restored.
    was_given_up: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Copy,
    Restart,
    PutBack,
    Leave(usize),
    Return(usize),
    Meet(usize),
    Settle(usize),
    Vote(usize),
}

/// Property: a voter votes for at most one node.
const ONE_VOTE: &str = "one vote";

/// Property: a directory that was not restored keeps its voter.
const STAYS: &str = "the voter stays";

/// Property: on some path, there is a second vote after the directory was restored.
const VOTED_AGAIN: &str = "voted after it was put back";

impl State {
    fn start(&mut self) {
        self.directory.begin(self.next_life);
        self.next_life += 1;
        for other in &mut self.others {
            (other.is_met, other.is_settled) = (false, false);
        }
    }

    fn meet(&mut self, n: usize, rules: &VoterRules) {
        self.others[n].is_met = true;
        let (claim, now) = (self.others[n].claim, self.directory.life());
        let says_nothing = rules.earlier_claims_keep_the_voter && claim.0 < self.directory.maker;
        let loses = self.directory.lacks(claim) && rules.loss_makes_another_voter && !says_nothing;
        if loses && self.directory.maker != now {
            self.was_given_up |= !self.was_put_back;
            self.was_put_back = false;
            (self.directory.maker, self.directory.vote) = (now, None);
        }
    }

    fn may_vote(&self, rules: &VoterRules) -> bool {
        let is_asked = |other: &Other| other.is_away || other.is_met;
        let is_looked_at = |other: &Other| !other.is_met || other.is_settled;
        (self.others.iter().all(is_asked) || !rules.others_are_met_first)
            && (self.others.iter().all(is_looked_at) || !rules.claims_are_settled_first)
    }

    /// True if another reachable node knows at least as much of the log. (Nobody notices a restored
    /// directory while all nodes that know more are away: `docs/design/membership.md`.)
    fn is_known_without(&self, n: usize) -> bool {
        let knows =
            |m: usize| !self.others[m].is_away && self.others[m].claim >= self.others[n].claim;
        (0..OTHERS).any(|m| m != n && knows(m))
    }

    fn vote(&mut self, n: usize) {
        self.directory.vote = Some(n);
        self.directory.log += 1;
        self.given.insert((self.directory.maker, n));
        let other = &mut self.others[n];
        if other.is_settled {
            other.claim = (self.directory.life(), self.directory.log);
        }
    }
}

impl crate::search::Searched for Voters {}

impl Model for Voters {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let directory = Directory { lives: vec![(1, 0)], log: 1, maker: 0, vote: None };
        let met = Other { is_away: false, claim: (1, 1), is_met: true, is_settled: true };
        vec![State {
            directory,
            copy: None,
            others: [met.clone(), met],
            left: [self.copies, self.restarts, self.returns, self.absences],
            next_life: 2,
            given: BTreeSet::new(),
            was_put_back: false,
            was_given_up: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let [copies, restarts, returns, absences] = state.left;
        actions.extend((copies > 0).then_some(Action::Copy));
        actions.extend((restarts > 0).then_some(Action::Restart));
        actions.extend((returns > 0 && state.copy.is_some()).then_some(Action::PutBack));
        for (n, other) in state.others.iter().enumerate() {
            if other.is_away {
                actions.push(Action::Return(n));
                continue;
            }
            actions.extend(
                (absences > 0 && other.is_settled && state.is_known_without(n))
                    .then_some(Action::Leave(n)),
            );
            actions.extend((!other.is_met).then_some(Action::Meet(n)));
            actions.extend((other.is_met && !other.is_settled).then_some(Action::Settle(n)));
            let has_voted = state.directory.vote.is_some();
            let votes = other.is_met && !has_voted && state.may_vote(&self.rules);
            actions.extend(votes.then_some(Action::Vote(n)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Copy => {
                state.left[0] -= 1;
                state.copy = Some(state.directory.clone());
                // The log grows after the copy: restoring a complete copy would lose nothing.
                state.directory.log += 1;
                let (life, log) = (state.directory.life(), state.directory.log);
                for other in state.others.iter_mut().filter(|other| other.is_settled) {
                    if !other.is_away {
                        other.claim = (life, log);
                    }
                }
            }
            Action::Restart => {
                state.left[1] -= 1;
                state.start();
            }
            Action::PutBack => {
                state.left[2] -= 1;
                state.directory = state.copy.clone()?;
                state.was_put_back = true;
                state.start();
            }
            Action::Leave(n) => {
                state.left[3] -= 1;
                state.others[n].is_away = true;
            }
            Action::Return(n) => {
                let other = &mut state.others[n];
                (other.is_away, other.is_met, other.is_settled) = (false, false, false);
            }
            Action::Meet(n) => state.meet(n, &self.rules),
            Action::Settle(n) => {
                state.others[n].is_settled = true;
                state.others[n].claim = (state.directory.life(), state.directory.log);
            }
            Action::Vote(n) => state.vote(n),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_VOTE, |_, state: &State| {
                let mut voters = state.given.iter().map(|(voter, _)| voter);
                voters.all(|voter| {
                    state.given.iter().filter(|(other, _)| other == voter).count() == 1
                })
            }),
            Property::always(STAYS, |_, state: &State| !state.was_given_up),
            Property::sometimes(VOTED_AGAIN, |_, state: &State| state.given.len() > 1),
        ]
    }
}

fn voters(returns: u8, absences: u8) -> Voters {
    Voters { rules: VOTER_RULES, copies: returns, restarts: 1, returns, absences }
}

#[test]
fn a_voter_votes_once_and_outlives_a_restart() {
    for (name, world) in [
        ("put back once", voters(1, 0)),
        ("put back once, others go away", voters(1, 2)),
        ("put back twice", voters(2, 0)),
        ("put back twice, others go away", voters(2, 2)),
    ] {
        let most = states_from_env().unwrap_or(STATES);
        let walked = walk_randomly(name, &world, most, None);
        for seen in [&search_breadth_first(name, &world, most), &walked] {
            assert_eq!(seen.broken, None, "{name}");
        }
        assert!(walked.has_ended, "{name}: no vote after the directory was put back");
    }
}

macro_rules! without {
    ($rule:ident, $world:expr, $property:expr) => {
        (
            stringify!($rule),
            Voters { rules: VoterRules { $rule: false, ..VOTER_RULES }, ..$world },
            $property,
        )
    };
}

#[test]
fn each_voter_rule_prevents_a_failure() {
    for (name, world, property) in [
        without!(loss_makes_another_voter, voters(1, 0), ONE_VOTE),
        without!(earlier_claims_keep_the_voter, voters(1, 1), STAYS),
        without!(claims_are_settled_first, voters(2, 0), ONE_VOTE),
        without!(others_are_met_first, voters(1, 0), ONE_VOTE),
    ] {
        let steps = steps_to(property, &world);
        println!("{name}: not {property} after {steps:?} steps");
        assert!(steps.is_some(), "{name}: not found");
    }
}
