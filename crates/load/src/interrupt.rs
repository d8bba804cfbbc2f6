//! Ctrl-C ends a run early, with what is known; a second one ends the process at once, but leaves
//! nothing of what it has started and made for the time of the run.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Attempts to remove a directory into which a process that was just killed may still write, and
/// the time between two of them.
const ATTEMPTS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(10);

/// What the end of the process must not leave behind: a server and its data at most, now and then
/// those of the one before.
static OWNED: Mutex<Vec<Owned>> = Mutex::new(Vec::new());

/// Something that ends with this process, however it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owned {
    /// A group of processes.
    Group(Pid),
    /// A directory with all that is in it.
    Directory(PathBuf),
}

/// Whoever holds it takes care of the thing; without it nobody does.
#[derive(Debug)]
pub(crate) struct Care(Owned);

impl Care {
    pub(crate) fn of(owned: Owned) -> Self {
        OWNED.lock().push(owned.clone());
        Self(owned)
    }
}

impl Drop for Care {
    fn drop(&mut self) {
        let mut all = OWNED.lock();
        if let Some(place) = all.iter().position(|owned| *owned == self.0) {
            all.swap_remove(place);
        }
    }
}

/// A flag that becomes true with the first SIGINT or SIGTERM. The second one does what it does
/// without a handler, once what is `Owned` is gone.
pub fn until_interrupted() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                let _held = leave_nothing();
                // Neither signal is one that it refuses.
                let _ = emulate_default_handler(signal);
            }
        }
    })?;
    Ok(stop)
}

/// Processes first: what they write would come back. Until the process ends the list stays locked:
/// whoever sees that its server is gone waits with it, and can't end the process another way.
fn leave_nothing() -> MutexGuard<'static, Vec<Owned>> {
    let all = OWNED.lock();
    for owned in &*all {
        if let Owned::Group(group) = owned {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
    for owned in &*all {
        let Owned::Directory(path) = owned else { continue };
        for _ in 0..ATTEMPTS {
            if fs::remove_dir_all(path).is_ok() || !path.exists() {
                break;
            }
            thread::sleep(BETWEEN);
        }
    }
    all
}
