//! The end of a run: all faults heal. The cluster must then serve again, and hold all acknowledged
//! writes.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsm::{PurgeRule, Space};
use protocol::{
    Answer, AskedQuorum, BootId, Clock, Condition, Done, MembershipState, NodeId, Quorum, Record,
};

use super::contenders::contended_request;
use super::machine::{Machine, Role};
use super::power::ProcessEnd;
use super::{DueEvent, World};
use crate::histories::{AcknowledgedWrite, Action, ContendedWrite, RetryState, is_contended};
use crate::ledger::{ClientOutcome, ClientRequest, RequestKind, describe_record};
use crate::machine_clock::true_wall_time;

/// Maximum number of simulated seconds until a healed cluster has recovered. Nodes wait for a clock
/// that was five minutes ahead, and each kill during this wait puts the clock ahead by two more
/// seconds.
const MOST_SECONDS: u64 = 900;

/// Maximum lead of versions over true time, in microseconds, with which requests must succeed
/// again.
const MOST_AHEAD: u64 = 250_000;

/// Time until a pipe's last arrival, in microseconds, above which the pipe still waits for
/// retransmissions.
const STRAGGLER_MICROS: u64 = 100_000;

/// Maximum wait for a moment without a repair round, in simulated milliseconds.
const MOST_STEPS: u64 = 100_000;

/// Delay of long paths: 1 / `DISTANCE_SHARE` of the deadline of requests. A write takes up to five
/// round trips.
const DISTANCE_SHARE: u64 = 30;

/// Maximum number of acknowledged writes that are repeated.
const MOST_REPEATS: usize = 96;

/// Microseconds between two requests of the final checks.
const STEP_MICROS: u64 = 2_000;

impl World {
    /// Ends all faults, waits, and runs the final checks.
    pub(crate) fn end(&mut self) {
        self.clients_run = false;
        self.end_faults();
        self.run_until(self.now + 5_000_000);
        let mut seconds = 0;
        while let Some(what) = self.unrecovered_part() {
            if seconds == MOST_SECONDS {
                self.ledger.report_error(self.now, format!("not healed after {seconds} s: {what}"));
            }
            if !self.ledger.wrong.is_empty() {
                return;
            }
            seconds += 1;
            self.resolve_lost_nodes();
            self.restart_outlived_nodes();
            self.run_until(self.now + 1_000_000);
        }
        self.check_hints_delivered();
        // With repair rounds, repair fences refuse some hints.
        let has_rounds = self.plan.rounds.interval_micros > 0;
        // A node that left no longer delivers its hints; neither does a node whose joining was
        // reverted.
        let has_gone = |machine: &Machine| machine.leaves || matches!(machine.role, Role::Gone);
        let is_complete = !self.machines.iter().any(has_gone);
        if !has_rounds && self.plan.forgets_nothing() && is_complete {
            // Only the next read of its key completes a conditional write without an answer, so
            // contended keys are not compared yet.
            let mut keys = self.ledger.keys();
            keys.retain(|key| !is_contended(key) && !self.may_be_refused(key));
            self.compare_replicas(keys);
        }
        self.check_round_makes_equal();
        self.check_requests_succeed();
        self.check_conditional_writes_succeed(RetryState::Once, "healed");
        self.check_writes_succeed_over_distance();
        self.check_repeats_get_first_answer();
        self.check_all_keys_readable();
        self.run_until(self.now + 3_000_000);
        self.wait_for_rounds();
        if self.ledger.wrong.is_empty() {
            self.compare_replicas(self.ledger.keys());
            self.check_nothing_left();
        }
    }

    /// Restarts nodes that a later boot of their own disk has fenced. The later boot's clock was
    /// ahead, and since then an older copy of the directory was restored, which does not record the
    /// later boot. Therefore the id of the present boot is smaller. Only a restart by an operator
    /// resolves the fence, once the clock has passed the time of the later boot.
    fn restart_outlived_nodes(&mut self) {
        for node in self.nodes.clone() {
            let machine = &self.machines[node];
            let Some(process) = &machine.process else { continue };
            let present = process.shared.membership.logs.life();
            let next =
                BootId::new_after(Clock::time_of(machine.wall.wall(self.now)), Some(present));
            let has_later_boot =
                machine.greatest_boot.is_some_and(|last| present < last && last < next);
            if has_later_boot && process.shared.membership.state.is_fenced() {
                self.journal.line(self.now, format_args!("n{node} is restarted: it is outlived"));
                self.end_process(node, ProcessEnd::Kill);
                self.agenda.put(self.now + 1_000, DueEvent::Start(node));
            }
        }
    }

    /// Returns true if a node may have refused a hint for this key because of a repair fence. A
    /// directory may have a fence from its creation on.
    fn may_be_refused(&self, key: &Bytes) -> bool {
        let seal = |machine: &Machine| {
            machine.process.as_ref().map_or(0, |process| process.shared.repair.proofs.seal())
        };
        let greatest = self.machines.iter().map(seal).max().unwrap_or(0);
        let members = self.members().into_iter();
        let held = members.filter_map(|node| self.stored_record(node, key).ok().flatten());
        held.map(|record| record.write_time()).max().is_some_and(|newest| newest <= greatest)
    }

    /// Checks that a full repair round makes all replicas equal, and proves their equality,
    /// whatever has happened before.
    fn check_round_makes_equal(&mut self) {
        let driver = *self.random.pick(&self.members());
        let Some(process) = &self.machines[driver].process else { return };
        let shared = std::sync::Arc::clone(&process.shared);
        // After this time all records are old enough for a round to compare them.
        let settled = self.plan.rounds.settled_micros + 2 * self.plan.max_skew_micros;
        self.run_until(self.now + settled);
        let mut number = shared.repair.rounds.request_round(true, 0);
        for _ in 0..MOST_SECONDS * 100 {
            self.run_until(self.now + 10_000);
            let last = shared.repair.rounds.status().last.filter(|last| last.number >= number);
            let Some(last) = last else { continue };
            if last.stopped == Some("another node drives a round") {
                number = shared.repair.rounds.request_round(true, 0);
                continue;
            }
            if !last.is_equal() {
                self.ledger
                    .report_error(self.now, format!("node {driver} could not repair: {last:?}"));
            }
            if let Some(why) = last.unproven {
                self.ledger.report_error(self.now, format!("node {driver} proves nothing: {why}"));
            }
            self.compare_replicas(self.ledger.keys());
            return self.check_all_purged(last.until);
        }
        let status = shared.repair.rounds.status();
        self.ledger
            .report_error(self.now, format!("node {driver} never ended its round: {status:?}"));
    }

    /// Returns a description of the first part of the cluster that has not recovered, or `None` if
    /// all parts have.
    fn unrecovered_part(&self) -> Option<String> {
        if let Some(what) = self.unsettled_layouts() {
            return Some(what);
        }
        // While keys move, and while nodes have orphaned records, a node refuses some of the
        // records that a round sends.
        if !self.is_quiet() {
            return Some("what is placed elsewhere is not dropped".to_owned());
        }
        let most = true_wall_time(self.now) + MOST_AHEAD;
        if self.ledger.greatest >> 12 > most {
            return Some("there are future versions".to_owned());
        }
        if self.network.last_arrival() > self.now + STRAGGLER_MICROS {
            return Some("packets that were lost are still on their way".to_owned());
        }
        for node in self.members() {
            let machine = &self.machines[node];
            let name = &machine.name;
            let Some(process) = &machine.process else { return Some(format!("{name} is down")) };
            let clock = process.shared.clock.now(self.times(node)) >> 12;
            if clock > most {
                return Some(format!("the clock of {name} is ahead"));
            }
            if process.shared.membership.state.promised_before() >> 12 > true_wall_time(self.now) {
                return Some(format!("{name} may have promised more, before it lost its disk"));
            }
            if process.shared.membership.cluster.id().is_none() {
                return Some(format!("{name} belongs to no cluster yet"));
            }
            if process.shared.membership.state.state() != MembershipState::Member {
                return Some(format!(
                    "{name} is rebuilt: {:?}",
                    process.task.as_deref().map(|task| task.node().rebuild_progress())
                ));
            }
            for peer in self.members().into_iter().map(|peer| NodeId(peer as u16)) {
                let missed = process.shared.transfer.missed.partitions(peer);
                if missed > 0 {
                    return Some(format!("{name} has {missed} marks of n{}", peer.0));
                }
                let (hints, _) = process.shared.transfer.hints.waiting_hints(peer);
                if hints > 0 {
                    return Some(format!("{name} has {hints} hints for n{}", peer.0));
                }
            }
        }
        None
    }

    /// Sends all requests with pauses in between. Returns each request with its outcome.
    fn send_all(&mut self, requests: Vec<ClientRequest>) -> Vec<(ClientRequest, ClientOutcome)> {
        let mut asked = Vec::new();
        for request in requests {
            let node = *self.random.pick(&self.members());
            asked.push((self.ask(node, request.clone()), request));
            self.run_until(self.now + STEP_MICROS);
        }
        self.run_until(self.now + 5 * self.plan.deadline_micros);
        let outcome =
            |number: u64| self.answers.get(&number).cloned().unwrap_or(ClientOutcome::Nothing);
        asked.into_iter().map(|(number, request)| (request, outcome(number))).collect()
    }

    /// Checks that the histories of contended keys are linearizable.
    pub(crate) fn check_histories(&mut self) {
        for what in self.ledger.histories.check() {
            self.ledger.report_error(self.now, what);
        }
    }

    /// Checks that writes with idempotency keys, which need the most round trips, succeed while all
    /// paths are long, as between data centers.
    fn check_writes_succeed_over_distance(&mut self) {
        for node in self.members() {
            self.network.disturb(node, 0, self.plan.deadline_micros / DISTANCE_SHARE);
        }
        self.check_conditional_writes_succeed(RetryState::First, "distant");
        self.network.heal();
    }

    /// Checks that a repeat of an acknowledged write with an idempotency key is answered as the
    /// first time, unless a replica has forgotten writes since. The ledger compares the outcomes.
    fn check_repeats_get_first_answer(&mut self) {
        let mut acknowledged = self.ledger.histories.acknowledged_writes();
        while acknowledged.len() > MOST_REPEATS {
            acknowledged.swap_remove(self.random.index(acknowledged.len()));
        }
        let may_be_forgotten: Vec<bool> =
            acknowledged.iter().map(|write| self.may_be_forgotten(write.answered)).collect();
        let repeat = |AcknowledgedWrite { key, again, .. }| {
            contended_request(RequestKind::Change(again), key)
        };
        let outcomes = self.send_all(acknowledged.into_iter().map(repeat).collect());
        for ((request, outcome), may_be_forgotten) in outcomes.into_iter().zip(may_be_forgotten) {
            let is_right = match &outcome {
                ClientOutcome::Answer(Answer::Done(Done::Changed { .. }, _)) => true,
                ClientOutcome::Answer(Answer::Done(Done::Forgotten, _)) => may_be_forgotten,
                _ => false,
            };
            if !is_right {
                let what = format!("not repeated: {request:?} got {outcome:?}");
                self.ledger.report_error(self.now, what);
            }
        }
    }

    /// Checks that conditional writes succeed again, one after another on each key.
    fn check_conditional_writes_succeed(&mut self, retry: RetryState, prefix: &str) {
        let change =
            |condition, action| RequestKind::Change(ContendedWrite { condition, action, retry });
        let steps = [
            change(Condition::Absent, Action::Put),
            change(Condition::Exists, Action::Put),
            RequestKind::Put,
            change(Condition::Any, Action::Delete),
            change(Condition::Any, Action::Add(1)),
        ];
        for what in steps {
            let key = |n| self.ledger.histories.key(format_args!("{prefix}-{n}"));
            let ask = |n| contended_request(what.clone(), key(n));
            for (request, outcome) in self.send_all((0..16).map(ask).collect()) {
                let done = match &outcome {
                    ClientOutcome::Answer(Answer::Done(Done::Changed { .. }, _)) => true,
                    // Replicas may have forgotten idempotency keys with a disk.
                    ClientOutcome::Answer(Answer::Done(Done::Forgotten, _)) => {
                        retry == RetryState::First
                    }
                    ClientOutcome::Answer(Answer::Written(..)) => true,
                    _ => false,
                };
                if !done {
                    let what = format!("not healed: {request:?} got {outcome:?}");
                    self.ledger.report_error(self.now, what);
                }
            }
        }
    }

    fn check_requests_succeed(&mut self) {
        let ask = |what: &RequestKind, key: String| ClientRequest {
            what: what.clone(),
            key: Bytes::from(key),
            quorum: AskedQuorum::default(),
            ttl_ms: 0,
        };
        for what in [RequestKind::Put, RequestKind::Get, RequestKind::Delete] {
            let requests = (0..64).map(|n| ask(&what, format!("healed-{n}")));
            for (request, outcome) in self.send_all(requests.collect()) {
                let done = match &outcome {
                    ClientOutcome::Answer(Answer::Found(found)) => found.is_some(),
                    ClientOutcome::Answer(Answer::Written(..)) => true,
                    _ => false,
                };
                if !done {
                    let what = format!("not healed: {request:?} got {outcome:?}");
                    self.ledger.report_error(self.now, what);
                }
            }
        }
    }

    /// Reads every key from all nodes that may hold the key.
    fn check_all_keys_readable(&mut self) {
        let (widest, usual) = (self.most_copies(), self.topology.default_copies());
        let requests = self.ledger.keys().into_iter().map(|key| {
            let all = if is_contended(&key) { usual } else { widest };
            let quorum = Quorum { ack: all, from: all }.into();
            ClientRequest { what: RequestKind::Get, key, quorum, ttl_ms: 0 }
        });
        for (request, outcome) in self.send_all(requests.collect()) {
            if !matches!(outcome, ClientOutcome::Answer(Answer::Found(_))) {
                let what = format!("not healed: {request:?} got {outcome:?}");
                self.ledger.report_error(self.now, what);
            }
        }
    }

    /// Returns the greatest number of copies with which a request may have written a record.
    fn most_copies(&self) -> u8 {
        let usual = self.topology.default_copies();
        if self.plan.named_quorums > 0 { self.plan.least_nodes() as u8 } else { usual }
    }

    /// Checks for each key that all replicas hold the newest record, and that no other node holds
    /// an older record.
    fn compare_replicas(&mut self, keys: Vec<Bytes>) {
        for key in keys {
            let mut held: BTreeMap<usize, Record> = BTreeMap::new();
            for node in self.members() {
                match self.stored_record(node, &key) {
                    Ok(Some(record)) => {
                        // A replica may have purged the record already, while another replica still
                        // holds it.
                        let process = self.machines[node].process.as_ref();
                        let watermark = process.map_or(0, |p| p.shared.repair.proofs.watermark());
                        let belongs = self.belongs_to(node, &key, &record);
                        if belongs && !PurgeRule::is_purgeable_at(record.view(), watermark) {
                            held.insert(node, record);
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let what = format!("{key:?} can't be read on node {node}: {error:?}");
                        self.ledger.report_error(self.now, what);
                    }
                }
            }
            for record in held.values() {
                self.ledger.check_seen(self.now, &key, record);
            }
            self.compare(&key, &held);
        }
    }

    /// Returns the number of copies of each record that is hidden under a node's record of a key.
    fn hidden_copies(&self, node: usize, key: &Bytes) -> Vec<u8> {
        let Some(process) = self.machines[node].process.as_ref() else { return Vec::new() };
        let mut scan = process.store.engine().snapshot().scan(Space::Data, key, None);
        let Ok(Some((found, _))) = scan.next() else { return Vec::new() };
        if found != key {
            return Vec::new();
        }
        scan.hidden_copies().collect()
    }

    fn compare(&mut self, key: &Bytes, held: &BTreeMap<usize, Record>) {
        let Some(newest) = held.values().max_by_key(|record| record.rank()).cloned() else {
            return;
        };
        let mut order = Vec::new();
        self.topology.replicas(self.topology.partition_of(key), u8::MAX, &mut order);
        let copies_of = |record: &Record| match record.copies() {
            0 => usize::from(self.topology.default_copies()),
            copies => usize::from(copies),
        };
        let mut wrong = Vec::new();
        for (place, node) in order.iter().enumerate() {
            let node = usize::from(node.0);
            let own = held.get(&node);
            // A round may bring a record to a node that is not a replica of it, if the node holds
            // an older record that the new record hides. The new record stays on that node.
            let stays = |own: &Record| {
                self.stands_for_hidden(node, key, own, &self.hidden_copies(node, key))
            };
            if let Some(own) = own
                && place >= copies_of(own)
                && own.rank() != newest.rank()
                && !stays(own)
            {
                wrong.push(format!(
                    "too many: {key:?}: node {node} is none of {}",
                    describe_record(Some(own))
                ));
            }
            let should = place < copies_of(&newest);
            if should && own.is_none_or(|own| own.rank() != newest.rank()) {
                wrong.push(format!(
                    "unequal: {key:?}: node {node} holds {}, the newest is {}",
                    describe_record(own),
                    describe_record(Some(&newest))
                ));
            }
        }
        for what in wrong {
            self.ledger.report_error(self.now, what);
        }
    }

    /// Waits for a moment without a repair round. A new round may begin right after the last round.
    fn wait_for_rounds(&mut self) {
        for _ in 0..MOST_STEPS {
            let running = |machine: &Machine| {
                let process = machine.process.as_ref();
                process.is_some_and(|p| p.shared.repair.rounds.status().current.is_some())
            };
            if !self.machines.iter().any(running) {
                return;
            }
            self.run_until(self.now + 1_000);
        }
        self.ledger.report_error(self.now, "rounds of repair never end".to_owned());
    }

    /// Checks that all requests were answered, and that no node waits for anything.
    fn check_nothing_left(&mut self) {
        let open = self.ledger.open_operations();
        if open > 0 {
            self.ledger.report_error(self.now, format!("{open} requests were never answered"));
        }
        for node in self.members() {
            let Some(process) = &self.machines[node].process else { continue };
            let under_way: usize =
                process.loops.iter().map(|own| own.own.as_ref().map_or(0, |own| own.len())).sum();
            let range_reads = process.range_reads.len();
            let held = process.memory.reserved_bytes();
            if !process.accepted.is_empty() || under_way + range_reads > 0 {
                let what = format!(
                    "node {node} never ended {under_way} requests and {range_reads} ranges, and \
                     never answered {:?}",
                    process.accepted
                );
                self.ledger.report_error(self.now, what);
            }
            if held > 0 {
                let what = format!("node {node} never gave back {held} bytes of long requests");
                self.ledger.report_error(self.now, what);
            }
        }
    }
}
