//! Interval logs of `HdrHistogram`, format 1.3. Each line contains the histogram of one method in
//! one second.
//!
//! ```text
//!  #[Histogram log format version 1.3]
//!  #[StartTime: 1795320306.789 (seconds since epoch), 2026-11-22T04:05:06Z]
//!  #[BaseTime: 1795320306.789 (seconds since epoch)]
//!  "StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
//!  Tag=GET,0.000,1.000,1.234,HISTFAAA…
//! ```
//!
//! Values are in nanoseconds. The maximum in each line is in milliseconds, because it is meant for
//! people. The hdrhistogram crate's own writer is not used, because it borrows its file for its
//! whole lifetime.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

use crate::machine::rfc3339;

/// An open log.
pub(crate) struct HdrLog {
    out: BufWriter<File>,
    serializer: V2DeflateSerializer,
    bytes: Vec<u8>,
}

impl HdrLog {
    /// Creates a log titled `what`, for a run that began at `started`.
    pub(crate) fn create(path: &Path, what: &str, started: SystemTime) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        let since = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        writeln!(out, "#[{what}, in nanoseconds]")?;
        writeln!(out, "#[Histogram log format version 1.3]")?;
        writeln!(out, "#[StartTime: {since:.3} (seconds since epoch), {}]", rfc3339(started))?;
        writeln!(out, "#[BaseTime: {since:.3} (seconds since epoch)]")?;
        writeln!(
            out,
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\
             \"Interval_Compressed_Histogram\""
        )?;
        out.flush()?;
        Ok(Self { out, serializer: V2DeflateSerializer::new(), bytes: Vec::new() })
    }

    /// Adds the histogram of `length_s` seconds from `start_s` on, in seconds since the start of
    /// the log. Leaves out an empty histogram.
    pub(crate) fn add(
        &mut self,
        tag: &str,
        start_s: f64,
        length_s: f64,
        histogram: &Histogram<u64>,
    ) -> io::Result<()> {
        if histogram.is_empty() {
            return Ok(());
        }
        self.bytes.clear();
        self.serializer
            .serialize(histogram, &mut self.bytes)
            .map_err(|cause| io::Error::other(format!("can't encode a histogram: {cause:?}")))?;
        let max = histogram.max() as f64 / 1e6;
        let encoded = STANDARD.encode(&self.bytes);
        writeln!(self.out, "Tag={tag},{start_s:.3},{length_s:.3},{max:.3},{encoded}")
    }

    /// Flushes the buffered lines to the operating system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::HdrLog;

    #[test]
    fn an_interval_log_is_read_back_unchanged() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("intended.hdr");
        let started = UNIX_EPOCH + Duration::from_millis(1_795_320_306_789);
        let mut log = HdrLog::create(&path, "latency", started).expect("begins");
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        log.add("GET", 0.0, 1.0, &histogram).expect("nothing");
        histogram.record_n(1_500_000, 7).unwrap();
        histogram.record(250_000_000).unwrap();
        log.add("GET", 1.0, 1.0, &histogram).expect("a line");
        log.add("PUT", 2.0, 0.25, &histogram).expect("a line");
        log.flush().expect("it is there");

        let text = std::fs::read_to_string(&path).expect("text");
        assert!(
            text.starts_with("#[latency, in nanoseconds]\n#[Histogram log format version 1.3]")
        );
        assert!(text.contains("#[StartTime: 1795320306.789 (seconds since epoch), 2026-11-22T0"));
        let mut read = Vec::new();
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            if let LogEntry::Interval(line) = entry.expect("the format") {
                let bytes = base64::Engine::decode(
                    &base64::engine::general_purpose::STANDARD,
                    line.encoded_histogram(),
                );
                let bytes = bytes.expect("base64");
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut bytes.as_slice()).expect("a histogram");
                assert_eq!(histogram.len(), 8);
                assert!((histogram.max() as f64 / 250_000_000.0 - 1.0).abs() < 0.001);
                let tag = line.tag().map(|tag| tag.as_str().to_owned());
                read.push((tag, line.start_timestamp(), line.duration()));
            }
        }
        let at = Duration::from_millis;
        assert_eq!(
            read,
            [(Some("GET".into()), at(1000), at(1000)), (Some("PUT".into()), at(2000), at(250))]
        );
    }
}
