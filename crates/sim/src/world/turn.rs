//! One turn of an event loop. Passes all waiting inputs to [`server::Loop`], and carries out the
//! effects. The writes of a turn become one batch, and the messages for a connection one envelope.

use lsm::{Batch, Engine, Fields, Kind, Lookup, Space};
use protocol::{
    Answer, Body, CallId, ClientId, CompareRequest, ConnectionId, Damage, Demand, Event,
    FailureKind, Message, NodeId, Now, OpId, PageRequest, Reply, Request, RequestFailure,
};
use server::identity::OwnRecords;
use server::{
    Driver, Loop, Outcome, PageResult, StoreRead, TaskEvent, WriteBatcher, WriteError,
    WritePurpose, store_error,
};

use super::journal_lines::{answer_line, event_line};
use super::machine::{AcceptedRequest, Input, Outbox};
use super::{DueEvent, LoopId, World};
use crate::ledger::{ClientOutcome, ClientRequest, RequestKind};
use crate::records::{BRIEF_BYTES, WriteId, make};
use crate::store::BatchOwner;

/// Driver of a loop's turn on a simulated machine.
struct SimDriver<'a> {
    world: &'a mut World,
    place: LoopId,
    out: &'a mut Outbox,
}

impl WriteBatcher for SimDriver<'_> {
    fn now(&self) -> Now {
        self.world.times(self.place.node)
    }

    fn write(
        &mut self,
        _bytes: usize,
        purpose: WritePurpose,
        fill: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome {
        let refusal = self.world.process(self.place).and_then(|process| process.store.refusal());
        if let Some(refusal) = refusal {
            return Err(refusal.into());
        }
        fill(&mut self.out.batch).map_err(WriteError::Store)?;
        self.out.writes.push(purpose);
        Ok(())
    }
}

impl Driver for SimDriver<'_> {
    fn engine(&self) -> &Engine {
        let process = self.world.machines[self.place.node].process.as_ref();
        process.expect("its loop is in a turn").store.engine()
    }

    fn try_get(&mut self, space: Space, key: &[u8]) -> Result<Lookup, lsm::Error> {
        if self.world.random.permille(self.world.plan.cold_reads) {
            return Ok(Lookup::WouldBlock);
        }
        self.engine().get(space, key, lsm::ReadMode::NonBlocking)
    }

    fn read(&mut self, op: OpId, wanted: StoreRead, demand: Demand) {
        let (world, place) = (&mut *self.world, self.place);
        let at = world.now + world.disk_micros(place.node);
        world.agenda.put(at, DueEvent::Read { place, op, wanted, demand });
    }

    fn page(&mut self, op: OpId, request: PageRequest, demand: Demand) {
        let (world, place) = (&mut *self.world, self.place);
        let at = world.now + world.random.between(50, 5_000);
        world.agenda.put(at, DueEvent::Page { place, op, request, demand });
    }

    fn compare(&mut self, op: OpId, request: CompareRequest, demand: Demand) {
        let (world, place) = (&mut *self.world, self.place);
        let at = world.now + world.random.between(50, 5_000);
        world.agenda.put(at, DueEvent::Compare { place, op, request, demand });
    }

    fn discard(&mut self, op: OpId, ranges: Vec<Damage>) {
        let (world, place) = (&mut *self.world, self.place);
        let at = world.now + world.disk_micros(place.node);
        world.agenda.put(at, DueEvent::Discard { place, op, ranges });
    }

    fn keep(&mut self, op: OpId, batch: Batch, keeps: OwnRecords) {
        let owner = BatchOwner::Kept(self.place.index, op, keeps);
        self.world.submit(self.place, owner, batch);
    }

    fn send(&mut self, peer: NodeId, message: Message) {
        let most = match &message.body {
            Body::Request { request, .. } => request.most(),
            Body::Reply(_) => None,
        };
        if most.is_some_and(|most| most > BRIEF_BYTES)
            && let Some(process) = self.world.process(self.place)
        {
            process.loops[self.place.index].fetching.insert((peer, message.id));
        }
        self.world.send(self.place, usize::from(peer.0), message);
    }

    fn respond(&mut self, connection: ConnectionId, id: u64, reply: Reply) {
        self.world.respond(self.place, connection.0, id, reply);
    }

    fn answer(&mut self, client: ClientId, answer: Answer) {
        self.world.answer(self.place, client, answer);
    }

    fn return_call(&mut self, call: CallId, result: Result<Reply, FailureKind>) {
        let result = self.world.page_returned(self.place, call, result, self.out);
        if let Some(result) = result {
            self.world.return_to_task(self.place, call, result);
        }
    }

    fn send_to_task(&mut self, event: TaskEvent) {
        self.world.send_to_task(self.place, event);
    }

    fn note(&mut self, event: &Event) {
        if let Event::Request { request: Request::Write { key, record }, .. } = event {
            self.world.ledger.histories.record_sent_version(key, record);
        }
        let LoopId { node, index, .. } = self.place;
        let now = self.world.now;
        self.world.journal.line(now, format_args!("n{node}.{index} <- {}", event_line(event)));
    }
}

impl World {
    pub(super) fn times(&self, node: usize) -> Now {
        let wall = &self.machines[node].wall;
        Now { mono: wall.mono(self.now), wall: wall.wall(self.now) }
    }

    pub(super) fn turn(&mut self, place: LoopId) {
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        own.turn_is_due = false;
        let inputs = std::mem::take(&mut own.inbox);
        let mut out = Outbox::default();
        for input in inputs {
            self.handle_input(place, input, &mut out);
        }
        self.end_turn(place, out);
    }

    fn handle_input(&mut self, place: LoopId, input: Input, out: &mut Outbox) {
        match input {
            Input::Event(event) => self.handle(place, event, out),
            Input::Read(op, wanted, result) => {
                self.run_with_range_events(place, out, |own, driver| {
                    own.was_read(driver, op, &wanted, result)
                });
            }
            Input::Written(purpose, outcome) => {
                if let (WritePurpose::Hint(hint), Ok(())) = (&purpose, &outcome) {
                    self.record_hint(place.node, hint);
                }
                self.run_with_range_events(place, out, |own, driver| {
                    own.on_write_result(driver, purpose, &outcome)
                });
            }
            Input::Kept(op, keeps, result) => {
                let before = self.watermark(place.node);
                self.run_with_range_events(place, out, |own, driver| {
                    own.on_own_record_stored(driver, op, &keeps, result)
                });
                self.check_layout(place.node);
                let watermark = self.watermark(place.node);
                if watermark > before {
                    self.record_proof(watermark);
                }
            }
            Input::Wake => self.run_with_range_events(place, out, |own, driver| own.wake(driver)),
            Input::Busy(call) => {
                self.handle_page_result(place, call, PageResult::Busy, out);
                self.run_with_range_events(place, out, |_, _| {});
            }
            Input::Ready { connection, end } => self.handle_ready(place, connection, end, out),
            Input::Client(number) => self.handle_request(place, number, out),
            Input::Dialed { peer, attempt, reachable } => {
                self.handle_dialed(place, peer, attempt, reachable, out);
            }
            Input::Lost(connection) => self.close_endpoint(place, connection, false, out),
            Input::Ping => self.send_pings(place, out),
            Input::Goodbye => self.send_goodbyes(place),
        }
    }

    fn end_turn(&mut self, place: LoopId, mut out: Outbox) {
        self.record_wall_time(place);
        self.flush_writes(place, &mut out);
        self.flush_all(place);
        self.schedule_wake(place);
    }

    /// Handles one event, and the events that ranges send to the loop because of it.
    pub(super) fn handle(&mut self, place: LoopId, event: Event, out: &mut Outbox) {
        self.run_with_range_events(place, out, |own, driver| own.handle(driver, event));
    }

    /// Runs `work` on a loop, then handles the events that ranges send to the loop because of
    /// `work`.
    fn run_with_range_events(
        &mut self,
        place: LoopId,
        out: &mut Outbox,
        work: impl FnOnce(&mut Loop, &mut SimDriver<'_>),
    ) {
        let Some(process) = self.process(place) else { return };
        let mut own = process.loops[place.index].own.take().expect("one thing at a time");
        let driver = &mut SimDriver { world: self, place, out };
        work(&mut own, driver);
        while let Some(event) = driver.out.events.pop_front() {
            own.handle(driver, event);
        }
        if let Some(process) = self.process(place) {
            process.loops[place.index].own = Some(own);
        }
    }

    fn flush_writes(&mut self, place: LoopId, out: &mut Outbox) {
        if !out.batch.is_empty() {
            let batch = std::mem::take(&mut out.batch);
            let owner = BatchOwner::Loop(place.index, std::mem::take(&mut out.writes));
            self.submit(place, owner, batch);
        }
    }

    pub(super) fn submit(&mut self, place: LoopId, owner: BatchOwner, batch: Batch) {
        let LoopId { node, life, .. } = place;
        let Some(process) = self.process(place) else { return };
        if process.store.submit(owner, batch) && process.store.begin() {
            let at = self.now + self.disk_micros(node);
            self.agenda.put(at, DueEvent::Commit { node, life });
        }
    }

    pub(super) fn disk_micros(&mut self, node: usize) -> u64 {
        let (least, most) = self.plan.disk_micros;
        self.random.spread(least, most) + self.machines[node].disk_delay_micros
    }

    pub(super) fn commit(&mut self, node: usize, life: u32) {
        let place = |index| LoopId { node, life, index };
        let Some(process) = self.process(place(0)) else { return };
        let (result, owners) = process.store.end();
        for owner in owners {
            let result = result.clone();
            match owner {
                BatchOwner::Loop(index, writes) => {
                    for purpose in writes {
                        let outcome = result.clone().map_err(WriteError::Store);
                        self.input(place(index), Input::Written(purpose, outcome));
                    }
                }
                BatchOwner::Kept(index, op, keeps) => {
                    self.input(place(index), Input::Kept(op, keeps, result));
                }
                BatchOwner::Task(keeps) => {
                    if let (OwnRecords::ClusterId(id), Ok(())) = (&keeps, &result) {
                        self.check_cluster_id(node, Some(*id));
                    }
                    let event = TaskEvent::Kept(keeps, result);
                    self.agenda.put(self.now + 1, DueEvent::Node { node, life, event });
                }
                BatchOwner::Clock(bound) => self.on_bound_written(place(0), bound, result),
            }
        }
        let Some(process) = self.process(place(0)) else { return };
        if process.store.begin() {
            let at = self.now + self.disk_micros(node);
            self.agenda.put(at, DueEvent::Commit { node, life });
        }
    }

    /// Returns true if a request for which the store works has reached its deadline.
    fn is_past_deadline(&self, place: LoopId, demand: Demand) -> bool {
        self.times(place.node).mono >= demand.until
    }

    pub(super) fn was_read(&mut self, place: LoopId, op: OpId, wanted: StoreRead, demand: Demand) {
        if self.is_past_deadline(place, demand) {
            return;
        }
        let Some(process) = self.process(place) else { return };
        let (space, key) = wanted.place();
        let result = process.store.engine().read(space, key);
        let result = result.map_err(|error| store_error(&error));
        self.input(place, Input::Read(op, wanted, result));
    }

    pub(super) fn finish_page_read(
        &mut self,
        place: LoopId,
        op: OpId,
        request: &PageRequest,
        demand: Demand,
    ) {
        if self.is_past_deadline(place, demand) {
            return;
        }
        let Some(process) = self.process(place) else { return };
        let result = process.pages.read(process.store.engine(), &process.shared, op, request);
        self.input(place, Input::Event(Event::PageRead { op, result }));
    }

    pub(super) fn finish_comparison(
        &mut self,
        place: LoopId,
        op: OpId,
        request: &CompareRequest,
        demand: Demand,
    ) {
        if self.is_past_deadline(place, demand) {
            return;
        }
        let Some(process) = self.process(place) else { return };
        let result = server::compare(process.store.engine(), &process.shared, request);
        self.input(place, Input::Event(Event::Compared { op, result }));
    }

    pub(super) fn finish_discard(&mut self, place: LoopId, op: OpId, ranges: &[Damage]) {
        if self.process(place).is_none() {
            return;
        }
        self.ledger.record_discarded(ranges);
        let Some(process) = self.process(place) else { return };
        let result = server::discard(process.store.engine(), ranges);
        self.input(place, Input::Event(Event::Written { op, result }));
    }

    fn handle_request(&mut self, place: LoopId, number: u64, out: &mut Outbox) {
        let now = self.times(place.node);
        let Some(asked) = self.ledger.client_request(number).cloned() else { return };
        let expiry_ms = self.expiry_ms(place, number, &asked);
        if asked.what == RequestKind::Scan {
            self.begin_range(place, number, asked.quorum, out);
            return self.run_with_range_events(place, out, |_, _| {});
        }
        let (client, copies) = (ClientId(number), asked.quorum.from.unwrap_or(0));
        let pauses = self.machines[place.node].pauses;
        let was_removed = self.knows_that_it_was_removed(place.node);
        let Some(process) = self.process(place) else { return };
        process.accepted.insert(client, AcceptedRequest { mono: now.mono, pauses, was_removed });
        let kind = match asked.what {
            RequestKind::Get => {
                let ClientRequest { key, quorum, .. } = asked;
                let event = Event::Get { client, key: key.clone(), quorum };
                return self.run_with_range_events(place, out, |own, driver| {
                    match own.get_alone(driver, &key, quorum) {
                        Some(answer) => {
                            driver.note(&event);
                            driver.answer(client, answer);
                        }
                        None => own.handle(driver, event),
                    }
                });
            }
            RequestKind::Change(wanted) => {
                let ClientRequest { key, quorum, .. } = asked;
                let (id, conditional) =
                    (wanted.idempotency_id(number), wanted.into_conditional(number, expiry_ms));
                let event = Event::Change { client, key, conditional, quorum, id };
                return self.handle(place, event, out);
            }
            RequestKind::Put | RequestKind::Scan => Kind::Value,
            RequestKind::Delete => Kind::Tombstone,
        };
        let Ok(version) = process.clock.issue(now) else {
            let quorum =
                process.shared.membership.views.with(|view| asked.quorum.resolve(&view.topology));
            let failure = FailureKind::Busy;
            let (acked, unknown, is_write, detail) = (0, false, true, None);
            let (parts, since) = (Vec::new(), now.mono);
            let failed =
                RequestFailure { failure, acked, parts, since, quorum, is_write, unknown, detail };
            self.answer(place, client, Answer::Failed(failed));
            return;
        };
        let fields = Fields { copies, expiry_ms, ..Fields::new(kind, version) };
        let record = make(&asked.key, WriteId(number), fields);
        self.ledger.record_version(self.now, WriteId(number), record.version());
        let ClientRequest { key, quorum, .. } = asked;
        self.run_with_range_events(place, out, |own, driver| {
            own.write(driver, client, (key, record), quorum)
        });
    }

    fn answer(&mut self, place: LoopId, client: ClientId, answer: Answer) {
        let now = self.times(place.node);
        let pauses = self.machines[place.node].pauses;
        let deadline = self.plan.deadline_micros + LATE_MICROS;
        let Some(process) = self.process(place) else { return };
        let Some(accepted) = process.accepted.remove(&client) else {
            let what = format!("answered twice: {client:?} got {answer:?} too");
            self.ledger.report_error(self.now, what);
            return;
        };
        if accepted.pauses == pauses && now.mono > accepted.mono + deadline {
            let took = now.mono - accepted.mono;
            let what = format!("late: {client:?} is answered after {took} us with {answer:?}");
            self.ledger.report_error(self.now, what);
        }
        if accepted.was_removed && !matches!(answer, Answer::Failed(_)) {
            let what =
                format!("node {} was removed, was asked then, and answers {answer:?}", place.node);
            self.ledger.report_error(self.now, what);
        }
        let line = format_args!("n{} answers {} {}", place.node, client.0, answer_line(&answer));
        self.journal.line(self.now, line);
        let at = self.now + self.random.between(30, 300);
        let outcome = ClientOutcome::Answer(answer);
        self.agenda.put(at, DueEvent::ClientOutcome { number: client.0, outcome });
    }

    pub(super) fn wake(&mut self, place: LoopId) {
        let Some(process) = self.process(place) else { return };
        process.loops[place.index].wake_at = None;
        self.input(place, Input::Wake);
    }

    /// Schedules the loop's next wake-up.
    fn schedule_wake(&mut self, place: LoopId) {
        let wall = self.machines[place.node].wall;
        let now = self.now;
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        let wanted = own.own.as_mut().and_then(|own| own.next_wake());
        let Some(wanted) = wanted else { return };
        let at = wall.true_time_of(wanted).max(now + 1);
        if own.wake_at.is_none_or(|armed| at < armed) {
            own.wake_at = Some(at);
            self.agenda.put(at, DueEvent::Wake(place));
        }
    }
}

/// Maximum number of microseconds by which an answer may exceed its deadline: the delay of a
/// wake-up, and of a turn.
const LATE_MICROS: u64 = 60_000;
