//! What systemd is told of a node by the protocol of `sd_notify` (a unit's `Type=notify`): that the
//! node serves, that it reads its files again, that it stops. And, for `WatchdogSec=`, that all
//! event loops turn:
//!
//! ```text
//!  loop 0: sweeps ─┐
//!  loop 1: sweeps ─┼─▶ has each swept since the last message? ─ yes ─▶ WATCHDOG=1
//!  loop n: sweeps ─┘                                           └ no ──▶ nothing: systemd waits
//! ```
//!
//! Without NOTIFY_SOCKET in the environment nothing is told to anybody.

use std::future::pending;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use crate::runtime::event_loop::Handle;

/// Looks at the loops in one period of the watchdog. The message may be late by one look, and a
/// loop's sweep by one tick; systemd's own advice is at least two messages in a period.
const LOOKS: u32 = 4;

/// What systemd shows of a node that serves.
pub(crate) const SERVES: &str = "serves";

/// Tells that the node does `what` from now on, and that clients reach it.
pub(crate) fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// Tells that files are read again, until [`ready`].
pub(crate) fn reloading() {
    // systemd takes the message for one about an earlier reload without the time of this one.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Tells that the node stops.
pub(crate) fn stopping() {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: requests in flight are finished"),
    ]);
}

/// Tells the watchdog that all of `loops` turn, as long as they do. Never ends.
pub(crate) async fn keep_alive(loops: &[Handle]) {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return pending().await;
    };
    let mut looks = interval((period / LOOKS).max(Duration::from_millis(1)));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turning = Turning::default();
    loop {
        looks.tick().await;
        let sweeps = loops.iter().map(|handle| handle.counters.sweeps.get());
        if turning.have_all_moved(sweeps.collect()) {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

/// A node that can't tell anything serves all the same.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager at $NOTIFY_SOCKET cannot be told: {states:?}");
    }
}

/// How often each loop had swept when all of them were last found to turn.
#[derive(Debug, Default)]
struct Turning(Vec<u64>);

impl Turning {
    /// Whether each loop has swept since that time. Before the first look each has.
    fn have_all_moved(&mut self, sweeps: Vec<u64>) -> bool {
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
    fn one_loop_that_stands_still_is_enough() {
        let mut turning = Turning::default();
        assert!(turning.have_all_moved(vec![0, 0]));
        assert!(!turning.have_all_moved(vec![0, 0]));
        assert!(!turning.have_all_moved(vec![9, 0]), "one turns, the other does not");
        assert!(!turning.have_all_moved(vec![99, 0]));
        assert!(turning.have_all_moved(vec![99, 1]), "both have turned since the first look");
        assert!(!turning.have_all_moved(vec![100, 1]));
    }
}
