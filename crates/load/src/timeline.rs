//! Writes `timeline.csv`: a row per second with requests sent, answered and waiting, and the
//! servers' metrics.
//!
//! ```text
//!  second,length_s,sent,answered,refused,lost,
//!  timeouts,refused_timeouts,unanswered_timeouts,connect_errors,bytes,backlog,
//!  p50_ms,p90_ms,p99_ms,p999_ms,max_ms,written_p99_ms,late_p99_ms, SERVER METRIC …
//! ```
//!
//! An answer counts in the second in which it arrives. Latencies are from the intended start,
//! except `written_p99_ms`, from the write of the request. `late_p99_ms` is the client's own delay
//! before that write. A server's metrics are raw values, summed over their labels: a counter is not
//! converted into its growth.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use hdrhistogram::Histogram;

use crate::control::Interval;

/// Columns before those with the servers' metrics.
const COLUMNS: &str = "second,length_s,sent,answered,refused,lost,timeouts,refused_timeouts,\
                       unanswered_timeouts,connect_errors,bytes,backlog,p50_ms,p90_ms,p99_ms,\
                       p999_ms,max_ms,written_p99_ms,late_p99_ms";

/// A timeline in progress.
pub(crate) struct Timeline {
    out: BufWriter<File>,
}

impl Timeline {
    /// Creates the file. `reported` names the columns with the servers' metrics.
    pub(crate) fn create(path: &Path, reported: &[String]) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        out.write_all(COLUMNS.as_bytes())?;
        for name in reported {
            write!(out, ",{}", quote_field(name))?;
        }
        out.write_all(b"\n")?;
        out.flush()?;
        Ok(Self { out })
    }

    /// Adds the row of one second. `reported` has the values of the columns with the servers'
    /// metrics.
    pub(crate) fn add(&mut self, interval: &Interval, reported: &[Option<f64>]) -> io::Result<()> {
        let Interval { start_s, length_s, backlog, tally } = interval;
        let latencies = tally.all_latencies();
        let intended = |quantile| ms(&latencies.intended, quantile);
        let answered = tally.statuses.all();
        let refused = tally.statuses.refusals();
        let errors = &tally.errors;
        write!(
            self.out,
            "{start_s},{length_s:.3},{},{answered},{refused},{},{},{},{},{},{},{backlog}",
            tally.sent,
            errors.count_lost(),
            errors.timeout,
            errors.refused_timeout,
            errors.unanswered_timeout,
            errors.connect,
            tally.bytes,
        )?;
        for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
            write!(self.out, ",{}", intended(quantile))?;
        }
        write!(self.out, ",{},{}", ms(&latencies.written, 0.99), ms(&latencies.late, 0.99))?;
        for value in reported {
            match value {
                Some(value) => write!(self.out, ",{value}")?,
                None => self.out.write_all(b",")?,
            }
        }
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}

/// Formats a quantile in milliseconds. Empty without samples.
fn ms(histogram: &Histogram<u64>, quantile: f64) -> String {
    if histogram.is_empty() {
        return String::new();
    }
    format!("{:.3}", histogram.value_at_quantile(quantile) as f64 / 1e6)
}

/// Quotes a field if it contains commas or quotes (RFC 4180).
fn quote_field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;
    use crate::control::Interval;
    use crate::tally::Tally;

    #[test]
    fn a_row_has_a_field_for_each_column() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("timeline.csv");
        let reported = ["h:1 debt".to_owned(), "h:1 a,b\"c\"".to_owned()];
        let mut timeline = Timeline::create(&path, &reported).expect("begins");
        let mut tally = Tally::default();
        (tally.sent, tally.bytes) = (12, 340);
        tally.errors.read = 1;
        let latencies = tally.latencies_mut(crate::Method::Get);
        latencies.intended.record_n(2_000_000, 10).expect("within");
        latencies.written.record_n(1_000_000, 10).expect("within");
        let interval = Interval { start_s: 3, length_s: 1.0, backlog: 5, tally };
        timeline.add(&interval, &[Some(4096.0), None]).expect("a row");
        let text = std::fs::read_to_string(&path).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("late_p99_ms,h:1 debt,\"h:1 a,b\"\"c\"\"\""), "{}", lines[0]);
        assert_eq!(
            lines[1],
            "3,1.000,12,0,0,1,0,0,0,0,340,5,2.001,2.001,2.001,2.001,2.001,1.000,,4096,"
        );
    }
}
