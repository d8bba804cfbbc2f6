//! Reports to systemd that the node serves, rereads its files, or stops. The protocol is that of
//! `sd_notify` (a unit's `Type=notify`). With `WatchdogSec=`, it also reports that all event loops
//! make progress:
//!
//! ```text
//!  loop 0: sweeps ─┐
//!  loop 1: sweeps ─┼─▶ has each swept since the last message? ─ yes ─▶ WATCHDOG=1
//!  loop n: sweeps ─┘                                           └ no ──▶ nothing: systemd waits
//! ```
//!
//! Without `NOTIFY_SOCKET` in the environment, nothing is reported.

use std::env;
use std::fmt::Write;
use std::future::pending;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use crate::runtime::event_loop::Handle;

/// Number of checks of the loops in one period of the watchdog. A message may be late by one check,
/// and a loop's sweep by one tick. systemd recommends at least two messages in a period.
const CHECKS_PER_PERIOD: u32 = 4;

/// The status that systemd shows for a node that serves.
pub(crate) const SERVES: &str = "serves";

/// Reports the status `what`, and that the node is ready.
pub(crate) fn report_ready(what: &str) {
    send_report(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// Reports that files are being read again. The next [`report_ready`] ends this state.
pub(crate) fn report_reload() {
    // systemd assigns a message without the time of this reload to an earlier reload.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send_report(&[NotifyState::Reloading, now]),
        Err(_) => send_report(&[NotifyState::Reloading]),
    }
}

/// Reports that the node stops.
pub(crate) fn report_stop() {
    send_report(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: requests in flight are finished"),
    ]);
}

/// Reports to the watchdog while all of `loops` make progress. Never ends.
pub(crate) async fn keep_alive(loops: &[Handle]) {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return pending().await;
    };
    let mut ticks = interval((period / CHECKS_PER_PERIOD).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turning = LoopProgress::default();
    loop {
        ticks.tick().await;
        let sweeps = loops.iter().map(|handle| handle.counters.sweeps.get());
        if turning.have_all_progressed(sweeps.collect()) {
            send_report(&[NotifyState::Watchdog]);
        }
    }
}

/// Sends a report. If that fails, the node still serves.
fn send_report(states: &[NotifyState<'_>]) {
    if let Err(error) = send(states) {
        tracing::warn!(%error, "the service manager at $NOTIFY_SOCKET cannot be told: {states:?}");
    }
}

/// Sends a report to the socket in NOTIFY_SOCKET: a path, or `@` and an abstract name
/// (sd_notify(3)). The crate `sd_notify` supports only paths.
fn send(states: &[NotifyState<'_>]) -> io::Result<()> {
    let socket = env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    let Some(name) = socket.as_bytes().strip_prefix(b"@") else {
        return sd_notify::notify(states);
    };
    let report = states.iter().fold(String::new(), |mut report, state| {
        let _ = writeln!(report, "{state}");
        report
    });
    let address = SocketAddr::from_abstract_name(name)?;
    UnixDatagram::unbound()?.send_to_addr(report.as_bytes(), &address).map(|_| ())
}

/// The number of each loop's sweeps at the last check that found progress in all loops.
#[derive(Debug, Default)]
struct LoopProgress(Vec<u64>);

impl LoopProgress {
    /// Returns true at the first check, and if each loop has swept since the last check that
    /// returned true.
    fn have_all_progressed(&mut self, sweeps: Vec<u64>) -> bool {
        let stand_still = |(now, before): (&u64, &u64)| now == before;
        if sweeps.iter().zip(&self.0).any(stand_still) {
            return false;
        }
        self.0 = sweeps;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stuck_loop_counts_as_no_progress() {
        let mut turning = LoopProgress::default();
        assert!(turning.have_all_progressed(vec![0, 0]));
        assert!(!turning.have_all_progressed(vec![0, 0]));
        assert!(!turning.have_all_progressed(vec![9, 0]), "one turns, the other does not");
        assert!(!turning.have_all_progressed(vec![99, 0]));
        assert!(turning.have_all_progressed(vec![99, 1]), "both have turned since the first look");
        assert!(!turning.have_all_progressed(vec![100, 1]));
    }
}
