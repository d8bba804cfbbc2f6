//! Ctrl-C handling. The first signal ends a run early, with its results so far. The second signal
//! ends the process at once, after removing the servers and files that the process created for the
//! run.

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

/// Maximum number of attempts to remove a directory, with a pause after each. A process that was
/// just killed may still write into the directory.
const REMOVE_ATTEMPTS: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// Resources that must not outlive the process: usually one server and its data, sometimes also the
/// previous server and its data.
static OWNED: Mutex<Vec<CleanupTarget>> = Mutex::new(Vec::new());

/// A resource that the second signal removes before it ends the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CleanupTarget {
    /// A process group.
    Group(Pid),
    /// A directory and its contents.
    Directory(PathBuf),
}

/// Guard of a resource. While the guard exists, the second signal removes the resource.
#[derive(Debug)]
pub(crate) struct CleanupGuard(CleanupTarget);

impl CleanupGuard {
    pub(crate) fn of(owned: CleanupTarget) -> Self {
        OWNED.lock().push(owned.clone());
        Self(owned)
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        let mut all = OWNED.lock();
        if let Some(place) = all.iter().position(|owned| *owned == self.0) {
            all.swap_remove(place);
        }
    }
}

/// Returns a flag that the first SIGINT or SIGTERM sets. The second signal removes all
/// `CleanupTarget` resources and then has its default effect.
pub fn interrupt_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                let _held = remove_all();
                // The call can't fail for these two signals.
                let _ = emulate_default_handler(signal);
            }
        }
    })?;
    Ok(stop)
}

/// Removes all resources. Processes come first, because they would write their files again. The
/// list stays locked until the process ends: a thread that notices the death of its server blocks
/// on the lock, and can't end the process first.
fn remove_all() -> MutexGuard<'static, Vec<CleanupTarget>> {
    let all = OWNED.lock();
    for owned in &*all {
        if let CleanupTarget::Group(group) = owned {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
    for owned in &*all {
        let CleanupTarget::Directory(path) = owned else { continue };
        for _ in 0..REMOVE_ATTEMPTS {
            if fs::remove_dir_all(path).is_ok() || !path.exists() {
                break;
            }
            thread::sleep(REMOVE_PAUSE);
        }
    }
    all
}
