//! The results of a workload, second by second, as CSV and as an SVG drawing.

use std::fmt::Write as _;
use std::time::Duration;

/// Results of one second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Second {
    /// Number of successful answers in time.
    pub good: u64,
    /// Number of answers with 503.
    pub refused: u64,
    /// Number of other answers, late answers, and missing answers.
    pub failed: u64,
    /// Median latency of the good answers.
    pub p50: Duration,
    /// 99th percentile of the latency of the good answers.
    pub p99: Duration,
    /// Resident memory in bytes of the node that uses the most.
    pub resident: u64,
}

/// Size and margins of a drawing, in pixels.
const WIDTH: f64 = 860.0;
const PANEL: f64 = 130.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const GAP: f64 = 34.0;

/// Formats the seconds as CSV.
pub fn csv(seconds: &[Second]) -> String {
    let mut out = "second,good,refused,failed,p50_ms,p99_ms,rss_bytes\n".to_owned();
    for (n, second) in seconds.iter().enumerate() {
        let Second { good, refused, failed, p50, p99, resident } = second;
        let (p50, p99) = (p50.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3);
        let _ = writeln!(out, "{},{good},{refused},{failed},{p50:.3},{p99:.3},{resident}", n + 1);
    }
    out
}

/// Draws the rate of good answers with the reference line `peak`, refusals, p99 and memory. `over`
/// lists the spans of faults, each as its first and last second.
pub fn svg(title: &str, seconds: &[Second], peak: f64, over: &[(usize, usize)]) -> String {
    let panels: [(&str, Vec<f64>, Option<f64>); 4] = [
        ("good answers a second", seconds.iter().map(|s| s.good as f64).collect(), Some(peak)),
        ("503 a second", seconds.iter().map(|s| s.refused as f64).collect(), None),
        ("p99, ms", seconds.iter().map(|s| s.p99.as_secs_f64() * 1e3).collect(), None),
        ("RSS, MiB", seconds.iter().map(|s| (s.resident >> 20) as f64).collect(), None),
    ];
    let height = TOP + panels.len() as f64 * (PANEL + GAP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n"
    );
    let across = (WIDTH - LEFT - 20.0) / seconds.len().max(1) as f64;
    for (n, (name, values, mark)) in panels.iter().enumerate() {
        let top = TOP + n as f64 * (PANEL + GAP);
        panel(&mut out, top, across, over, name, values, *mark);
    }
    out + "</svg>\n"
}

fn panel(
    out: &mut String,
    top: f64,
    across: f64,
    over: &[(usize, usize)],
    name: &str,
    values: &[f64],
    mark: Option<f64>,
) {
    let most = values.iter().copied().chain(mark).fold(1.0, f64::max);
    let (bottom, right) = (top + 16.0 + PANEL, LEFT + across * values.len() as f64);
    let y = |value: f64| bottom - value / most * PANEL;
    for (begun, ended) in over {
        let (from, wide) = (LEFT + across * *begun as f64, across * (ended - begun) as f64);
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{PANEL}\" \
             fill=\"#fbe9e7\"/>",
            top + 16.0,
        );
    }
    let _ = write!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.1}\">{name}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{most:.0}</text>\n\
         <text x=\"{:.1}\" y=\"{bottom:.1}\" text-anchor=\"end\">0</text>\n\
         <path d=\"M{LEFT} {bottom:.1}H{right:.1}\" stroke=\"#999\"/>\n",
        top + 10.0,
        LEFT - 6.0,
        top + 26.0,
        LEFT - 6.0,
    );
    if let Some(mark) = mark {
        let at = y(mark);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{right:.1}\" stroke=\"#2e7d32\" stroke-dasharray=\"4 4\"/>"
        );
    }
    let mut path = String::new();
    for (n, value) in values.iter().enumerate() {
        let x = LEFT + across * (n as f64 + 0.5);
        let _ = write!(path, "{}{x:.1} {:.1}", if n == 0 { 'M' } else { 'L' }, y(*value));
    }
    let _ =
        writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"#1565c0\" stroke-width=\"1.5\"/>");
}
