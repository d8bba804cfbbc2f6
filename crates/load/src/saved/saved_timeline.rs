//! Reads `timeline.csv`, which has columns of figures and a row per second.

/// Suffix of counters' names. A counter only grows, so its values are converted into growth per
/// second.
const COUNTER_SUFFIX: &str = "_total";

/// Minimum length of the last row, relative to the other rows. A shorter row is the remainder after
/// the last full second, and is dropped.
const MIN_LAST_ROW: f64 = 0.5;

/// A run second by second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SavedTimeline {
    columns: Vec<Column>,
}

/// One column of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Column {
    /// Name in the first row.
    pub(crate) name: String,
    /// The column's figures, one for each row; NaN = the row has none. Of a counter, the growth per
    /// second.
    pub(crate) values: Vec<f64>,
}

impl SavedTimeline {
    /// Parses the file. A field that is not a number counts as a missing figure.
    pub(crate) fn parse(csv: &str) -> Self {
        let mut lines = csv.lines().filter(|line| !line.trim().is_empty());
        let names = fields(lines.next().unwrap_or_default());
        let mut columns: Vec<_> =
            names.into_iter().map(|name| Column { name, values: Vec::new() }).collect();
        for line in lines {
            let mut cells = line.split(',');
            for column in &mut columns {
                let cell = cells.next().unwrap_or_default().trim();
                column.values.push(cell.parse().unwrap_or(f64::NAN));
            }
        }
        let mut timeline = Self { columns };
        timeline.drop_short_last_row();
        timeline.convert_to_per_second();
        timeline
    }

    /// Returns true if a metric of this name is a counter.
    pub(crate) fn is_counter(metric: &str) -> bool {
        metric.ends_with(COUNTER_SUFFIX)
    }

    /// Drops a short last row, whose few answers would look like a drop in throughput.
    fn drop_short_last_row(&mut self) {
        let Some([others @ .., rest]) = self.column("length_s") else { return };
        let whole = others.iter().copied().fold(0.0, f64::max);
        if *rest < whole * MIN_LAST_ROW {
            for column in &mut self.columns {
                column.values.pop();
            }
        }
    }

    /// Converts counts per row into counts per second, and counters into their growth.
    fn convert_to_per_second(&mut self) {
        let lengths = self.column("length_s").map(<[f64]>::to_vec).unwrap_or_default();
        let length = |row: usize| lengths.get(row).copied().filter(|s| *s > 0.0).unwrap_or(1.0);
        let counts = [
            "sent",
            "answered",
            "refused",
            "lost",
            "timeouts",
            "refused_timeouts",
            "unanswered_timeouts",
            "connect_errors",
        ];
        for column in &mut self.columns {
            if Self::is_counter(&column.name) {
                column.values = growth(&column.values, length);
            } else if counts.contains(&column.name.as_str()) {
                for (row, value) in column.values.iter_mut().enumerate() {
                    *value /= length(row);
                }
            }
        }
    }

    /// Returns the figures of a column, or `None` if the file has no such column.
    pub(crate) fn column(&self, name: &str) -> Option<&[f64]> {
        let column = self.columns.iter().find(|column| column.name == name);
        column.map(|column| column.values.as_slice())
    }

    /// Returns the end of each row, in seconds since the end of the warm-up.
    pub(crate) fn seconds(&self) -> Vec<f64> {
        let begins = self.column("second").unwrap_or_default();
        let lengths = self.column("length_s").unwrap_or_default();
        let ends = begins.iter().enumerate();
        ends.map(|(row, begin)| begin + lengths.get(row).copied().unwrap_or(1.0)).collect()
    }

    /// Returns the number of errors per second: lost and late requests, and failed connects.
    /// Returns `None` if the file lacks a column.
    pub(crate) fn errors(&self) -> Option<Vec<f64>> {
        let columns = ["lost", "timeouts", "connect_errors"].map(|name| self.column(name));
        let [Some(lost), Some(timeouts), Some(unconnected)] = columns else { return None };
        let sums = lost.iter().zip(timeouts).zip(unconnected);
        Some(sums.map(|((lost, timeouts), unconnected)| lost + timeouts + unconnected).collect())
    }

    /// Returns the servers' metrics, each as (server, metric, column).
    pub(crate) fn servers(&self) -> impl Iterator<Item = (&str, &str, &Column)> {
        self.columns.iter().filter_map(|column| {
            let (server, metric) = column.name.split_once(' ')?;
            Some((server, metric, column))
        })
    }
}

/// Returns a counter's growth per second. Growth across rows without a value is spread evenly over
/// these rows.
fn growth(values: &[f64], length: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut grown = vec![f64::NAN; values.len()];
    let mut known: Option<usize> = None;
    for row in (0..values.len()).filter(|row| values[*row].is_finite()) {
        if let Some(before) = known {
            let by = values[row] - values[before];
            let seconds: f64 = (before + 1..=row).map(&length).sum();
            // The counters of a restarted server begin at zero again.
            let rate = if by < 0.0 { f64::NAN } else { by / seconds };
            grown[before + 1..=row].fill(rate);
        }
        known = Some(row);
    }
    grown
}

/// Splits a line into fields, which may be quoted (RFC 4180).
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let Some(field) = fields.last_mut() else { break };
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            letter => field.push(letter),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_counter_values_are_spread_over_missing_rows() {
        let csv = "second,length_s,h:1 kv_x_total\n0,1,10\n1,1,20\n2,1,\n3,1,60\n4,1,5\n5,1,6\n";
        let timeline = SavedTimeline::parse(csv);
        let values = timeline.column("h:1 kv_x_total").unwrap();
        assert_eq!(values[1..4], [10.0, 20.0, 20.0]);
        assert!(values[0].is_nan() && values[4].is_nan(), "the server began anew");
        assert_eq!(values[5], 1.0);
    }

    #[test]
    fn columns_and_metrics_are_found_by_name() {
        let csv = "second,length_s,answered,p99_ms,h:1 kv_flushes_total,\"h:1 a,b\"\"c\"\n\
                   0,1.000,100,1.5,7,1\n1,1.000,90,,10,2\n2,0.500,80\n";
        let timeline = SavedTimeline::parse(csv);
        assert_eq!(timeline.seconds(), [1.0, 2.0, 2.5]);
        assert_eq!(timeline.column("answered"), Some(&[100.0, 90.0, 160.0][..]));
        let p99 = timeline.column("p99_ms").unwrap();
        assert!(p99[0] == 1.5 && p99[1].is_nan() && p99[2].is_nan());
        let servers: Vec<_> = timeline.servers().collect();
        assert_eq!((servers[0].0, servers[0].1), ("h:1", "kv_flushes_total"));
        let flushes = &servers[0].2.values;
        assert!(flushes[0].is_nan() && flushes[1] == 3.0 && flushes[2].is_nan(), "{flushes:?}");
        assert_eq!(servers[1].1, "a,b\"c");
        assert_eq!(timeline.column("none"), None);
        assert_eq!(SavedTimeline::parse("").seconds(), [0.0; 0]);
    }
}
