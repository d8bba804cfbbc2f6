//! A process that looks into itself while it serves: flame graphs of CPU, allocation, lock and wall
//! time, with nothing attached, no root and no restart.
//!
//! ```text
//!  the process's threads                              the recorder's thread, while one runs
//!   kernel: perf_event_open ─── a ring a thread ──────┐
//!   signals: CPU timers, wall ──┐                     ├▶ stacks ─▶ symbols ─▶ Folded ─▶ graph
//!   allocator: Sampled ─────────┼─ one ring ──────────┘  (added up)  (from /proc/self/exe)
//!   places: Place, Mutex ───────┘
//! ```
//!
//! The process brings three things: frame pointers (`-C force-frame-pointers=yes`), [`Sampled`] as
//! its allocator, and [`Place`]s where its threads wait. While nothing is recorded they cost one
//! relaxed load and a branch each.

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

pub use alloc::Sampled;
pub use place::{Mutex, Place, WaitKind, queued};

#[cfg(feature = "record")]
pub use {
    event::Event,
    folded::{Folded, NotFolded},
    output::{Format, NotJson, UnknownFormat},
    record::{Clock, HERTZ, Order, Profile, Recording, Refused, SECONDS, start},
    stacks::Named,
};
