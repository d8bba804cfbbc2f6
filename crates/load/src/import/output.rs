//! Finds the outputs of wrk and wrk2 in a text, and parses them.
//!
//! ```text
//!  prose, `wrk2 -t4 …`      ◀─ text before an output, searched for the command line
//!  Running 3m test @ URL    ◀─ first line; if missing, the first recognizable line begins it
//!    …                         lines with figures, indented or not; each may be missing
//!  Transfer/sec: 3.26MB     ◀─ last line; if missing, ``` or the next first line ends the output
//! ```

use super::imported_figures::{bytes, count, milliseconds};
use crate::record::Point;

/// The first word of an output's last line.
const LAST: &str = "Transfer/sec:";

/// Minimum number of figures in an output without its first line. Fewer figures are a quoted part
/// of an output.
const MIN_FIGURES: usize = 2;

/// One output: its text and the parsed figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Output {
    /// Line of the text on which the output begins, from 1.
    pub(super) line: usize,
    /// The lines of the output itself.
    pub(super) text: String,
    /// The text before this output, from the end of the previous output or the beginning of the
    /// text.
    pub(super) before: String,
    /// The duration in the first line, such as `3m`.
    pub(super) headed: Option<String>,
    pub(super) url: Option<String>,
    pub(super) threads: Option<usize>,
    pub(super) connections: Option<usize>,
    /// Mean latencies in ms, one per thread, during wrk2's calibration.
    pub(super) calibration: Vec<f64>,
    /// Mean, standard deviation and maximum, in ms, from the summary with two decimal places.
    pub(super) summary: Option<[f64; 3]>,
    /// Mean, standard deviation and maximum in ms, from the spectrum's footer, which is more exact.
    pub(super) mean: Option<f64>,
    pub(super) stdev: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) samples: Option<u64>,
    /// The short distribution of latencies from the intended start.
    pub(super) distribution: Vec<Point>,
    /// The detailed spectrum of latencies from the intended start.
    pub(super) spectrum: Vec<Point>,
    /// Distribution and spectrum of latencies from the write of the request, which `-U` prints
    /// last.
    pub(super) uncorrected: (Vec<Point>, Vec<Point>),
    pub(super) requests: Option<u64>,
    /// Duration of the requests, as printed.
    pub(super) took: Option<String>,
    pub(super) bytes: Option<u64>,
    /// Counts of connect, read, write and timeout errors.
    pub(super) socket_errors: Option<[u64; 4]>,
    pub(super) refused: Option<u64>,
    pub(super) throughput: Option<f64>,
    /// True if the last line is present.
    pub(super) whole: bool,
}

/// Finds all outputs of `text`, in order. Some entries are only a quoted line: see
/// [`Output::is_output`].
pub(super) fn find(text: &str) -> Vec<Output> {
    let mut outputs: Vec<Output> = Vec::new();
    let mut before = String::new();
    let mut open = false;
    for (number, raw) in text.lines().enumerate() {
        let line = raw.trim();
        let has = |has: fn(&Output, &str) -> bool| outputs.last().is_some_and(|it| has(it, line));
        let is_next = if open { has(Output::is_ended_by) } else { opens(line) };
        if begins(line) || is_next {
            let mut before = std::mem::take(&mut before);
            if let Some(last) = outputs.last_mut().filter(|last| open && !last.is_output()) {
                before = last.take_text();
            }
            outputs.push(Output { line: number + 1, before, ..Output::default() });
            open = true;
        }
        let Some(output) = outputs.last_mut().filter(|_| open) else {
            before.push_str(raw);
            before.push('\n');
            continue;
        };
        if !output.is_output() && !line.is_empty() && !is_part(line) && !begins(line) {
            // These lines are only quoted, so they belong to the text before the next output.
            before = output.take_text();
            before.push_str(raw);
            before.push('\n');
            open = false;
            continue;
        }
        if line.starts_with("```") {
            open = false;
            continue;
        }
        output.text.push_str(raw);
        output.text.push('\n');
        output.read(line);
        open = !line.starts_with(LAST);
    }
    outputs
}

/// Returns true for the first line of an output: `Running 3m test @ http://localhost:8080`.
fn begins(line: &str) -> bool {
    line.starts_with("Running ") && line.contains(" test @ ")
}

/// Returns true for a line that occurs only in outputs. Such a line begins an output whose first
/// line is missing.
fn opens(line: &str) -> bool {
    let mut read = Output::default();
    read.read(line);
    read.distribution.clear();
    read.spectrum.clear();
    let starts = ["Thread Stats ", "Thread calibration: ", "Latency Distribution"];
    starts.iter().any(|start| line.starts_with(start)) || read.figures() > 0
}

/// Returns true for a line that may follow within an output.
fn is_part(line: &str) -> bool {
    let mut read = Output::default();
    read.read(line);
    let starts =
        ["Req/Sec ", "Detailed Percentile spectrum:", "Value   Percentile ", "#[", "-----"];
    opens(line) || starts.iter().any(|start| line.starts_with(start)) || read.figures() > 0
}

impl Output {
    /// Returns true for an output, and false for quoted lines of an output.
    pub(super) fn is_output(&self) -> bool {
        self.headed.is_some() || self.figures() >= MIN_FIGURES
    }

    /// Takes the text of quoted lines, which are not an output, with the text before it. Both
    /// precede the next output.
    fn take_text(&mut self) -> String {
        std::mem::take(&mut self.before) + &self.text
    }

    /// Returns the number of main figures that are present.
    fn figures(&self) -> usize {
        let figures = [
            self.threads.is_some(),
            self.summary.is_some(),
            !self.distribution.is_empty() || !self.spectrum.is_empty(),
            self.requests.is_some(),
            self.throughput.is_some(),
        ];
        figures.into_iter().filter(|is_there| *is_there).count()
    }

    /// Returns true for a line that occurs once in an output, and has occurred in this output
    /// already. Such a line begins the next output.
    fn is_ended_by(&self, line: &str) -> bool {
        let mut next = Self::default();
        next.read(line);
        next.threads.is_some() && self.figures() > 0
            || line.starts_with("Thread Stats ") && (self.summary.is_some() || self.has_ended())
            || next.summary.is_some() && self.summary.is_some()
            || next.requests.is_some() && self.requests.is_some()
            || next.throughput.is_some() && self.throughput.is_some()
    }

    fn has_ended(&self) -> bool {
        self.requests.is_some() || self.throughput.is_some()
    }

    /// Parses one trimmed line. Unknown lines are ignored.
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Running", headed, "test", "@", url, ..] => {
                self.headed = Some((*headed).to_owned());
                self.url = Some((*url).to_owned());
            }
            [threads, "threads", "and", connections, "connections"] => {
                self.threads = threads.parse().ok();
                self.connections = connections.parse().ok();
            }
            ["Thread", "calibration:", "mean", "lat.:", mean, ..] => {
                self.calibration.extend(milliseconds(mean.trim_end_matches(',')));
            }
            ["Latency", mean, stdev, max, _] => {
                let figures = [*mean, *stdev, *max].map(milliseconds);
                if let [Some(mean), Some(stdev), Some(max)] = figures {
                    self.summary = Some([mean, stdev, max]);
                }
            }
            [requests, "requests", "in", took, read, "read"] => {
                self.requests = requests.parse().ok();
                self.took = Some(took.trim_end_matches(',').to_owned());
                // The number of bytes is whole, but wrk rounds it to two decimals of a larger unit.
                self.bytes = bytes(read).map(|bytes| bytes as u64);
            }
            ["Non-2xx", "or", "3xx", "responses:", refused] => self.refused = refused.parse().ok(),
            ["Socket", "errors:", rest @ ..] => self.socket_errors = errors(rest),
            ["Requests/sec:", rate] => self.throughput = count(rate),
            [LAST, ..] => self.whole = true,
            _ if line.starts_with("#[") => self.footer(line),
            _ => self.point(line, &words),
        }
    }

    /// Parses a footer: `#[Mean    =        2.706, StdDeviation   =        8.254]`.
    fn footer(&mut self, line: &str) {
        for pair in line.trim_matches(|c| "#[]".contains(c)).split(',') {
            let Some((name, value)) = pair.split_once('=') else { continue };
            let value = value.trim();
            let of_corrected = self.uncorrected.0.is_empty();
            match name.trim() {
                "Mean" if of_corrected => self.mean = value.parse().ok(),
                "StdDeviation" if of_corrected => self.stdev = value.parse().ok(),
                "Max" if of_corrected => self.max = value.parse().ok(),
                "Total count" if of_corrected => self.samples = value.parse().ok(),
                _ => {}
            }
        }
    }

    /// Parses a point: ` 99.900%  142.98ms`, or `2.015     0.750000      5098055         4.00`.
    fn point(&mut self, line: &str, words: &[&str]) {
        if line.contains("Uncorrected Latency") {
            // All further tables contain latencies from the write of the request. An empty point
            // marks this section.
            self.uncorrected.0.push(Point { value: 0.0, quantile: 0.0, count: 0 });
        }
        let corrected = self.uncorrected.0.is_empty();
        match words {
            [share, value] if share.ends_with('%') => {
                let share = share.trim_end_matches('%').parse::<f64>();
                let (Ok(share), Some(value)) = (share, milliseconds(value)) else { return };
                let point = Point { value, quantile: share / 100.0, count: 0 };
                let table =
                    if corrected { &mut self.distribution } else { &mut self.uncorrected.0 };
                table.push(point);
            }
            [value, quantile, count, _] => {
                let figures = (value.parse(), quantile.parse(), count.parse());
                let (Ok(value), Ok(quantile), Ok(count)) = figures else { return };
                let table = if corrected { &mut self.spectrum } else { &mut self.uncorrected.1 };
                table.push(Point { value, quantile, count });
            }
            _ => {}
        }
    }
}

/// Parses the socket errors: `connect 0, read 0, write 0, timeout 3`.
fn errors(words: &[&str]) -> Option<[u64; 4]> {
    let mut found = [0; 4];
    for pair in words.chunks(2) {
        let [name, number] = pair else { return None };
        let place = ["connect", "read", "write", "timeout"].iter().position(|is| is == name)?;
        found[place] = number.trim_end_matches(',').parse().ok()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_ends_at_its_last_line_a_code_fence_or_the_next_output() {
        let text = "a\nRunning 1m test @ http://h:1\n  2 threads and 3 connections\n```\nb\n\
                    Running 2m test @ http://h:2\nRunning 3m test @ http://h:3\n\
                    Transfer/sec: 1KB\n  9 threads and 9 connections\n";
        let outputs = find(text);
        let places: Vec<_> = outputs.iter().map(|output| output.line).collect();
        assert_eq!(places, [2, 6, 7, 9]);
        assert!(!outputs[3].is_output(), "a line that somebody quoted");
        assert_eq!((outputs[0].threads, outputs[0].connections), (Some(2), Some(3)));
        assert_eq!(outputs[0].before, "a\n");
        assert_eq!(outputs[1].before, "b\n");
        assert!(!outputs[0].whole && !outputs[1].whole && outputs[2].whole);
        assert_eq!(outputs[2].threads, None, "what follows the last line is not its");
        assert_eq!(find("no output\n"), []);
    }

    #[test]
    fn unknown_lines_are_ignored() {
        let output = &find(
            "Running x test @ http://h\n  Latency -nan -nan 0.00us -nan%\n  50.000% ?\n\
             1 2 3\n-1 requests in 1s, ?B read\nSocket errors: connect x, read 0\n",
        )[0];
        assert_eq!(output.summary, None);
        assert_eq!(output.distribution, []);
        assert_eq!(output.requests, None);
        assert_eq!(output.socket_errors, None);
    }

    #[test]
    fn the_second_table_counts_from_the_write_of_the_request() {
        let output = &find(
            "Running 1m test @ http://h\n 50.000% 1.00ms\n 1.0 0.5 7 2.00\n\
             #[Mean = 1.0, StdDeviation = 2.0]\n\
             Latency Distribution (HdrHistogram - Uncorrected Latency (measured))\n\
             50.000% 0.50ms\n 0.5 0.5 7 2.00\n#[Mean = 9.0, StdDeviation = 9.0]\n",
        )[0];
        assert_eq!(output.distribution.len(), 1);
        assert_eq!(output.spectrum, [Point { value: 1.0, quantile: 0.5, count: 7 }]);
        assert_eq!(output.uncorrected.1, [Point { value: 0.5, quantile: 0.5, count: 7 }]);
        assert_eq!(output.mean, Some(1.0));
    }
}
