//! Sizes and durations in human-readable form: `512MiB`, `64KiB`, `250ms`, `1s`, `30d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Size(pub(crate) u64);

/// A duration. Users write it in milliseconds (`ms`) or seconds (`s`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Time(pub(crate) Duration);

/// A duration from `LEAST` to `MOST` milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct TimeIn<const LEAST: u64, const MOST: u64>(pub(crate) Duration);

/// Time to live of a value, in seconds: 1 to [`Ttl::MOST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Ttl(u64);

const TTL_UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Maximum number of characters of an invalid value in an error text.
const SHOWN: usize = 100;

/// Reason why a text is not a size or a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    #[error("{0:?} is not a valid size: write a whole number and B, KiB, MiB or GiB, as in 512MiB")]
    Size(String),
    #[error(
        "{0:?} is not a valid rate: write off, or bytes a second as a whole number and KiB, MiB or \
         GiB, as in 50MiB"
    )]
    Rate(String),
    #[error("{0:?} is too large: no size has more than {MAX} bytes", MAX = u64::MAX)]
    TooLarge(String),
    #[error("{0} a second is too little: at least 64KiB")]
    TooSlow(String),
    #[error("{0:?} is not a valid duration: write a whole number and ms or s, as in 250ms")]
    Time(String),
    #[error("{time} is out of range {least}..{most}")]
    TimeRange { time: String, least: Time, most: Time },
    #[error("{0:?} is not a time to live: write a whole number and s, m, h or d, as in 90s")]
    Ttl(String),
    #[error("{0:?} is out of range {least}..{most}", least = Ttl::LEAST, most = Ttl::MOST)]
    TtlRange(String),
    #[error("{0:?} is not a valid interval: write off, or a number and s, m, h or d, as in 1h")]
    Every(String),
    #[error("{0:?} is out of range 10s..365d")]
    EveryRange(String),
}

fn shorten(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

impl Ttl {
    /// Maximum time to live, ten years. A value with a longer life could as well never expire.
    pub(crate) const MOST: Self = Self::days(3650);

    const LEAST: Self = Self(1);

    /// Returns the time to live of `days` days.
    pub(crate) const fn days(days: u64) -> Self {
        Self(days * 86_400)
    }

    /// Returns the time to live in milliseconds.
    pub(crate) fn millis(self) -> u64 {
        self.0 * 1000
    }
}

impl FromStr for Ttl {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = TTL_UNITS.iter().find(|(name, _)| *name == unit && !number.is_empty());
        let (_, scale) = unit.ok_or_else(|| UnitError::Ttl(shorten(text)))?;
        // A number that does not fit into 64 bits is too long in every unit.
        let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale));
        let ttl = seconds.map(Self).filter(|ttl| (Self::LEAST..=Self::MOST).contains(ttl));
        ttl.ok_or_else(|| UnitError::TtlRange(shorten(text)))
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, scale): &&(&str, u64)| self.0.is_multiple_of(*scale);
        let (unit, scale) = TTL_UNITS.iter().find(fits).unwrap_or(&("s", 1));
        write!(f, "{}{unit}", self.0 / scale)
    }
}

/// Interval of a periodic task: 10 seconds to a year, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Every(pub(crate) Option<Duration>);

impl Every {
    const LEAST: u64 = 10;
    const MOST: u64 = 365 * 86_400;
}

impl FromStr for Every {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "off" {
            return Ok(Self(None));
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = TTL_UNITS.iter().find(|(name, _)| *name == unit);
        let seconds = number.parse::<u64>().ok().zip(unit);
        let seconds = seconds.and_then(|(number, (_, scale))| number.checked_mul(*scale));
        let seconds = seconds.ok_or_else(|| UnitError::Every(shorten(text)))?;
        if (Self::LEAST..=Self::MOST).contains(&seconds) {
            Ok(Self(Some(Duration::from_secs(seconds))))
        } else {
            Err(UnitError::EveryRange(shorten(text)))
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(every) = self.0 else { return f.write_str("off") };
        let fits = |(_, scale): &&(&str, u64)| every.as_secs().is_multiple_of(*scale);
        let (unit, scale) = TTL_UNITS.iter().find(fits).unwrap_or(&("s", 1));
        write!(f, "{}{unit}", every.as_secs() / scale)
    }
}

/// Rate limit in bytes per second, at least 64KiB, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Rate(pub(crate) Option<u64>);

impl Rate {
    /// Minimum rate in bytes per second. At a lower rate the move of a node's data would take more
    /// than days.
    const LEAST: u64 = 64 << 10;
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "off" {
            return Ok(Self(None));
        }
        let Size(bytes) = text.parse().map_err(|_| UnitError::Rate(shorten(text)))?;
        match bytes {
            Self::LEAST.. => Ok(Self(Some(bytes))),
            _ => Err(UnitError::TooSlow(text.to_owned())),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(bytes) => Size(bytes).fmt(f),
        }
    }
}

const SIZE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let scale = SIZE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
        let scale = scale.filter(|_| !number.is_empty());
        let scale = scale.ok_or_else(|| UnitError::Size(shorten(text)))?;
        // A number that does not fit into 64 bits is too large in every unit.
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
        bytes.map(Self).ok_or_else(|| UnitError::TooLarge(shorten(text)))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = SIZE_UNITS
            .iter()
            .find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / scale)
    }
}

impl FromStr for Time {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let duration = match unit {
            "ms" => number.parse().ok().map(Duration::from_millis),
            "s" => number.parse().ok().map(Duration::from_secs),
            _ => None,
        };
        duration.map(Self).ok_or_else(|| UnitError::Time(text.to_owned()))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis.is_multiple_of(1000) {
            write!(f, "{}s", millis / 1000)
        } else {
            write!(f, "{millis}ms")
        }
    }
}

impl<const LEAST: u64, const MOST: u64> FromStr for TimeIn<LEAST, MOST> {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let Time(time) = text.parse()?;
        let [least, most] = [LEAST, MOST].map(|millis| Time(Duration::from_millis(millis)));
        match time {
            _ if time < least.0 || time > most.0 => {
                Err(UnitError::TimeRange { time: shorten(text), least, most })
            }
            _ => Ok(Self(time)),
        }
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<String> for TimeIn<LEAST, MOST> {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

/// Implements `TryFrom<String>` with the parser of the flag. serde uses it for values in the
/// settings file.
macro_rules! from_text {
    ($error:ty: $($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }
    )*};
}

pub(super) use from_text;

from_text!(UnitError: Ttl, Every, Rate, Size, Time);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_back_as_written() {
        for (text, bytes) in [("0B", 0), ("1B", 1), ("64KiB", 65536), ("512MiB", 512 << 20)] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!("1536KiB".parse::<Size>().unwrap().to_string(), "1536KiB");
        for bad in ["", "5", "MiB", "5MB", "5 MiB", "-5MiB", "1.5MiB", "5mib", "99999999999GiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn rates_come_back_as_written() {
        for (text, rate) in [("off", None), ("64KiB", Some(64 << 10)), ("1GiB", Some(1 << 30))] {
            assert_eq!(text.parse(), Ok(Rate(rate)));
            assert_eq!(Rate(rate).to_string(), text);
        }
        for bad in ["", "0B", "63KiB", "on", "50", "50MiB/s", "-1MiB"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn times_come_back_as_written() {
        for (text, millis) in [("0s", 0), ("250ms", 250), ("1s", 1000), ("1500ms", 1500)] {
            assert_eq!(text.parse(), Ok(Time(Duration::from_millis(millis))));
            assert_eq!(Time(Duration::from_millis(millis)).to_string(), text);
        }
        for bad in ["", "5", "ms", "5m", "5 s", "-5s", "1.5s", "99999999999999999999s"] {
            assert!(bad.parse::<Time>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_time_to_live_is_a_second_to_ten_years() {
        for (text, seconds, shown) in [
            ("1s", 1, "1s"),
            ("90s", 90, "90s"),
            ("0090s", 90, "90s"),
            ("120s", 120, "2m"),
            ("5m", 300, "5m"),
            ("24h", 86_400, "1d"),
            ("36h", 129_600, "36h"),
            ("3650d", 315_360_000, "3650d"),
            ("315360000s", 315_360_000, "3650d"),
        ] {
            let ttl = text.parse::<Ttl>().unwrap();
            assert_eq!((ttl.millis(), ttl.to_string().as_str()), (seconds * 1000, shown), "{text}");
        }
        for bad in
            ["", "s", "90", "-1s", "+1s", "1.5h", "999y", "1w", "90S", "1ms", " 1s", "1s ", "1 s"]
                .into_iter()
                .chain(["٣s", "1s1s", "0x1s", "1e3s", "90s\0"])
        {
            let error = bad.parse::<Ttl>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{bad:?} is not a time to live")), "{error}");
        }
        for out in ["0s", "0d", "315360001s", "3651d", "87601h", "18446744073709551615d"]
            .into_iter()
            .chain(["18446744073709551616s", "99999999999999999999999999d", "213503982334602d"])
        {
            let error = out.parse::<Ttl>().unwrap_err().to_string();
            assert_eq!(error, format!("{out:?} is out of range 1s..3650d"));
        }
        let long = "9".repeat(10_000) + "s";
        assert!(long.parse::<Ttl>().unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn a_time_outside_the_range_of_its_setting_is_refused() {
        type Short = TimeIn<250, 60_000>;
        assert_eq!("250ms".parse(), Ok(TimeIn::<250, 60_000>(Duration::from_millis(250))));
        assert_eq!("60s".parse::<Short>().map(|time| time.0.as_secs()), Ok(60));
        for bad in ["249ms", "61s", "0s", "x"] {
            assert!(bad.parse::<Short>().is_err(), "{bad:?} was taken");
        }
        let error = "61s".parse::<Short>().unwrap_err().to_string();
        assert_eq!(error, "61s is out of range 250ms..60s");
    }
}
