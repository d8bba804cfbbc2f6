//! Figures in the notation of wrk and wrk2: a number and a unit, rounded to two places. The parsers
//! return `None` for other texts.

/// Parses a time into milliseconds: `41.00us`, `1.40ms`, `1.81s`, `1.67m`, `1.00h`.
pub(super) fn milliseconds(text: &str) -> Option<f64> {
    parse_scaled(text, &[("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 6e4), ("h", 3.6e6)])
}

/// Parses a time into seconds: `100s`, `3m`, `1.67m`. A number without a unit means seconds, as on
/// the command line.
pub(super) fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().or_else(|| milliseconds(text).map(|ms| ms / 1e3))
}

/// Parses a count: `807.00`, `10.55k`, `1M`.
pub(super) fn count(text: &str) -> Option<f64> {
    parse_scaled(text, &[("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("", 1.0)])
}

/// Parses a size into bytes, in steps of 1024: `650B`, `228.51KB`, `586.50MB`.
pub(super) fn bytes(text: &str) -> Option<f64> {
    let units = [("TB", 40), ("GB", 30), ("MB", 20), ("KB", 10), ("B", 0)].map(|(unit, power)| {
        let factor: f64 = 2.0;
        (unit, factor.powi(power))
    });
    parse_scaled(text, &units)
}

/// Formats a duration as in wrk's header: whole units, rounded, so that 100 s is `2m`.
pub(super) fn format_header_duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.0}s"),
        s if s < 3600.0 => format!("{:.0}m", s / 60.0),
        s => format!("{:.0}h", s / 3600.0),
    }
}

/// Returns the number before the unit that `text` ends with, times the unit's factor.
fn parse_scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = digits.trim_end().parse().ok()?;
    number.is_finite().then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(milliseconds("203.90ms"), Some(203.9));
        assert_eq!(milliseconds("1.81s "), Some(1810.0));
        assert_eq!(milliseconds("500.00us"), Some(0.5));
        assert_eq!(milliseconds("-nan%"), None);
        assert_eq!(milliseconds("inf"), None);
        assert_eq!(seconds("1.67m"), Some(100.2));
        assert_eq!(seconds("30"), Some(30.0));
        assert_eq!(count("10.55k"), Some(10_550.0));
        assert_eq!(count("807.00"), Some(807.0));
        assert_eq!(bytes("1.00KB"), Some(1024.0));
        assert_eq!(bytes("12B"), Some(12.0));
        assert_eq!(bytes("12"), None);
    }

    #[test]
    fn header_durations_are_rounded_like_wrks() {
        assert_eq!(format_header_duration(100.0), "2m");
        assert_eq!(format_header_duration(180.0), "3m");
        assert_eq!(format_header_duration(3600.0), "1h");
        assert_eq!(format_header_duration(30.0), "30s");
    }
}
