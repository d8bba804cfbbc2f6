//! Named places where threads wait: locks, queues, files, and for work.
//!
//! ```text
//!  lock():  try ── got it ─────────────────────────────▶ go on: one load more than without
//!            └─ held ─▶ mark ─▶ stack ─▶ wait ─▶ sample: nanoseconds, the place, who held it
//! ```
//!
//! The mark is always set, so that a look at a waiting thread (wall time) can say where it is; the
//! stack and the clock only while waits are recorded.
#![allow(unsafe_code, reason = "read by signal handlers")]

use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::MutexGuard;

use crate::random::Distance;
use crate::ring::{self, Sample, Source, State};
use crate::stack::{self, MAX_FRAMES};

/// Mean nanoseconds of waiting between two samples of a thread: at most one in 100 is spent on
/// them.
const MEAN_NANOS: u64 = 100_000;

thread_local! {
    static WAITS_AT: Cell<Option<&'static Place>> = const { Cell::new(None) };
    static DISTANCE: Distance = const { Distance::new() };
    static THREAD: Cell<i32> = const { Cell::new(0) };
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitKind {
    /// Something that another thread holds.
    Lock,
    /// Room in a queue, or the turn of what is in it.
    Queue,
    /// A file that is read or written.
    File,
    /// Work. Nobody is kept from anything: hidden unless asked for.
    Idle,
}

/// A place where threads wait, by name.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Place {
    kind: WaitKind,
    name: &'static str,
}

impl Place {
    /// A place of this kind.
    pub const fn new(kind: WaitKind, name: &'static str) -> Self {
        Self { kind, name }
    }

    /// What is waited for.
    pub fn kind(&self) -> WaitKind {
        self.kind
    }

    /// The place as a frame of a stack.
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

    /// Waits here, by doing `wait`.
    pub fn during<T>(&'static self, wait: impl FnOnce() -> T) -> T {
        self.held(wait, || NOBODY)
    }

    /// The same; `holder` says afterwards who it was waited for.
    fn held<T>(&'static self, wait: impl FnOnce() -> T, holder: impl FnOnce() -> Holder) -> T {
        if cfg!(hookless) {
            return wait();
        }
        let outer = WAITS_AT.replace(Some(self));
        let done = if ring::wanted(Source::Lock) { self.timed(wait, holder) } else { wait() };
        WAITS_AT.set(outer);
        done
    }

    #[cold]
    #[inline(never)]
    fn timed<T>(&'static self, wait: impl FnOnce() -> T, holder: impl FnOnce() -> Holder) -> T {
        let mut frames = [0; MAX_FRAMES];
        let depth = stack::here(&mut frames);
        let begun = Instant::now();
        let done = wait();
        self.record(begun.elapsed().as_nanos() as u64, holder(), &frames[..depth]);
        done
    }

    /// Something waited here, in a queue, since `since` (see [`queued`]). The stack is of the
    /// thread that takes it out.
    pub fn waited_since(&'static self, since: Option<Instant>) {
        let Some(since) = since.filter(|_| ring::wanted(Source::Lock)) else { return };
        let mut frames = [0; MAX_FRAMES];
        let depth = stack::here(&mut frames);
        self.record(since.elapsed().as_nanos() as u64, NOBODY, &frames[..depth]);
    }

    fn record(&'static self, nanos: u64, holder: Holder, frames: &[usize]) {
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

/// The moment that something is put into a queue, while waits are recorded.
#[inline]
pub fn queued() -> Option<Instant> {
    ring::wanted(Source::Lock).then(Instant::now)
}

/// Where the calling thread waits. Can be called in a signal handler.
#[cfg(feature = "record")]
pub(crate) fn waits_at() -> Option<&'static Place> {
    WAITS_AT.get()
}

/// The calling thread's id, without a system call but for the first time.
fn own_thread() -> i32 {
    let known = THREAD.get();
    if known != 0 {
        return known;
    }
    // SAFETY: it has no arguments and always succeeds.
    let own = unsafe { libc::gettid() };
    THREAD.set(own);
    own
}

/// Who held something, and where it took it.
#[derive(Clone, Copy)]
struct Holder {
    /// 0 = not known.
    thread: i32,
    site: Option<&'static Location<'static>>,
}

const NOBODY: Holder = Holder { thread: 0, site: None };

/// A mutex that knows, while waits are recorded, who held it last.
#[derive(Debug)]
pub struct Mutex<T> {
    place: &'static Place,
    /// The thread that took it last, and in the high half the recording in which it did.
    holder: AtomicU64,
    site: AtomicPtr<Location<'static>>,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(place: &'static Place, value: T) -> Self {
        let inner = parking_lot::Mutex::new(value);
        let (holder, site) = (AtomicU64::new(0), AtomicPtr::new(std::ptr::null_mut()));
        Self { place, holder, site, inner }
    }

    /// Waits for it and locks it. The guard works with [`parking_lot::Condvar`].
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.inner.try_lock().unwrap_or_else(|| self.lock_held());
        if ring::wanted(Source::Lock) {
            let own = u64::from(own_thread().cast_unsigned());
            self.holder.store(own | u64::from(ring::recording()) << 32, Ordering::Relaxed);
            self.site.store((&raw const *Location::caller()).cast_mut(), Ordering::Relaxed);
        }
        guard
    }

    #[cold]
    fn lock_held(&self) -> MutexGuard<'_, T> {
        let wait = || self.inner.lock();
        // Asked when it has been given back: whoever took it before the recording is not known, but
        // it may have had others since.
        self.place.held(wait, || self.last_holder())
    }

    fn last_holder(&self) -> Holder {
        let holder = self.holder.load(Ordering::Relaxed);
        if (holder >> 32) as u32 != ring::recording() {
            return NOBODY;
        }
        // SAFETY: null, or what `lock` stored: a reference that lives as long as the process.
        let site = unsafe { self.site.load(Ordering::Relaxed).as_ref() };
        Holder { thread: holder as i32, site }
    }
}
