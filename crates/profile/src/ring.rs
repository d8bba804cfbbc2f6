//! Samples on their way from the process's threads to the recorder: a bounded queue that any thread
//! can put something into, also in a signal handler and in the allocator.
//!
//! ```text
//!  producers ─▶ │ lap 3: filled │ filled │ being filled │ free │ … │ ─▶ one consumer
//!                 whose a slot is: `turns.rs`; full = the sample is lost, and counted
//! ```
//!
//! It is static: whoever comes late, after a recording, still has something to write to. The pages
//! take no memory until the first recording.
#![allow(unsafe_code, reason = "filled by signal handlers")]

mod turns;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use turns::Turns;

use crate::place::Place;
use crate::stack::MAX_FRAMES;

/// Samples that may wait: with a look every 20 ms, 200,000 a second.
const SLOTS: usize = 4096;

/// Words before a sample's frames.
const HEAD_WORDS: usize = 9;

/// What is recorded now: a bit for each [`Source`].
static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// Samples that found no room, by the bit of their source.
static LOST: [AtomicU64; SOURCES] = [const { AtomicU64::new(0) }; SOURCES];
/// How many recordings there were.
static RECORDING: AtomicU32 = AtomicU32::new(0);
#[cfg(not(all(loom, test)))]
static TURNS: Turns<SLOTS> = Turns::new();
#[cfg(all(loom, test))]
loom::lazy_static! { static ref TURNS: Turns<SLOTS> = Turns::new(); }
static RING: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// Who takes samples into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "record"), expect(dead_code, reason = "only recordings have all"))]
#[repr(u32)]
pub(crate) enum Source {
    /// Timers of CPU time.
    Cpu = 1,
    /// Signals to threads whether they run or not.
    Wall = 2,
    /// The allocator, for every sampled allocation.
    Alloc = 4,
    /// The allocator, for what is still there at the end.
    Live = 8,
    /// Places where threads wait.
    Lock = 16,
}

/// How many sources there are.
const SOURCES: usize = 5;

impl Source {
    fn place(self) -> usize {
        (self as u32).trailing_zeros() as usize
    }
}

/// Whether samples of this kind are wanted.
#[inline]
pub(crate) fn wanted(source: Source) -> bool {
    any_wanted(source as u32)
}

/// Whether samples of any of these kinds are wanted.
#[inline]
pub(crate) fn any_wanted(sources: u32) -> bool {
    // bench/off.sh builds with this set, to measure what the question costs.
    !cfg!(hookless) && ACTIVE.load(Ordering::Relaxed) & sources != 0
}

/// The number of the recording that runs, or ran last.
pub(crate) fn recording() -> u32 {
    RECORDING.load(Ordering::Relaxed)
}

/// Says which are, from now on; any begin a recording.
#[cfg(feature = "record")]
pub(crate) fn want(sources: u32) {
    if sources != 0 {
        RECORDING.fetch_add(1, Ordering::SeqCst);
    }
    ACTIVE.store(sources, Ordering::SeqCst);
}

/// The words of one sample. They are atomic so that no `unsafe` is needed: whose a slot is says
/// [`Turns`].
struct Slot([AtomicU64; HEAD_WORDS + MAX_FRAMES]);

impl Slot {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; HEAD_WORDS + MAX_FRAMES])
    }
}

/// What a thread that was looked at by a signal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(not(feature = "record"), expect(dead_code, reason = "only recordings have all"))]
#[repr(u8)]
pub(crate) enum State {
    /// Nothing is known of it.
    Unknown = 0,
    /// Its own code.
    Running = 1,
    /// It was within, or at the end of, a system call.
    InCall = 2,
    /// It slept in a system call.
    Waiting = 3,
}

/// One look at one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample<'a> {
    pub(crate) source: Source,
    pub(crate) state: State,
    /// Units that it stands for.
    pub(crate) weight: u64,
    /// Events that it stands for.
    pub(crate) count: u64,
    /// Where the thread waits, as far as it says so.
    pub(crate) place: Option<&'static Place>,
    /// The thread that holds what is waited for; 0 = unknown.
    pub(crate) holder: i32,
    /// Where that one took it.
    pub(crate) site: Option<&'static std::panic::Location<'static>>,
    /// The memory that was allocated, or the thread's scheduling counter.
    pub(crate) address: usize,
    /// From the leaf.
    pub(crate) frames: &'a [usize],
}

fn to_word<T>(reference: Option<&'static T>) -> u64 {
    reference.map_or(0, |reference| &raw const *reference as u64)
}

/// Puts a sample of the calling thread in. Whether there was room.
pub(crate) fn push(sample: &Sample<'_>) -> bool {
    let Some(ticket) = TURNS.claim() else {
        LOST[sample.source.place()].fetch_add(1, Ordering::Relaxed);
        return false;
    };
    let frames = &sample.frames[..sample.frames.len().min(MAX_FRAMES)];
    let kinds = sample.source as u64 | (sample.state as u64) << 32 | (frames.len() as u64) << 40;
    let name = own_name();
    // SAFETY: it has no arguments and always succeeds.
    let own = unsafe { libc::gettid() };
    let threads = u64::from(own.cast_unsigned()) | u64::from(sample.holder.cast_unsigned()) << 32;
    let head: [u64; HEAD_WORDS] = [
        kinds,
        threads,
        name[0],
        name[1],
        sample.weight,
        sample.count,
        to_word(sample.place),
        to_word(sample.site),
        sample.address as u64,
    ];
    let words = head.into_iter().chain(frames.iter().map(|frame| *frame as u64));
    for (word, value) in RING[TURNS.slot(&ticket)].0.iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    TURNS.filled(ticket);
    true
}

/// The calling thread's name, zeros after it.
fn own_name() -> [u64; 2] {
    let mut name = [0u64; 2];
    // SAFETY: the kernel writes at most 16 bytes, which is what `name` has. A thread may have ended
    // before the recorder can look it up: so the name goes along, for 0.1 µs a sample.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

#[cfg(feature = "record")]
pub(crate) use taking::{Taken, lost, take};

#[cfg(feature = "record")]
mod taking {
    use parking_lot::Mutex;

    use super::*;

    /// A sample as the recorder has it.
    #[derive(Debug, Clone)]
    pub(crate) struct Taken {
        pub(crate) source: u32,
        pub(crate) state: State,
        pub(crate) thread: i32,
        pub(crate) name: String,
        pub(crate) weight: u64,
        pub(crate) count: u64,
        pub(crate) place: Option<&'static Place>,
        pub(crate) holder: i32,
        pub(crate) site: Option<&'static std::panic::Location<'static>>,
        pub(crate) address: usize,
        pub(crate) frames: Vec<u64>,
    }

    static TAIL: Mutex<usize> = Mutex::new(0);

    /// How many samples of a source found no room since the last time.
    pub(crate) fn lost(source: Source) -> u64 {
        LOST[source.place()].swap(0, Ordering::Relaxed)
    }

    /// Takes out what is there.
    pub(crate) fn take(mut each: impl FnMut(Taken)) {
        let mut tail = TAIL.lock();
        for _ in 0..SLOTS {
            let Some(ticket) = TURNS.next(*tail) else { break };
            each(read(&RING[TURNS.slot(&ticket)].0));
            TURNS.taken(ticket);
            *tail = tail.wrapping_add(1);
        }
    }

    fn read(words: &[AtomicU64]) -> Taken {
        let word = |place: usize| words[place].load(Ordering::Relaxed);
        let kinds = word(0);
        let frames = ((kinds >> 40) & 0xff) as usize;
        let state = match (kinds >> 32) as u8 {
            1 => State::Running,
            2 => State::InCall,
            3 => State::Waiting,
            _ => State::Unknown,
        };
        let name = [word(2).to_ne_bytes(), word(3).to_ne_bytes()].concat();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Taken {
            source: kinds as u32,
            state,
            thread: word(1) as i32,
            name: String::from_utf8_lossy(name).into_owned(),
            weight: word(4),
            count: word(5),
            // SAFETY: `push` wrote a reference that lives as long as the process, or 0, and the
            // slot was handed over by its turn.
            place: unsafe { (word(6) as *const Place).as_ref() },
            holder: (word(1) >> 32) as i32,
            // SAFETY: as above.
            site: unsafe { (word(7) as *const std::panic::Location<'static>).as_ref() },
            address: word(8) as usize,
            frames: (0..frames).map(|frame| word(HEAD_WORDS + frame)).collect(),
        }
    }
}
