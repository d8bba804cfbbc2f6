//! An allocator wrapper that samples allocations with their stacks, one for each 64 KiB on average.
#![allow(unsafe_code, reason = "an allocator is unsafe by its signature")]

use std::alloc::{GlobalAlloc, Layout};

use crate::live;
use crate::random::SampleDistance;
use crate::ring::{self, Sample, Source, State};
use crate::stack::{self, MAX_FRAMES};

/// Mean number of bytes between two samples of a thread. An allocation rate of 50 MB/s yields 800
/// samples a second, each of which costs about 1 µs.
const MEAN_BYTES: u64 = 64 << 10;

thread_local! {
    static DISTANCE: SampleDistance = const { SampleDistance::new() };
}

/// Allocator `A` with sampling. During a recording, some allocations are sampled; otherwise each
/// allocation costs one more load and one more branch.
#[derive(Debug, Clone, Copy, Default)]
pub struct SampledAllocator<A>(pub A);

const ALLOC_AND_LIVE: u32 = Source::Alloc as u32 | Source::Live as u32;

#[inline]
fn on_alloc(memory: *mut u8, size: usize) {
    if ring::is_any_wanted(ALLOC_AND_LIVE) {
        count(memory, size);
    }
}

#[cold]
fn count(memory: *mut u8, size: usize) {
    if memory.is_null() {
        return;
    }
    if let Some(weight) = DISTANCE.with(|distance| distance.pass(size as u64, MEAN_BYTES)) {
        sample(memory, size, weight);
    }
}

#[inline(never)]
fn sample(memory: *mut u8, size: usize, weight: u64) {
    let mut frames = [0; MAX_FRAMES];
    let depth = stack::capture(&mut frames);
    let address = memory as usize;
    let tracked = ring::is_wanted(Source::Live) && live::insert(address);
    let room = ring::push(&Sample {
        source: Source::Alloc,
        state: State::Unknown,
        weight,
        count: (weight / size.max(1) as u64).max(1),
        place: None,
        holder: 0,
        site: None,
        address: if tracked { address } else { 0 },
        frames: &frames[..depth],
    });
    if tracked && !room {
        live::remove(address);
    }
}

#[inline]
fn on_free(memory: *mut u8) {
    if ring::is_wanted(Source::Live) {
        live::remove(memory as usize);
    }
}

// SAFETY: `A` does all the work with the arguments unchanged; the other code does not allocate, and
// does not access the memory in question.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SampledAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        let memory = unsafe { self.0.alloc(layout) };
        on_alloc(memory, layout.size());
        memory
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        let memory = unsafe { self.0.alloc_zeroed(layout) };
        on_alloc(memory, layout.size());
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        on_free(memory);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { self.0.dealloc(memory, layout) }
    }

    /// A reallocation counts as freeing the old size and allocating the new size.
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        on_free(memory);
        // SAFETY: the caller's guarantees are passed on.
        let memory = unsafe { self.0.realloc(memory, layout, new_size) };
        on_alloc(memory, new_size);
        memory
    }
}
