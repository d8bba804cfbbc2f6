//! The output formats of a profile.

use std::io;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Event;
use crate::folded::{Folded, NotFolded};
use crate::graph::{self, Tab};
use crate::pprof;
use crate::record::Profile;
use crate::stacks::NamedStacks;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One interactive page with a tab per event.
    Html,
    /// An SVG image.
    Svg,
    /// Collapsed stacks, one per line.
    Folded,
    /// A file for pprof.
    Pprof,
    /// All events as JSON, for programs.
    Json,
}

impl Format {
    /// All output formats.
    pub const ALL: [Self; 5] = [Self::Html, Self::Svg, Self::Folded, Self::Pprof, Self::Json];

    /// Returns the format's name in flags and parameters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Svg => "svg",
            Self::Folded => "folded",
            Self::Pprof => "pprof",
            Self::Json => "json",
        }
    }

    /// Returns the media type for `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Svg => "image/svg+xml",
            Self::Folded => "text/plain; charset=utf-8",
            Self::Pprof => "application/octet-stream",
            Self::Json => "application/json",
        }
    }

    /// Returns true if the format can hold only one event.
    pub fn holds_one_event(self) -> bool {
        matches!(self, Self::Svg | Self::Folded | Self::Pprof)
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

/// The error for an unknown format, with the beginning of the given name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format {0:?}; known: {known}", known = Format::names())]
pub struct UnknownFormat(String);

/// Reason why a text is not a profile in [`Format::Json`].
#[derive(Debug, thiserror::Error)]
pub enum NotJson {
    /// The text is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The profile has no events.
    #[error("it has no events")]
    NoEvents,
    /// The profile lacks its duration.
    #[error("it says no seconds")]
    NoSeconds,
    /// An event's stacks are malformed.
    #[error("{field} of {event}: {source}")]
    Stacks {
        /// The malformed field: weights or counts.
        field: &'static str,
        /// The event of the stacks.
        event: Event,
        /// The parse error.
        source: NotFolded,
    },
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| UnknownFormat(text.chars().take(40).collect()))
    }
}

impl Profile {
    /// Writes all events. In a format for a single event, writes only the first event. `node` is
    /// the name of the profiled node.
    pub fn write(&self, format: Format, node: &str) -> io::Result<Vec<u8>> {
        if format.holds_one_event() {
            let Some((event, _)) = self.events.first() else { return Ok(Vec::new()) };
            return self.write_one(*event, format, node);
        }
        match format {
            Format::Html => Ok(self.page(node, &self.events).into_bytes()),
            _ => Ok(self.json(node).to_string().into_bytes()),
        }
    }

    /// Writes the profile of one event, which is empty if the event was not recorded.
    pub fn write_one(&self, event: Event, format: Format, node: &str) -> io::Result<Vec<u8>> {
        let empty = NamedStacks::default();
        let named = self.events.iter().find(|(known, _)| *known == event);
        let named = named.map_or(&empty, |(_, named)| named);
        let title = format!("{event} of {node}");
        match format {
            Format::Html => Ok(self.page(node, &[(event, named.clone())]).into_bytes()),
            Format::Svg => {
                graph::svg(&title, &self.notes.join("; "), event.unit(), &named.folded, None)
            }
            Format::Folded => Ok(named.folded.to_string().into_bytes()),
            Format::Json => {
                let one = Self { events: vec![(event, named.clone())], ..self.clone() };
                Ok(one.json(node).to_string().into_bytes())
            }
            Format::Pprof => pprof::encode(
                event.name(),
                event.unit(),
                &named.folded,
                &named.counts,
                (self.started, Duration::from_secs_f64(self.seconds)),
                &self.notes,
            ),
        }
    }

    /// Parses a profile in [`Format::Json`].
    pub fn from_json(text: &[u8]) -> Result<Self, NotJson> {
        let json: serde_json::Value = serde_json::from_slice(text)?;
        let events = json["events"].as_object().ok_or(NotJson::NoEvents)?;
        let mut profile = Self {
            started: UNIX_EPOCH
                + Duration::from_millis(json["started_ms"].as_u64().unwrap_or_default()),
            seconds: json["seconds"].as_f64().ok_or(NotJson::NoSeconds)?.clamp(0.0, 1e9),
            sampler: json["sampler"].as_str().unwrap_or_default().to_owned(),
            notes: Vec::new(),
            events: Vec::new(),
        };
        for note in json["notes"].as_array().into_iter().flatten() {
            profile.notes.extend(note.as_str().map(str::to_owned));
        }
        // Events are listed in their display order.
        for event in Event::ALL {
            let Some(one) = events.get(event.name()) else { continue };
            let stacks = |field| {
                Folded::parse(one[field].as_str().unwrap_or_default())
                    .map_err(|source| NotJson::Stacks { field, event, source })
            };
            let number = |field: &str| one[field].as_u64().unwrap_or_default();
            let named = NamedStacks {
                folded: stacks("folded")?,
                counts: stacks("counts")?,
                samples: number("samples"),
                lost: number("lost"),
                idle: number("idle"),
            };
            profile.events.push((event, named));
        }
        Ok(profile)
    }

    fn page(&self, node: &str, events: &[(Event, NamedStacks)]) -> String {
        let tabs: Vec<Tab<'_>> = events
            .iter()
            .map(|(event, named)| Tab {
                name: event.name().to_owned(),
                unit: event.unit(),
                note: note(*event, named),
                folded: &named.folded,
                counts: (*event != Event::Cpu && *event != Event::Wall).then_some(&named.counts),
                base: None,
            })
            .collect();
        let mut lines = vec![format!(
            "{:.1} s from {}; CPU samples by {}.",
            self.seconds,
            utc(self.started),
            self.sampler
        )];
        lines.extend(self.notes.iter().cloned());
        graph::page(&format!("Profile of {node}"), &lines, &tabs)
    }

    fn json(&self, node: &str) -> serde_json::Value {
        let events = self.events.iter().map(|(event, named)| {
            let object = serde_json::json!({
                "unit": event.unit().name(),
                "folded": named.folded.to_string(),
                "counts": named.counts.to_string(),
                "samples": named.samples,
                "lost": named.lost,
                "idle": named.idle,
            });
            (event.name().to_owned(), object)
        });
        serde_json::json!({
            "node": node,
            "started": utc(self.started),
            "started_ms": self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
                as u64,
            "seconds": self.seconds,
            "sampler": self.sampler,
            "notes": self.notes,
            "events": events.collect::<serde_json::Map<_, _>>(),
        })
    }
}

fn note(event: Event, named: &NamedStacks) -> String {
    let mut note = format!("{}; {} samples", event.meaning(), named.samples);
    if named.lost > 0 {
        note += &format!(", {} lost", named.lost);
    }
    if named.idle > 0 {
        let seconds = named.idle as f64 / 1e9;
        note += &format!(". Not shown: {seconds:.1} s of idle threads (idle=true shows them)");
    }
    note
}

/// Formats a time in UTC as in RFC 3339, in whole seconds.
pub(crate) fn utc(moment: SystemTime) -> String {
    // The formatter panics for times before 1970, as of an unset clock.
    humantime::format_rfc3339_seconds(moment.max(UNIX_EPOCH)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_profile_is_read_back_unchanged() {
        let folded = Folded::parse("loop-0;a;b 300\n").unwrap();
        let named = NamedStacks { counts: folded.clone(), folded, samples: 1, lost: 2, idle: 3 };
        let profile = Profile {
            started: UNIX_EPOCH + Duration::from_millis(1_767_225_599_123),
            seconds: 1.5,
            sampler: "timers".to_owned(),
            notes: vec!["one".to_owned()],
            events: vec![(Event::Cpu, named), (Event::Wall, NamedStacks::default())],
        };
        let json = profile.write(Format::Json, "n").unwrap();
        let again = Profile::from_json(&json).unwrap();
        assert_eq!(again.write(Format::Json, "n").unwrap(), json);
        for bad in
            ["", "{}", "{\"events\":{}}", "{\"events\":{\"cpu\":{\"folded\":\"x\"}},\"seconds\":1}"]
        {
            assert!(Profile::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_formatted_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
