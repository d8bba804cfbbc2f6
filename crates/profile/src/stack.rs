//! Stack traces: return addresses of the current thread, by walking frame pointers.
//!
//! ```text
//!   sp ─▶ │ locals           │
//!   fp ─▶ │ caller's fp   ───┼──┐   each frame pointer is above the previous one, below the top of
//!         │ return address   │  │   the thread's stack, and aligned; otherwise the walk ends
//!         │ caller's locals  │  │
//!         │ its caller's fp ◀┼──┘
//!         │ return address   │
//! ```
//!
//! The walk allocates nothing, takes no lock and reads only the live stack of the calling thread,
//! so a signal handler can walk the stack wherever the thread was interrupted. Code without frame
//! pointers (the C library) may hold any value in the register; because of the bounds, such a value
//! leads to a short stack and not to a fault.
#![allow(unsafe_code, reason = "frame pointers are followed by hand")]

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of frames of a stack, counted from the leaf. Debug builds of async code have
/// about 100.
pub(crate) const MAX_FRAMES: usize = 128;

/// Maximum size of a thread's stack in bytes: the limit on the distance from the stack pointer to
/// the top.
const MAX_STACK: usize = 256 << 20;

/// Lowest possible address of a mapping, and so of a function.
const LOWEST_ADDRESS: usize = 64 << 10;

/// End of the main thread's stack; 0 = unknown. The kernel creates this stack, so no memory of the
/// thread contains its end.
static MAIN_TOP: AtomicUsize = AtomicUsize::new(0);

/// Address range of the program's own code, in which every function has a frame; 0 = unknown.
#[cfg(feature = "record")]
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Determines the end of the main thread's stack and the range of the program's code. Before the
/// first call, stacks of the main thread have one frame.
#[cfg(feature = "record")]
pub(crate) fn learn_own_memory_layout() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = learn_own_memory_layout as *const () as usize;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((Some(begin), Some(end))) = range.map(|(begin, end)| (hex(begin), hex(end)))
        else {
            continue;
        };
        if line.ends_with("[stack]") {
            MAIN_TOP.store(end, Ordering::Relaxed);
        }
        if (begin..end).contains(&own) {
            CODE[0].store(begin, Ordering::Relaxed);
            CODE[1].store(end, Ordering::Relaxed);
        }
    }
}

/// Returns the end of the stack into which `sp` points; 0 = unknown.
fn top_of(sp: usize) -> usize {
    // SAFETY: the call only reads a register and is allowed in a signal handler. glibc keeps a
    // thread's own data at the top of its stack, in the same mapping: frames are below it.
    let own = unsafe { libc::pthread_self() } as usize;
    let main = MAIN_TOP.load(Ordering::Relaxed);
    let is_top = |top: &usize| *top > sp && *top - sp <= MAX_STACK;
    [own, main].into_iter().find(is_top).unwrap_or(0)
}

/// Fills `into` with return addresses, beginning with the frame at `fp`. Returns their number.
pub(crate) fn walk(mut fp: usize, sp: usize, into: &mut [usize]) -> usize {
    let (top, mut low) = (top_of(sp), sp);
    for (count, address) in into.iter_mut().enumerate() {
        let fits = fp >= low && fp.is_multiple_of(size_of::<usize>()) && fp < top;
        if !fits || top - fp < 2 * size_of::<usize>() {
            return count;
        }
        let frame = fp as *const usize;
        // SAFETY: both words are aligned and between the thread's stack pointer and the top of its
        // stack, which is mapped as long as the thread lives. Volatile, because the compiler does
        // not know frames as objects. Cost: 0.1 µs for 30 frames; unwinding tables take over 10 µs
        // and locks.
        let (next, back) = unsafe { (frame.read_volatile(), frame.add(1).read_volatile()) };
        if back < LOWEST_ADDRESS {
            return count;
        }
        *address = back;
        low = fp + 2 * size_of::<usize>();
        fp = next;
    }
    into.len()
}

/// Maximum size of the C library's frames, in words above the stack pointer: the library's system
/// calls use few words.
#[cfg(feature = "record")]
const FOREIGN_WORDS: usize = 48;

/// Minimum number of frames of a complete stack. A shorter chain does not reach the thread's start.
#[cfg(feature = "record")]
const MIN_COMPLETE_DEPTH: usize = 3;

/// Walks the stack of a thread that was interrupted at any instruction, as [`walk`] does for a
/// call. If the C library uses the frame pointer for another purpose, it has saved the program's
/// frame pointer on the stack, below the return address into the program; the walk searches for
/// both words and continues there. If the library function has no frame at all, the return address
/// is at the stack pointer.
#[cfg(feature = "record")]
pub(crate) fn walk_interrupted(pc: usize, fp: usize, sp: usize, into: &mut [usize]) -> usize {
    let depth = walk(fp, sp, into);
    if depth >= MIN_COMPLETE_DEPTH {
        let code = CODE[0].load(Ordering::Relaxed)..CODE[1].load(Ordering::Relaxed);
        // SAFETY: as in `walk`; frames lie above, so the word is within the stack.
        let back = unsafe { (sp as *const usize).read_unaligned() };
        if code.contains(&pc) || !code.contains(&back) || depth == into.len() {
            return depth;
        }
        into.copy_within(..depth, 1);
        into[0] = back;
        return depth + 1;
    }
    let Some((back, saved)) = find_foreign(sp) else { return depth };
    into[0] = back;
    1 + walk(saved, sp, &mut into[1..])
}

/// Finds the return address from foreign code at `sp` into the program. Returns it with the
/// program's frame pointer, or `None` if there is none.
#[cfg(feature = "record")]
fn find_foreign(sp: usize) -> Option<(usize, usize)> {
    const WORD: usize = size_of::<usize>();
    let top = top_of(sp);
    let code = CODE[0].load(Ordering::Relaxed)..CODE[1].load(Ordering::Relaxed);
    let begin = sp.next_multiple_of(WORD);
    // SAFETY: as in `walk`: aligned words between the stack pointer and the top of the stack.
    let word = |at: usize| unsafe { (at as *const usize).read_volatile() };
    let end = top.saturating_sub(2 * WORD).min(begin + FOREIGN_WORDS * WORD);
    for at in (begin..end).step_by(WORD) {
        if !code.contains(&word(at)) {
            continue;
        }
        let is_frame = |saved: &usize| {
            let inside = *saved > at && *saved < top.saturating_sub(2 * WORD);
            inside
                && saved.is_multiple_of(WORD)
                && word(*saved) > *saved
                && code.contains(&word(*saved + WORD))
        };
        if let Some(saved) = (begin..at).step_by(WORD).map(word).find(is_frame) {
            return Some((word(at), saved));
        }
    }
    None
}

/// Fills `into` with the stack of the caller, without the caller's own frame. Returns the number of
/// frames.
#[inline(always)]
pub(crate) fn capture(into: &mut [usize]) -> usize {
    let (fp, sp): (usize, usize);
    // SAFETY: the instructions copy two registers and do nothing else.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov {}, rbp", "mov {}, rsp", out(reg) fp, out(reg) sp,
            options(nomem, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("mov {}, x29", "mov {}, sp", out(reg) fp, out(reg) sp,
            options(nomem, nostack, preserves_flags));
    }
    walk(fp, sp, into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deeper(depth: usize, into: &mut [usize]) -> usize {
        if depth == 0 {
            return std::hint::black_box(capture(into));
        }
        std::hint::black_box(deeper(std::hint::black_box(depth - 1), into))
    }

    #[test]
    fn every_call_is_a_frame_up_to_the_bound() {
        let mut frames = [0; MAX_FRAMES];
        let shallow = deeper(1, &mut frames);
        let deep = deeper(21, &mut frames);
        assert_eq!(deep, shallow + 20);
        assert!(frames[..deep].iter().all(|address| *address >= LOWEST_ADDRESS));
        assert_eq!(deeper(2 * MAX_FRAMES, &mut frames), MAX_FRAMES);
        assert_eq!(deeper(20, &mut frames[..3]), 3);
    }

    #[test]
    fn a_wrong_frame_pointer_ends_the_walk() {
        let mut frames = [0; MAX_FRAMES];
        let local = [0usize; 2];
        let sp = (&raw const local) as usize;
        for wrong in [0, 1, sp - 8, sp + 1, usize::MAX, usize::MAX - 7, sp + MAX_STACK] {
            assert_eq!(walk(wrong, sp, &mut frames), 0, "{wrong:#x}");
        }
        assert_eq!(walk(sp, sp, &mut frames), 0, "a return address of 0");
        let looped = [(&raw const local) as usize, 1 << 20];
        let at = (&raw const looped) as usize;
        assert!(walk(at, at.min(sp), &mut frames) <= 2, "frames only go up");
    }
}
