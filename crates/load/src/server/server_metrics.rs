//! A server's metrics, in the Prometheus or OpenMetrics text format.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Error;
use super::ask::{Endpoint, ask};

/// Longest answer in bytes: about ten thousand series.
const MAX_LEN: usize = 8 << 20;

/// The metrics of a scrape: each series as written (`name{label="value"}`), with its value. Buckets
/// of histograms are left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    series: BTreeMap<String, f64>,
    /// The names of those series that are counters.
    counters: BTreeSet<String>,
}

/// Returns the answer to `GET path` as text. Returns an error if no answer arrives within `limit`,
/// or for a status of 400 or more.
pub fn fetch(endpoint: impl Into<Endpoint>, path: &str, limit: Duration) -> Result<String, Error> {
    let endpoint = endpoint.into();
    let failed = |cause| Error::Metrics { url: endpoint.url(path), cause };
    let (status, text) =
        ask(&endpoint, path, limit, MAX_LEN).map_err(|error| failed(error.to_string()))?;
    if status >= 400 {
        return Err(failed(format!("http status: {status}")));
    }
    Ok(text)
}

impl Metrics {
    /// Scrapes the current values.
    pub fn scrape(
        endpoint: impl Into<Endpoint>,
        path: &str,
        limit: Duration,
    ) -> Result<Self, Error> {
        fetch(endpoint, path, limit).map(|text| Self::parse(&text))
    }

    /// Parses lines `series value [timestamp]`. Recognises counters by `# TYPE`, or without a `#
    /// TYPE` by the suffix `_total`. Ignores other lines.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                kinds.extend(declared.split_once(' '));
            } else if !line.starts_with('#')
                && let Some((series, value)) = parse_line(line)
            {
                metrics.insert(series, value, &kinds);
            }
        }
        metrics
    }

    fn insert(&mut self, series: &str, value: f64, kinds: &BTreeMap<&str, &str>) {
        let name = name_of(series);
        if name.ends_with("_bucket") {
            return;
        }
        // The type is declared for the family: `x_total` and `x_count` belong to `x`.
        let family = ["_total", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        let kind = |name| kinds.get(name).copied();
        let grows = match kind(name).or_else(|| family.and_then(kind)) {
            Some(kind) => {
                ["counter", "histogram", "summary"].contains(&kind) && family.is_some()
                    || kind == "counter"
            }
            None => name.ends_with("_total"),
        };
        if grows {
            self.counters.insert(series.to_owned());
        }
        self.series.insert(series.to_owned(), value);
    }

    /// Returns the sum over all labels of the metric `name`, in which `_total` may be left out.
    /// Returns `None` if there is no such metric.
    pub fn total(&self, name: &str) -> Option<f64> {
        let counter = format!("{name}_total");
        let of = |series: &str| name_of(series) == name || name_of(series) == counter;
        let mut values = self.series.iter().filter(|(series, _)| of(series)).peekable();
        values.peek()?;
        Some(values.map(|(_, value)| value).sum())
    }

    /// Returns the column name of the metric `name`. The name of a counter's column ends in
    /// `_total`, by which readers recognise counters.
    pub fn column(&self, name: &str) -> String {
        let bare = name.strip_suffix("_total").unwrap_or(name);
        let of = |series: &String| {
            name_of(series).strip_suffix("_total").unwrap_or(name_of(series)) == bare
        };
        let counts = self.counters.iter().any(of);
        if counts { format!("{bare}_total") } else { name.to_owned() }
    }

    /// Returns the growth of counters since `before`, and the current values of gauges.
    pub fn since(&self, before: &Self) -> Self {
        let mut now = self.clone();
        for (series, value) in &mut now.series {
            if self.counters.contains(series) {
                let then = before.series.get(series).copied().unwrap_or(0.0);
                // A lower value than before means that the server restarted, and counts from zero.
                *value = if then > *value { *value } else { *value - then };
            }
        }
        now
    }

    /// Returns all series, by name.
    pub fn series(&self) -> &BTreeMap<String, f64> {
        &self.series
    }
}

fn name_of(series: &str) -> &str {
    series.split('{').next().unwrap_or_default()
}

/// Splits a line into name and value. A label's value may contain blanks and brackets, so the last
/// bracket ends the labels.
fn parse_line(line: &str) -> Option<(&str, f64)> {
    let end = match line.rfind('}') {
        Some(bracket) => bracket + 1,
        None => line.find(' ')?,
    };
    let value = line[end..].split_ascii_whitespace().next()?.parse().ok()?;
    Some((&line[..end], value))
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    const TEXT: &str = "\
# HELP kv_requests Requests answered.
# TYPE kv_requests counter
kv_requests_total{route=\"a b}\",status=\"200\"} 10
kv_requests_total{route=\"c\",status=\"503\"} 2
# TYPE kv_debt gauge
kv_debt 4096
# TYPE kv_time histogram
kv_time_bucket{le=\"0.1\"} 3
kv_time_sum 1.5
kv_time_count 3
odd line without value
kv_odd NaNsense
# TYPE old_counter counter
old_counter 7 1700000000
# EOF
";

    #[test]
    fn series_are_read_and_summed_over_labels() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!(metrics.total("kv_requests"), Some(12.0));
        assert_eq!(metrics.total("kv_requests_total"), Some(12.0));
        assert_eq!(metrics.total("kv_debt"), Some(4096.0));
        assert_eq!(metrics.total("kv_time_sum"), Some(1.5));
        assert_eq!(metrics.total("old_counter"), Some(7.0));
        assert_eq!(metrics.total("kv"), None);
        assert_eq!(metrics.series().len(), 6, "{metrics:?}");
    }

    #[test]
    fn columns_of_counters_end_in_total() {
        let metrics = Metrics::parse(TEXT);
        for (name, column) in [
            ("old_counter", "old_counter_total"),
            ("kv_requests", "kv_requests_total"),
            ("kv_requests_total", "kv_requests_total"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(metrics.column(name), column);
        }
    }

    #[test]
    fn counters_are_reported_as_growth_and_gauges_as_values() {
        let later = TEXT
            .replace("} 10", "} 25")
            .replace("4096", "100")
            .replace("_sum 1.5", "_sum 2")
            .replace("old_counter 7", "old_counter 3");
        let grown = Metrics::parse(&later).since(&Metrics::parse(TEXT));
        assert_eq!(grown.total("kv_requests"), Some(15.0));
        assert_eq!(grown.total("kv_debt"), Some(100.0));
        assert_eq!(grown.total("kv_time_sum"), Some(0.5));
        assert_eq!(grown.total("old_counter"), Some(3.0), "started anew in between");
    }
}
