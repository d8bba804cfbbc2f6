//! The loop: send what is due, read what came, sleep until the next of either.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::ClockId;

use crate::connection::{Connection, Received, Request, State};
use crate::keys::Numbers;
use crate::outcome::{Errors, Latencies, Outcome, Statuses};
use crate::plan::{Error, Pace, Plan, slot_at};

/// How late, in nanoseconds, the kernel may wake this thread. Its default of 50 µs would be part of
/// every latency; waking for each slot of a fast plan alone would cost the CPU that sends.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::new(10_000).unwrap();

/// How long connecting may take at the start.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a broken connection waits before it connects again, in nanoseconds.
const RETRY_AFTER: u64 = 10_000_000;

/// Moments at which the backlog is looked at.
const BACKLOG_SAMPLES: u64 = 20;

/// Bytes read at once: a few responses' worth; larger values take several reads.
const READ_LEN: usize = 64 << 10;

/// Random bytes that values are cut from, beyond the length of one.
const VALUE_POOL: usize = 64 << 10;

const MAX_EVENTS: usize = 1024;

/// Sends requests by `plan` from this thread and says what came of them. Returns by
/// `plan.duration` + `plan.drain`, and a connecting time of at most 5 s before.
pub fn run(plan: &Plan) -> Result<Outcome, Error> {
    plan.check()?;
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK)).map_err(system("timer slack"))?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system("epoll"))?;
    let mut runner = Runner::new(plan, epoll);
    runner.connect()?;
    runner.start = Instant::now();
    let cpu = thread_cpu();
    runner.go()?;
    runner.outcome.client_cpu = thread_cpu().saturating_sub(cpu);
    Ok(runner.finish())
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |cause| Error::System { what, cause: cause.into() }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

struct Runner<'a> {
    plan: &'a Plan,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    start: Instant,
    /// End of the plan, in nanoseconds from the start.
    end: u64,
    /// The first slot that is not due yet; in a closed loop, the number of requests sent.
    due: u64,
    sent: u64,
    broken: usize,
    waiting: usize,
    numbers: Numbers,
    random: fastrand::Rng,
    values: Vec<u8>,
    heads: Heads,
    buffer: Box<[u8]>,
    outcome: Outcome,
}

/// The parts of requests that stay the same.
struct Heads {
    get: Vec<u8>,
    put: Vec<u8>,
    get_end: Vec<u8>,
    put_end: Vec<u8>,
}

impl Heads {
    fn new(plan: &Plan) -> Self {
        let end = format!(" HTTP/1.1\r\nHost: {}\r\n", plan.target);
        Self {
            get: format!("GET {}", plan.path).into_bytes(),
            put: format!("PUT {}", plan.path).into_bytes(),
            get_end: format!("{end}\r\n").into_bytes(),
            put_end: format!("{end}Content-Length: {}\r\n\r\n", plan.value_len).into_bytes(),
        }
    }
}

impl<'a> Runner<'a> {
    fn new(plan: &'a Plan, epoll: OwnedFd) -> Self {
        let mut random = fastrand::Rng::with_seed(plan.seed);
        let mut values = vec![0; VALUE_POOL + plan.value_len];
        random.fill(&mut values);
        Self {
            plan,
            epoll,
            connections: (0..plan.connections).map(|i| Connection::new(i as u64)).collect(),
            start: Instant::now(),
            end: plan.duration.as_nanos() as u64,
            due: 0,
            sent: 0,
            broken: plan.connections,
            waiting: 0,
            numbers: Numbers::new(&plan.keys),
            random,
            values,
            heads: Heads::new(plan),
            buffer: vec![0; READ_LEN].into_boxed_slice(),
            outcome: Outcome {
                get: Latencies::new(),
                put: Latencies::new(),
                statuses: Statuses::default(),
                errors: Errors::default(),
                planned: 0,
                unfinished: 0,
                in_time: 0,
                duration: plan.duration,
                client_cpu: Duration::ZERO,
                elapsed: Duration::ZERO,
                backlog: Vec::new(),
                rate: match plan.pace {
                    Pace::Open(rate) => Some(rate),
                    Pace::Closed => None,
                },
            },
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Opens all connections and waits for them.
    fn connect(&mut self) -> Result<(), Error> {
        let failed = |cause| Error::Connect {
            target: self.plan.target,
            connections: self.plan.connections,
            cause,
        };
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let target = target(self.plan, index);
            connection.open(target, &self.epoll, index).map_err(failed)?;
        }
        let deadline = self.start + CONNECT_LIMIT;
        let mut events = Vec::with_capacity(MAX_EVENTS);
        while self.broken > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            wait(&self.epoll, &mut events, left)?;
            for event in &events {
                let connection = &mut self.connections[event.data.u64() as usize];
                if matches!(connection.state, State::Connecting) {
                    connection.finish_connect().map_err(failed)?;
                    connection.state = State::Idle;
                    self.broken -= 1;
                }
            }
        }
        Ok(())
    }

    fn go(&mut self) -> Result<(), Error> {
        let last = self.end.saturating_add(self.plan.drain.as_nanos() as u64);
        let mut events = Vec::with_capacity(MAX_EVENTS);
        if self.plan.pace == Pace::Closed {
            for index in 0..self.connections.len() {
                self.next(index);
            }
        }
        loop {
            let now = self.now();
            let wake = match self.plan.pace {
                Pace::Open(rate) => self.send_due(now, rate),
                Pace::Closed => self.end,
            };
            self.sample_backlog(now);
            let planned_all = now >= self.end || self.due >= self.plan.limit;
            if now >= last || (planned_all && self.waiting == 0 && self.queued() == 0) {
                return Ok(());
            }
            let mut wake = if planned_all { last } else { wake.min(self.end) };
            if self.broken > 0 {
                self.reopen(now);
                wake = wake.min(now + RETRY_AFTER);
            }
            wait(&self.epoll, &mut events, Duration::from_nanos(wake.saturating_sub(now)))?;
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                self.ready(data.u64() as usize, flags.intersects(end));
            }
        }
    }

    /// Requests due but not sent.
    fn queued(&self) -> u64 {
        self.due - self.sent
    }

    /// Sends all slots that are due on free connections; returns when the next is due.
    fn send_due(&mut self, now: u64, rate: u64) -> u64 {
        let count = self.connections.len() as u64;
        while self.due < self.plan.limit {
            let at = slot_at(self.due, rate);
            if at >= self.end || at > now {
                return at;
            }
            let index = (self.due % count) as usize;
            self.due += 1;
            self.next(index);
        }
        u64::MAX
    }

    /// Sends the connection's next request if there is one and it can.
    fn next(&mut self, index: usize) {
        let connection = &self.connections[index];
        if !matches!(connection.state, State::Idle) {
            return;
        }
        let written = self.now();
        let intended = match self.plan.pace {
            Pace::Open(rate) if connection.slot < self.due => slot_at(connection.slot, rate),
            Pace::Open(_) => return,
            Pace::Closed if written >= self.end || self.due >= self.plan.limit => return,
            Pace::Closed => {
                self.due += 1;
                written
            }
        };
        let put = self.fill(index);
        let stride = self.connections.len() as u64;
        let connection = &mut self.connections[index];
        connection.slot += stride;
        self.sent += 1;
        let late = written.saturating_sub(intended.max(connection.free_since));
        self.latencies(put).late.saturating_record(late);
        let connection = &mut self.connections[index];
        self.waiting += 1;
        if connection.send(Request { intended, written, put }).is_err() {
            self.outcome.errors.write += 1;
            self.give_up(index);
        }
    }

    /// Writes the next request into the connection's buffer; says whether it is a `PUT`.
    fn fill(&mut self, index: usize) -> bool {
        let put = match self.plan.put_percent {
            0 => false,
            100 => true,
            percent => self.random.u8(..100) < percent,
        };
        let number = self.numbers.next(&mut self.random);
        let out = &mut self.connections[index].out;
        out.clear();
        if let Some(write) = self.plan.write {
            write(put, number, out);
            return put;
        }
        out.extend_from_slice(if put { &self.heads.put } else { &self.heads.get });
        self.plan.keys.write(number, out);
        if put {
            out.extend_from_slice(&self.heads.put_end);
            let at = self.random.usize(..VALUE_POOL);
            out.extend_from_slice(&self.values[at..at + self.plan.value_len]);
        } else {
            out.extend_from_slice(&self.heads.get_end);
        }
        put
    }

    fn latencies(&mut self, put: bool) -> &mut Latencies {
        if put { &mut self.outcome.put } else { &mut self.outcome.get }
    }

    fn ready(&mut self, index: usize, ended: bool) {
        let connection = &mut self.connections[index];
        match connection.state {
            State::Connecting => {
                if connection.finish_connect().is_ok() {
                    connection.state = State::Idle;
                    self.broken -= 1;
                    let now = self.now();
                    self.connections[index].free_since = now;
                    self.next(index);
                } else {
                    self.outcome.errors.connect += 1;
                    let now = self.now();
                    self.connections[index].close(now + RETRY_AFTER);
                }
            }
            State::Waiting(request) => {
                let sent = connection.flush();
                match connection.receive(&mut self.buffer, ended) {
                    Received::Partly if sent.is_ok() => {}
                    Received::Partly | Received::Broken => {
                        self.outcome.errors.read += 1;
                        self.give_up(index);
                    }
                    Received::Whole { status, usable } => {
                        self.answered(index, request, status, usable);
                    }
                }
            }
            // Nothing is awaited: the server closed, or sent what nobody asked for.
            State::Idle => {
                if !matches!(connection.receive(&mut self.buffer, ended), Received::Partly) {
                    connection.close(0);
                    self.broken += 1;
                }
            }
            State::Closed(_) => {}
        }
    }

    fn answered(&mut self, index: usize, request: Request, status: u16, usable: bool) {
        let now = self.now();
        self.waiting -= 1;
        let Request { intended, written, put } = request;
        let latencies = self.latencies(put);
        latencies.intended.saturating_record(now - intended);
        latencies.written.saturating_record(now - written);
        self.outcome.statuses.count(status);
        self.outcome.in_time += u64::from(now <= self.end);
        if now - written > self.plan.timeout.as_nanos() as u64 {
            self.outcome.errors.timeout += 1;
        }
        let connection = &mut self.connections[index];
        connection.free_since = now;
        if usable {
            connection.state = State::Idle;
            self.next(index);
        } else {
            connection.close(0);
            self.broken += 1;
        }
    }

    /// The awaited answer will not come.
    fn give_up(&mut self, index: usize) {
        self.waiting -= 1;
        self.broken += 1;
        let now = self.now();
        self.connections[index].close(now + RETRY_AFTER);
    }

    fn reopen(&mut self, now: u64) {
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if matches!(connection.state, State::Closed(at) if at <= now)
                && connection.open(target(self.plan, index), &self.epoll, index).is_err()
            {
                self.outcome.errors.connect += 1;
                connection.close(now + RETRY_AFTER);
            }
        }
    }

    fn sample_backlog(&mut self, now: u64) {
        let taken = self.outcome.backlog.len() as u64;
        if taken < BACKLOG_SAMPLES && now >= self.end / BACKLOG_SAMPLES * (taken + 1) {
            let queued = self.queued();
            self.outcome.backlog.push(queued);
        }
    }

    /// Counts what was not answered as having taken at least until now.
    fn finish(mut self) -> Outcome {
        let now = self.now();
        self.outcome.elapsed = Duration::from_nanos(now);
        self.outcome.planned = self.due;
        let stride = self.connections.len() as u64;
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            let first = connection.slot;
            if let State::Waiting(request) = connection.state {
                let waited = now.saturating_sub(request.intended);
                self.latencies(request.put).intended.saturating_record(waited);
                self.outcome.unfinished += 1;
            }
            let Pace::Open(rate) = self.plan.pace else { continue };
            let put = self.plan.put_percent == 100;
            for slot in (first..self.due).step_by(stride as usize) {
                let waited = now.saturating_sub(slot_at(slot, rate));
                self.latencies(put).intended.saturating_record(waited);
                self.outcome.unfinished += 1;
            }
        }
        self.outcome
    }
}

/// The server that a connection is to.
fn target(plan: &Plan, index: usize) -> SocketAddr {
    match index % (plan.others.len() + 1) {
        0 => plan.target,
        other => plan.others[other - 1],
    }
}

fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, timeout: Duration) -> Result<(), Error> {
    events.clear();
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match epoll::wait(epoll, spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(system("epoll wait")(cause)),
    }
}
