//! Recordings. Only one runs at a time; it records all requested events together, on its own
//! thread.
//!
//! ```text
//!  start ─▶ samplers on ─▶ drain the ring repeatedly ─▶ samplers off ─▶ symbolize ─▶ done
//!
//!  another recording is in progress:  `start` fails with `Busy`: that one's requester and end
//!  the `Recording` is dropped:        samplers off, no result
//! ```
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::perf::PerfEvents;
use crate::ring::{self, Source, TakenSample};
use crate::stacks::{NamedStacks, Stack, Stacks};
use crate::symbols::Symbols;
use crate::timers::Timers;
use crate::wall::WallSampler;
use crate::{Event, live, stack, threads};

/// Range of a recording's duration in seconds.
pub const SECONDS: std::ops::RangeInclusive<u64> = 1..=300;

/// CPU samples per second and thread. A prime number, so that samples do not coincide with periodic
/// work.
pub const HERTZ: u64 = 199;

const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / HERTZ);

/// Interval at which the recorder drains the ring. At this interval, the ring takes 200,000 samples
/// a second.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which the recorder lists the process's threads.
const THREAD_LIST_INTERVAL: Duration = Duration::from_millis(100);

/// Niceness of the recorder during symbolization, so that threads that serve requests have
/// precedence.
const NICE: i32 = 10;

/// A request for a recording.
#[derive(Debug, Clone)]
pub struct RecordingRequest {
    /// The events to record.
    pub events: Vec<Event>,
    /// Duration of the recording, within [`SECONDS`].
    pub duration: Duration,
    /// Requester of the recording, whom [`Refused::Busy`] names.
    pub who: String,
    /// True if the recording includes threads that wait for work.
    pub idle: bool,
    /// Source of CPU samples.
    pub clock: Clock,
}

/// Source of CPU samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// Perf events, or timers if the kernel does not permit them.
    #[default]
    Perf,
    /// Timers only, one for each thread.
    Timers,
}

/// Reason why a recording was not started.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Another recording is in progress.
    #[error("{who} is recording until {until} (another {left} s)")]
    Busy {
        /// Requester of that recording.
        who: String,
        /// End of that recording, in UTC.
        until: String,
        /// Seconds until the end of that recording.
        left: u64,
    },
    /// The recorder's thread could not be started.
    #[error("cannot start the recording thread: {0}")]
    Thread(io::Error),
}

/// A completed recording.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Start of the recording.
    pub started: SystemTime,
    /// Duration of the recording in seconds.
    pub seconds: f64,
    /// Source and frequency of CPU samples.
    pub sampler: String,
    /// Notes for the reader: missing data and the causes.
    pub notes: Vec<String>,
    /// The requested events, in the order of the request.
    pub events: Vec<(Event, NamedStacks)>,
}

struct RunningRecording {
    who: String,
    until: SystemTime,
}

static RUNNING: Mutex<Option<RunningRecording>> = Mutex::new(None);

/// A recording in progress. Dropping it cancels the recording without a result.
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

/// The permit to record. Dropping the permit allows the next recording.
struct RecordingPermit;

impl Drop for RecordingPermit {
    fn drop(&mut self) {
        *RUNNING.lock() = None;
    }
}

/// Starts a recording. The recorder's thread calls `done` with the result. Panics if the duration
/// is outside [`SECONDS`].
pub fn start(
    order: RecordingRequest,
    done: impl FnOnce(Profile) + Send + 'static,
) -> Result<Recording, Refused> {
    assert!(SECONDS.contains(&order.duration.as_secs()), "the caller has checked the duration");
    let place = acquire_permit(&order)?;
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

fn acquire_permit(order: &RecordingRequest) -> Result<RecordingPermit, Refused> {
    let mut running = RUNNING.lock();
    if let Some(running) = &*running {
        let left = running.until.duration_since(SystemTime::now()).unwrap_or_default();
        return Err(Refused::Busy {
            who: running.who.clone(),
            until: crate::output::utc(running.until),
            left: left.as_secs(),
        });
    }
    *running = Some(RunningRecording {
        who: order.who.clone(),
        until: SystemTime::now() + order.duration,
    });
    Ok(RecordingPermit)
}

/// The source of each event's samples.
const SOURCES: [(Event, Source); 5] = [
    (Event::Cpu, Source::Cpu),
    (Event::Alloc, Source::Alloc),
    (Event::Live, Source::Live),
    (Event::Lock, Source::Lock),
    (Event::Wall, Source::Wall),
];

/// The active source of CPU samples.
enum Cpu {
    Off,
    Perf(PerfEvents),
    Timers(Timers),
}

/// State of the recorder's thread.
struct Recorder {
    started: SystemTime,
    cpu: Cpu,
    wall: Option<WallSampler>,
    stacks: Stacks,
    sources: u32,
    sampler: String,
    notes: Vec<String>,
    threads: Vec<i32>,
    /// Name of each thread, with the number of lookups.
    names: HashMap<i32, (String, u8)>,
    /// Sampled allocations by address: number of the stack, bytes, count.
    alive: HashMap<usize, (usize, u64, u64)>,
    not_followed: usize,
}

impl Recorder {
    fn new(order: &RecordingRequest) -> Self {
        stack::learn_own_memory_layout();
        // Discards samples that arrived after the end of the previous recording.
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
            ring::take_lost_count(source);
        }
        if wants(Event::Cpu) {
            recorder.start_cpu(order.clock);
        }
        if wants(Event::Wall) {
            match WallSampler::new() {
                Ok(wall) => recorder.wall = Some(wall),
                Err(error) => recorder.notes.push(format!("no wall time: {error}")),
            }
        }
        ring::set_wanted(recorder.sources);
        recorder
    }

    fn start_cpu(&mut self, clock: Clock) {
        if clock == Clock::Timers {
            return self.start_timers();
        }
        match PerfEvents::new(PERIOD) {
            Ok(events) => {
                self.sampler = format!("perf_event_open, {HERTZ} Hz");
                self.cpu = Cpu::Perf(events);
                self.follow();
            }
            Err(error) => self.fall_back_to_timers(&error),
        }
    }

    /// Falls back to timers, and adds a note to the profile: timers depend on the kernel's tick, so
    /// they are coarser.
    fn fall_back_to_timers(&mut self, error: &io::Error) {
        self.notes.push(format!("CPU time is sampled by timers: perf_event_open: {error}"));
        // Perf's signal handler must be removed before the timers' handler is installed.
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

    /// Updates the list of threads.
    fn find_threads(&mut self) {
        let (threads, complete) = match threads::all() {
            Ok(found) => found,
            // Without the list, the known threads continue to be sampled.
            Err(error) => {
                return self.note_once(format!("new threads could not be looked for: {error}"));
            }
        };
        if !complete {
            let most = threads::MAX_THREADS;
            self.note_once(format!("there are more than {most} threads: not all were looked at"));
        }
        threads.iter().for_each(|thread| self.look_up_name(*thread));
        self.threads = threads;
    }

    fn note_once(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Looks up a thread's name, up to twice: until a thread sets its own name, it has the name of
    /// its creator.
    fn look_up_name(&mut self, thread: i32) {
        let looks = self.names.get(&thread).map_or(0, |(_, looks)| *looks);
        if looks < 2
            && let Some(name) = threads::name(thread)
        {
            self.names.insert(thread, (name, looks + 1));
        }
    }

    /// Starts to sample the CPU time of new threads.
    fn follow(&mut self) {
        match &mut self.cpu {
            Cpu::Off => {}
            Cpu::Timers(timers) => timers.follow(&self.threads),
            Cpu::Perf(events) => match events.follow(&self.threads) {
                Ok(refused) => self.not_followed = refused.max(self.not_followed),
                Err(error) => self.fall_back_to_timers(&error),
            },
        }
    }

    fn run(mut self, order: &RecordingRequest, stop: &AtomicBool) -> Option<Profile> {
        let begun = Instant::now();
        let mut followed = begun;
        while begun.elapsed() < order.duration && !stop.load(Ordering::Relaxed) {
            let left = order.duration.saturating_sub(begun.elapsed());
            thread::park_timeout(DRAIN_INTERVAL.min(left));
            if followed.elapsed() >= THREAD_LIST_INTERVAL {
                followed = Instant::now();
                self.find_threads();
                self.follow();
            }
            self.take_samples();
            self.sample_all_threads();
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.stop();
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        lower_priority();
        self.add_live_allocations();
        let names = &self.names;
        let name_of = |thread| {
            names.get(&thread).map_or(format!("thread {thread}"), |(name, _)| name.clone())
        };
        let mut symbols = Symbols::of_this_process();
        let go_on = || !stop.load(Ordering::Relaxed);
        let named = self.stacks.name(&mut symbols, order.idle, name_of, go_on)?;
        if !symbols.has_program_symbols() {
            let note = "the program has no symbols (it was stripped): functions are shown as \
                        addresses";
            self.notes.push(note.to_owned());
        }
        Some(self.profile(order, seconds, named))
    }

    fn sample_all_threads(&mut self) {
        let Self { wall, stacks, threads, .. } = self;
        if let Some(wall) = wall {
            wall.sample_round(threads, |stack, nanos| stacks.add(stack, nanos, 1, 0));
        }
    }

    /// Stops all sampling and drains the ring.
    fn stop(&mut self) {
        self.cpu = Cpu::Off;
        self.take_samples();
        // Waits are recorded until here; signal handlers record nothing from here on.
        ring::set_wanted(0);
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
            self.stacks.add_lost(event, ring::take_lost_count(source));
        }
    }

    fn take(&mut self, sample: TakenSample) {
        let (event, alloc) = match sample.source {
            source if source == Source::Cpu as u32 => (Event::Cpu, false),
            source if source == Source::Wall as u32 => (Event::Wall, false),
            source if source == Source::Lock as u32 => (Event::Lock, false),
            _ => (Event::Alloc, true),
        };
        let holder = (sample.holder != 0).then_some(sample.holder);
        if let Some(holder) = holder.filter(|holder| !self.names.contains_key(holder)) {
            self.look_up_name(holder);
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
                self.drop_freed_allocations();
            }
        }
        if alloc && self.sources & Source::Alloc as u32 == 0 {
            return;
        }
        let Some(number) = self.stacks.number(stack) else { return };
        let weight = match (&mut self.wall, event) {
            (Some(wall), Event::Wall) => wall.on_sample(sample.thread, sample.state, number),
            _ => sample.weight,
        };
        self.stacks.add(number, weight, sample.count, 1);
    }

    /// Drops freed allocations from `alive`, so that `alive` stays bounded, like the table of live
    /// allocations.
    fn drop_freed_allocations(&mut self) {
        const MOST: usize = 2 * 65_536;
        if self.alive.len() > MOST {
            self.alive.retain(|address, _| live::contains(*address));
        }
    }

    /// Adds the sampled allocations that are still live to their stacks.
    fn add_live_allocations(&mut self) {
        for (address, (number, weight, count)) in std::mem::take(&mut self.alive) {
            if live::contains(address) {
                self.stacks.add(number, weight, count, 0);
            }
        }
    }

    fn profile(
        self,
        order: &RecordingRequest,
        seconds: f64,
        mut named: BTreeMap<Event, NamedStacks>,
    ) -> Profile {
        let mut events: Vec<(Event, NamedStacks)> = Vec::new();
        for event in &order.events {
            if !events.iter().any(|(known, _)| known == event) {
                events.push((*event, named.remove(event).unwrap_or_default()));
            }
        }
        let Self { started, sampler, notes, .. } = self;
        Profile { started, seconds, sampler, notes, events }
    }
}

/// Lowers the priority of the calling thread.
fn lower_priority() {
    // SAFETY: the call changes one number of the calling thread. If it fails, symbolization
    // continues with the old priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, threads::own().cast_unsigned(), NICE) };
}
