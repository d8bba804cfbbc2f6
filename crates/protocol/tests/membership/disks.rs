//! Two processes that run as the same node, each with its own disk: the old process, a member; and
//! a new process, started in its place with an empty directory, which is being rebuilt. Each of the
//! two other nodes, P and Q, accepts connections of one of the processes at a time.
//!
//! ```text
//!   old process, with the member's disk ──┬── P: coordinates reads and writes, which need two of
//!                                         │      the three nodes
//!   new process, with a new disk ─────────┴── Q
//! ```
//!
//! A request and its reply are one step. A node that has seen a later disk reads nothing more from
//! a connection with an earlier disk.

use stateright::{Model, Property};

use crate::STATES;
use crate::search::{can_end, search_breadth_first, states_from_env, steps_to, walk_randomly};

/// The number of other nodes. Each of them runs as one process.
const OTHERS: usize = 2;

/// The rules for disks, each of which can be switched off. Without the first or the second rule,
/// nothing is lost: these rules stop two processes from alternating, and tell the old process that
/// it was replaced.
#[derive(Debug, Clone)]
struct DiskRules {
    /// A node with a connection to one disk refuses the other disk.
    connected_disk_counts: bool,
    /// A member that is refused because of another disk serves no more requests.
    refused_member_is_fenced: bool,
    /// A process does not count as holding records if other nodes know its node with another disk.
    other_disk_is_doubted: bool,
    /// A new disk becomes a member once all other nodes have streamed to it.
    all_stream: bool,
    /// A process that is no member serves no requests until each other node has answered it on its
    /// latest connection.
    others_answer_first: bool,
    /// A node answers a process only after its knowledge of the process's disk is durable.
    known_before_answered: bool,
}

const DISK_RULES: DiskRules = DiskRules {
    connected_disk_counts: true,
    refused_member_is_fenced: true,
    other_disk_is_doubted: true,
    all_stream: true,
    others_answer_first: true,
    known_before_answered: true,
};

#[derive(Debug, Clone)]
struct Disks {
    rules: DiskRules,
    writes: u8,
    cuts: u8,
    restarts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MembershipState {
    Off,
    Member,
    Rebuilding,
    Fenced,
}

/// One of the two processes that run as the same node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    state: MembershipState,
    value: u8,
    streamed: [bool; OTHERS],
    /// Nodes that have answered since the last connection with them.
    answered: [bool; OTHERS],
}

/// A node that runs as one process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Other {
    value: u8,
    /// The disk that the node knows, and the disk that it has stored as known.
    known: usize,
    kept: usize,
    connected: [bool; 2],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    processes: [Process; 2],
    others: [Other; OTHERS],
    acknowledged: u8,
    left: [u8; 3],
    /// True if a read missed a write that was acknowledged before the read.
    was_missed: bool,
}

/// The coordinator and the replica of a request: both other nodes, or one of them and a process.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pair {
    Others(usize),
    Asks(usize, usize),
    IsAsked(usize, usize),
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    StartNew,
    Connect(usize, usize),
    Cut(usize, usize),
    Keep(usize),
    Restart(usize),
    Answer(usize, usize),
    Stream(usize, usize),
    Write(Pair),
    Read(Pair),
}

/// Property: a read returns every write that was acknowledged before it.
const FOUND: &str = "found";

/// Property: some path makes the new disk a member.
const REPLACED: &str = "replaced";

impl State {
    /// True if a node and a process exchange messages.
    fn is_heard(&self, n: usize, disk: usize) -> bool {
        let is_up =
            !matches!(self.processes[disk].state, MembershipState::Off | MembershipState::Fenced);
        is_up && self.others[n].connected[disk] && self.others[n].known == disk
    }

    /// True if the acknowledgements of a process count.
    fn serves(&self, disk: usize, rules: &DiskRules) -> bool {
        let process = &self.processes[disk];
        process.state == MembershipState::Member
            || !process.answered.contains(&false)
            || !rules.others_answer_first
    }

    fn connect(&mut self, n: usize, disk: usize, rules: &DiskRules) {
        let (other, process) = (&mut self.others[n], &mut self.processes[disk]);
        let has_another = other.connected[1 - disk] && other.known != disk;
        if has_another && rules.connected_disk_counts {
            if process.state == MembershipState::Member && rules.refused_member_is_fenced {
                process.state = MembershipState::Fenced;
            }
            return;
        }
        if other.known != disk && rules.other_disk_is_doubted {
            process.state = MembershipState::Rebuilding;
            process.streamed = [false; OTHERS];
        }
        other.known = disk;
        other.connected[disk] = true;
    }

    fn stream(&mut self, n: usize, disk: usize, rules: &DiskRules) {
        let process = &mut self.processes[disk];
        process.value = process.value.max(self.others[n].value);
        process.streamed[n] = true;
        let enough = if rules.all_stream { OTHERS } else { 1 };
        if process.streamed.iter().filter(|has| **has).count() >= enough {
            process.state = MembershipState::Member;
        }
    }

    /// Returns the pairs that make a quorum of two.
    fn pairs(&self, rules: &DiskRules) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = (0..OTHERS).map(Pair::Others).collect();
        for (n, disk) in (0..OTHERS).flat_map(|n| [(n, 0), (n, 1)]) {
            if self.is_heard(n, disk) && self.serves(disk, rules) {
                pairs.extend([Pair::Asks(n, disk), Pair::IsAsked(n, disk)]);
            }
        }
        pairs
    }

    fn read(&mut self, pair: Pair) {
        let value = match pair {
            Pair::Others(_) => self.others[0].value.max(self.others[1].value),
            Pair::Asks(n, disk) | Pair::IsAsked(n, disk) => {
                self.others[n].value.max(self.processes[disk].value)
            }
        };
        // A real read would repair both nodes; the model only compares their values.
        self.was_missed |= value < self.acknowledged;
    }

    fn write(&mut self, pair: Pair) {
        self.acknowledged += 1;
        let value = self.acknowledged;
        match pair {
            Pair::Others(_) => self.others.iter_mut().for_each(|other| other.value = value),
            Pair::Asks(n, disk) | Pair::IsAsked(n, disk) => {
                (self.others[n].value, self.processes[disk].value) = (value, value);
            }
        }
    }
}

impl crate::search::Searched for Disks {}

impl Model for Disks {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let streamed = [false; OTHERS];
        let answered = [true; OTHERS];
        let old = Process { state: MembershipState::Member, value: 0, streamed, answered };
        let new = Process { state: MembershipState::Off, answered: [false; OTHERS], ..old.clone() };
        let other = Other { value: 0, known: 0, kept: 0, connected: [true, false] };
        vec![State {
            processes: [old, new],
            others: [other.clone(), other],
            acknowledged: 0,
            left: [self.writes, self.cuts, self.restarts],
            was_missed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let [writes, cuts, restarts] = state.left;
        let state_of = |disk: usize| state.processes[disk].state;
        actions.extend((state_of(1) == MembershipState::Off).then_some(Action::StartNew));
        for (n, other) in state.others.iter().enumerate() {
            for disk in [0, 1] {
                let is_up =
                    !matches!(state_of(disk), MembershipState::Off | MembershipState::Fenced);
                let connects = is_up && !other.connected[disk];
                actions.extend(connects.then_some(Action::Connect(n, disk)));
                let is_cut = cuts > 0 && other.connected[disk];
                actions.extend(is_cut.then_some(Action::Cut(n, disk)));
                let is_kept = other.kept == disk || !self.rules.known_before_answered;
                let answers = is_kept && state.is_heard(n, disk);
                actions.extend(answers.then_some(Action::Answer(n, disk)));
                let streams =
                    state_of(disk) == MembershipState::Rebuilding && state.is_heard(n, disk);
                let streams = streams && (is_kept || state.processes[disk].answered[n]);
                actions.extend(streams.then_some(Action::Stream(n, disk)));
            }
            actions.extend((other.kept != other.known).then_some(Action::Keep(n)));
            actions.extend((restarts > 0).then_some(Action::Restart(n)));
        }
        for pair in state.pairs(&self.rules) {
            actions.extend((writes > 0).then_some(Action::Write(pair)));
            // The "not found" of a process in a rebuild does not count, and the process serves no
            // reads.
            let counts = match pair {
                Pair::Others(_) => true,
                Pair::Asks(_, disk) | Pair::IsAsked(_, disk) => {
                    state_of(disk) == MembershipState::Member
                }
            };
            actions.extend(counts.then_some(Action::Read(pair)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::StartNew => state.processes[1].state = MembershipState::Rebuilding,
            Action::Connect(n, disk) => state.connect(n, disk, &self.rules),
            Action::Cut(n, disk) => {
                state.left[1] -= 1;
                state.others[n].connected[disk] = false;
                state.processes[disk].answered[n] = false;
            }
            Action::Keep(n) => state.others[n].kept = state.others[n].known,
            Action::Restart(n) => {
                state.left[2] -= 1;
                let other = &mut state.others[n];
                (other.known, other.connected) = (other.kept, [false; 2]);
                state.processes.iter_mut().for_each(|process| process.answered[n] = false);
            }
            Action::Answer(n, disk) => state.processes[disk].answered[n] = true,
            Action::Stream(n, disk) => state.stream(n, disk, &self.rules),
            Action::Write(pair) => {
                state.left[0] -= 1;
                state.write(pair);
            }
            Action::Read(pair) => state.read(pair),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FOUND, |_, state: &State| !state.was_missed),
            Property::sometimes(REPLACED, |_, state: &State| {
                state.processes[1].state == MembershipState::Member
            }),
        ]
    }
}

fn disks(cuts: u8, restarts: u8) -> Disks {
    Disks { rules: DISK_RULES, writes: 2, cuts, restarts }
}

#[test]
fn writes_acknowledged_by_either_process_are_found() {
    for (name, world) in [
        ("nothing fails", disks(0, 0)),
        ("connections are cut", disks(4, 0)),
        ("others start again", disks(2, 2)),
    ] {
        let most = states_from_env().unwrap_or(STATES);
        let walked = walk_randomly(name, &world, most, None);
        for seen in [&search_breadth_first(name, &world, most), &walked] {
            assert_eq!(seen.broken, None, "{name}");
        }
    }
    assert!(can_end("connections are cut", &disks(4, 0)), "no new disk becomes a member");
}

macro_rules! without {
    ($rule:ident, $world:expr) => {
        (stringify!($rule), Disks { rules: DiskRules { $rule: false, ..DISK_RULES }, ..$world })
    };
}

#[test]
fn each_disk_rule_prevents_a_failure() {
    for (name, world) in [
        without!(other_disk_is_doubted, disks(3, 0)),
        without!(all_stream, disks(2, 0)),
        without!(others_answer_first, disks(2, 0)),
        without!(known_before_answered, disks(2, 2)),
    ] {
        let steps = steps_to(FOUND, &world);
        println!("{name}: not {FOUND} after {steps:?} steps");
        assert!(steps.is_some(), "{name}: not found");
    }
}
