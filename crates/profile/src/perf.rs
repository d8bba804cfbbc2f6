//! CPU time sampling by one perf event for each thread: a high-resolution timer that runs only
//! while the thread runs, and signals the thread after each period of CPU time.
//!
//! The signal handler walks the thread's own stack (`signals.rs`). The kernel could record stacks
//! in a ring instead. But in functions in which the C library uses the frame pointer for other
//! purposes, such as `send`, `recv` and `open`, the kernel would find no callers. A fifth of a
//! PUT's time would lack its callers.
//!
//! Time in the kernel counts towards the system call, because it is most of a server's time. The
//! kernel permits the sampling of kernel time to root, to processes with `CAP_PERFMON`, or if
//! `kernel.perf_event_paranoid` is 1 or less. Events of user code alone are permitted to all users
//! but omit all system calls, so timers (`timers.rs`) are the better fallback.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_SOFTWARE, perf_event_attr,
};

use crate::signals::{self, CPU_SIGNAL, Handler};

/// Recipient of a file's signals, for `fcntl`. libc does not define this struct.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

const SET_OWNER: libc::c_int = 15;
const SET_SIGNAL: libc::c_int = 10;
const THREAD: libc::c_int = 0;

/// The events of all threads.
pub(crate) struct PerfEvents {
    events: HashMap<i32, OwnedFd>,
    period: Duration,
    /// The handler is dropped after the events, because fields are dropped in order.
    _handler: Handler,
}

impl PerfEvents {
    /// Installs the signal handler. Fails if the kernel does not permit perf events.
    pub(crate) fn new(period: Duration) -> io::Result<Self> {
        signals::set_period(period.as_nanos() as u64);
        let handler = Handler::install(CPU_SIGNAL)?;
        drop(open(crate::threads::own(), period)?);
        Ok(Self { events: HashMap::new(), period, _handler: handler })
    }

    /// Opens events for new threads, and closes those of threads that are not in `threads`. Returns
    /// the number of threads whose event could not be opened. Fails if the events would take more
    /// than half of the process's free descriptors, which the process needs for its files and
    /// connections.
    pub(crate) fn follow(&mut self, threads: &[i32]) -> io::Result<usize> {
        self.events.retain(|thread, _| threads.contains(thread));
        let missing = threads.iter().filter(|thread| !self.events.contains_key(thread)).count();
        if missing > 0 && missing > descriptors_left()? / 2 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let mut refused = 0;
        for thread in threads {
            if !self.events.contains_key(thread) {
                match open(*thread, self.period) {
                    Ok(event) => drop(self.events.insert(*thread, event)),
                    // The thread has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(_) => refused += 1,
                }
            }
        }
        Ok(refused)
    }
}

/// Returns the number of descriptors that the process may still open.
fn descriptors_left() -> io::Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct lives through the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let open = std::fs::read_dir("/proc/self/fd")?.count();
    Ok(usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).saturating_sub(open))
}

fn open(thread: i32, period: Duration) -> io::Result<OwnedFd> {
    let mut wanted = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: u64::from(PERF_COUNT_SW_CPU_CLOCK),
        ..perf_event_attr::default()
    };
    wanted.__bindgen_anon_1.sample_period = period.as_nanos() as u64;
    wanted.__bindgen_anon_2.wakeup_events = 1;
    wanted.set_exclude_hv(1);
    wanted.set_disabled(1);
    let failed = |result: libc::c_int| match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the struct lives through the call and states its size; the thread is one of this
    // process.
    let event = unsafe {
        let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
        let event = sys::perf_event_open(&raw mut wanted, thread, -1, -1, flags);
        failed(event)?;
        OwnedFd::from_raw_fd(event)
    };
    let owner = Owner { kind: THREAD, id: thread };
    let file = event.as_raw_fd();
    // SAFETY: calls on the event just opened, each with the argument that it takes; `owner` lives
    // through its call.
    unsafe {
        failed(libc::fcntl(file, libc::F_SETFL, libc::O_ASYNC))?;
        failed(libc::fcntl(file, SET_SIGNAL, CPU_SIGNAL))?;
        failed(libc::fcntl(file, SET_OWNER, &raw const owner))?;
        failed(sys::ioctls::ENABLE(file, 0))?;
    }
    Ok(event)
}
