//! Numbers and times in wrk2's notation: `64`, `10k`, `1.5M`; `30` (seconds), `30s`, `3m`, `1h`;
//! and also `500ms`.

use std::str::FromStr;
use std::time::Duration;

/// A count, such as a number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

/// A rate in requests per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// A duration, written as `30`, `30s` or `500ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// Returns the number before a unit, multiplied by the unit's scale, or `None` if the number or the
/// unit is unknown.
fn parse_scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1;
    let number: f64 = number.parse().ok()?;
    Some(number * scale)
}

const SI: [(&str, f64); 4] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];

const SECONDS: [(&str, f64); 5] = [("", 1.0), ("s", 1.0), ("ms", 1e-3), ("m", 60.0), ("h", 3600.0)];

/// A text that is not a valid number or time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The number is below zero.
    #[error("it must be positive")]
    Negative,
    /// The text is not a [`Count`].
    #[error("say a whole number, with k, M or G if you like: 64, 10k")]
    Count,
    /// The text is not a [`Rate`].
    #[error("say requests a second, with k, M or G if you like: 40000, 40k, 0.5")]
    Rate,
    /// The text is not a [`Time`].
    #[error("say seconds, or a number and ms, s, m or h: 30, 30s, 3m")]
    Time,
}

impl UnitError {
    fn or_negative(self, text: &str) -> Self {
        if text.starts_with('-') { Self::Negative } else { self }
    }
}

impl FromStr for Count {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        // Counts must be whole. Whole numbers below 2^53 are exact in a float.
        parse_scaled(text, &SI)
            .filter(|number| number.fract() == 0.0 && *number < 9e15)
            .map(|number| Self(number as u64))
            .ok_or(UnitError::Count.or_negative(text))
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse_scaled(text, &SI).map(Self).ok_or(UnitError::Rate.or_negative(text))
    }
}

impl FromStr for Time {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse_scaled(text, &SECONDS)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Self)
            .ok_or(UnitError::Time.or_negative(text))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Count, Rate, Time};

    #[test]
    fn counts_accept_si_units() {
        for (text, number) in [("0", 0), ("64", 64), ("10k", 10_000), ("10K", 10_000)] {
            assert_eq!(text.parse(), Ok(Count(number)), "{text}");
        }
        assert_eq!("1.5M".parse(), Ok(Count(1_500_000)));
        assert_eq!("1G".parse(), Ok(Count(1_000_000_000)));
        assert_eq!("0.5".parse(), Ok(Rate(0.5)));
        assert_eq!("2.5k".parse(), Ok(Rate(2500.0)));
        for text in ["", "k", "-1", "1.5", "10x", "1e3", "10 k", "1.2.3", "99999999G"] {
            assert!(text.parse::<Count>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_without_a_unit_are_seconds() {
        for (text, millis) in
            [("30", 30_000), ("30s", 30_000), ("3m", 180_000), ("1h", 3_600_000), ("500ms", 500)]
        {
            assert_eq!(text.parse(), Ok(Time(Duration::from_millis(millis))), "{text}");
        }
        assert_eq!("1.5s".parse(), Ok(Time(Duration::from_millis(1500))));
        for text in ["", "s", "-1s", "10d", "1m30s", "99999999999999999999h"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }
}
