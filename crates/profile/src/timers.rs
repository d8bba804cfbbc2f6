//! CPU time by timers, one a thread: for where perf events are not permitted.
//!
//! A timer counts its thread's CPU time, in its own code and in the kernel, and signals that thread
//! only. (`setitimer` would signal whichever thread comes first, and count all together.) The
//! kernel looks at them at its clock tick, so that what is lost in between is in the overrun.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use crate::signals::{self, CPU_SIGNAL, Handler};

/// The kernel's names for the CPU clock of one thread: bits of a clock id (`posix-timers.h`).
const PER_THREAD: i32 = 4;
const SCHEDULED: i32 = 2;

/// Timers of all threads.
pub(crate) struct Timers {
    timers: HashMap<i32, libc::timer_t>,
    period: Duration,
    /// Dropped after the timers.
    _handler: Handler,
}

impl Timers {
    pub(crate) fn new(period: Duration) -> io::Result<Self> {
        signals::set_period(period.as_nanos() as u64);
        let handler = Handler::install(CPU_SIGNAL)?;
        Ok(Self { timers: HashMap::new(), period, _handler: handler })
    }

    /// Has a timer for each of these threads, and for no other.
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
                // A thread that has just ended has none.
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
    // SAFETY: the structs live through the call. The thread is ours, and the signal is handled.
    if unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let each = libc::timespec {
        tv_sec: period.as_secs() as libc::time_t,
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
    // SAFETY: each timer is deleted once, by whoever takes it out of the map. One whose thread has
    // ended is still there.
    unsafe { libc::timer_delete(timer) };
}
