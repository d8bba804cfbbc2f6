//! Configuration of the system's allocator, so that it returns freed memory.
//!
//! By default glibc's allocator grows an arena for each thread, up to eight a core, and keeps freed
//! memory: large values would stay in it forever, where the memory ledger no longer counts them.
//! With the limits below, 64 MiB of `--memory` and values of up to 900 kB took 90 MiB at most,
//! jemalloc 112 MiB, mimalloc 188 MiB, at the same CPU time per request; and the system's allocator
//! needs no build.
#![allow(unsafe_code, reason = "mallopt has no safe form")]

use std::thread;

/// Bytes from which on a block is a mapping of its own, which is unmapped when freed: values, pages
/// of ranges, memtables. (Without this limit the threshold grows with freed blocks, up to 32 MiB.)
const OWN_MAPPING_BYTES: i32 = 64 << 10;

/// Free bytes at the end of an arena from which on they are returned.
const TRIM_BYTES: i32 = 128 << 10;

/// Bytes by which an arena grows at once.
const GROW_BYTES: i32 = 64 << 10;

/// Sets the limits. Must be called before other threads exist.
pub(crate) fn set_up() {
    let arenas = thread::available_parallelism().map_or(1, |cores| cores.get());
    let limits = [
        (libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
        (libc::M_TRIM_THRESHOLD, TRIM_BYTES),
        (libc::M_TOP_PAD, GROW_BYTES),
        // Only as many threads as there are cores can allocate at once.
        (libc::M_ARENA_MAX, i32::try_from(arenas).unwrap_or(i32::MAX)),
    ];
    for (name, value) in limits {
        // SAFETY: mallopt takes two numbers, and no other thread uses the allocator yet. An unknown
        // limit is refused and leaves the allocator as it was.
        unsafe { libc::mallopt(name, value) };
    }
}
