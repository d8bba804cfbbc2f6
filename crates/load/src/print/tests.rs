//! Tests of wrk2's output columns.

use hdrhistogram::Histogram;

use super::{Printed, align_right, header, metric, time};
use crate::record::{Counts, PlanRecord, Run, Warning};

fn run() -> Run {
    Run {
        plan: PlanRecord {
            targets: vec!["http://localhost:8080".into()],
            threads: 4,
            connections: 64,
            duration_s: 180.0,
            ..PlanRecord::default()
        },
        counts: Counts {
            answered: 7_179_159,
            bytes: 614_989_824,
            read_errors: 3,
            refused: 49_763,
            unfinished: 7,
            ..Counts::default()
        },
        elapsed_s: 180.0,
        throughput: Some(39_884.6),
        warnings: vec![Warning { code: "non-2xx".into(), text: "0.69 % were refused".into() }],
        ..Run::default()
    }
}

fn histogram(micros: &[u64]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds");
    micros.iter().for_each(|&value| histogram.record(value * 1000).expect("within"));
    histogram
}

#[test]
fn the_header_gives_duration_targets_threads_and_connections() {
    let mut run = run();
    assert_eq!(
        header(&run),
        "Running 3m test @ http://localhost:8080\n  4 threads and 64 connections\n"
    );
    for (seconds, says) in [(30.0, "30s"), (50.0, "50s"), (100.0, "2m"), (3600.0, "60m")] {
        run.plan.duration_s = seconds;
        assert!(header(&run).starts_with(&format!("Running {says} test @ ")), "{seconds}");
    }
}

#[test]
fn the_output_layout_equals_wrk2s() {
    let intended = histogram(&[41, 664, 883, 1062, 1230, 1405, 2015, 3137, 28_430, 1_250_000]);
    let mut rates = Histogram::new(3).expect("digits");
    [9800, 10_000, 10_600].iter().for_each(|&rate| rates.record(rate).expect("within"));
    let run = run();
    let (detail, uncorrected) = (true, false);
    let written = &intended;
    let printed =
        Printed { run: &run, intended: &intended, written, rates: &rates, detail, uncorrected };
    let want = "  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   128.93ms  373.92ms   1.25s    90.00%
    Req/Sec    10.14k   339.93    10.61k    66.67%
  Latency Distribution (HdrHistogram - Recorded Latency)
 50.000%    1.23ms
 75.000%    3.14ms
 90.000%   28.44ms
 99.000%    1.25s 
 99.900%    1.25s 
 99.990%    1.25s 
 99.999%    1.25s 
100.000%    1.25s 

  Detailed Percentile spectrum:
       Value   Percentile   TotalCount 1/(1-Percentile)

       0.041     0.000000            1         1.00
       0.041     0.100000            1         1.11
       0.664     0.200000            2         1.25
       1.063     0.300000            4         1.43
       1.063     0.400000            4         1.67
       1.231     0.500000            5         2.00
       1.406     0.550000            6         2.22
       2.015     0.600000            7         2.50
       2.015     0.650000            7         2.86
       3.138     0.700000            8         3.33
       3.138     0.750000            8         4.00
       3.138     0.775000            8         4.44
      28.443     0.800000            9         5.00
      28.443     0.825000            9         5.71
      28.443     0.850000            9         6.67
      28.443     0.875000            9         8.00
      28.443     0.887500            9         8.89
    1250.951     0.900000           10        10.00
    1250.951     1.000000           10          inf
#[Mean    =      128.930, StdDeviation   =      373.921]
#[Max     =     1250.951, Total count    =           10]
#[Buckets =           32, SubBuckets     =         2048]
----------------------------------------------------------
  7179159 requests in 3.00m, 586.50MB read
  Socket errors: connect 0, read 3, write 0, timeout 0
  Non-2xx or 3xx responses: 49763
  Unfinished requests: 7, counted as at least this long
Requests/sec:  39884.60
Transfer/sec:      3.26MB
WARNING 0.69 % were refused
";
    assert_eq!(printed.to_string(), want);
}

#[test]
fn sections_that_were_not_requested_are_not_printed() {
    let empty = histogram(&[]);
    let run = Run::default();
    let plain = Printed {
        run: &run,
        intended: &empty,
        written: &empty,
        rates: &empty,
        detail: false,
        uncorrected: false,
    };
    let want = "  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     0.00us    0.00us   0.00us    0.00%
    Req/Sec     0.00      0.00     0.00      0.00%
  0 requests in 0.00us, 0.00B read
Requests/sec:      0.00
Transfer/sec:       0.00B
";
    assert_eq!(plain.to_string(), want);
    let both = Printed { detail: true, uncorrected: true, ..plain }.to_string();
    assert_eq!(both.matches("Detailed Percentile spectrum:").count(), 2);
    assert!(both.contains("(HdrHistogram - Uncorrected Latency (measured without taking"));
}

#[test]
fn numbers_have_the_units_that_wrk2_gives_them() {
    for (micros, says) in [
        (41.0, "41.00us"),
        (849.0, "849.00us"),
        (850.0, "0.85ms"),
        (999_990.0, "999.99ms"),
        (1_000_000.0, "1.00s"),
        (100_000_000.0, "1.67m"),
        (7_200_000_000.0, "120.00m"),
    ] {
        assert_eq!(time(micros), says);
    }
    assert_eq!(metric(651.15), "651.15");
    assert_eq!(metric(10_550.0), "10.55k");
    assert_eq!(align_right("2.71ms", 8), "  2.71ms");
    assert_eq!(align_right("1.25s", 9), "   1.25s ");
    assert_eq!(align_right("651.15", 8), "651.15  ");
}
