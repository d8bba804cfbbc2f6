//! Rate limit for the warnings of threads that retry several times a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time during which an identical warning is not logged again.
const SILENCE: Duration = Duration::from_secs(60);

/// The last warning of each background task, by task name.
#[derive(Default)]
pub(super) struct WarningLimiter(Mutex<HashMap<&'static str, (String, Instant)>>);

impl WarningLimiter {
    /// Returns true if the error of the task `what` should be logged: the task's last warning
    /// differs or is older than [`SILENCE`].
    pub(super) fn allows(&self, error: &str, what: &'static str, now: Instant) -> bool {
        // Digits are ignored, because each attempt uses a file with another number.
        let error: String = error.chars().filter(|digit| !digit.is_ascii_digit()).collect();
        let mut last_warnings = self.0.lock();
        let last = last_warnings.get(what).filter(|(text, _)| *text == error);
        if last.is_some_and(|(_, at)| now.saturating_duration_since(*at) < SILENCE) {
            return false;
        }
        last_warnings.insert(what, (error, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_warning_is_logged_once_a_minute() {
        let (warnings, now) = (WarningLimiter::default(), Instant::now());
        assert!(warnings.allows("no space", "flush", now));
        assert!(!warnings.allows("no space", "flush", now + SILENCE / 2));
        assert!(warnings.allows("000012.sst: no space", "compaction", now));
        assert!(!warnings.allows("000013.sst: no space", "compaction", now), "the next file");
        assert!(warnings.allows("no space", "compaction", now), "another one");
        assert!(warnings.allows("no space", "flush", now + SILENCE));
        assert!(warnings.allows("damaged", "flush", now + SILENCE), "another cause");
    }
}
