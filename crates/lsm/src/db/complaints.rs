//! Warnings of threads that try again several times a second: each once a minute, not each time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long the same warning is not logged again.
const SILENCE: Duration = Duration::from_secs(60);

/// The last warning of each background task, by the task's name.
#[derive(Default)]
pub(super) struct Complaints(Mutex<HashMap<&'static str, (String, Instant)>>);

impl Complaints {
    /// Whether an error is to be logged: the task's last warning was another one, or is older than
    /// [`SILENCE`].
    pub(super) fn is_news(&self, error: &str, what: &'static str, now: Instant) -> bool {
        // Each attempt names another file, by its number.
        let error: String = error.chars().filter(|digit| !digit.is_ascii_digit()).collect();
        let mut said = self.0.lock();
        let last = said.get(what).filter(|(text, _)| *text == error);
        if last.is_some_and(|(_, at)| now.saturating_duration_since(*at) < SILENCE) {
            return false;
        }
        said.insert(what, (error, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_warning_is_logged_once_a_minute() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        assert!(complaints.is_news("no space", "flush", now));
        assert!(!complaints.is_news("no space", "flush", now + SILENCE / 2));
        assert!(complaints.is_news("000012.sst: no space", "compaction", now));
        assert!(!complaints.is_news("000013.sst: no space", "compaction", now), "the next file");
        assert!(complaints.is_news("no space", "compaction", now), "another one");
        assert!(complaints.is_news("no space", "flush", now + SILENCE));
        assert!(complaints.is_news("damaged", "flush", now + SILENCE), "another cause");
    }
}
