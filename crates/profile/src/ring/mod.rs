//! The bounded queue of samples from the process's threads to the recorder. Any thread can push a
//! sample, even in a signal handler or in the allocator.
//!
//! ```text
//!  producers ─▶ │ filled │ filled │ being filled │ free │ … │ ─▶ one consumer
//!
//!  `turns/` decides who owns each slot; if the ring is full, a sample is lost, and counted
//! ```
//!
//! The ring is static, so late producers can still write after the end of a recording. Its pages
//! take no memory until the first recording.
#![allow(unsafe_code, reason = "filled by signal handlers")]

mod turns;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use turns::SlotStates;

use crate::place::WaitSite;
use crate::stack::MAX_FRAMES;

/// Number of slots: enough for 200,000 samples a second if the ring is drained every 20 ms.
const SLOTS: usize = 4096;

/// Number of words before a sample's frames.
const HEAD_WORDS: usize = 9;

/// Bits of the [`Source`]s that are being recorded.
static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// Number of samples that were lost because the ring was full, by source.
static LOST: [AtomicU64; SOURCES] = [const { AtomicU64::new(0) }; SOURCES];
/// Number of recordings so far.
static RECORDING: AtomicU32 = AtomicU32::new(0);
#[cfg(not(all(loom, test)))]
static SLOT_STATES: SlotStates<SLOTS> = SlotStates::new();
#[cfg(all(loom, test))]
loom::lazy_static! { static ref SLOT_STATES: SlotStates<SLOTS> = SlotStates::new(); }
static RING: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// Sources of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "record"), expect(dead_code, reason = "only recordings have all"))]
#[repr(u32)]
pub(crate) enum Source {
    /// CPU time, from perf events or timers.
    Cpu = 1,
    /// Wall time, from signals to all threads.
    Wall = 2,
    /// Sampled allocations of memory.
    Alloc = 4,
    /// Sampled allocations that are alive at the end.
    Live = 8,
    /// Waits at [`WaitSite`]s.
    Lock = 16,
}

/// Number of sources.
const SOURCES: usize = 5;

impl Source {
    fn place(self) -> usize {
        (self as u32).trailing_zeros() as usize
    }
}

/// Returns true if samples of this source are being recorded.
#[inline]
pub(crate) fn is_wanted(source: Source) -> bool {
    is_any_wanted(source as u32)
}

/// Returns true if samples of any of these sources are being recorded.
#[inline]
pub(crate) fn is_any_wanted(sources: u32) -> bool {
    // bench/off.sh builds with this flag set, to measure the cost of the check.
    !cfg!(hookless) && ACTIVE.load(Ordering::Relaxed) & sources != 0
}

/// Returns the number of the current or last recording.
pub(crate) fn recording() -> u32 {
    RECORDING.load(Ordering::Relaxed)
}

/// Sets the sources to record; a nonzero value starts a new recording.
#[cfg(feature = "record")]
pub(crate) fn set_wanted(sources: u32) {
    if sources != 0 {
        RECORDING.fetch_add(1, Ordering::SeqCst);
    }
    ACTIVE.store(sources, Ordering::SeqCst);
}

/// The words of one sample. Atomics avoid `unsafe`; [`SlotStates`] decides which thread owns a
/// slot.
struct Slot([AtomicU64; HEAD_WORDS + MAX_FRAMES]);

impl Slot {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; HEAD_WORDS + MAX_FRAMES])
    }
}

/// Activity of a thread at the time of a signal's sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(not(feature = "record"), expect(dead_code, reason = "only recordings have all"))]
#[repr(u8)]
pub(crate) enum State {
    /// The activity is unknown.
    Unknown = 0,
    /// The thread ran its own code.
    Running = 1,
    /// The thread was in a system call, or at its end.
    InCall = 2,
    /// The thread slept in a system call.
    Waiting = 3,
}

/// One sample of one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample<'a> {
    pub(crate) source: Source,
    pub(crate) state: State,
    /// Units (nanoseconds or bytes) that the sample stands for.
    pub(crate) weight: u64,
    /// Number of events that the sample stands for.
    pub(crate) count: u64,
    /// The site at which the thread waits, if known.
    pub(crate) place: Option<&'static WaitSite>,
    /// Id of the thread that holds the awaited lock; 0 = unknown.
    pub(crate) holder: i32,
    /// The place in the code where the holder took the lock.
    pub(crate) site: Option<&'static std::panic::Location<'static>>,
    /// Address of the allocation, if the allocation is tracked until it is freed; 0 = not tracked.
    pub(crate) address: usize,
    /// Addresses, beginning with the leaf.
    pub(crate) frames: &'a [usize],
}

fn to_word<T>(reference: Option<&'static T>) -> u64 {
    reference.map_or(0, |reference| &raw const *reference as u64)
}

/// Pushes a sample of the calling thread. Returns false if the ring is full.
pub(crate) fn push(sample: &Sample<'_>) -> bool {
    let Some(ticket) = SLOT_STATES.claim() else {
        LOST[sample.source.place()].fetch_add(1, Ordering::Relaxed);
        return false;
    };
    let frames = &sample.frames[..sample.frames.len().min(MAX_FRAMES)];
    let kinds = sample.source as u64 | (sample.state as u64) << 32 | (frames.len() as u64) << 40;
    let name = own_name();
    // SAFETY: the call has no arguments and always succeeds.
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
    for (word, value) in RING[SLOT_STATES.slot(&ticket)].0.iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    SLOT_STATES.pass_to_consumer(ticket);
    true
}

/// Returns the calling thread's name, padded with zeros.
fn own_name() -> [u64; 2] {
    let mut name = [0u64; 2];
    // SAFETY: the kernel writes at most 16 bytes, the size of `name`. The name is part of every
    // sample, for 0.1 µs, because a thread may end before the recorder can look it up.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

#[cfg(feature = "record")]
pub(crate) use taking::{TakenSample, take, take_lost_count};

#[cfg(feature = "record")]
mod taking {
    use parking_lot::Mutex;

    use super::*;

    /// A sample taken by the recorder.
    #[derive(Debug, Clone)]
    pub(crate) struct TakenSample {
        pub(crate) source: u32,
        pub(crate) state: State,
        pub(crate) thread: i32,
        pub(crate) name: String,
        pub(crate) weight: u64,
        pub(crate) count: u64,
        pub(crate) place: Option<&'static WaitSite>,
        pub(crate) holder: i32,
        pub(crate) site: Option<&'static std::panic::Location<'static>>,
        pub(crate) address: usize,
        pub(crate) frames: Vec<u64>,
    }

    static TAIL: Mutex<usize> = Mutex::new(0);

    /// Returns the number of samples of a source that were lost since the last call.
    pub(crate) fn take_lost_count(source: Source) -> u64 {
        LOST[source.place()].swap(0, Ordering::Relaxed)
    }

    /// Drains the ring: calls `each` with every filled sample.
    pub(crate) fn take(mut each: impl FnMut(TakenSample)) {
        let mut tail = TAIL.lock();
        for _ in 0..SLOTS {
            let Some(ticket) = SLOT_STATES.next(*tail) else { break };
            each(read(&RING[SLOT_STATES.slot(&ticket)].0));
            SLOT_STATES.free_slot(ticket);
            *tail = tail.wrapping_add(1);
        }
    }

    fn read(words: &[AtomicU64]) -> TakenSample {
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
        TakenSample {
            source: kinds as u32,
            state,
            thread: word(1) as i32,
            name: String::from_utf8_lossy(name).into_owned(),
            weight: word(4),
            count: word(5),
            // SAFETY: `push` wrote a reference that lives as long as the process, or 0, and the
            // ticket transferred the slot to the consumer.
            place: unsafe { (word(6) as *const WaitSite).as_ref() },
            holder: (word(1) >> 32) as i32,
            // SAFETY: as above.
            site: unsafe { (word(7) as *const std::panic::Location<'static>).as_ref() },
            address: word(8) as usize,
            frames: (0..frames).map(|frame| word(HEAD_WORDS + frame)).collect(),
        }
    }
}
