//! Simulated clients. A client sends one request at a time, each to a random node, as through a
//! load balancer. All clients share some keys; each client also has keys that no other client uses.

use bytes::Bytes;
use protocol::{Answer, AskedQuorum, Done, NODE_TICK_MICROS};

use super::contenders::Contender;
use super::machine::{Input, Process};
use super::{DueEvent, LoopId, World};
use crate::histories::RetryState;
use crate::ledger::{ClientOutcome, ClientRequest, RequestKind};
use crate::random::Random;

/// Time for which a client waits for an answer, as a multiple of the deadline of a request.
const PATIENCE: u64 = 4;

/// A simulated client.
pub(super) struct Client {
    number: usize,
    random: Random,
    /// Number of the request whose answer the client awaits.
    waits_for: Option<u64>,
    /// State of a contender: a client that uses only contended keys.
    contender: Option<Contender>,
}

impl Client {
    pub(super) fn new(number: usize, random: Random) -> Self {
        Self { number, random, waits_for: None, contender: None }
    }

    pub(super) fn contender(number: usize, random: Random) -> Self {
        Self { contender: Some(Contender::default()), ..Self::new(number, random) }
    }
}

impl World {
    pub(super) fn send_next_request(&mut self, client: usize) {
        if !self.clients_run {
            return;
        }
        let asked = self.next_request(client);
        let node = *self.clients[client].random.pick(&self.nodes);
        let number = self.ask(node, asked);
        self.clients[client].waits_for = Some(number);
    }

    /// Sends a request to a node. Returns the number of the request.
    pub(super) fn ask(&mut self, node: usize, asked: ClientRequest) -> u64 {
        let asked = ClientRequest { ttl_ms: self.ttl_ms(&asked.what), ..asked };
        self.ledger.set_quiet(self.is_quiet());
        let number = self.ledger.begin(self.now, self.earliest_ms(), asked);
        let ClientRequest { what, quorum, .. } =
            self.ledger.client_request(number).expect("just begun");
        let line = format_args!("client asks n{node} {number}: {what:?} {quorum}");
        self.journal.line(self.now, line);
        let at = self.now + self.random.between(30, 300);
        let machine = &self.machines[node];
        match &machine.process {
            Some(process) if !machine.stopping => {
                let index = self.random.index(process.loops.len());
                let place = LoopId { node, life: process.life, index };
                self.agenda.put(at, DueEvent::RequestArrives { number, place });
                let patience = PATIENCE * self.plan.deadline_micros;
                let outcome = ClientOutcome::Nothing;
                self.agenda.put(self.now + patience, DueEvent::ClientOutcome { number, outcome });
            }
            _ => self
                .agenda
                .put(at, DueEvent::ClientOutcome { number, outcome: ClientOutcome::Refused }),
        }
        number
    }

    fn next_request(&mut self, client: usize) -> ClientRequest {
        let plan = &self.plan;
        let Client { random, number, contender, .. } = &mut self.clients[client];
        if let Some(contender) = contender {
            return contender.draw_request(plan, random, &self.ledger.histories);
        }
        let key = if random.permille(600) {
            format!("hot-{}", random.index(plan.hot_keys))
        } else {
            format!("own-{number}-{}", random.index(plan.own_keys))
        };
        let what = match random.below(1000) {
            0..450 => RequestKind::Get,
            450..840 => RequestKind::Put,
            draw if draw < 1000 - plan.ranges => RequestKind::Delete,
            _ => RequestKind::Scan,
        };
        let (mut ack, mut from) = (None, None);
        if random.permille(plan.named_quorums) {
            let most = plan.least_nodes() as u64;
            let named = random.between(1, most);
            from = Some(named as u8);
            if random.permille(500) {
                ack = Some(random.between(1, named) as u8);
            }
        }
        ClientRequest { what, key: Bytes::from(key), quorum: AskedQuorum { ack, from }, ttl_ms: 0 }
    }

    /// Handles the arrival of a request at a node.
    pub(super) fn on_client_request(&mut self, number: u64, place: LoopId) {
        if self.process(place).is_some() {
            self.input(place, Input::Client(number));
        } else {
            self.agenda.put(
                self.now + 100,
                DueEvent::ClientOutcome { number, outcome: ClientOutcome::Nothing },
            );
        }
    }

    /// Checks that no node refuses a new idempotency key as forgotten, unless a node may have
    /// forgotten writes shortly before.
    fn check_not_forgotten(&mut self, number: u64, asked: &ClientRequest, outcome: &ClientOutcome) {
        let is_new =
            matches!(&asked.what, RequestKind::Change(wanted) if wanted.retry == RetryState::First);
        let is_refused = matches!(outcome, ClientOutcome::Answer(Answer::Done(Done::Forgotten, _)));
        if !(is_new && is_refused) {
            return;
        }
        // Keys may have begun to move since the last ticks, so `forgetful_at` may be outdated.
        for node in 0..self.machines.len() {
            if let Some(Process { life, .. }) = self.machines[node].process {
                self.record_forgetful(LoopId { node, life, index: 0 });
            }
        }
        if !self.may_be_forgotten(self.now) {
            let what = format!(
                "forgotten: the word of {number} is new, no node has forgotten any, and it is told \
                 that a write may have been done with it"
            );
            self.ledger.wrong.push(what);
        }
    }

    /// True if a node may have forgotten a write that was answered at `answered`, or did so shortly
    /// before.
    pub(super) fn may_be_forgotten(&self, answered: u64) -> bool {
        let lately = PATIENCE * self.plan.deadline_micros + 2 * NODE_TICK_MICROS;
        answered <= self.ledger.forgetful_at + lately
    }

    /// Handles the outcome of a client's request.
    pub(super) fn finish_request(&mut self, number: u64, outcome: &ClientOutcome) {
        if self.ledger.client_request(number).is_none() {
            return;
        }
        let asked = self.ledger.client_request(number).expect("just looked up").clone();
        self.check_not_forgotten(number, &asked, outcome);
        self.ledger.end(self.now, number, outcome);
        self.answers.insert(number, outcome.clone());
        let waiting = self.clients.iter().position(|client| client.waits_for == Some(number));
        if let Some(client) = waiting {
            self.answers.remove(&number);
            self.clients[client].waits_for = None;
            if let Some(contender) = &mut self.clients[client].contender {
                contender.record_outcome(number, asked, outcome);
            }
            let pause = self.random.between(0, self.plan.think_micros);
            self.agenda.put(self.now + pause, DueEvent::Client(client));
        }
    }
}
