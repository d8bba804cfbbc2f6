//! Formats figures for people: three significant digits and a unit. An unknown figure is a dash.

/// Formats a latency given in milliseconds: `41 µs`, `1.40 ms`, `2.59 s`.
pub(crate) fn ms(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    match value {
        0.0 => "0".to_owned(),
        v if v < 0.9995 => format!("{} µs", three(v * 1e3)),
        v if v < 999.5 => format!("{} ms", three(v)),
        v => format!("{} s", three(v / 1e3)),
    }
}

/// Formats a number with a short suffix: `950`, `40k`, `1.2M`.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v < 10_000.0 && value.fract() == 0.0 => group_digits(value),
        v if v < 999.5 => three(value),
        v if v < 999_500.0 => format!("{}k", three(value / 1e3)),
        v if v < 999_500_000.0 => format!("{}M", three(value / 1e6)),
        _ => format!("{}G", three(value / 1e9)),
    }
}

/// Formats a whole number with thousands separators: `7,179,159`.
pub(crate) fn group_digits(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("−{text}") } else { text }
}

/// Formats a rate per second, or a dash if the rate is unknown. From 100 on, the rate is rounded to
/// whole numbers.
pub(crate) fn rate(value: impl Into<Option<f64>>) -> String {
    let Some(value) = value.into() else { return "–".to_owned() };
    if value.abs() >= 100.0 || value.fract() == 0.0 { group_digits(value) } else { three(value) }
}

/// Formats a size in bytes: `586 MiB`.
pub(crate) fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = value;
    let mut unit = 0;
    while value.abs() >= 1023.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three(value), units[unit])
}

/// Formats a share of 0–1: `49.8 %`.
pub(crate) fn share(value: f64) -> String {
    match value * 100.0 {
        p if p.is_nan() => "–".to_owned(),
        p if p > 0.0 && p < 0.01 => "< 0.01 %".to_owned(),
        p if (99.95..100.0).contains(&p) => "> 99.9 %".to_owned(),
        p => format!("{} %", three(p)),
    }
}

/// Formats a percentile of 0–1 with all its digits: `99.9 %`.
pub(crate) fn percentile(quantile: f64) -> String {
    let text = format!("{:.6}", quantile * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a number with three significant digits, without trailing zeros after the point.
pub(crate) fn three(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(ms(0.041), "41 µs");
        assert_eq!(ms(1.4), "1.4 ms");
        assert_eq!(ms(2594.816), "2.59 s");
        assert_eq!(ms(999.9), "1 s");
        assert_eq!(ms(f64::NAN), "–");
        assert_eq!(short(39_884.6), "39.9k");
        assert_eq!(short(5000.0), "5,000");
        assert_eq!(short(1_200_000.0), "1.2M");
        assert_eq!(group_digits(7_179_159.0), "7,179,159");
        assert_eq!(group_digits(-1234.0), "−1,234");
        assert_eq!(bytes(614_990_000.0), "587 MiB");
        assert_eq!(share(0.497_665), "49.8 %");
        assert_eq!(share(0.999_9), "> 99.9 %");
        assert_eq!(share(1.0), "100 %");
        assert_eq!((rate(1234.5), rate(None)), ("1,234".to_owned(), "–".to_owned()));
        assert_eq!(percentile(0.999), "99.9 %");
        assert_eq!(percentile(0.0), "0 %");
    }
}
