//! Compares recorded percentiles with the truth. The true latency of a request is the time from its
//! planned moment until the server has written the answer, by the server's own record. It is an
//! interval: the server records the times just before and just after the write, because a thread
//! that loses its CPU in between does not know when the answer left.

use std::time::{Duration, Instant};

use bench_table::Table;
use load::{KeyOrder, Keys, Outcome, Pace, Plan, Target};

use crate::Bench;
use crate::recorder::{RecordedRequest, Recorder, Service};

const SECTION: &str = "accuracy";

/// Requests per second.
const RATE: f64 = 1000.0;

/// Number of connections, enough for the slowest service to keep up with the rate.
const CONNECTIONS: usize = 32;

const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];

/// Tolerance of a percentile: this share, or this many microseconds if they are more.
const SHARE: f64 = 0.01;
const MICROS: f64 = 50.0;

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## Accuracy\n\n{RATE} requests a second on {CONNECTIONS} connections, milliseconds: \
         recorded / true, and the greatest difference over all repeats. True is from the moment \
         that the plan says until the answer was there. Right: within 1 % or \
         {MICROS} µs of the span in which, by the server's record, it was written; shown is the \
         span's end. *Written* is what a client would report that counts from \
         sending."
    ));
    let mut table = Table::new(&[
        "service",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "greatest difference",
        "right",
        "written p99",
    ]);
    let ms = Duration::from_millis;
    for (name, service) in [
        ("none", Service::None),
        ("1 ms", Service::Fixed(ms(1))),
        ("5 ms", Service::Fixed(ms(5))),
        ("90 % 0.5 ms, 10 % 8 ms", Service::Bimodal(Duration::from_micros(500), ms(8))),
        ("100 ms stall each second", Service::Stall { period: ms(1000), length: ms(100) }),
    ] {
        let mut worst = 0.0_f64;
        let mut right = [true; QUANTILES.len()];
        let mut cells = Vec::new();
        for repeat in 0..bench.repeats {
            let (recorded, truth, written) = measure(service, bench.seconds)?;
            for (i, quantile) in QUANTILES.iter().enumerate() {
                let (before, after) = truth[i];
                let off = recorded[i] - recorded[i].clamp(before, after);
                worst = if off.abs() > worst.abs() { off } else { worst };
                right[i] &= off.abs() <= MICROS.max(SHARE * after);
                for (figure, value) in
                    [("recorded", recorded[i]), ("before", before), ("after", after)]
                {
                    let figure = format!("{figure}_us_q{quantile}");
                    bench.report.figure(SECTION, name, repeat, &figure, value);
                }
            }
            cells = recorded.iter().zip(&truth).map(|(r, t)| pair(*r, t.1)).collect();
            cells.extend([
                Some(format!("{worst:+.0} µs")),
                Some(list_right(right)),
                Some(format!("{:.3}", written / 1e3)),
            ]);
        }
        cells.insert(0, Some(name.to_owned()));
        table.row(cells);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

/// Names the percentiles that were within the tolerance in all repeats.
fn list_right(right: [bool; 5]) -> String {
    if right == [true; 5] {
        return "all".to_owned();
    }
    let names = ["p50", "p90", "p99", "p99.9", "max"];
    let right = names.iter().zip(right).filter(|(_, right)| *right).map(|(name, _)| *name);
    right.collect::<Vec<_>>().join(", ")
}

fn pair(recorded: f64, truth: f64) -> Option<String> {
    Some(format!("{:.3} / {:.3}", recorded / 1e3, truth / 1e3))
}

/// Lower and upper bound of a percentile, in microseconds.
type Span = (f64, f64);

/// Returns the recorded percentiles, the true percentiles, and the recorded p99 of the latency
/// since the write of the request, all in microseconds.
fn measure(service: Service, seconds: u64) -> Result<([f64; 5], [Span; 5], f64), String> {
    let server = Recorder::start(service)?;
    let plan = Plan {
        connections: CONNECTIONS,
        pace: Pace::Open(RATE),
        duration: Duration::from_secs(seconds),
        keys: Keys { order: KeyOrder::Sequential, count: u64::MAX >> 16, len: 16 },
        ..Plan::new(Target::new(server.address, "/{key}"))
    };
    let outcome = load::run(&plan).map_err(|error| error.to_string())?;
    let (before, after) = truth(&server, &outcome)?;
    let recorded = outcome.all_methods();
    let micros = |q| recorded.intended.value_at_quantile(q) as f64 / 1e3;
    let written = recorded.written.value_at_quantile(0.99) as f64 / 1e3;
    Ok((QUANTILES.map(micros), QUANTILES.map(|q| (at(&before, q), at(&after, q))), written))
}

/// Returns the lower and the upper bounds of the true latencies in microseconds. Each list is
/// ascending.
fn truth(server: &Recorder, outcome: &Outcome) -> Result<(Vec<f64>, Vec<f64>), String> {
    let seen = server.wait_for_requests(outcome.planned)?;
    let latencies = |until: fn(&RecordedRequest) -> Instant| {
        let latencies = seen.iter().map(|seen| {
            let intended = outcome.started + Duration::from_secs_f64(seen.number as f64 / RATE);
            until(seen).saturating_duration_since(intended).as_secs_f64() * 1e6
        });
        let mut latencies: Vec<f64> = latencies.collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    };
    Ok((latencies(|seen| seen.answered.0), latencies(|seen| seen.answered.1)))
}

/// Returns the smallest value such that at least the share `quantile` of all values is not greater,
/// which is also the histogram's definition.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}
