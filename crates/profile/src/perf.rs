//! CPU time by perf events: the kernel samples each thread and writes its stack into a ring.
//!
//! Time in the kernel counts, at the stack that led there: for a server it is most of the time. The
//! kernel grants that to root, to `CAP_PERFMON`, or if `kernel.perf_event_paranoid` is 1 or less.
//! Events of user code only would be granted to everybody, and leave out every system call: then
//! timers (`timers.rs`) are the better choice.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_CONTEXT_MAX, PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_LOST,
    PERF_RECORD_SAMPLE, PERF_SAMPLE_CALLCHAIN, PERF_TYPE_SOFTWARE, perf_event_attr,
    perf_event_mmap_page,
};

use crate::stack::MAX_FRAMES;

/// Pages of a thread's ring beside its head: at 199 Hz a fifth of a second of the deepest stacks.
const RING_PAGES: usize = 16;

/// Bytes of a record's head: type, misc, size.
const RECORD_HEAD: usize = 8;

/// What the kernel writes into a thread's ring.
pub(crate) enum Record {
    /// A stack, from the leaf.
    Stack(Vec<u64>),
    /// So many had no room.
    Lost(u64),
}

/// Events of all threads.
pub(crate) struct Events {
    rings: HashMap<i32, Ring>,
    period: Duration,
}

impl Events {
    /// Events of these threads; an error if the kernel does not permit them.
    pub(crate) fn new(threads: &[i32], period: Duration) -> io::Result<Self> {
        let own = crate::threads::own();
        drop(Ring::new(own, period)?);
        let mut events = Self { rings: HashMap::new(), period };
        for thread in threads {
            match Ring::new(*thread, period) {
                Ok(ring) => drop(events.rings.insert(*thread, ring)),
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(events)
    }

    /// Takes what there is, then has events of these threads and of no other. How many of them could
    /// not be had.
    pub(crate) fn follow(&mut self, threads: &[i32], mut each: impl FnMut(i32, Record)) -> usize {
        self.take(&mut each);
        self.rings.retain(|thread, _| threads.contains(thread));
        let mut refused = 0;
        for thread in threads {
            if !self.rings.contains_key(thread) {
                match Ring::new(*thread, self.period) {
                    Ok(ring) => drop(self.rings.insert(*thread, ring)),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(_) => refused += 1,
                }
            }
        }
        refused
    }

    /// Takes what there is.
    pub(crate) fn take(&mut self, mut each: impl FnMut(i32, Record)) {
        for (thread, ring) in &mut self.rings {
            ring.take(|record| each(*thread, record));
        }
    }
}

/// One thread's event and the memory that it is shared through.
struct Ring {
    memory: *mut u8,
    bytes: usize,
    page: usize,
    _event: OwnedFd,
}

// SAFETY: the memory is this value's alone, but for the kernel; nothing of it belongs to a thread.
unsafe impl Send for Ring {}

impl Ring {
    fn new(thread: i32, period: Duration) -> io::Result<Self> {
        let mut wanted = perf_event_attr {
            type_: PERF_TYPE_SOFTWARE,
            size: size_of::<perf_event_attr>() as u32,
            config: u64::from(PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(PERF_SAMPLE_CALLCHAIN),
            ..perf_event_attr::default()
        };
        wanted.__bindgen_anon_1.sample_period = period.as_nanos() as u64;
        wanted.set_exclude_callchain_kernel(1);
        wanted.set_exclude_hv(1);
        // SAFETY: the struct lives through the call and says its size; the thread is ours.
        let event = unsafe {
            let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
            let event = sys::perf_event_open(&raw mut wanted, thread, -1, -1, flags);
            if event < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(event)
        };
        let page = page_size();
        let bytes = (1 + RING_PAGES) * page;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the event's ring, unmapped when dropped.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { memory: memory.cast(), bytes, page, _event: event })
    }

    fn take(&mut self, mut each: impl FnMut(Record)) {
        let head_page = self.memory.cast::<perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is this struct; the kernel writes the head and reads
        // the tail, both aligned words, concurrently.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*head_page).data_head),
                AtomicU64::from_ptr(&raw mut (*head_page).data_tail),
            )
        };
        let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        let mut record = Vec::new();
        while at < end {
            self.copy(at, RECORD_HEAD, &mut record);
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            let kind = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
            assert!(size >= RECORD_HEAD, "a record of the kernel has a head");
            self.copy(at + RECORD_HEAD as u64, size - RECORD_HEAD, &mut record);
            if let Some(understood) = understand(kind, &record) {
                each(understood);
            }
            at += size as u64;
        }
        tail.store(at, Ordering::Release);
    }

    /// Copies so many bytes of the ring from `at` on, around its end if need be.
    fn copy(&self, at: u64, len: usize, into: &mut Vec<u8>) {
        let room = self.bytes - self.page;
        assert!(len <= room, "a record fits its ring");
        into.clear();
        let begin = (at % room as u64) as usize;
        let first = len.min(room - begin);
        // SAFETY: both ranges are in the mapping, and the kernel does not write between tail and
        // head.
        unsafe {
            let data = self.memory.add(self.page);
            into.extend_from_slice(std::slice::from_raw_parts(data.add(begin), first));
            into.extend_from_slice(std::slice::from_raw_parts(data, len - first));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing refers to it any more.
        unsafe { libc::munmap(self.memory.cast(), self.bytes) };
    }
}

fn understand(kind: u32, body: &[u8]) -> Option<Record> {
    let mut words = body
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of eight")));
    if kind == PERF_RECORD_SAMPLE {
        let _count = words.next()?;
        // Between the addresses are marks: what follows is the kernel's, or the process's.
        let mark = PERF_CONTEXT_MAX;
        let frames: Vec<u64> = words.filter(|word| *word < mark).take(MAX_FRAMES).collect();
        return Some(Record::Stack(frames));
    }
    if kind == PERF_RECORD_LOST {
        let _id = words.next()?;
        return Some(Record::Lost(words.next()?));
    }
    None
}

fn page_size() -> usize {
    // SAFETY: it only asks.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
