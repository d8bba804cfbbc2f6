//! Standard streams that were closed when the process began. The standard library opens `/dev/null`
//! in their place, from which an empty value would be read, and into which a result would vanish.
#![allow(unsafe_code, reason = "what runs before the standard library has no safe form")]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static STDIN: AtomicBool = AtomicBool::new(false);
static STDOUT: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls what is listed in this section before `main`, on the only thread.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for (descriptor, closed) in [(libc::STDIN_FILENO, &STDIN), (libc::STDOUT_FILENO, &STDOUT)] {
        // SAFETY: the call only reads the flags of a descriptor, which need not be open.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        closed.store(flags == -1, Ordering::Relaxed);
    }
}

/// Returns an error if the process began without a stdin.
pub(crate) fn check_stdin() -> io::Result<()> {
    check(&STDIN)
}

/// Returns an error if the process began without a stdout.
pub(crate) fn check_stdout() -> io::Result<()> {
    check(&STDOUT)
}

fn check(closed: &AtomicBool) -> io::Result<()> {
    match closed.load(Ordering::Relaxed) {
        true => Err(io::Error::other("it is closed")),
        false => Ok(()),
    }
}
