//! A turn of a loop, as the embedder does it: takes in all that waits, hands it to the coordinator,
//! and does what that wants done. The writes of a turn become one batch, the messages to a node one
//! envelope.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::{
    Answer, Body, ClientId, Demand, Denied, Effect, Event, Filter, Kind, LaneId, Message, NodeId,
    Now, OpId, PageRequest, Record, StoreError, Trouble,
};
use lsm::{Batch, Newer, Space};

use super::lines::{brief, told};
use super::machine::{Input, Outbox, Process, Taken};
use super::{Due, Place, World};
use crate::ledger::{Told, What};
use crate::network::Envelope;
use crate::records::{WriteId, make};
use crate::store::Asker;

/// Events that one turn may cause in its own loop, before it is clear that they never end.
const MAX_EVENTS: usize = 100_000;

impl World {
    pub(super) fn times(&self, node: usize) -> Now {
        let wall = &self.machines[node].wall;
        Now { mono: wall.mono(self.now), wall: wall.wall(self.now) }
    }

    pub(super) fn turn(&mut self, place: Place) {
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        own.turn_is_due = false;
        let inputs = std::mem::take(&mut own.inbox);
        let mut out = Outbox::default();
        for input in inputs {
            match input {
                Input::Event(event) => self.handle(place, event, &mut out),
                Input::Envelope { connection, end, envelope } => {
                    self.open_envelope(place, connection, end, envelope, &mut out);
                }
                Input::Client(number) => self.take_request(place, number, &mut out),
                Input::Dialed { peer, reachable } => {
                    self.take_dialed(place, peer, reachable, &mut out);
                }
                Input::Lost(connection) => self.take_lost(place, connection, &mut out),
            }
        }
        self.end_turn(place, out);
    }

    fn end_turn(&mut self, place: Place, mut out: Outbox) {
        self.flush_writes(place, &mut out);
        for (peer, messages) in std::mem::take(&mut out.sends) {
            self.send(place, peer, messages);
        }
        for (connection, messages) in std::mem::take(&mut out.replies) {
            let Some(to) = self.network.get(connection).map(|found| found.ends[0].node) else {
                continue;
            };
            let Some(sender) = self.sender(place, to) else { return };
            let (times, _) = self.network.send(self.now, connection, 1, sender, messages);
            for at in times {
                self.agenda.put(at, Due::Deliver { connection, end: 0 });
            }
        }
        self.arm(place);
    }

    /// One event, and all that follows from it at once.
    pub(super) fn handle(&mut self, place: Place, event: Event, out: &mut Outbox) {
        out.events.push_back(event);
        let mut effects = Vec::new();
        let now = self.times(place.node);
        let mut count = 0;
        while let Some(event) = out.events.pop_front() {
            count += 1;
            assert!(count < MAX_EVENTS, "events cause events without end");
            let Place { node, index, .. } = place;
            self.journal.line(self.now, format_args!("n{node}.{index} <- {}", brief(&event)));
            let Some(process) = self.process(place) else { return };
            process.loops[place.index].coordinator.handle(now, event, &mut effects);
            for effect in effects.drain(..) {
                self.perform(place, effect, out);
            }
        }
    }

    fn perform(&mut self, place: Place, effect: Effect, out: &mut Outbox) {
        match effect {
            Effect::Read { op, key, most, demand } => {
                if self.random.permille(self.plan.cold_reads) {
                    let at = self.now + self.disk_micros(place.node);
                    self.agenda.put(at, Due::Read { place, op, key, most, demand });
                } else if let Some(process) = self.process(place) {
                    let result = process.store.get(Space::Data, &key);
                    out.events.push_back(read_event(op, result, most));
                }
            }
            Effect::Write { op, key, record, look, .. } => {
                self.write(place, op, vec![(key, record)], look, out);
            }
            Effect::WriteAll { op, items, .. } => self.write(place, op, items, false, out),
            Effect::Page { op, request, demand } => {
                let at = self.now + self.random.between(50, 5_000);
                self.agenda.put(at, Due::Page { place, op, request, demand });
            }
            Effect::Send { peer, message } => {
                out.sends.entry(usize::from(peer.0)).or_default().push(message);
            }
            Effect::Respond { lane, id, reply } => {
                let message = Message { id, body: Body::Reply(reply) };
                out.replies.entry(lane.0).or_default().push(message);
            }
            Effect::Answer { client, answer } => self.answer(place, client, answer),
            Effect::Returned { call, result } => {
                if !self.page_returned(place, call, &result, out) {
                    self.returned(place, call, result);
                }
            }
            Effect::Hint { hint, peer, key, record } => {
                out.hints.push((hint, peer, key, record));
            }
            Effect::KeepMissed { op, node } => self.keep_missed(place, node, Some(op)),
        }
    }

    fn write(
        &mut self,
        place: Place,
        op: OpId,
        items: Vec<(Bytes, Record)>,
        look: bool,
        out: &mut Outbox,
    ) {
        let Some(process) = self.process(place) else { return };
        if let Some(error) = process.store.refusal() {
            out.events.push_back(Event::Written { op, result: Err(error) });
            return;
        }
        let one = |(key, record): &(Bytes, Record)| match process
            .store
            .holds_newer(key, record.rank.stamp)
        {
            Newer::No => None,
            Newer::Held(held) => Some(held.time),
            Newer::WouldBlock => Some(process.shared.newest.load(Ordering::Relaxed)),
        };
        let newer = if look { items.iter().filter_map(one).max() } else { None };
        for (key, record) in &items {
            let record = lsm::Record::parse(record.bytes.clone()).expect("it was parsed before");
            out.batch.record(Space::Data, key, &record).expect("a turn's writes fit a batch");
        }
        out.writes.push((op, newer));
    }

    fn flush_writes(&mut self, place: Place, out: &mut Outbox) {
        if !out.batch.is_empty() {
            let batch = std::mem::take(&mut out.batch);
            let asker = Asker::Loop(place.index, std::mem::take(&mut out.writes));
            self.submit(place.node, place.life, asker, batch);
        }
        self.keep_hints(place, std::mem::take(&mut out.hints));
    }

    pub(super) fn submit(&mut self, node: usize, life: u32, asker: Asker, batch: Batch) {
        let place = Place { node, life, index: 0 };
        let Some(process) = self.process(place) else { return };
        if process.store.submit(asker, batch) && process.store.begin() {
            let at = self.now + self.disk_micros(node);
            self.agenda.put(at, Due::Commit { node, life });
        }
    }

    pub(super) fn disk_micros(&mut self, node: usize) -> u64 {
        let (least, most) = self.plan.disk_micros;
        self.random.spread(least, most) + self.machines[node].slow_disk
    }

    pub(super) fn commit(&mut self, node: usize, life: u32) {
        let place = |index| Place { node, life, index };
        let Some(process) = self.process(place(0)) else { return };
        let (result, askers) = process.store.end();
        for asker in askers {
            match asker {
                Asker::Loop(index, writes) => {
                    if result.is_ok()
                        && let Some(process) = self.process(place(0))
                    {
                        let position = process.store.core().sequence();
                        process.shared.logs.wrote(position);
                    }
                    for (op, newer) in writes {
                        let result = result.clone().map(|()| newer);
                        self.input(place(index), Input::Event(Event::Written { op, result }));
                    }
                }
                Asker::Hints(index, hints) => {
                    self.hints_kept(place(index), &hints, result.is_ok());
                }
                Asker::Clock(bound) => self.bound_written(place(0), bound, result.is_ok()),
                Asker::None => {}
                asker => self.kept(place(0), &asker, &result),
            }
        }
        let Some(process) = self.process(place(0)) else { return };
        if process.store.begin() {
            let at = self.now + self.disk_micros(node);
            self.agenda.put(at, Due::Commit { node, life });
        }
    }

    /// Whether nobody waits any more for what a store is to do.
    fn is_over(&self, place: Place, demand: Demand) -> bool {
        self.times(place.node).mono >= demand.until
    }

    pub(super) fn was_read(
        &mut self,
        place: Place,
        op: OpId,
        key: &Bytes,
        most: u32,
        demand: Demand,
    ) {
        if self.is_over(place, demand) {
            return;
        }
        let Some(process) = self.process(place) else { return };
        let result = process.store.get(Space::Data, key);
        self.input(place, Input::Event(read_event(op, result, most)));
    }

    pub(super) fn was_paged(
        &mut self,
        place: Place,
        op: OpId,
        request: &PageRequest,
        demand: Demand,
    ) {
        if self.is_over(place, demand) {
            return;
        }
        let Some(process) = self.process(place) else { return };
        let result = page(process, request);
        self.input(place, Input::Event(Event::Paged { op, result }));
    }

    fn open_envelope(
        &mut self,
        place: Place,
        connection: u64,
        end: usize,
        envelope: Envelope,
        out: &mut Outbox,
    ) {
        let now = self.times(place.node);
        let skew = self.plan.max_skew_micros;
        let Some(process) = self.process(place) else { return };
        process.shared.clock.merge(envelope.sender.clock, now.wall, skew);
        let Some(found) = self.network.get(connection).filter(|found| found.ends[end].open) else {
            return;
        };
        let peer = NodeId(found.ends[1 - end].node as u16);
        let (disk, life) = envelope.sender.disk;
        let Some(process) = self.process(place) else { return };
        // The connection of a process that another one has followed.
        if !process.shared.logs.heard(peer, disk, life, envelope.sender.position) {
            return;
        }
        for Message { id, body } in envelope.messages {
            let event = match body {
                Body::Request { class, remaining_ms, request } => {
                    let lane = LaneId(connection);
                    Event::Request { lane, id, class, remaining_ms, request }
                }
                Body::Reply(reply) => Event::Reply { peer, id, reply },
            };
            self.handle(place, event, out);
        }
    }

    fn take_request(&mut self, place: Place, number: u64, out: &mut Outbox) {
        let now = self.times(place.node);
        let Some(asked) = self.ledger.asked(number).cloned() else { return };
        if asked.what == What::Scan {
            self.begin_walk(place, number, asked.quorum, out);
            while let Some(event) = out.events.pop_front() {
                self.handle(place, event, out);
            }
            return;
        }
        let (client, copies) = (ClientId(number), asked.quorum.from);
        let copies = if asked.default_copies { 0 } else { copies };
        let pauses = self.machines[place.node].pauses;
        let Some(process) = self.process(place) else { return };
        process.taken.insert(client, Taken { mono: now.mono, pauses });
        let kind = match asked.what {
            What::Get => {
                let event = Event::Get { client, key: asked.key, quorum: asked.quorum };
                self.handle(place, event, out);
                return;
            }
            What::Put | What::Scan => Kind::Value,
            What::Delete => Kind::Tombstone,
        };
        let Ok(stamp) = process.shared.clock.issue(now.wall) else {
            let quorum = asked.quorum;
            let trouble = Trouble::Busy;
            let (acked, unknown, is_write, detail) = (0, false, true, None);
            let (parts, since) = (Vec::new(), now.mono);
            let denied = Denied { trouble, acked, parts, since, quorum, is_write, unknown, detail };
            self.answer(place, client, Answer::Denied(denied));
            return;
        };
        self.ledger.stamped(self.now, WriteId(number), stamp);
        let record = make(&asked.key, WriteId(number), kind, copies, stamp);
        let event = Event::Write { client, key: asked.key, record, quorum: asked.quorum };
        self.handle(place, event, out);
    }

    fn answer(&mut self, place: Place, client: ClientId, answer: Answer) {
        let now = self.times(place.node);
        let pauses = self.machines[place.node].pauses;
        let deadline = self.plan.deadline_micros + LATE_MICROS;
        let Some(process) = self.process(place) else { return };
        let Some(taken) = process.taken.remove(&client) else {
            let what = format!("answered twice: {client:?} is told {answer:?} too");
            self.ledger.accuse(self.now, what);
            return;
        };
        if taken.pauses == pauses && now.mono > taken.mono + deadline {
            let took = now.mono - taken.mono;
            let what = format!("late: {client:?} is answered after {took} us with {answer:?}");
            self.ledger.accuse(self.now, what);
        }
        let line = format_args!("n{} tells {} {}", place.node, client.0, told(&answer));
        self.journal.line(self.now, line);
        let at = self.now + self.random.between(30, 300);
        let told = Told::Answer(answer);
        self.agenda.put(at, Due::Told { number: client.0, told });
    }

    pub(super) fn wake(&mut self, place: Place) {
        let Some(process) = self.process(place) else { return };
        process.loops[place.index].wake_at = None;
        self.input(place, Input::Event(Event::Tick));
    }

    /// Has the loop woken when it wants to be.
    fn arm(&mut self, place: Place) {
        let wall = self.machines[place.node].wall;
        let now = self.now;
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        let Some(wanted) = own.coordinator.next_wake() else { return };
        let at = wall.when(wanted).max(now + 1);
        if own.wake_at.is_none_or(|armed| at < armed) {
            own.wake_at = Some(at);
            self.agenda.put(at, Due::Wake(place));
        }
    }
}

/// How much later than its deadline an answer may be: a wake-up, and a loop's turn.
const LATE_MICROS: u64 = 60_000;

/// Reads a page as the embedder does: which keys are meant is said by their partition.
fn page(process: &Process, request: &PageRequest) -> Result<cluster::Page, StoreError> {
    let view = process.shared.view();
    let topology = &view.topology;
    let own = process.shared.own;
    let mut replicas = Vec::new();
    let wanted = |key: &[u8], record: &Record| {
        let partition = topology.partition_of(key);
        match &request.filter {
            Filter::Chosen { ack, from, preference } => {
                topology.replicas(partition, *from, &mut replicas);
                let asked = preference.iter().filter(|node| replicas.contains(node));
                // With one node asked for each key, a tombstone hides nothing of another's.
                if (*ack == 1 || preference.len() == 1) && record.rank.kind != Kind::Value {
                    return false;
                }
                asked.take(usize::from(*ack)).any(|node| *node == own)
            }
            Filter::HeldBy { node, since, partitions } => {
                let listed = partitions.is_empty() || partitions.contains(&partition);
                if record.rank.stamp.time < *since || !listed {
                    return false;
                }
                let copies = match record.copies {
                    0 => topology.default_copies(),
                    copies => copies,
                };
                topology.replicas(partition, copies, &mut replicas);
                replicas.contains(node)
            }
        }
    };
    let bytes = request.max_bytes as usize;
    let mut page = {
        let (start, end) = (&request.start, request.end.as_deref());
        process.store.page(start, end, request.filter.since(), bytes, wanted)?
    };
    page.sure = process.shared.vouching.sure_of_all();
    Ok(page)
}

/// What a store's read is to the coordinator that wants no record longer than `most`.
fn read_event(op: OpId, result: Result<Option<Record>, StoreError>, most: u32) -> Event {
    match result {
        Ok(Some(record)) if record.bytes.len() > most as usize => {
            Event::Outlined { op, outline: record.outline() }
        }
        result => Event::Read { op, result },
    }
}
