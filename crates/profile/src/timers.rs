//! CPU time sampling by one timer for each thread, for systems that do not permit perf events.
//!
//! A timer counts the CPU time of its thread, in user code and in the kernel, and signals only that
//! thread. (`setitimer` would count all threads together and signal any of them.) The kernel checks
//! timers at its clock tick, so the CPU time since the last sample decides the number of periods
//! that a signal represents.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use crate::signals::{self, CPU_SIGNAL, Handler};

/// Bits of the kernel's clock id that select the CPU clock of one thread (`posix-timers.h`).
const PER_THREAD: i32 = 4;
const SCHEDULED: i32 = 2;

/// The timers of all threads.
pub(crate) struct Timers {
    timers: HashMap<i32, libc::timer_t>,
    period: Duration,
    /// The handler is dropped after the timers, which `drop` deletes first.
    _handler: Handler,
}

impl Timers {
    pub(crate) fn new(period: Duration) -> io::Result<Self> {
        signals::set_period(period.as_nanos() as u64);
        let handler = Handler::install(CPU_SIGNAL)?;
        Ok(Self { timers: HashMap::new(), period, _handler: handler })
    }

    /// Creates timers for new threads, and deletes those of threads that are not in `threads`.
    pub(crate) fn follow(&mut self, threads: &[i32]) {
        self.timers.retain(|thread, timer| {
            let there = threads.contains(thread);
            if !there {
                delete(*timer);
            }
            there
        });
        for thread in threads {
            if !self.timers.contains_key(thread) {
                // Starting a timer fails for a thread that has just ended.
                if let Ok(timer) = start(*thread, self.period) {
                    self.timers.insert(*thread, timer);
                }
            }
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.timers.drain().for_each(|(_, timer)| delete(timer));
    }
}

fn start(thread: i32, period: Duration) -> io::Result<libc::timer_t> {
    let clock = (!thread << 3) | PER_THREAD | SCHEDULED;
    // SAFETY: all zeros is a valid value of this C struct.
    let mut event = unsafe { std::mem::zeroed::<libc::sigevent>() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = CPU_SIGNAL;
    event.sigev_notify_thread_id = thread;
    let mut timer: libc::timer_t = std::ptr::null_mut();
    // SAFETY: the structs live through the call. The thread is one of this process, and the signal
    // is handled.
    if unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let each = libc::timespec {
        tv_sec: period.as_secs() as _,
        tv_nsec: libc::c_long::from(period.subsec_nanos()),
    };
    let setting = libc::itimerspec { it_interval: each, it_value: each };
    // SAFETY: the timer was just created.
    if unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) } != 0 {
        let error = io::Error::last_os_error();
        delete(timer);
        return Err(error);
    }
    Ok(timer)
}

fn delete(timer: libc::timer_t) {
    // SAFETY: each timer is deleted once, by the code that removes it from the map. A timer whose
    // thread has ended still exists.
    unsafe { libc::timer_delete(timer) };
}
