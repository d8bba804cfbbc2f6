//! Named wait sites: locks, queues, files, and idle waits for work.
//!
//! ```text
//!  lock():  try ── acquired ───────────────────────────▶ return: costs one extra load
//!            └─ held ─▶ mark ─▶ stack ─▶ wait ─▶ sample: nanoseconds, wait site, holder
//! ```
//!
//! A waiting thread always has the mark, so that a wall-time sample can name the site. The stack
//! and the clock are read only while waits are recorded.
#![allow(unsafe_code, reason = "read by signal handlers")]

use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::MutexGuard;

use crate::random::SampleDistance;
use crate::ring::{self, Sample, Source, State};
use crate::stack::{self, MAX_FRAMES};

/// Mean nanoseconds of waiting between two samples of a thread, which limits the cost of samples to
/// 1 % of the waiting time.
const MEAN_NANOS: u64 = 100_000;

thread_local! {
    static WAITS_AT: Cell<Option<&'static WaitSite>> = const { Cell::new(None) };
    static DISTANCE: SampleDistance = const { SampleDistance::new() };
    static THREAD: Cell<i32> = const { Cell::new(0) };
}

/// Kind of wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitKind {
    /// Waiting for a lock held by another thread.
    Lock,
    /// Waiting for room in a queue, or for the processing of a queued item.
    Queue,
    /// Waiting for file I/O.
    File,
    /// Waiting for work. This wait delays nothing, and graphs hide it by default.
    Idle,
}

/// A named wait site.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct WaitSite {
    kind: WaitKind,
    name: &'static str,
}

impl WaitSite {
    /// Creates a wait site.
    pub const fn new(kind: WaitKind, name: &'static str) -> Self {
        Self { kind, name }
    }

    /// Returns the kind of wait at this site.
    pub fn kind(&self) -> WaitKind {
        self.kind
    }

    /// Returns the site as a stack frame.
    #[cfg(feature = "record")]
    pub(crate) fn frame(&self) -> String {
        let kind = match self.kind {
            WaitKind::Lock => "lock",
            WaitKind::Queue => "queue",
            WaitKind::File => "file",
            WaitKind::Idle => "idle",
        };
        format!("{kind}: {}", self.name)
    }

    /// Executes `wait`, and counts its time as a wait at this site.
    pub fn during<T>(&'static self, wait: impl FnOnce() -> T) -> T {
        self.wait_and_record(wait, || NOBODY)
    }

    /// Executes `wait` as a wait at this site. `holder` is called after the wait, and returns the
    /// thread that held the lock.
    fn wait_and_record<T>(
        &'static self,
        wait: impl FnOnce() -> T,
        holder: impl FnOnce() -> LockHolder,
    ) -> T {
        if cfg!(hookless) {
            return wait();
        }
        let outer = WAITS_AT.replace(Some(self));
        let done =
            if ring::is_wanted(Source::Lock) { self.record_wait(wait, holder) } else { wait() };
        WAITS_AT.set(outer);
        done
    }

    #[cold]
    #[inline(never)]
    fn record_wait<T>(
        &'static self,
        wait: impl FnOnce() -> T,
        holder: impl FnOnce() -> LockHolder,
    ) -> T {
        let mut frames = [0; MAX_FRAMES];
        let depth = stack::capture(&mut frames);
        let begun = Instant::now();
        let done = wait();
        self.record(begun.elapsed().as_nanos() as u64, holder(), &frames[..depth]);
        done
    }

    /// Records the wait of an item in a queue from `since` (see [`queued`]) to now. The stack
    /// belongs to the thread that dequeues the item. `None` records nothing.
    pub fn waited_since(&'static self, since: Option<Instant>) {
        let Some(since) = since.filter(|_| ring::is_wanted(Source::Lock)) else { return };
        let mut frames = [0; MAX_FRAMES];
        let depth = stack::capture(&mut frames);
        self.record(since.elapsed().as_nanos() as u64, NOBODY, &frames[..depth]);
    }

    fn record(&'static self, nanos: u64, holder: LockHolder, frames: &[usize]) {
        let Some(weight) = DISTANCE.with(|distance| distance.pass(nanos, MEAN_NANOS)) else {
            return;
        };
        ring::push(&Sample {
            source: Source::Lock,
            state: State::Unknown,
            weight,
            count: (weight / nanos.max(1)).max(1),
            place: Some(self),
            holder: holder.thread,
            site: holder.site,
            address: 0,
            frames,
        });
    }
}

/// Returns the current time for a newly queued item; `None` unless waits are recorded.
#[inline]
pub fn queued() -> Option<Instant> {
    ring::is_wanted(Source::Lock).then(Instant::now)
}

/// Returns the site at which the calling thread waits, or `None`. Safe in a signal handler.
#[cfg(feature = "record")]
pub(crate) fn waits_at() -> Option<&'static WaitSite> {
    WAITS_AT.get()
}

/// Returns the calling thread's id, cached after the first system call.
fn own_thread() -> i32 {
    let known = THREAD.get();
    if known != 0 {
        return known;
    }
    // SAFETY: the call has no arguments and always succeeds.
    let own = unsafe { libc::gettid() };
    THREAD.set(own);
    own
}

/// The holder of a lock, and the place where the holder took the lock.
#[derive(Clone, Copy)]
struct LockHolder {
    /// Thread id; 0 = unknown.
    thread: i32,
    site: Option<&'static Location<'static>>,
}

const NOBODY: LockHolder = LockHolder { thread: 0, site: None };

/// A mutex that remembers its last holder while waits are recorded.
#[derive(Debug)]
pub struct Mutex<T> {
    place: &'static WaitSite,
    /// Thread id of the last holder in the low half, number of the recording in the high half.
    holder: AtomicU64,
    site: AtomicPtr<Location<'static>>,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(place: &'static WaitSite, value: T) -> Self {
        let inner = parking_lot::Mutex::new(value);
        let (holder, site) = (AtomicU64::new(0), AtomicPtr::new(std::ptr::null_mut()));
        Self { place, holder, site, inner }
    }

    /// Locks the mutex; waits if necessary. The guard works with [`parking_lot::Condvar`].
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.inner.try_lock().unwrap_or_else(|| self.lock_contended());
        if ring::is_wanted(Source::Lock) {
            let own = u64::from(own_thread().cast_unsigned());
            self.holder.store(own | u64::from(ring::recording()) << 32, Ordering::Relaxed);
            self.site.store((&raw const *Location::caller()).cast_mut(), Ordering::Relaxed);
        }
        guard
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        let wait = || self.inner.lock();
        // Evaluated after the wait: a holder that took the lock before the recording is unknown,
        // but a later, known holder may have followed.
        self.place.wait_and_record(wait, || self.last_holder())
    }

    fn last_holder(&self) -> LockHolder {
        let holder = self.holder.load(Ordering::Relaxed);
        if (holder >> 32) as u32 != ring::recording() {
            return NOBODY;
        }
        // SAFETY: the pointer is null, or a reference that `lock` stored and that lives as long as
        // the process.
        let site = unsafe { self.site.load(Ordering::Relaxed).as_ref() };
        LockHolder { thread: holder as i32, site }
    }
}
