//! An in-process profiler: flame graphs of CPU time, allocations, lock waits and wall time, without
//! an attached tool, without root and without a restart.
//!
//! ```text
//!  the process's threads                           the recorder's thread, during a recording
//!   signals: perf events, CPU timers, wall ─┐
//!   allocator: SampledAllocator ────────────┼─ ring ─▶ stacks ─▶ symbols ─▶ Folded ─▶ graph
//!   wait sites: Place, Mutex ───────────────┘         (summed)  (from /proc/self/exe)
//! ```
//!
//! The process needs three things: frame pointers (`-C force-frame-pointers=yes`),
//! [`SampledAllocator`] as its allocator, and a [`WaitSite`] wherever its threads wait. Without a
//! recording, the allocator and each wait site cost one relaxed load and one branch.

mod alloc;
mod live;
mod place;
mod random;
mod ring;
mod stack;

#[cfg(feature = "record")]
pub mod event;
#[cfg(feature = "record")]
pub mod folded;
#[cfg(feature = "record")]
pub mod graph;
#[cfg(feature = "record")]
mod output;
#[cfg(feature = "record")]
mod perf;
#[cfg(feature = "record")]
pub mod pprof;
#[cfg(feature = "record")]
mod record;
#[cfg(feature = "record")]
mod signals;
#[cfg(feature = "record")]
mod stacks;
#[cfg(feature = "record")]
mod symbols;
#[cfg(feature = "record")]
mod threads;
#[cfg(feature = "record")]
mod timers;
#[cfg(feature = "record")]
mod wall;

pub use alloc::SampledAllocator;
pub use place::{Mutex, WaitKind, WaitSite, queued};

#[cfg(feature = "record")]
pub use {
    event::Event,
    folded::{Folded, NotFolded},
    output::{Format, NotJson, UnknownFormat},
    record::{Clock, HERTZ, Profile, Recording, RecordingRequest, Refused, SECONDS, start},
    stacks::NamedStacks,
};
