//! Kinds of profiles: CPU time, allocations, live memory, lock waits and wall time.

use std::fmt;
use std::str::FromStr;

use crate::graph::Unit;

/// A kind of profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// Time on a CPU, in the program and in the kernel.
    Cpu,
    /// Bytes that the process allocated, whether they were freed or not.
    Alloc,
    /// Bytes allocated during the recording and not freed by its end.
    Live,
    /// Time spent waiting at [`WaitSite`](crate::WaitSite)s.
    Lock,
    /// Wall time of all threads, running or not.
    Wall,
}

impl Event {
    /// All events, in display order.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Alloc, Self::Live, Self::Lock, Self::Wall];

    /// Returns the event's name in flags, parameters and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Live => "live",
            Self::Lock => "lock",
            Self::Wall => "wall",
        }
    }

    /// Returns the unit of the event's weights.
    pub fn unit(self) -> Unit {
        match self {
            Self::Alloc | Self::Live => Unit::Bytes,
            Self::Cpu | Self::Lock | Self::Wall => Unit::Nanos,
        }
    }

    /// Returns a one-line description of the event's graph.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Cpu => "CPU time, in the program and in the kernel",
            Self::Alloc => "bytes asked for, whether freed again or not",
            Self::Live => "bytes asked for during the recording and still there at its end",
            Self::Lock => {
                "time waited at named places: locks, queues and files. Waits that had not ended \
                 are not in it"
            }
            Self::Wall => "time of all threads, running or not",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why a text is not a list of events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// An event is unknown. The field is the beginning of its name.
    #[error("unknown event {0:?}; known: {known}", known = names(&Event::ALL))]
    Unknown(String),
    /// The list contains an event twice.
    #[error("event {0} is named twice")]
    Twice(Event),
}

impl FromStr for Event {
    type Err = EventError;

    fn from_str(text: &str) -> Result<Self, EventError> {
        let found = Self::ALL.into_iter().find(|event| event.name() == text);
        found.ok_or_else(|| EventError::Unknown(text.chars().take(40).collect()))
    }
}

/// Parses a list such as `cpu,alloc`. Returns an error for an unknown or a repeated event.
pub fn list(text: &str) -> Result<Vec<Event>, EventError> {
    let mut events = Vec::new();
    for one in text.split(',') {
        let event = one.parse()?;
        if events.contains(&event) {
            return Err(EventError::Twice(event));
        }
        events.push(event);
    }
    Ok(events)
}

/// Formats events as a list that [`list`] parses.
pub fn names(events: &[Event]) -> String {
    events.iter().map(|event| event.name()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_lists_are_parsed_and_invalid_lists_are_refused() {
        assert_eq!(list("cpu,wall"), Ok(vec![Event::Cpu, Event::Wall]));
        assert_eq!(list(&names(&Event::ALL)), Ok(Event::ALL.to_vec()));
        for (bad, said) in [
            ("", "unknown event \"\""),
            ("cpu,", "\"\""),
            ("CPU", "cpu,alloc"),
            ("cpu,cpu", "twice"),
        ] {
            let error = list(bad).unwrap_err().to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }
}
