//! Median, least and greatest of repeated measurements, and ratios of two series of repeats.

use std::fmt;

/// Median, least and greatest value of the repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median. For an even number of repeats, the mean of the two in the middle.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of the repeats, or `None` without repeats.
    pub fn of(repeats: &[f64]) -> Option<Self> {
        let mut sorted = repeats.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max })
    }
}

/// Returns the spread of the ratios of `of` to `to`, or `None` if no value of `to` is positive.
/// Each ratio divides two values of the same repeat, because a drift of the machine affects both.
pub fn ratio(of: &[f64], to: &[f64]) -> Option<Spread> {
    let ratios: Vec<f64> =
        of.iter().zip(to).filter(|(_, to)| **to > 0.0).map(|(of, to)| of / to).collect();
    Spread::of(&ratios)
}

/// Formats `median (min–max)`, with fewer decimals for larger values.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.median.abs() {
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        write!(f, "{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::{Spread, ratio};

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (3.0, 1.0, 5.0));
        assert_eq!(Spread::of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_taken_repeat_by_repeat() {
        let halves = ratio(&[50.0, 100.0, 25.0], &[100.0, 200.0, 50.0]).unwrap();
        assert_eq!((halves.median, halves.min, halves.max), (0.5, 0.5, 0.5));
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
