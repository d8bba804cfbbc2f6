//! Configuration of the system's allocator, so that it returns freed memory.
//!
//! By default glibc's allocator grows an arena for each thread, up to eight per core, and keeps
//! freed memory. The memory of large values would stay in the arenas forever, outside of all memory
//! budgets. With the limits below, `--memory 64MiB` and values of up to 900 kB, a node with glibc's
//! allocator used 90 MiB at most; with jemalloc, 112 MiB; with mimalloc, 188 MiB. The CPU time per
//! request was the same. glibc's allocator also needs no separate build.
//!
//! musl's own allocator takes a global lock in every call, and costs 2 to 9 % more instructions per
//! request than jemalloc. Static builds therefore use jemalloc (packaging/README.md).
#![allow(unsafe_code, reason = "mallopt has no safe form")]

#[cfg(not(target_env = "musl"))]
pub(crate) use std::alloc::System as Allocator;
#[cfg(not(target_env = "musl"))]
use std::thread;

#[cfg(target_env = "musl")]
pub(crate) use tikv_jemallocator::Jemalloc as Allocator;

/// The allocator of the program.
pub(crate) const ALLOCATES: Allocator = Allocator;

/// Sets the allocator's limits. Must be called before other threads exist.
#[cfg(not(target_env = "musl"))]
pub(crate) fn set_up() {
    // A block of at least this size is a separate mapping, which is removed when the block is
    // freed. Values, pages of ranges, and memtables are examples. (Without this limit glibc raises
    // its threshold to the size of freed blocks, up to 32 MiB.)
    const OWN_MAPPING_BYTES: i32 = 64 << 10;
    // An arena returns the free bytes at its end to the system if they exceed this number.
    const TRIM_BYTES: i32 = 128 << 10;
    // An arena that grows requests this many bytes more than it needs.
    const GROW_BYTES: i32 = 64 << 10;
    let arenas = thread::available_parallelism().map_or(1, |cores| cores.get());
    let limits = [
        (libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
        (libc::M_TRIM_THRESHOLD, TRIM_BYTES),
        (libc::M_TOP_PAD, GROW_BYTES),
        // At most this many threads can allocate at the same time.
        (libc::M_ARENA_MAX, i32::try_from(arenas).unwrap_or(i32::MAX)),
    ];
    for (name, value) in limits {
        // SAFETY: mallopt takes two numbers, and no other thread uses the allocator yet. An unknown
        // limit is refused and leaves the allocator unchanged.
        unsafe { libc::mallopt(name, value) };
    }
}

/// Does nothing, because jemalloc returns freed memory by default.
#[cfg(target_env = "musl")]
pub(crate) fn set_up() {}
