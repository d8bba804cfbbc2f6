//! The loop of one thread: sends due requests, reads answers, and sleeps until a request is due or
//! an answer arrives.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::ClockId;

use crate::connection::{Connection, ConnectionState, Inbox, ReceiveProgress, Request};
use crate::error::Error;
use crate::plan::{Pace, Plan};
use crate::publish::Publisher;
use crate::request::{Method, RequestBuilder};
use crate::schedule::{Schedule, Slot, Step, connections_of, nanos};
use crate::script::Script;
use crate::tally::{Statuses, Tally};

/// Maximum number of nanoseconds by which the kernel may wake this thread late. The kernel's
/// default of 50 µs would be part of every latency. An exact wake-up for each slot of a fast plan
/// would use up the CPU that the thread needs to send.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::new(10_000).unwrap();

/// Time limit for connecting at the start.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Pause before a broken connection reconnects, in nanoseconds.
const RETRY_AFTER: u64 = 10_000_000;

/// Longest sleep of a thread, in nanoseconds. After each sleep the thread checks whether the run
/// must end, and samples the rate of answers.
const TICK: u64 = 100_000_000;

/// Number of backlog samples.
const BACKLOG_SAMPLES: u64 = 20;

/// Maximum number of bytes of one read, enough for a few answers. Larger values take several reads.
const READ_LEN: usize = 64 << 10;

/// Maximum number of events of one wait. Between two waits, the thread sends requests that have
/// become due.
const MAX_EVENTS: usize = 256;

/// Highest rate of answers per second of one thread that the histogram can record.
const MAX_RATE: u64 = 1_000_000_000;

/// Maximum number of samples for due requests that were never sent. In a longer backlog, a group of
/// consecutive requests counts with the latency of its first request.
const MAX_UNSENT: u64 = 1_000_000;

/// The results of a thread, besides its tally.
pub(crate) struct WorkerEnd {
    pub(crate) planned: u64,
    pub(crate) backlog: Vec<u64>,
    pub(crate) cpu: Duration,
    /// Share of the plan's time on a CPU.
    pub(crate) busy: f64,
    /// Nanoseconds from the end of the warm-up to the end of the loop.
    pub(crate) elapsed: u64,
    pub(crate) rates: Histogram<u64>,
}

/// One thread of a run.
pub(crate) struct Worker<'a> {
    plan: &'a Plan,
    stops: StopFlags<'a>,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    schedule: Schedule,
    builder: RequestBuilder<'a>,
    start: Instant,
    warmup: u64,
    timeout: u64,
    /// Due time of the next slot; `u64::MAX` if unknown.
    next_due: u64,
    waiting: usize,
    /// Times at which closed connections are reopened or delayed connections continue, each with
    /// the index of its connection.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Free connections, for slots that belong to no connection. The connection that has been free
    /// for longest comes first.
    free: VecDeque<usize>,
    inbox: Inbox,
    /// Number of pipelined requests.
    batch: u32,
    /// True if the script has a `response`, which receives the answers.
    wants_response: bool,
    /// True if the script delays requests.
    delays: bool,
    /// Time at which the script stopped its thread.
    stopped: Option<u64>,
    failure: Option<Error>,
    tally: Box<Tally>,
    publisher: Publisher,
    backlog: Vec<u64>,
    /// CPU time at the end of the warm-up, and at the end of the plan.
    cpu: [Option<Duration>; 2],
    answered: u64,
    rates: Rates,
}

/// Reasons to end a run early.
#[derive(Clone, Copy)]
pub(crate) struct StopFlags<'a> {
    /// The caller asks to end the run.
    pub(crate) requested: &'a AtomicBool,
    /// Another thread of the run has failed.
    pub(crate) failed: &'a AtomicBool,
}

impl StopFlags<'_> {
    fn now(self) -> bool {
        self.requested.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}

/// Sampled rates of answers per second.
struct Rates {
    at: u64,
    answered: u64,
    histogram: Histogram<u64>,
}

impl<'a> Worker<'a> {
    /// Creates thread `worker` of the plan. `addresses` are those addresses of each target that can
    /// be reached.
    pub(crate) fn new(
        plan: &'a Plan,
        stops: StopFlags<'a>,
        worker: usize,
        addresses: &[Vec<SocketAddr>],
        publisher: Publisher,
        script: Option<&'a mut Script>,
    ) -> Result<Self, Error> {
        let owned = connections_of(plan, worker);
        let indexes: Vec<usize> = owned.iter().map(|&(index, _)| index).collect();
        let wants_response = script.as_ref().is_some_and(|script| script.wants_response());
        let batch = script.as_ref().map_or(1, |script| script.pipeline() as u32);
        let chosen = script.as_ref().and_then(|script| script.chosen_address());
        let connections = owned.iter().map(|&(index, target)| {
            let of_target = &addresses[target];
            let dealt = of_target[index / plan.targets.len() % of_target.len()];
            let address = chosen.unwrap_or(dealt);
            Connection::new(target, address, plan.verify || wants_response)
        });
        Ok(Self {
            plan,
            stops,
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(Error::system("epoll"))?,
            connections: connections.collect(),
            schedule: Schedule::new(plan, worker, &indexes, batch.into()),
            delays: script.as_ref().is_some_and(|script| script.wants_delay()),
            builder: RequestBuilder::new(plan, worker, script),
            start: Instant::now(),
            warmup: nanos(plan.warmup),
            timeout: nanos(plan.timeout),
            next_due: 0,
            waiting: 0,
            timers: BinaryHeap::new(),
            free: VecDeque::new(),
            inbox: Inbox::new(READ_LEN),
            batch,
            wants_response,
            stopped: None,
            failure: None,
            tally: Box::default(),
            publisher,
            backlog: Vec::new(),
            cpu: [None; 2],
            answered: 0,
            rates: Rates::new(),
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Opens all connections, and waits until they are established.
    pub(crate) fn connect(&mut self) -> Result<(), Error> {
        rustix::thread::set_current_timer_slack(Some(TIMER_SLACK))
            .map_err(Error::system("timer slack"))?;
        let connections = self.plan.all_connections();
        let failed = |target, cause| Error::Connect { target, connections, cause };
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let tls = self.plan.targets[connection.target].tls.as_ref();
            let opened = connection.open(&self.epoll, index, tls);
            opened.map_err(|cause| failed(connection.address, cause))?;
        }
        let deadline = Instant::now() + CONNECT_LIMIT;
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let mut open = 0;
        while open < self.connections.len() && !self.stops.now() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let late = |c: &&Connection| matches!(c.state, ConnectionState::Connecting);
                let late = self.connections.iter().find(late).unwrap_or(&self.connections[0]);
                return Err(failed(late.address, io::ErrorKind::TimedOut.into()));
            }
            wait(&self.epoll, &mut events, left.as_nanos().min(TICK.into()) as u64)?;
            for event in &events {
                let connection = &mut self.connections[event.data.u64() as usize];
                if matches!(connection.state, ConnectionState::Connecting) {
                    let tls = &self.plan.targets[connection.target].tls;
                    let connected = connection.finish_connect().map_err(|cause| match tls {
                        Some(tls) => Error::tls(connection.address, tls, &cause),
                        None => failed(connection.address, cause),
                    })?;
                    if connected {
                        connection.state = ConnectionState::Idle;
                        open += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries out the plan, beginning at `start`.
    pub(crate) fn run(mut self, start: Instant) -> Result<WorkerEnd, Error> {
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        self.start = start;
        if self.stops.now() {
            // Some connections may not be established, and nothing was sent.
            self.schedule.stop(0);
            return Ok(self.finish());
        }
        if self.builder.script().is_some_and(|script| script.is_stopped()) {
            self.stopped = Some(0);
            self.schedule.stop(0);
        }
        let mut events = Vec::with_capacity(MAX_EVENTS);
        for index in 0..self.connections.len() {
            let now = self.now();
            self.free(index, now);
        }
        loop {
            let now = self.now();
            self.send_due(now);
            self.publish_and_sample(now);
            if let Some(failure) = self.failure {
                self.stops.failed.store(true, Ordering::Relaxed);
                return Err(failure);
            }
            if self.stops.now() {
                self.schedule.stop(now);
                break;
            }
            let over = self.schedule.is_over(now);
            let last = self.schedule.end().saturating_add(nanos(self.plan.drain));
            let done = self.stopped.is_some() || self.schedule.backlog() == 0;
            if now >= last || (over && self.waiting == 0 && done) {
                break;
            }
            let wake = if over { last } else { self.next_due.min(self.schedule.end()) };
            let wake = self.run_timers(now, wake).min(self.publisher.next()).min(now + TICK);
            // The clock is read again, because sending has taken time.
            let sleep = wake.saturating_sub(self.now());
            wait(&self.epoll, &mut events, sleep)?;
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                let now = self.ready(data.u64() as usize, flags.intersects(end));
                if now >= self.next_due {
                    self.send_due(now);
                }
            }
        }
        Ok(self.finish())
    }

    /// Sends the requests of all due slots that have a free connection.
    fn send_due(&mut self, now: u64) {
        self.next_due = loop {
            match self.schedule.step(now) {
                Step::Due(of) => {
                    let index = of.or_else(|| self.take_free());
                    if let Some(index) = index.filter(|&index| self.is_idle(index)) {
                        // The clock is read again, because sending the previous request has taken
                        // time.
                        let now = self.now();
                        self.next(index, now);
                    }
                }
                Step::Later(at) => break at,
                Step::Never => break u64::MAX,
            }
        };
    }

    fn is_idle(&self, index: usize) -> bool {
        matches!(self.connections[index].state, ConnectionState::Idle)
    }

    fn take_free(&mut self) -> Option<usize> {
        loop {
            let index = self.free.pop_front()?;
            self.connections[index].listed = false;
            // The connection may have closed since it was listed as free.
            if self.is_idle(index) {
                return Some(index);
            }
        }
    }

    /// Sends the connection's next request, if a slot is due and the connection is idle.
    fn next(&mut self, index: usize, now: u64) {
        if !self.is_idle(index) || self.stopped.is_some() {
            return;
        }
        let connection = &mut self.connections[index];
        let free = connection.due_since.unwrap_or(now);
        let Some(Slot { number, intended }) = self.schedule.take(index, free, now) else {
            if self.schedule.assigns_any_free_connection() && !connection.listed {
                connection.listed = true;
                self.free.push_back(index);
            }
            return;
        };
        connection.due_since = None;
        let info = match self.builder.make(number, connection.target, &mut connection.out) {
            Ok(info) => info,
            Err(failure) => {
                self.failure = Some(failure.into());
                return;
            }
        };
        let counted = self.schedule.counts(intended);
        if counted {
            let late = now.saturating_sub(intended.max(connection.ready));
            self.tally.latencies_mut(info.method).late.saturating_record(late);
            self.tally.sent += u64::from(self.batch);
        }
        self.waiting += 1;
        let left = self.batch;
        if connection.send(Request { intended, written: now, info, counted, left }).is_err() {
            self.tally.errors.write += if counted { left.into() } else { 0 };
            self.give_up(index, now);
        }
    }

    /// Handles an event of a connection. Returns the time after the event.
    fn ready(&mut self, index: usize, ended: bool) -> u64 {
        let connection = &mut self.connections[index];
        match connection.state {
            ConnectionState::Connecting => self.continue_connecting(index),
            ConnectionState::Waiting(request) => self.read(index, request, ended),
            // No answer is awaited, so the server has closed the connection, or has sent
            // unsolicited bytes.
            ConnectionState::Idle | ConnectionState::Thinking => {
                let received = connection.receive(self.inbox.open(ended), &mut self.tally.bytes);
                let now = self.now();
                if !matches!(received, ReceiveProgress::Partly) {
                    let connection = &mut self.connections[index];
                    if now >= self.warmup {
                        self.tally.reconnects += u64::from(connection.proven);
                        if matches!(received, ReceiveProgress::Garbage) {
                            self.tally.garbage.unsolicited += 1;
                            self.tally.garbage.keep(connection.garbage(&self.inbox));
                        }
                    }
                    // Reconnects at once, but pauses if the server gave no answer on the last
                    // connection.
                    let pause = if connection.proven { 0 } else { RETRY_AFTER };
                    connection.close();
                    self.timers.push(Reverse((now + pause, index)));
                }
                now
            }
            ConnectionState::Closed => self.now(),
        }
    }

    /// Reads the answers to a request, as far as they have arrived.
    fn read(&mut self, index: usize, mut request: Request, ended: bool) -> u64 {
        let sent = self.connections[index].flush();
        self.inbox.open(ended);
        loop {
            let connection = &mut self.connections[index];
            let received = connection.receive(&mut self.inbox, &mut self.tally.bytes);
            let now = self.start.elapsed().as_nanos() as u64;
            match received {
                ReceiveProgress::Partly if sent.is_ok() => {
                    connection.state = ConnectionState::Waiting(request);
                    return now;
                }
                ReceiveProgress::Partly | ReceiveProgress::Broken => {
                    self.on_connection_lost(index, &request, now);
                    return now;
                }
                ReceiveProgress::Garbage => {
                    if request.counted {
                        self.tally.garbage.answers += u64::from(request.left);
                        self.tally.garbage.keep(connection.garbage(&self.inbox));
                    }
                    self.on_connection_lost(index, &request, now);
                    return now;
                }
                ReceiveProgress::Whole(status) => {
                    let allows_next = connection.allows_next_answer();
                    self.on_answer(index, &request, status, now);
                    request.left -= 1;
                    let connection = &mut self.connections[index];
                    if request.left == 0 {
                        let usable = connection.is_usable(&self.inbox);
                        self.all_answered(index, usable, now);
                        return now;
                    }
                    if !allows_next {
                        self.on_connection_lost(index, &request, now);
                        return now;
                    }
                    connection.expect_next();
                }
            }
        }
    }

    fn continue_connecting(&mut self, index: usize) -> u64 {
        let now = self.now();
        let connection = &mut self.connections[index];
        match connection.finish_connect() {
            Ok(true) => {
                // The handshake has taken time.
                let now = self.now();
                self.connections[index].ready = now;
                self.free(index, now);
                now
            }
            Ok(false) => now,
            Err(_) => {
                self.connect_failed(index, now);
                now
            }
        }
    }

    fn connect_failed(&mut self, index: usize, now: u64) {
        self.tally.errors.connect += u64::from(now >= self.warmup);
        self.connections[index].close();
        self.timers.push(Reverse((now + RETRY_AFTER, index)));
    }

    fn on_answer(&mut self, index: usize, request: &Request, status: u16, now: u64) {
        self.answered += 1;
        let connection = &self.connections[index];
        let Request { intended, written, info, counted, .. } = *request;
        if counted {
            if request.left == 1 || !self.plan.batch_latency {
                let latencies = self.tally.latencies_mut(info.method);
                latencies.intended.saturating_record(now.saturating_sub(intended));
                latencies.written.saturating_record(now - written);
            }
            self.tally.statuses.count(status);
            self.tally.in_time += u64::from(now <= self.schedule.end());
            if now - written > self.timeout {
                self.tally.errors.timeout += 1;
                self.tally.errors.refused_timeout += u64::from(Statuses::is_refusal(status));
            }
            let wrong = self.plan.verify
                && (status, info.method) == (200, Method::Get)
                && !self.builder.is_value(&info, connection.body());
            self.tally.wrong_values += u64::from(wrong);
        }
        self.builder.mark_answered(&info);
        if self.wants_response
            && let Some(script) = self.builder.script()
            && let Err(failure) = script.response(status, connection.head(), connection.body())
        {
            self.failure = Some(failure.into());
        }
    }

    /// Handles the last answer to a request.
    fn all_answered(&mut self, index: usize, usable: bool, now: u64) {
        self.waiting -= 1;
        let connection = &mut self.connections[index];
        connection.ready = now;
        connection.proven = true;
        if usable {
            self.free(index, now);
        } else {
            connection.due_since = Some(now);
            let ended = connection.is_ended(&self.inbox) && now >= self.warmup;
            self.tally.reconnects += u64::from(ended);
            connection.close();
            self.open(index, now);
        }
    }

    /// Marks the connection as free and sends its next request, or starts the delay that the script
    /// defines.
    fn free(&mut self, index: usize, now: u64) {
        self.connections[index].state = ConnectionState::Idle;
        if let Some(script) = self.builder.script() {
            if script.is_stopped() && self.stopped.is_none() {
                self.stopped = Some(now);
                self.schedule.stop(now);
            }
            if self.delays {
                match script.delay() {
                    Ok(None) => {}
                    Ok(Some(delay)) => {
                        let until = now.saturating_add(nanos(delay));
                        self.connections[index].state = ConnectionState::Thinking;
                        self.timers.push(Reverse((until, index)));
                        return;
                    }
                    Err(failure) => self.failure = Some(failure.into()),
                }
            }
        }
        self.next(index, now);
    }

    /// Counts the awaited answers as lost, and closes the connection.
    fn on_connection_lost(&mut self, index: usize, request: &Request, now: u64) {
        self.tally.errors.read += if request.counted { request.left.into() } else { 0 };
        self.fail_on_tls_refusal(index);
        self.give_up(index, now);
    }

    /// Ends the run after a TLS refusal, if no request was answered yet. A server that rejects the
    /// client's certificate, or requires one, reports this only after the handshake, and will
    /// refuse every further attempt.
    fn fail_on_tls_refusal(&mut self, index: usize) {
        let connection = &self.connections[index];
        let tls = self.plan.targets[connection.target].tls.as_ref();
        if self.answered == 0
            && let Some((tls, cause)) = tls.zip(connection.tls_error())
        {
            self.failure = Some(Error::tls(connection.address, tls, &cause));
        }
    }

    fn give_up(&mut self, index: usize, now: u64) {
        self.waiting -= 1;
        let connection = &mut self.connections[index];
        if let ConnectionState::Waiting(request) = connection.state {
            self.builder.mark_answered(&request.info);
        }
        connection.close();
        self.timers.push(Reverse((now + RETRY_AFTER, index)));
    }

    /// Handles expired timers. Returns the time of the next timer, or `wake` if `wake` is earlier.
    fn run_timers(&mut self, now: u64, wake: u64) -> u64 {
        while let Some(&Reverse((at, index))) = self.timers.peek() {
            if at > now {
                return wake.min(at);
            }
            self.timers.pop();
            match self.connections[index].state {
                ConnectionState::Closed => self.open(index, now),
                ConnectionState::Thinking => {
                    let connection = &mut self.connections[index];
                    connection.state = ConnectionState::Idle;
                    connection.ready = at;
                    self.next(index, now);
                }
                // The connection was closed while the script delayed it, and is open again.
                ConnectionState::Connecting
                | ConnectionState::Idle
                | ConnectionState::Waiting(_) => {}
            }
        }
        wake
    }

    fn open(&mut self, index: usize, now: u64) {
        let connection = &mut self.connections[index];
        let tls = self.plan.targets[connection.target].tls.as_ref();
        if connection.open(&self.epoll, index, tls).is_err() {
            self.connect_failed(index, now);
        }
    }

    /// Publishes the counts, and samples backlog and rate, each when it is due.
    fn publish_and_sample(&mut self, now: u64) {
        if now < self.warmup {
            return;
        }
        if self.cpu[0].is_none() {
            self.cpu[0] = Some(thread_cpu());
            self.rates.restart(now, self.answered);
        }
        if self.cpu[1].is_none() && now >= self.schedule.end() {
            self.cpu[1] = Some(thread_cpu());
        }
        if now <= self.schedule.end() && now >= self.rates.at + TICK {
            self.rates.sample(now, self.answered);
        }
        let measured = self.schedule.end() - self.warmup;
        let taken = self.backlog.len() as u64;
        if taken < BACKLOG_SAMPLES && now - self.warmup >= measured / BACKLOG_SAMPLES * (taken + 1)
        {
            self.backlog.push(self.schedule.backlog());
        }
        if now >= self.publisher.next() {
            self.publisher.publish(now, self.schedule.backlog(), &mut self.tally);
        }
    }

    /// Ends the thread. Each unanswered request counts with its latency so far.
    fn finish(mut self) -> WorkerEnd {
        let now = self.now();
        let left = self.schedule.backlog();
        let group = left / MAX_UNSENT + 1;
        for index in 0..self.connections.len() {
            if let ConnectionState::Waiting(request) = self.connections[index].state
                && request.counted
            {
                let left = u64::from(request.left);
                if now - request.written > self.timeout {
                    self.tally.errors.timeout += left;
                    self.tally.errors.unanswered_timeout += left;
                }
                self.count_unfinished(request.info.method, now - request.intended, 1, left);
            }
            if self.plan.pace == Pace::Closed {
                continue;
            }
            while let Some(Slot { number, intended }) = self.schedule.take(index, now, now) {
                if self.schedule.counts(intended) {
                    let slots = 1 + self.schedule.skip(index, group - 1);
                    let count = slots * u64::from(self.batch);
                    let method = self.builder.method_of(number);
                    self.count_unfinished(method, now - intended, slots, count);
                }
            }
        }
        let cpu = thread_cpu();
        let from = self.cpu[0].unwrap_or(cpu);
        let in_plan = self.cpu[1].unwrap_or(cpu).saturating_sub(from);
        let plan = self.schedule.end().min(now).saturating_sub(self.warmup).max(1);
        let ended = WorkerEnd {
            planned: self.schedule.planned_requests(),
            backlog: self.backlog,
            cpu: cpu.saturating_sub(from),
            busy: in_plan.as_nanos() as f64 / plan as f64,
            elapsed: now.saturating_sub(self.warmup),
            rates: self.rates.histogram,
        };
        self.publisher.end(now, left, self.tally);
        ended
    }

    /// Counts `count` unanswered requests, in `batches` batches, each with the latency `waited`.
    fn count_unfinished(&mut self, method: Method, waited: u64, batches: u64, count: u64) {
        let samples = if self.plan.batch_latency { batches } else { count };
        self.tally.latencies_mut(method).intended.saturating_record_n(waited, samples);
        self.tally.unfinished += count;
    }
}

impl Rates {
    fn new() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, MAX_RATE, 3).expect("constant bounds are valid");
        Self { at: 0, answered: 0, histogram }
    }

    fn restart(&mut self, now: u64, answered: u64) {
        (self.at, self.answered) = (now, answered);
    }

    fn sample(&mut self, now: u64, answered: u64) {
        let seconds = (now - self.at) as f64 / 1e9;
        let rate = (answered - self.answered) as f64 / seconds;
        self.histogram.saturating_record(rate.round() as u64);
        self.restart(now, answered);
    }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, nanos: u64) -> Result<(), Error> {
    const SECOND: u64 = 1_000_000_000;
    events.clear();
    let timeout = Timespec { tv_sec: (nanos / SECOND) as i64, tv_nsec: (nanos % SECOND) as i64 };
    match epoll::wait(epoll, spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(Error::system("epoll wait")(cause)),
    }
}
