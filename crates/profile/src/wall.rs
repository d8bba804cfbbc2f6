//! Wall time sampling: stacks of all threads, running or not.
//!
//! In each round the recorder signals every thread to sample its own stack. A round sends at most
//! [`MAX_SIGNALS_PER_ROUND`] signals, and the next round continues with the next thread. A sleeping
//! thread whose scheduling statistics show that it has only handled the last signal is still at the
//! same stack. Such a thread is counted without a signal, so that profiling does not wake a
//! thousand idle threads. A sample stands for the time since the thread's previous sample, however
//! late it arrives: a thread that waits for the disk handles the signal only once the disk has
//! answered.

use std::collections::HashMap;
use std::time::Instant;

use crate::ring::State;
use crate::signals::{self, Handler, WALL_SIGNAL};
use crate::threads::{self, Schedule};

/// Maximum number of signals in one round.
const MAX_SIGNALS_PER_ROUND: usize = 64;

/// Maximum CPU time, in nanoseconds, that a thread may use after a sample and still count as asleep
/// at the same stack. It covers the handler and one restart of the interrupted system call.
const BACK_TO_SLEEP: u64 = 50_000;

/// State of wall-time sampling.
pub(crate) struct WallSampler {
    threads: HashMap<i32, SeenThread>,
    /// Index of the thread with which the next round begins.
    next: usize,
    own: i32,
    _handler: Handler,
}

struct SeenThread {
    /// The thread's time is counted, as running or asleep, up to this moment.
    accounted: Instant,
    asked: bool,
    /// The thread's scheduling statistics when the signal was sent.
    schedule: Option<Schedule>,
    /// Number of the stack at which the thread was found asleep.
    asleep: Option<usize>,
}

impl WallSampler {
    pub(crate) fn new() -> std::io::Result<Self> {
        let handler = Handler::install(WALL_SIGNAL)?;
        let own = threads::own();
        Ok(Self { threads: HashMap::new(), next: 0, own, _handler: handler })
    }

    /// Runs a round over these threads. Calls `add` with the stack and the additional nanoseconds
    /// of each thread that still sleeps at the same stack.
    pub(crate) fn sample_round(&mut self, threads: &[i32], mut add: impl FnMut(usize, u64)) {
        let now = Instant::now();
        let mut signals = MAX_SIGNALS_PER_ROUND;
        for step in 0..threads.len() {
            let thread = threads[(self.next + step) % threads.len()];
            if thread == self.own {
                continue;
            }
            let fresh = SeenThread { accounted: now, asked: false, schedule: None, asleep: None };
            let seen = self.threads.entry(thread).or_insert(fresh);
            if seen.asked {
                continue;
            }
            let schedule = threads::schedule(thread);
            if let Some(stack) = seen.asleep.filter(|_| is_unchanged(seen.schedule, schedule)) {
                add(stack, (now - seen.accounted).as_nanos() as u64);
                seen.accounted = now;
                continue;
            }
            if signals == 0 {
                self.next = (self.next + step) % threads.len();
                break;
            }
            signals -= 1;
            seen.schedule = schedule;
            seen.asleep = None;
            seen.asked = signals::send(thread);
        }
        self.threads.retain(|thread, _| threads.contains(thread));
    }

    /// Handles a sample of a thread. Returns the nanoseconds that the sample stands for.
    pub(crate) fn on_sample(&mut self, thread: i32, state: State, stack: usize) -> u64 {
        let Some(seen) = self.threads.get_mut(&thread) else { return 0 };
        let now = Instant::now();
        let nanos = (now - seen.accounted).as_nanos() as u64;
        seen.accounted = now;
        seen.asked = false;
        seen.asleep = (state == State::Waiting).then_some(stack);
        nanos
    }
}

/// Returns true if a thread has done nothing but handle the signal since the signal was sent.
fn is_unchanged(asked: Option<Schedule>, now: Option<Schedule>) -> bool {
    let (Some(asked), Some(now)) = (asked, now) else { return false };
    now.timeslices == asked.timeslices + 1 && now.cpu_nanos - asked.cpu_nanos < BACK_TO_SLEEP
}
