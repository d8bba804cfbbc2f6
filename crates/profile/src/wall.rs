//! Wall time: where threads are, running or not.
//!
//! At each look every thread (or the next [`SIGNALS_A_LOOK`] of very many) is asked by a signal for
//! its stack. A thread that has not been put on a CPU since its last answer, other than to give
//! it, is where it was, and is left asleep: a node with a thousand idle threads is not woken by
//! being looked at. An answer stands for the time since the one before, however late it comes: a
//! thread that waits for the disk takes a signal only when the disk has answered.

use std::collections::HashMap;
use std::time::Instant;

use crate::ring::State;
use crate::signals::{self, Handler, WALL_SIGNAL};
use crate::threads::{self, Schedule};

/// Threads that are asked at one look.
const SIGNALS_A_LOOK: usize = 64;

/// Nanoseconds that a thread may have run since it answered and still be taken to be where it was:
/// the handler, and one turn back into the call that it slept in.
const BACK_TO_SLEEP: u64 = 50_000;

/// What is known of the threads.
pub(crate) struct Wall {
    threads: HashMap<i32, Seen>,
    /// Whose turn it is.
    next: usize,
    own: i32,
    _handler: Handler,
}

struct Seen {
    /// Up to when its time is accounted for.
    accounted: Instant,
    asked: bool,
    /// Its schedule when it was asked.
    schedule: Option<Schedule>,
    /// Where it was found asleep.
    asleep: Option<usize>,
}

impl Wall {
    pub(crate) fn new() -> std::io::Result<Self> {
        let handler = Handler::install(WALL_SIGNAL)?;
        let own = threads::own();
        Ok(Self { threads: HashMap::new(), next: 0, own, _handler: handler })
    }

    /// Looks at these threads. `add` is told of each that sleeps where it did: the stack, and how
    /// many nanoseconds more.
    pub(crate) fn look(&mut self, threads: &[i32], mut add: impl FnMut(usize, u64)) {
        let now = Instant::now();
        let mut signals = SIGNALS_A_LOOK;
        for step in 0..threads.len() {
            let thread = threads[(self.next + step) % threads.len()];
            if thread == self.own {
                continue;
            }
            let fresh = Seen { accounted: now, asked: false, schedule: None, asleep: None };
            let seen = self.threads.entry(thread).or_insert(fresh);
            if seen.asked {
                continue;
            }
            let schedule = threads::schedule(thread);
            if let Some(stack) = seen.asleep.filter(|_| same(seen.schedule, schedule)) {
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

    /// A thread has answered: how many nanoseconds its stack stands for.
    pub(crate) fn answered(&mut self, thread: i32, state: State, stack: usize) -> u64 {
        let Some(seen) = self.threads.get_mut(&thread) else { return 0 };
        let now = Instant::now();
        let nanos = (now - seen.accounted).as_nanos() as u64;
        seen.accounted = now;
        seen.asked = false;
        seen.asleep = (state == State::Waiting).then_some(stack);
        nanos
    }
}

/// Whether a thread has done nothing since it was asked but answer.
fn same(asked: Option<Schedule>, now: Option<Schedule>) -> bool {
    let (Some(asked), Some(now)) = (asked, now) else { return false };
    now.turns == asked.turns + 1 && now.ran - asked.ran < BACK_TO_SLEEP
}
