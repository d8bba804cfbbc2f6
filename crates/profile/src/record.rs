//! A recording: one at a time, all events at once, in a thread of its own.
//!
//! ```text
//!  start ─▶ samplers on ─▶ look, look, … until the time is up ─▶ samplers off ─▶ names ─▶ done
//!             │                              │ cancelled, or dropped                │
//!             └ Busy: who runs one, until    └──────▶ samplers off, nothing is told ┘
//! ```
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::perf::Events;
use crate::ring::{self, Source, Taken};
use crate::stacks::{Named, Stack, Stacks};
use crate::symbols::Symbols;
use crate::timers::Timers;
use crate::wall::Wall;
use crate::{Event, live, stack, threads};

/// Shortest and longest recording.
pub const SECONDS: std::ops::RangeInclusive<u64> = 1..=300;

/// CPU samples a second and thread. No divisor of what others do in rounds, so that samples do not
/// keep step with it.
pub const HERTZ: u64 = 199;

const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / HERTZ);

/// Between two looks at what the process's threads have put into the ring: 200,000 samples a second
/// fit it.
const LOOK: Duration = Duration::from_millis(20);

/// Between two looks at which threads there are.
const FOLLOW: Duration = Duration::from_millis(100);

/// Niceness while stacks get their names: whoever serves requests goes first.
const NICE: i32 = 10;

/// What is to be recorded.
#[derive(Debug, Clone)]
pub struct Order {
    /// The events that are recorded.
    pub events: Vec<Event>,
    /// How long; within [`SECONDS`].
    pub duration: Duration,
    /// Who wants it, for others who want one meanwhile.
    pub who: String,
    /// Whether threads that wait for work are shown.
    pub idle: bool,
    /// What takes CPU samples.
    pub clock: Clock,
}

/// What takes CPU samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// Perf events, or timers if the kernel does not permit them.
    #[default]
    Perf,
    /// Timers only, one for each thread.
    Timers,
}

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is one already.
    #[error("{who} is recording until {until} (another {left} s)")]
    Busy {
        /// Who has asked for it.
        who: String,
        /// When it ends, in UTC.
        until: String,
        /// Seconds until then.
        left: u64,
    },
    /// Its thread could not be started.
    #[error("cannot start the recording thread: {0}")]
    Thread(io::Error),
}

/// What was recorded.
#[derive(Debug, Clone)]
pub struct Profile {
    /// When it began.
    pub started: SystemTime,
    /// How long it took.
    pub seconds: f64,
    /// What took CPU samples, and how often.
    pub sampler: String,
    /// What is to be known about it: what is missing, and why.
    pub notes: Vec<String>,
    /// Each event that was ordered, in that order.
    pub events: Vec<(Event, Named)>,
}

struct Running {
    who: String,
    until: SystemTime,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// A recording under way. Dropped, it ends and tells nothing.
#[derive(Debug)]
pub struct Recording {
    cancelled: Arc<AtomicBool>,
    thread: Thread,
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Frees the place for the next one, however a recording ends.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        *RUNNING.lock() = None;
    }
}

/// Starts a recording; `done` is told what came of it by the recorder's thread.
pub fn start(
    order: Order,
    done: impl FnOnce(Profile) + Send + 'static,
) -> Result<Recording, Refused> {
    assert!(SECONDS.contains(&order.duration.as_secs()), "the caller has checked the duration");
    let place = take_place(&order)?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&cancelled);
    let body = move || {
        let profile = Recorder::new(&order).run(&order, &stop);
        drop(place);
        if let Some(profile) = profile {
            done(profile);
        }
    };
    let spawned = thread::Builder::new().name("profiler".to_owned()).spawn(body);
    let thread = spawned.map_err(Refused::Thread)?.thread().clone();
    Ok(Recording { cancelled, thread })
}

fn take_place(order: &Order) -> Result<Place, Refused> {
    let mut running = RUNNING.lock();
    if let Some(running) = &*running {
        let left = running.until.duration_since(SystemTime::now()).unwrap_or_default();
        return Err(Refused::Busy {
            who: running.who.clone(),
            until: crate::output::utc(running.until),
            left: left.as_secs(),
        });
    }
    *running = Some(Running { who: order.who.clone(), until: SystemTime::now() + order.duration });
    Ok(Place)
}

/// Where the samples of each event come from.
const SOURCES: [(Event, Source); 5] = [
    (Event::Cpu, Source::Cpu),
    (Event::Alloc, Source::Alloc),
    (Event::Live, Source::Live),
    (Event::Lock, Source::Lock),
    (Event::Wall, Source::Wall),
];

/// Takes CPU samples.
enum Cpu {
    Off,
    Perf(Events),
    Timers(Timers),
}

/// The recorder's thread.
struct Recorder {
    started: SystemTime,
    cpu: Cpu,
    wall: Option<Wall>,
    stacks: Stacks,
    sources: u32,
    sampler: String,
    notes: Vec<String>,
    threads: Vec<i32>,
    /// Threads' names, and how often they were looked for.
    names: HashMap<i32, (String, u8)>,
    /// Sampled allocations: which stack, bytes, how many.
    alive: HashMap<usize, (usize, u64, u64)>,
    not_followed: usize,
}

impl Recorder {
    fn new(order: &Order) -> Self {
        stack::know_the_process();
        // What came after the last recording is not of this one.
        ring::take(|_| {});
        live::clear();
        let wants = |event| order.events.contains(&event);
        let mut recorder = Self {
            started: SystemTime::now(),
            cpu: Cpu::Off,
            wall: None,
            stacks: Stacks::default(),
            sources: 0,
            sampler: "none".to_owned(),
            notes: Vec::new(),
            threads: Vec::new(),
            names: HashMap::new(),
            alive: HashMap::new(),
            not_followed: 0,
        };
        recorder.find_threads();
        for (event, source) in SOURCES {
            recorder.sources |= if wants(event) { source as u32 } else { 0 };
            ring::lost(source);
        }
        if wants(Event::Cpu) {
            recorder.start_cpu(order.clock);
        }
        if wants(Event::Wall) {
            match Wall::new() {
                Ok(wall) => recorder.wall = Some(wall),
                Err(error) => recorder.notes.push(format!("no wall time: {error}")),
            }
        }
        ring::want(recorder.sources);
        recorder
    }

    fn start_cpu(&mut self, clock: Clock) {
        if clock == Clock::Timers {
            return self.start_timers();
        }
        match Events::new(PERIOD) {
            Ok(events) => {
                self.sampler = format!("perf_event_open, {HERTZ} Hz");
                self.cpu = Cpu::Perf(events);
                self.follow();
            }
            Err(error) => self.do_without_perf(&error),
        }
    }

    /// Says so: timers tick with the kernel's clock, and are coarser.
    fn do_without_perf(&mut self, error: &io::Error) {
        self.notes.push(format!("CPU time is sampled by timers: perf_event_open: {error}"));
        // Its handler goes before theirs comes.
        self.cpu = Cpu::Off;
        self.start_timers();
    }

    fn start_timers(&mut self) {
        match Timers::new(PERIOD) {
            Ok(timers) => {
                self.sampler = format!("CPU timers, {HERTZ} Hz");
                self.cpu = Cpu::Timers(timers);
                self.follow();
            }
            Err(error) => self.notes.push(format!("no CPU samples: timers: {error}")),
        }
    }

    /// Looks which threads there are.
    fn find_threads(&mut self) {
        let (threads, complete) = match threads::all() {
            Ok(found) => found,
            // Those that are known go on being sampled.
            Err(error) => {
                return self.note_once(format!("new threads could not be looked for: {error}"));
            }
        };
        if !complete {
            let most = threads::MAX_THREADS;
            self.note_once(format!("there are more than {most} threads: not all were looked at"));
        }
        threads.iter().for_each(|thread| self.look_for_name(*thread));
        self.threads = threads;
    }

    fn note_once(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Asks twice: until it names itself, a thread has the name of whoever started it.
    fn look_for_name(&mut self, thread: i32) {
        let looks = self.names.get(&thread).map_or(0, |(_, looks)| *looks);
        if looks < 2
            && let Some(name) = threads::name(thread)
        {
            self.names.insert(thread, (name, looks + 1));
        }
    }

    /// Has each thread sampled.
    fn follow(&mut self) {
        match &mut self.cpu {
            Cpu::Off => {}
            Cpu::Timers(timers) => timers.follow(&self.threads),
            Cpu::Perf(events) => match events.follow(&self.threads) {
                Ok(refused) => self.not_followed = refused.max(self.not_followed),
                Err(error) => self.do_without_perf(&error),
            },
        }
    }

    fn run(mut self, order: &Order, stop: &AtomicBool) -> Option<Profile> {
        let begun = Instant::now();
        let mut followed = begun;
        while begun.elapsed() < order.duration && !stop.load(Ordering::Relaxed) {
            let left = order.duration.saturating_sub(begun.elapsed());
            thread::park_timeout(LOOK.min(left));
            if followed.elapsed() >= FOLLOW {
                followed = Instant::now();
                self.find_threads();
                self.follow();
            }
            self.take_samples();
            self.look_at_all();
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.stop();
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        be_nice();
        self.count_living();
        let names = &self.names;
        let name_of = |thread| {
            names.get(&thread).map_or(format!("thread {thread}"), |(name, _)| name.clone())
        };
        let mut symbols = Symbols::of_this_process();
        let go_on = || !stop.load(Ordering::Relaxed);
        let named = self.stacks.name(&mut symbols, order.idle, name_of, go_on)?;
        if !symbols.know_the_program() {
            let note = "the program has no symbols (it was stripped): functions are shown as \
                        addresses";
            self.notes.push(note.to_owned());
        }
        Some(self.profile(order, seconds, named))
    }

    fn look_at_all(&mut self) {
        let Self { wall, stacks, threads, .. } = self;
        if let Some(wall) = wall {
            wall.look(threads, |stack, nanos| stacks.add(stack, nanos, 1, 0));
        }
    }

    /// Ends all sampling, and takes what is left.
    fn stop(&mut self) {
        self.cpu = Cpu::Off;
        self.take_samples();
        // Waits are recorded until here, and from here on no handler is called.
        ring::want(0);
        self.wall = None;
        self.take_samples();
        if self.not_followed > 0 {
            let (refused, of) = (self.not_followed, self.threads.len());
            self.notes.push(format!("{refused} of {of} threads could not be sampled for CPU time"));
        }
    }

    fn take_samples(&mut self) {
        ring::take(|sample| self.take(sample));
        for (event, source) in SOURCES {
            self.stacks.lose(event, ring::lost(source));
        }
    }

    fn take(&mut self, sample: Taken) {
        let (event, alloc) = match sample.source {
            source if source == Source::Cpu as u32 => (Event::Cpu, false),
            source if source == Source::Wall as u32 => (Event::Wall, false),
            source if source == Source::Lock as u32 => (Event::Lock, false),
            _ => (Event::Alloc, true),
        };
        let holder = (sample.holder != 0).then_some(sample.holder);
        if let Some(holder) = holder.filter(|holder| !self.names.contains_key(holder)) {
            self.look_for_name(holder);
        }
        let stack = Stack {
            event,
            thread: sample.name,
            state: if event == Event::Wall { sample.state } else { ring::State::Unknown },
            place: sample.place,
            holder,
            site: sample.site,
            frames: sample.frames,
        };
        if alloc && sample.address != 0 {
            let kept = Stack { event: Event::Live, ..stack.clone() };
            if let Some(number) = self.stacks.number(kept) {
                self.stacks.add(number, 0, 0, 1);
                self.alive.insert(sample.address, (number, sample.weight, sample.count));
                self.forget_freed();
            }
        }
        if alloc && self.sources & Source::Alloc as u32 == 0 {
            return;
        }
        let Some(number) = self.stacks.number(stack) else { return };
        let weight = match (&mut self.wall, event) {
            (Some(wall), Event::Wall) => wall.answered(sample.thread, sample.state, number),
            _ => sample.weight,
        };
        self.stacks.add(number, weight, sample.count, 1);
    }

    /// The table of living allocations is bounded; so is what is kept of them here.
    fn forget_freed(&mut self) {
        const MOST: usize = 2 * 65_536;
        if self.alive.len() > MOST {
            self.alive.retain(|address, _| live::contains(*address));
        }
    }

    fn count_living(&mut self) {
        for (address, (number, weight, count)) in std::mem::take(&mut self.alive) {
            if live::contains(address) {
                self.stacks.add(number, weight, count, 0);
            }
        }
    }

    fn profile(self, order: &Order, seconds: f64, mut named: BTreeMap<Event, Named>) -> Profile {
        let mut events: Vec<(Event, Named)> = Vec::new();
        for event in &order.events {
            if !events.iter().any(|(known, _)| known == event) {
                events.push((*event, named.remove(event).unwrap_or_default()));
            }
        }
        let Self { started, sampler, notes, .. } = self;
        Profile { started, seconds, sampler, notes, events }
    }
}

/// Lets all other threads go first.
fn be_nice() {
    // SAFETY: it changes one number of the calling thread. If it fails, naming goes on as it was.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, threads::own().cast_unsigned(), NICE) };
}
