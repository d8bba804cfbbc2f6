//! Types of settings except sizes and times. Each type has one parser, which flags, variables, the
//! file and defaults share.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use crate::settings::units::from_text;

/// Reason why a text is not a valid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error(
        "{0:?} is not a listen address: write IP:PORT, as in 127.0.0.1:8080, 0.0.0.0:8080 or \
         [::1]:8080; the only name is localhost"
    )]
    Listen(String),
    #[error("{text:?} is not a number in 1..{most}")]
    Number { text: String, most: u32 },
    #[error("{number} is out of range 1..{most}")]
    Range { number: u32, most: u32 },
    #[error("{0:?} is neither true nor false")]
    Switch(String),
    #[error("{0:?} is not a log format: write text or json")]
    LogFormat(String),
    #[error(
        "{0:?} is not a valid sync mode: write always, interval, interval:MS (1..60000) or never"
    )]
    SyncMode(String),
}

/// Address to listen on. Host names except `localhost` are refused, because a name may have several
/// addresses, or no address later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Listen(pub(crate) SocketAddr);

impl FromStr for Listen {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let numeric = match text.split_once(':') {
            Some(("localhost", port)) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
            _ => text.to_owned(),
        };
        numeric.parse().map(Self).map_err(|_| ValueError::Listen(text.to_owned()))
    }
}

/// A whole number from 1 to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub(crate) struct UpTo<const MOST: u32>(pub(crate) u32);

impl<const MOST: u32> TryFrom<u32> for UpTo<MOST> {
    type Error = ValueError;

    fn try_from(number: u32) -> Result<Self, ValueError> {
        match (1..=MOST).contains(&number) {
            true => Ok(Self(number)),
            false => Err(ValueError::Range { number, most: MOST }),
        }
    }
}

impl<const MOST: u32> FromStr for UpTo<MOST> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = |_| ValueError::Number { text: text.to_owned(), most: MOST };
        text.parse::<u32>().map_err(bad)?.try_into()
    }
}

/// A flag, which is on if it is given without a value, or with `true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Switch(pub(crate) bool);

impl FromStr for Switch {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(|_| ValueError::Switch(text.to_owned()))
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum LogFormat {
    /// Lines for people to read.
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ValueError::LogFormat(text.to_owned())),
        }
    }
}

/// The sync mode of `--sync`, which decides when a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct SyncSetting(pub(crate) lsm::SyncMode);

/// The interval of `--sync interval` if no time is given.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(100);

impl FromStr for SyncSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mode = match text.split_once(':') {
            None if text == "always" => Some(lsm::SyncMode::Always),
            None if text == "never" => Some(lsm::SyncMode::Never),
            None if text == "interval" => Some(lsm::SyncMode::Interval(DEFAULT_INTERVAL)),
            Some(("interval", millis)) => millis
                .parse()
                .ok()
                .filter(|millis| (1..=60_000).contains(millis))
                .map(|millis| lsm::SyncMode::Interval(Duration::from_millis(millis))),
            _ => None,
        };
        mode.map(Self).ok_or_else(|| ValueError::SyncMode(text.to_owned()))
    }
}

from_text!(ValueError: Listen, LogFormat, SyncSetting);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_listens_on_an_address() {
        let local = Ok(Listen(SocketAddr::from(([127, 0, 0, 1], 80))));
        assert_eq!("localhost:80".parse(), local);
        assert_eq!("127.0.0.1:80".parse(), local);
        assert_eq!("[::1]:80".parse::<Listen>().map(|at| at.0.port()), Ok(80));
        for bad in ["", "localhost", "localhost:", "localhost:99999", "host:80", "::1:80", ":80"] {
            let error = bad.parse::<Listen>().unwrap_err().to_string();
            assert!(error.contains("IP:PORT") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert_eq!("1".parse(), Ok(UpTo::<3>(1)));
        assert_eq!("3".parse(), Ok(UpTo::<3>(3)));
        for bad in ["", "0", "4", "-1", "1.5", "x", "99999999999999999999"] {
            let error = bad.parse::<UpTo<3>>().unwrap_err().to_string();
            assert!(error.contains("1..3"), "{bad:?}: {error}");
        }
    }

    #[test]
    fn sync_modes_are_parsed_or_refused() {
        let interval = |millis| SyncSetting(lsm::SyncMode::Interval(Duration::from_millis(millis)));
        assert_eq!("always".parse(), Ok(SyncSetting(lsm::SyncMode::Always)));
        assert_eq!("never".parse(), Ok(SyncSetting(lsm::SyncMode::Never)));
        assert_eq!("interval".parse(), Ok(interval(100)));
        assert_eq!("interval:5".parse(), Ok(interval(5)));
        for bad in ["", "Always", "interval:", "interval:0", "interval:60001", "never:1", "5"] {
            assert!(bad.parse::<SyncSetting>().is_err(), "{bad:?} was taken");
        }
    }
}
