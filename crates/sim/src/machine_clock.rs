//! A machine's clocks. The wall clock may be wrong, drift and jump; the monotonic clock drifts.

/// True time 0 in microseconds since 1970.
const EPOCH: i64 = 1_700_000_000_000_000;

/// The clocks of a machine. All times are in microseconds, and drift is in millionths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineClock {
    offset: i64,
    drift: i64,
    since: u64,
    /// Resolution of the wall clock, which shows only multiples of this number.
    resolution: u64,
}

impl MachineClock {
    pub(crate) fn new(offset: i64, drift: i64, resolution: u64) -> Self {
        Self { offset, drift, since: 0, resolution }
    }

    /// Returns the wall clock's time at true time `now`.
    pub(crate) fn wall(&self, now: u64) -> u64 {
        let wall = (EPOCH + now as i64 + self.offset(now)) as u64;
        wall - wall % self.resolution
    }

    /// Returns the lead of the wall clock over true time `now`; negative = behind.
    pub(crate) fn offset(&self, now: u64) -> i64 {
        self.offset + (now - self.since) as i64 * self.drift / 1_000_000
    }

    /// Sets the wall clock to `offset` ahead of true time.
    pub(crate) fn set(&mut self, now: u64, offset: i64) {
        *self = Self { offset, since: now, ..*self };
    }

    /// Returns the monotonic clock's time at true time `now`.
    pub(crate) fn mono(&self, now: u64) -> u64 {
        (now as i64 + now as i64 * self.drift / 1_000_000) as u64
    }

    /// Returns the first true time at which [`MachineClock::mono`] is `mono` or more.
    pub(crate) fn true_time_of(&self, mono: u64) -> u64 {
        let near = (mono as i64 * 1_000_000 / (1_000_000 + self.drift)) as u64;
        let from = near.saturating_sub(2);
        (from..).find(|now| self.mono(*now) >= mono).unwrap_or(near)
    }
}

/// Returns the time of a correct wall clock at true time `now`, in microseconds since 1970.
pub(crate) fn true_wall_time(now: u64) -> u64 {
    EPOCH as u64 + now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_wake_ups_are_never_early() {
        for drift in [-200, 0, 7, 200] {
            let wall = MachineClock::new(0, drift, 1);
            for mono in (0..1_000_000_000).step_by(7_654_321) {
                let now = wall.true_time_of(mono);
                assert!(wall.mono(now) >= mono && wall.mono(now.saturating_sub(5)) <= mono);
            }
        }
    }
}
