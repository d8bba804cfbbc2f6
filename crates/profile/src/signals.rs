//! Signal handlers, in which a thread samples its own stack.
//!
//! ```text
//!  the thread's CPU clock ──── SIGURG ────┐   the handler walks the interrupted thread's frame
//!  recorder (wall time) ────── SIGWINCH ──┴─▶ pointers and pushes a sample to the ring
//! ```
//!
//! Both signals are ignored by default, so a signal that a thread handles only after the recording
//! (because the thread waited for the disk) is harmless. The handler is installed with
//! `SA_RESTART`. Of the calls in which a node's threads sleep, the kernel restarts `futex` and does
//! not interrupt `fdatasync` and file I/O; `epoll_wait` returns `EINTR`, which tokio treats as an
//! iteration without events.
#![allow(unsafe_code, reason = "signal handlers")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::place;
use crate::ring::{self, Sample, Source, State};
use crate::stack::{self, MAX_FRAMES};

/// Signal of perf events and of CPU timers.
pub(crate) const CPU_SIGNAL: c_int = libc::SIGURG;
/// Signal that the recorder sends for wall time.
pub(crate) const WALL_SIGNAL: c_int = libc::SIGWINCH;

/// `si_code` of a signal sent by `tgkill`, which libc does not define.
const SI_TKILL: c_int = -6;

/// `si_code` of a signal that a readable file sends. A perf event sends this signal after each
/// period.
const POLL_IN: c_int = 1;

/// Nanoseconds of CPU time per sampling period.
static PERIOD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Number of the recording, and the thread's CPU time in nanoseconds, at its last sample.
    static SAMPLED: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// An installed signal handler. Dropping it restores the previous handler.
pub(crate) struct Handler {
    signal: c_int,
    former: libc::sigaction,
}

impl Handler {
    /// Installs the profiler's handler for `signal`.
    pub(crate) fn install(signal: c_int) -> io::Result<Self> {
        // SAFETY: all zeros is a valid value of this C struct: default action, no flags, empty
        // mask.
        let (mut action, mut former) = unsafe {
            (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed::<libc::sigaction>())
        };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle_signal;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: both structs live through the call; the handler only performs async-signal-safe
        // operations.
        let installed = unsafe { libc::sigaction(signal, &raw const action, &raw mut former) };
        if installed != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { signal, former })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: the call restores the action that `install` found.
        let restored =
            unsafe { libc::sigaction(self.signal, &raw const self.former, std::ptr::null_mut()) };
        assert_eq!(restored, 0, "a signal that could be handled can be so as before");
    }
}

/// Sets the sampling period, in nanoseconds of CPU time.
pub(crate) fn set_period(nanos: u64) {
    PERIOD.store(nanos, Ordering::Relaxed);
}

/// Sends the wall-time signal to a thread of this process, so that the thread samples its stack.
/// Returns false if the thread has ended.
pub(crate) fn send(thread: i32) -> bool {
    // SAFETY: the call sends a signal, which is handled or ignored, to a thread of this process.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, WALL_SIGNAL) };
    sent == 0
}

extern "C" fn handle_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO both structs; errno is the thread's own.
    // The block performs only loads, stores, `prctl` and `gettid`, all safe in a handler.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let code = (*info).si_code;
        let of_clock = code == libc::SI_TIMER || code == POLL_IN;
        let (source, weight) = if signal == CPU_SIGNAL && of_clock {
            (Source::Cpu, cpu_since_sample())
        } else if signal == WALL_SIGNAL && code == SI_TKILL && (*info).si_pid() == libc::getpid() {
            (Source::Wall, 0)
        } else {
            return;
        };
        if ring::is_wanted(source) {
            let registers = Registers::of(&*context.cast::<libc::ucontext_t>());
            record(&registers, source, weight);
        }
        *errno = before;
    }
}

/// Returns the nanoseconds of CPU time that a sample stands for: the periods since the previous
/// sample, because a thread in a long system call handles one signal for many periods.
fn cpu_since_sample() -> u64 {
    let period = PERIOD.load(Ordering::Relaxed);
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct; the clock is the thread's own. Safe in a handler.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let (recording, before) = SAMPLED.replace((ring::recording(), now));
    if recording != ring::recording() {
        return period;
    }
    let periods = (now.saturating_sub(before) + period / 2) / period.max(1);
    periods.max(1) * period
}

fn record(registers: &Registers, source: Source, weight: u64) {
    let mut frames = [0; MAX_FRAMES];
    frames[0] = registers.pc;
    let depth =
        1 + stack::walk_interrupted(registers.pc, registers.fp, registers.sp, &mut frames[1..]);
    ring::push(&Sample {
        source,
        state: registers.state(),
        weight,
        count: 1,
        place: place::waits_at(),
        holder: 0,
        site: None,
        address: 0,
        frames: &frames[..depth],
    });
}

/// Registers of an interrupted thread.
struct Registers {
    pc: usize,
    sp: usize,
    fp: usize,
    /// Result of the system call, if the thread was interrupted in one.
    result: isize,
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// The instruction of a system call.
    const CALL: [u8; 2] = [0x0f, 0x05];

    fn of(context: &libc::ucontext_t) -> Self {
        let register = |name: c_int| context.uc_mcontext.gregs[name as usize] as usize;
        Self {
            pc: register(libc::REG_RIP),
            sp: register(libc::REG_RSP),
            fp: register(libc::REG_RBP),
            result: register(libc::REG_RAX) as isize,
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// The instruction of a system call.
    const CALL: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];

    fn of(context: &libc::ucontext_t) -> Self {
        let machine = &context.uc_mcontext;
        Self {
            pc: machine.pc as usize,
            sp: machine.sp as usize,
            fp: machine.regs[29] as usize,
            result: machine.regs[0] as isize,
        }
    }
}

impl Registers {
    /// Distinguishes threads that ran their own code, were in a system call, or slept in a system
    /// call: after a sleep the kernel either restarts the call at its instruction or returns
    /// `EINTR`.
    fn state(&self) -> State {
        const LEN: usize = Registers::CALL.len();
        // With this check both reads stay on the page of the next instruction, which is mapped.
        if !(LEN..=4096 - LEN).contains(&(self.pc % 4096)) {
            return State::Unknown;
        }
        let is_call = |at: usize| {
            // SAFETY: the check above keeps the read on a mapped page; code is readable, and is
            // read as bytes.
            unsafe { (at as *const [u8; LEN]).read_unaligned() == Self::CALL }
        };
        if is_call(self.pc) {
            State::Waiting
        } else if !is_call(self.pc - LEN) {
            State::Running
        } else if self.result == -(libc::EINTR as isize) {
            State::Waiting
        } else {
            State::InCall
        }
    }
}
