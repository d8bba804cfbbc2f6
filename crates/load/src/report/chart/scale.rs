//! Axes of a chart: the positions of values, and the ticks.

use crate::report::key_figures;

/// Unit of an axis. The unit decides how values are written, here and in the page's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    /// Number per second.
    Rate,
    Seconds,
    /// The scale 1/(1−p) of a percentile p.
    Percentile,
    Count,
    Bytes,
}

impl Unit {
    /// Returns the unit's name in the page's script.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Rate => "rate",
            Self::Seconds => "s",
            Self::Percentile => "percentile",
            Self::Count => "count",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the round step at or above `least`. For bytes the step is a power of two, so that
    /// every multiple is round in KiB and MiB too.
    fn step(self, least: f64) -> f64 {
        match self {
            Self::Bytes => least.max(1.0).log2().ceil().exp2(),
            _ => step(least),
        }
    }

    fn write(self, value: f64) -> String {
        match self {
            Self::Milliseconds => key_figures::ms(value),
            Self::Rate | Self::Count => key_figures::short(value),
            Self::Seconds => format!("{value} s"),
            Self::Percentile => key_figures::percentile(1.0 - 1.0 / value),
            Self::Bytes => key_figures::bytes(value),
        }
    }
}

/// An axis from `min` to `max`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    pub(crate) unit: Unit,
    pub(crate) log: bool,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Minimum ratio of the ends of a logarithmic range. A narrower range gets a whole decade.
const NARROW: f64 = 1.05;

/// Minimum number of round values on a logarithmic axis. With fewer, the ticks have equal steps.
const FEW: usize = 3;

impl Axis {
    /// Creates a linear axis from 0 over all of `values`.
    pub(crate) fn linear(unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let step = unit.step(max / 4.0);
        let max = if max > 0.0 { (max / step).ceil() * step } else { 1.0 };
        Self { unit, log: false, min: 0.0, max }
    }

    /// Creates a linear axis from `min` to `max` exactly.
    pub(crate) fn exact(unit: Unit, min: f64, max: f64) -> Self {
        Self { unit, log: false, min, max: if max > min { max } else { min + 1.0 } }
    }

    /// Creates a logarithmic axis over all of `values` above 0, with margins at both ends.
    pub(crate) fn log(unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let ends = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(min, max), value| (min.min(value), max.max(value)));
        let (min, max) = if ends.1 > 0.0 { ends } else { (1.0, 10.0) };
        let room = if max / min < NARROW { 10_f64.sqrt() } else { (max / min).powf(0.04) };
        Self { unit, log: true, min: min / room, max: max * room }
    }

    /// Creates the axis 1/(1−p), from 0 % up to `last`.
    pub(crate) fn percentiles(last: f64) -> Self {
        Self { unit: Unit::Percentile, log: true, min: 1.0, max: last.max(1000.0) }
    }

    /// Returns the position of `value`, 0 at the beginning and 1 at the end. A value outside the
    /// axis is placed just beyond the end. Returns `None` for a value that is not finite, or not
    /// above 0 on a logarithmic axis.
    pub(crate) fn at(&self, value: f64) -> Option<f64> {
        let place = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.min).ln() / (self.max / self.min).ln()
        } else {
            (value - self.min) / (self.max - self.min)
        };
        (value.is_finite() && (!self.log || value > 0.0)).then(|| place.clamp(-0.01, 1.01))
    }

    /// Returns the ticks with their labels, usually at most `most`.
    pub(crate) fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let values = match (self.unit, self.log) {
            (Unit::Percentile, _) => self.decades(&[1.0]),
            (_, true) => {
                let fine = self.decades(&[1.0, 2.0, 5.0]);
                let coarse = self.decades(&[1.0]);
                let middle = self.decades(&[1.0, 3.0]);
                let even = self.even(most);
                match fine.len() {
                    // Within a decade, equal steps give more ticks.
                    ..FEW => even,
                    _ => [fine, middle]
                        .into_iter()
                        .find(|ticks| ticks.len() <= most)
                        .unwrap_or(coarse),
                }
            }
            (_, false) => self.even(most),
        };
        values.into_iter().map(|value| (value, self.unit.write(value))).collect()
    }

    /// Returns the multiples of a round step within the axis.
    fn even(&self, most: usize) -> Vec<f64> {
        let step = self.unit.step((self.max - self.min) / most as f64);
        let first = (self.min / step).ceil() as i64;
        let last = (self.max / step * (1.0 + 1e-9)).floor() as i64;
        (first..=last).map(|tick| round(tick as f64 * step)).collect()
    }

    /// Returns the powers of ten within the axis, times each of `digits`.
    fn decades(&self, digits: &[f64]) -> Vec<f64> {
        let powers = self.min.log10().floor() as i32..=self.max.log10().ceil() as i32;
        let all = powers.flat_map(|power| digits.iter().map(move |digit| (power, digit)));
        all.map(|(power, digit)| round(digit * 10_f64.powi(power)))
            .filter(|value| (self.min * 0.999..=self.max * 1.001).contains(value))
            .collect()
    }
}

/// Returns the round step (1, 2 or 5 times a power of ten) at or above `least`.
fn step(least: f64) -> f64 {
    if least <= 0.0 || !least.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    let digits = [1.0, 2.0, 5.0, 10.0];
    let digit = digits.into_iter().find(|digit| digit * power >= least * (1.0 - 1e-9));
    round(digit.unwrap_or(10.0) * power)
}

/// Removes binary rounding errors such as 0.30000000000000004.
fn round(value: f64) -> f64 {
    format!("{value:.9e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(axis: &Axis, most: usize) -> Vec<String> {
        axis.ticks(most).into_iter().map(|(_, word)| word).collect()
    }

    #[test]
    fn linear_axes_begin_at_zero_and_end_on_a_tick() {
        let axis = Axis::linear(Unit::Rate, [f64::NAN, 39_884.6].into_iter());
        assert_eq!((axis.min, axis.max), (0.0, 40_000.0));
        assert_eq!(words(&axis, 4), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(axis.at(20_000.0), Some(0.5));
        assert_eq!(Axis::linear(Unit::Count, [].into_iter()).max, 1.0);
    }

    #[test]
    fn bytes_are_round_in_binary_units() {
        let names = |max: f64, most| words(&Axis::linear(Unit::Bytes, [max].into_iter()), most);
        assert_eq!(names(2_000_000.0, 4), ["0 B", "512 KiB", "1 MiB", "1.5 MiB", "2 MiB"]);
        assert_eq!(names(3000.0, 4), ["0 B", "1 KiB", "2 KiB", "3 KiB"]);
        assert_eq!(names(586.0 * 1024.0 * 1024.0, 4), ["0 B", "256 MiB", "512 MiB", "768 MiB"]);
        assert_eq!(names(3.0, 4), ["0 B", "1 B", "2 B", "3 B"]);
        for max in (1..2000).map(|number| 1.07_f64.powi(number % 300) * f64::from(number)) {
            for name in names(max, 6) {
                let number = name.split(' ').next().unwrap().parse::<f64>().unwrap();
                assert!(number < 1024.0 && (number * 16.0).fract() == 0.0, "{name} of {max}");
            }
        }
    }

    #[test]
    fn log_axes_label_as_many_values_as_fit() {
        let axis = Axis::log(Unit::Milliseconds, [0.0, 0.5, 180.0].into_iter());
        assert_eq!(words(&axis, 4), ["1 ms", "10 ms", "100 ms"]);
        assert_eq!(words(&axis, 6), ["1 ms", "3 ms", "10 ms", "30 ms", "100 ms"]);
        assert_eq!(axis.at(0.0), None);
        assert_eq!(axis.at(f64::NAN), None);
        let one = Axis::log(Unit::Milliseconds, [2.0].into_iter());
        assert!(one.min < 1.0 && one.max > 5.0);
    }

    #[test]
    fn percentile_ticks_are_labelled_as_percentages() {
        let axis = Axis::percentiles(1e6);
        let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
        assert_eq!(words(&axis, 4), names);
    }
}
