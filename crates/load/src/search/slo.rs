//! The objective that a trial must meet, as in `p99<10ms,errors<0.1%`.

use std::fmt;
use std::str::FromStr;

/// Minimum number of samples above a percentile.
const SAMPLES_ABOVE: f64 = 10.0;

/// An objective: all of its terms must hold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slo {
    /// The terms; there is at least one.
    pub(crate) terms: Vec<Term>,
}

/// One condition of an objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Term {
    pub(crate) what: Quantity,
    /// Upper limit in milliseconds, or for errors a share of 0–1. The measured value must be below.
    pub(crate) limit: f64,
}

/// The measured quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Quantity {
    /// Latency from the intended start at this share of the samples, 0–1.
    Quantile(f64),
    Mean,
    Max,
    /// Share of due requests that were answered with an error or a redirect, or lost with their
    /// connection.
    Errors,
}

impl Slo {
    /// Returns the least number of samples for a verdict.
    pub(crate) fn samples(&self) -> u64 {
        let quantiles = self.terms.iter().filter_map(|term| match term.what {
            Quantity::Quantile(quantile) => Some((SAMPLES_ABOVE / (1.0 - quantile)).round() as u64),
            Quantity::Mean | Quantity::Max | Quantity::Errors => None,
        });
        quantiles.max().unwrap_or(SAMPLES_ABOVE as u64)
    }

    /// Returns the percentile that the curve shows, 0–1: the highest percentile of the objective,
    /// or p99 if it has no percentile.
    pub(crate) fn quantile(&self) -> f64 {
        let quantiles = self.terms.iter().filter_map(|term| match term.what {
            Quantity::Quantile(quantile) => Some(quantile),
            Quantity::Mean | Quantity::Max | Quantity::Errors => None,
        });
        quantiles.max_by(f64::total_cmp).unwrap_or(0.99)
    }

    /// Returns the limit of [`Self::quantile`] in milliseconds, or `None` if the objective has no
    /// percentile.
    pub(crate) fn limit_ms(&self) -> Option<f64> {
        let quantile = self.quantile();
        let of = |term: &&Term| term.what == Quantity::Quantile(quantile);
        self.terms.iter().find(of).map(|term| term.limit)
    }
}

/// The error of a text that is not an objective: its first invalid term.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{term:?}: {source}; as in p99<10ms, mean<1ms, errors<0.1%")]
pub(crate) struct SloError {
    term: String,
    source: TermError,
}

/// The reason why a term is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TermError {
    #[error("there is no <")]
    NoLimit,
    #[error("it is none of pNN, mean, max and errors")]
    Unknown,
    #[error("the limit must be a percentage above 0")]
    Percentage,
    #[error("the limit must be a time in us, ms or s above 0")]
    Time,
    #[error("more than 100 % can't fail")]
    MoreThanAll,
}

impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let term = |term: &str| {
            let term = term.trim();
            parse_term(term).map_err(|source| SloError { term: term.to_owned(), source })
        };
        Ok(Self { terms: text.split(',').map(term).collect::<Result<_, _>>()? })
    }
}

fn parse_term(text: &str) -> Result<Term, TermError> {
    let (name, limit) = text.split_once('<').ok_or(TermError::NoLimit)?;
    let limit = limit.strip_prefix('=').unwrap_or(limit).trim();
    let what = match name.trim() {
        "mean" => Quantity::Mean,
        "max" => Quantity::Max,
        "errors" => Quantity::Errors,
        name => {
            let percent = name.strip_prefix('p').and_then(|percent| percent.parse::<f64>().ok());
            let percent = percent
                .filter(|percent| (0.0..100.0).contains(percent))
                .ok_or(TermError::Unknown)?;
            Quantity::Quantile(percent / 100.0)
        }
    };
    let limit = match what {
        Quantity::Errors => limit.strip_suffix('%').and_then(number).map(|percent| percent / 100.0),
        _ => milliseconds(limit),
    };
    let unit = if what == Quantity::Errors { TermError::Percentage } else { TermError::Time };
    let limit = limit.filter(|limit| *limit > 0.0).ok_or(unit)?;
    if what == Quantity::Errors && limit > 1.0 {
        return Err(TermError::MoreThanAll);
    }
    Ok(Term { what, limit })
}

fn milliseconds(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("µs", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units.iter().find_map(|(unit, scale)| Some(number(text.strip_suffix(unit)?)? * scale))
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Rounded to six decimals, because 0.999 * 100 is not exactly 99.9.
            Self::Quantile(quantile) => write!(f, "p{}", (quantile * 1e8).round() / 1e6),
            Self::Mean => f.write_str("mean"),
            Self::Max => f.write_str("max"),
            Self::Errors => f.write_str("errors"),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Quantity::Errors => write!(f, "errors<{}%", (self.limit * 1e8).round() / 1e6),
            what => write!(f, "{what}<{}", SloTime(self.limit)),
        }
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self.terms.iter().map(Term::to_string).collect();
        f.write_str(&terms.join(","))
    }
}

/// A time in milliseconds, displayed with a suitable unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SloTime(pub(crate) f64);

impl fmt::Display for SloTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            ms if ms < 1.0 => (ms * 1e3, "us"),
            ms if ms < 1e3 => (ms, "ms"),
            ms => (ms / 1e3, "s"),
        };
        let digits = if value < 10.0 { 100.0 } else { 10.0 };
        let text = format!("{}{unit}", (value * digits).round() / digits);
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::{Slo, SloTime};

    #[test]
    fn objectives_are_parsed_and_printed_back() {
        for text in ["p99<10ms,errors<0.1%", "p99.9<1.5s", "mean<250us,max<2s", "p50<1ms"] {
            let slo: Slo = text.parse().unwrap();
            assert_eq!(slo.to_string(), text);
        }
        let spaced: Slo = " p99 <= 10 ms , errors < 1 % ".parse().unwrap();
        assert_eq!(spaced.to_string(), "p99<10ms,errors<1%");
    }

    #[test]
    fn invalid_terms_are_refused_with_a_reason() {
        for (text, part) in [
            ("", "no <"),
            ("p99", "no <"),
            ("p100<1ms", "none of"),
            ("q99<1ms", "none of"),
            ("p99<10", "us, ms or s"),
            ("p99<0ms", "above 0"),
            ("p99<-1ms", "above 0"),
            ("p99<infs", "us, ms or s"),
            ("errors<1ms", "percentage"),
            ("errors<101%", "100 %"),
            ("p99<1ms,", "no <"),
        ] {
            let error = text.parse::<Slo>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_percentile_needs_ten_samples_above_it() {
        let samples = |text: &str| text.parse::<Slo>().unwrap().samples();
        assert_eq!(samples("p99<1ms"), 1000);
        assert_eq!(samples("p50<1ms,p99.9<1s"), 10_000);
        assert_eq!(samples("mean<1ms"), 10);
    }

    #[test]
    fn times_are_printed_in_a_suitable_unit() {
        let said = [0.0123, 0.5, 1.0, 9.876, 43.21, 2500.0].map(|ms| SloTime(ms).to_string());
        assert_eq!(said, ["12.3us", "500us", "1ms", "9.88ms", "43.2ms", "2.5s"]);
    }
}
