//! The state of the model: one key on three replicas, clients and repair rounds; and the effect of
//! each action.

use std::collections::BTreeSet;

use stateright::semantics::ConsistencyTester;

use crate::client::{Client, Phase, Step};
use crate::register::{History, Op};
use crate::replica::{Directory, Missed, Record, Replica, Reply, RoundId};
use crate::round::{self, Round, Seen, Sent};
use crate::rules::Rules;
use crate::worlds::Fault;

/// The number of replicas of the key, which are the first of all nodes.
pub(crate) const REPLICAS: usize = 3;

/// The sender number of the first round. Clients have the numbers from 0.
pub(crate) const ROUNDS: u8 = 8;

/// The sender number of hints.
pub(crate) const HINTS: u8 = 16;

/// A request to a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Write(Record),
    Prepare {
        ballot: u8,
        watermark: u8,
    },
    Accept(Record),
    Read,
    Repair(Record),
    Hint(Record),
    Seal(RoundId),
    List {
        round: RoundId,
        watermark: u8,
    },
    Bring {
        round: RoundId,
        record: Record,
    },
    Discard(RoundId),
    Ready(RoundId),
    Commit {
        round: RoundId,
        floor: u8,
    },
    /// A page that one node has streamed to another, for the process that requested it.
    Page {
        from: u8,
        life: u8,
        record: Option<Record>,
    },
}

impl Message {
    /// True if the message is without effect once its round has ended or restarted.
    fn is_asked_first(&self) -> bool {
        matches!(self, Self::Seal(_) | Self::List { .. })
    }

    /// True if only members handle the message.
    pub(crate) fn is_for_members(&self) -> bool {
        matches!(self, Self::Seal(_) | Self::List { .. } | Self::Bring { .. } | Self::Ready(_))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) nodes: Vec<Replica>,
    pub(crate) clients: Vec<Client>,
    pub(crate) rounds: Vec<Round>,
    /// Messages in transit: sender, recipient, message. They are delivered in any order; a message
    /// that is never delivered is lost.
    pub(crate) sent: BTreeSet<(u8, u8, Message)>,
    pub(crate) history: History,
    /// The faults that may still happen.
    pub(crate) faults: Vec<Fault>,
    /// The greatest issued time.
    pub(crate) clock: u8,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// A client starts or restarts its operation.
    Begin(usize),
    /// A round starts, or continues after it backed off.
    Round(usize),
    /// A round continues without a node that does not answer.
    Leave(usize, u8),
    Deliver {
        asker: u8,
        to: u8,
        message: Message,
    },
    /// A node sends its proof to another one.
    Inform {
        from: u8,
        to: u8,
    },
    Purge(usize),
    Fail(Fault),
    /// The third replica's directory is copied.
    Copy,
    /// A node streams its record to a node that is not authoritative.
    Stream {
        from: u8,
        to: u8,
    },
}

/// The index of the replica that faults affect.
pub(crate) const THIRD: usize = REPLICAS - 1;

/// Returns the number of the round that is the sender; `None` = the sender is no round.
pub(crate) fn round_of(asker: u8) -> Option<usize> {
    (ROUNDS..HINTS).contains(&asker).then(|| usize::from(asker - ROUNDS))
}

impl State {
    fn send(&mut self, asker: u8, message: &Message) {
        self.sent.extend((0..REPLICAS as u8).map(|to| (asker, to, message.clone())));
    }

    /// Drops a client's messages that are no longer needed and change nothing except promises. If
    /// the client was answered, its undelivered accepts become hints.
    fn withdraw(&mut self, client: u8, is_answered: bool) {
        for asked in std::mem::take(&mut self.sent) {
            let (asker, to, message) = asked;
            match message {
                Message::Prepare { .. } | Message::Read if asker == client => {}
                Message::Accept(record) if asker == client && is_answered => {
                    self.sent.insert((HINTS, to, Message::Hint(record)));
                }
                message => {
                    self.sent.insert((asker, to, message));
                }
            }
        }
    }

    pub(crate) fn begin(&mut self, number: usize, rules: &Rules) {
        let (client, n) = (&mut self.clients[number], number as u8);
        let watermark = self.nodes[usize::from(client.at)].watermark();
        // Clients may see a write twice if it gets a new version, so the history has two writes.
        let is_another = client.tries == 0 || matches!(client.op, Op::Put(_) | Op::Delete);
        let message = client.begin(&mut self.clock, watermark, rules);
        if is_another {
            let thread = thread(n, &self.clients[number]);
            let op = self.clients[number].op.clone();
            self.history.on_invoke(thread, op).expect("each try is one");
        }
        self.withdraw(n, false);
        self.send(n, &message);
    }

    pub(crate) fn ask(&mut self, to: u8, message: &Message, rules: &Rules) -> Reply {
        let node = &mut self.nodes[usize::from(to)];
        match message {
            Message::Write(record) => node.write(record, rules),
            Message::Prepare { ballot, watermark } => node.prepare(*ballot, *watermark, rules),
            Message::Accept(record) => node.accept(record, rules),
            Message::Read => node.read(),
            Message::Repair(record) => node.repair(record, rules),
            Message::Hint(record) => {
                node.store_hint(record, rules);
                Reply::Nothing
            }
            Message::Page { from, life, record } => {
                let all = self.nodes.len() - 1;
                let node = &mut self.nodes[usize::from(to)];
                if node.life == *life {
                    node.stream(*from, record.as_ref(), all, rules);
                }
                Reply::Nothing
            }
            Message::Seal(round) => node.seal(*round, rules),
            Message::List { round, watermark } => node.list(*round, *watermark, rules),
            Message::Bring { round, record } => node.bring(*round, record, rules),
            Message::Discard(_) => node.discard(rules),
            Message::Ready(round) => node.ready(*round, rules),
            Message::Commit { round, floor } => {
                let (missed, reply) = node.commit(*round, *floor, rules);
                if missed == Missed::Outdated {
                    self.is_outdated(to, rules);
                }
                reply
            }
        }
    }

    /// Handles an outdated directory of a node: the node continues like one with a new disk.
    fn is_outdated(&mut self, node: u8, rules: &Rules) {
        if rules.outdated_is_set_aside {
            let set_aside = &mut self.nodes[usize::from(node)].set_aside;
            *set_aside = set_aside.saturating_add(1);
            self.replace(node, Directory::of_new(node, self.clock, rules), rules);
        }
    }

    fn replace(&mut self, node: u8, directory: Directory, rules: &Rules) {
        self.ends(node);
        self.nodes[usize::from(node)].replace(directory, self.clock, rules);
        let clients = self.clients.iter_mut().filter(|_| rules.lost_votes_are_dropped);
        clients.for_each(|client| client.drop_reply(node));
    }

    /// Ends a node's process, with the operations that it coordinates and the round that it drives.
    fn ends(&mut self, node: u8) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if client.at == node && !matches!(client.phase, Phase::Ready | Phase::Done) {
                client.phase = Phase::Done;
                client.refused = false;
                self.withdraw(number as u8, false);
            }
        }
        let is_page = |message: &Message| matches!(message, Message::Page { .. });
        self.sent.retain(|(_, to, message)| *to != node || !is_page(message));
        for round in &mut self.rounds {
            if round.id.1 == node {
                round.ends_with_its_node();
            }
            round.is_void |= round.id.0 > 0;
        }
    }

    pub(crate) fn on_reply(
        &mut self,
        asker: u8,
        from: u8,
        asked: &Message,
        reply: Reply,
        rules: &Rules,
    ) {
        if let Some(number) = round_of(asker) {
            return self.continue_round(number, rules, |round, seen| {
                round.receive((from, asked), reply, seen)
            });
        }
        if asker >= ROUNDS {
            return;
        }
        let client = &mut self.clients[usize::from(asker)];
        let watermark = self.nodes[usize::from(client.at)].watermark();
        match client.receive((from, asked), reply, watermark, rules) {
            Step::Wait => {}
            Step::Send(message) => self.send(asker, &message),
            Step::Answer(value, _) => {
                let thread = thread(asker, client);
                self.history.on_return(thread, value).expect("it was asked once");
                self.withdraw(asker, true);
            }
        }
    }

    /// Executes the next steps of a round.
    pub(crate) fn continue_round(
        &mut self,
        number: usize,
        rules: &Rules,
        step: impl FnOnce(&mut Round, &mut Seen<'_>) -> Sent,
    ) {
        let (round, asker) = (&mut self.rounds[number], ROUNDS + number as u8);
        let node = usize::from(round.id.1);
        let mut seen = Seen {
            clock: &mut self.clock,
            watermarks: self.nodes.iter().map(Replica::watermark).collect(),
            equal: self.nodes[node].equal.clone(),
            rules,
        };
        let sent = step(round, &mut seen);
        if round.phase == round::Phase::Over {
            self.nodes[node].equal = round.equal().or(self.nodes[node].equal.take());
            round.end();
        }
        // The round's earlier requests no longer matter.
        let is_over = !round.is_active();
        if is_over || sent.iter().any(|(_, message)| matches!(message, Message::Seal(_))) {
            self.sent.retain(|(by, _, message)| *by != asker || !message.is_asked_first());
        }
        self.sent.extend(sent.into_iter().map(|(to, message)| (asker, to, message)));
    }

    /// Returns the active round that has fenced a node; `None` = there is none, or it is round
    /// `number`.
    pub(crate) fn round_fencing(&self, node: u8, number: usize) -> Option<&Round> {
        let seal = self.nodes[usize::from(node)].held.proof.seal;
        let rounds = self.rounds.iter().enumerate();
        let mut others = rounds.filter(|(n, round)| *n != number && round.is_active());
        others.find(|(_, round)| round.id == seal).map(|(_, round)| round)
    }

    pub(crate) fn fail(&mut self, fault: Fault, rules: &Rules) {
        let third = &mut self.nodes[THIRD];
        match fault {
            Fault::PowerCut => {
                for node in 0..self.nodes.len() {
                    self.ends(node as u8);
                    self.nodes[node].restart();
                }
            }
            Fault::Restart => {
                self.ends(THIRD as u8);
                self.nodes[THIRD].restart();
            }
            Fault::Driver => {
                let node = self.rounds[0].id.1;
                self.ends(node);
                self.nodes[usize::from(node)].restart();
            }
            Fault::Wipe => {
                let new = Directory::of_new(THIRD as u8, self.clock, rules);
                self.replace(THIRD as u8, new, rules);
            }
            Fault::Rollback => {
                let copy = third.copy.take().expect("it was made");
                self.replace(THIRD as u8, copy, rules);
                if !rules.rollback_is_noticed {
                    let third = &mut self.nodes[THIRD];
                    (third.held.lost_before, third.rebuilt_by) = (0, None);
                    third.sync(rules);
                }
            }
            Fault::Rot => {
                third.held.is_rotten = true;
                third.sync(rules);
            }
        }
        self.faults.retain(|left| *left != fault);
    }

    /// Delivers a node's proof to another node.
    pub(crate) fn inform(&mut self, from: u8, to: u8, rules: &Rules) {
        let proof = self.nodes[usize::from(from)].held.proof;
        let commit = Message::Commit { round: proof.proven, floor: proof.floor };
        self.ask(to, &commit, rules);
    }

    /// Streams a node's record to another node.
    pub(crate) fn stream(&mut self, from: u8, to: u8) {
        let Replica { promise, life, .. } = self.nodes[usize::from(to)];
        let source = &mut self.nodes[usize::from(from)];
        source.promise = source.promise.max(promise);
        let record = source.held.record.clone();
        self.sent.insert((HINTS, to, Message::Page { from, life, record }));
    }

    /// True if a page of this source is in transit to the node.
    pub(crate) fn streams(&self, from: u8, to: u8) -> bool {
        let is_it =
            |message: &Message| matches!(message, Message::Page { from: by, .. } if *by == from);
        self.sent.iter().any(|(_, node, message)| *node == to && is_it(message))
    }

    /// True if two replicas hold the same records up to the watermark of the first, apart from
    /// records that may be purged or that a newer record hides.
    fn agree(one: &Replica, other: &Replica) -> bool {
        let watermark = one.watermark();
        let has = |record: &Record, other: &Replica| {
            let newer = |held: &Record| held.when() > watermark && held.rank() > record.rank();
            let held = other.held.record.as_ref();
            held.is_some_and(|held| held == record || newer(held))
        };
        let is_proven = |record: &&Record| record.when() <= watermark && !record.is_tombstone();
        let value = |replica: &Replica| replica.held.record.clone().filter(|r| is_proven(&r));
        value(one).is_none_or(|value| has(&value, other))
            && value(other).is_none_or(|value| has(&value, one))
    }

    /// True if all replicas agree. A restored older copy may disagree until its node knows the
    /// later proofs.
    pub(crate) fn is_agreed(&self, rules: &Rules) -> bool {
        let counts = |replica: &&Replica| replica.is_authoritative() && !replica.held.is_rotten;
        let replicas = || self.nodes.iter().take(REPLICAS).filter(counts);
        let knows = |one: &Replica, other: &Replica| {
            let rules = Rules { outdated_is_noticed: true, ..rules.clone() };
            other.classify_proof(one.held.proof.proven, &rules) != Missed::Outdated
        };
        let agree = |one, other| !knows(one, other) || Self::agree(one, other);
        replicas().all(|one| replicas().all(|other| agree(one, other)))
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.clients.iter().all(|client| client.phase == Phase::Done)
    }

    /// True if all nodes know the proof of the last round, or that round need not prove anything.
    pub(crate) fn is_proven(&self, rules: &Rules) -> bool {
        let Some(last) = self.rounds.last() else { return true };
        let knows = |node: &Replica| {
            node.watermark() >= last.id.0 && !node.held.is_rotten && !node.may_purge(rules)
        };
        last.is_void || last.id.0 > 0 && self.nodes.iter().all(knows)
    }
}

/// Returns the thread number of a client's try in the history.
fn thread(number: u8, client: &Client) -> u8 {
    let is_plain = matches!(client.op, Op::Put(_) | Op::Delete);
    number * 8 + if is_plain { client.tries } else { 1 }
}
