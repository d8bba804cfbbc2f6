//! The system's allocator, told to give memory back.
//!
//! As it is, glibc's grows an arena for each thread, up to eight a core, and keeps what is freed:
//! large values would stay in it for ever, where the memory ledger no longer counts them. With the
//! limits below, 64 MiB of `--memory` and values of up to 900 kB took 90 MiB at most, jemalloc
//! 112 MiB, mimalloc 188 MiB, at the same CPU time per request; and nothing is built for it.
//!
//! musl's own takes one lock for every call, and 2 to 9 % more instructions per request than
//! jemalloc, which a static build has: packaging/README.md.
#![allow(unsafe_code, reason = "mallopt has no safe form")]

#[cfg(not(target_env = "musl"))]
pub(crate) use std::alloc::System as Allocator;
#[cfg(not(target_env = "musl"))]
use std::thread;

#[cfg(target_env = "musl")]
pub(crate) use tikv_jemallocator::Jemalloc as Allocator;

/// What memory comes from.
pub(crate) const ALLOCATES: Allocator = Allocator;

/// Sets the limits; to be called before there are threads.
#[cfg(not(target_env = "musl"))]
pub(crate) fn set_up() {
    // A block of so many bytes is a mapping of its own, which is gone when it is freed: values,
    // pages of ranges, memtables. (Without this limit it grows with what is freed, up to 32 MiB.)
    const OWN_MAPPING_BYTES: i32 = 64 << 10;
    // So many free bytes at the end of an arena are given back …
    const TRIM_BYTES: i32 = 128 << 10;
    // … and so many taken at once when it grows.
    const GROW_BYTES: i32 = 64 << 10;
    let arenas = thread::available_parallelism().map_or(1, |cores| cores.get());
    let limits = [
        (libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
        (libc::M_TRIM_THRESHOLD, TRIM_BYTES),
        (libc::M_TOP_PAD, GROW_BYTES),
        // As many threads as there are cores can ask for memory at once.
        (libc::M_ARENA_MAX, i32::try_from(arenas).unwrap_or(i32::MAX)),
    ];
    for (name, value) in limits {
        // SAFETY: it takes two numbers; no other thread uses the allocator yet. A limit that it
        // does not know it refuses, and is what it was.
        unsafe { libc::mallopt(name, value) };
    }
}

/// jemalloc gives memory back by itself.
#[cfg(target_env = "musl")]
pub(crate) fn set_up() {}
