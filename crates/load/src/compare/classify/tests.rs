use fastrand::Rng;

use super::*;

/// Draws a normal variable (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let (a, b) = (rng.f64().max(f64::MIN_POSITIVE), rng.f64());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

/// Draws the figures of `repeats` runs around `level`, with relative `noise`. Latencies have a
/// heavy tail. CPU time, a sum over all requests, has no heavy tail.
fn runs(rng: &mut Rng, metric: Metric, repeats: usize, level: f64, noise: f64) -> Vec<f64> {
    let mut one = || {
        let stalled = metric != Metric::ServerCpu && rng.u8(..20) == 0;
        let outlier = if stalled { 1.0 + rng.f64() } else { 1.0 };
        level * (noise * normal(rng)).exp() * outlier
    };
    (0..repeats).map(|_| one()).collect()
}

/// Makes `times` comparisons of sides whose CPU time differs by `factor`. Returns the number of
/// comparisons that find any difference.
fn count_detections(times: usize, repeats: usize, noise: f64, factor: f64) -> usize {
    let mut rng = Rng::with_seed(7);
    let alarm = |rng: &mut Rng| {
        let samples: Vec<_> = Metric::ALL[..5]
            .iter()
            .map(|metric| {
                // Only the CPU time differs between the sides.
                let factor = if *metric == Metric::ServerCpu { factor } else { 1.0 };
                let a = runs(rng, *metric, repeats, 100.0, noise);
                (*metric, a, runs(rng, *metric, repeats, 100.0 * factor, noise))
            })
            .collect();
        classify_samples(&samples, Sampling::Runs)
            .iter()
            .any(|classified| classified.verdict == CompareVerdict::Differs)
    };
    (0..times).filter(|_| alarm(&mut rng)).count()
}

#[test]
fn comparing_equal_runs_keeps_the_false_alarm_rate() {
    let alarms = count_detections(2000, 6, 0.05, 1.0);
    assert!(alarms as f64 <= 2000.0 * 0.05, "{alarms} of 2000");
    let alarms = count_detections(500, 10, 0.3, 1.0);
    assert!(alarms as f64 <= 500.0 * 0.05, "{alarms} of 500");
}

#[test]
fn a_ten_per_cent_cpu_difference_is_detected() {
    for (repeats, noise) in [(6, 0.03), (8, 0.035), (12, 0.05)] {
        let hits = count_detections(500, repeats, noise, 1.1);
        assert!(hits >= 450, "{hits} of 500 with {repeats} repeats and {noise} of noise");
    }
}

/// At this noise level, the rank tests detect some of the differences and miss others.
#[test]
fn verdict_and_interval_agree() {
    let mut rng = Rng::with_seed(3);
    let mut verdicts = [0, 0];
    for _ in 0..500 {
        let samples: Vec<_> = Metric::ALL
            .iter()
            .map(|metric| {
                let factor = 1.0 + 0.3 * rng.f64();
                let a = runs(&mut rng, *metric, 6, 0.5, 0.1);
                (*metric, a, runs(&mut rng, *metric, 6, 0.5 * factor, 0.1))
            })
            .collect();
        for classified in classify_samples(&samples, Sampling::Runs) {
            let without_zero = classified.low > 0.0 || classified.high < 0.0;
            assert_eq!(
                classified.verdict == CompareVerdict::Differs,
                without_zero,
                "{classified:?}"
            );
            verdicts[usize::from(without_zero)] += 1;
        }
    }
    assert!(verdicts.iter().all(|count| *count > 300), "{verdicts:?}");
}

/// In an open loop the plan fixes throughput, and usually there are no errors. Tests of these
/// metrics would only weaken the other tests.
#[test]
fn metrics_that_cannot_differ_are_not_tested() {
    let p99 =
        (Metric::P99, vec![1.0, 1.1, 1.2, 1.3, 1.4, 1.71], vec![1.7, 1.8, 1.9, 2.0, 2.1, 1.6]);
    let flat = |metric, level: f64| (metric, vec![level; 6], vec![level * 1.001; 6]);
    let wide = |metric| (metric, vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0], vec![1.5; 6]);
    let verdict = |samples: &[_]| classify_samples(samples, Sampling::Runs)[0].verdict;
    let others = [Metric::P50, Metric::P999, Metric::ServerCpu];
    let mut samples = vec![p99];
    samples.extend(others.map(wide));
    samples.extend([flat(Metric::Throughput, 8000.0), flat(Metric::Errors, 0.0)]);
    assert_eq!(verdict(&samples), CompareVerdict::Differs);
    samples.truncate(4);
    samples.extend([Metric::Throughput, Metric::Errors].map(wide));
    assert_eq!(verdict(&samples), CompareVerdict::Same, "two tests more");
}

#[test]
fn correlated_seconds_do_not_count_as_independent_samples() {
    use crate::saved::{LoadedRun, SavedTimeline};
    let mut rng = Rng::with_seed(11);
    // Autoregressive noise of first order: each second carries over half the noise of the second
    // before.
    let mut run = || {
        let (mut p50, mut p99) = (0.0, 0.0);
        let mut csv = String::from(
            "second,sent,answered,refused,lost,timeouts,connect_errors,p50_ms,p99_ms\n",
        );
        for second in 1..=60 {
            p50 = 0.5 * p50 + 0.1 * normal(&mut rng);
            p99 = 0.5 * p99 + 0.2 * normal(&mut rng);
            let (p50, p99) = (p50.exp(), 10.0 * p99.exp());
            csv.push_str(&format!("{second},1000,1000,0,0,0,0,{p50},{p99}\n"));
        }
        LoadedRun { timeline: Some(SavedTimeline::parse(&csv)), ..LoadedRun::default() }
    };
    let mut alarms = 0;
    for _ in 0..400 {
        let classified = classify(&[run()], &[run()]);
        assert_eq!(classified.len(), 4, "p50, p99, throughput, errors");
        alarms += usize::from(
            classified.iter().any(|classified| classified.verdict == CompareVerdict::Differs),
        );
    }
    assert!(alarms <= 20, "{alarms} of 400");
}

#[test]
fn a_significant_but_tiny_shift_is_not_a_difference() {
    let a: Vec<f64> = (0..8).map(|i| 10_000.0 + f64::from(i) * 0.1).collect();
    let b: Vec<f64> = a.iter().map(|value| value + 5.0).collect();
    let classified = classify_samples(&[(Metric::Throughput, a, b)], Sampling::Runs);
    assert!(
        classified[0].low > 0.0 && classified[0].verdict == CompareVerdict::Same,
        "{classified:?}"
    );
}

#[test]
fn too_few_repeats_get_the_verdict_too_few() {
    let sample = |n: usize| vec![(Metric::P50, vec![1.0; n], vec![9.0; n])];
    assert_eq!(classify_samples(&sample(3), Sampling::Runs)[0].verdict, CompareVerdict::TooFew);
    assert_eq!(classify_samples(&sample(6), Sampling::Runs)[0].verdict, CompareVerdict::Differs);
    assert_eq!(least_repeats(), 5);
}

#[test]
fn error_rates_are_compared_by_the_difference_of_shares() {
    let (a, b) = (vec![0.0; 8], vec![0.5; 8]);
    let classified = &classify_samples(&[(Metric::Errors, a, b)], Sampling::Runs)[0];
    assert_eq!((classified.verdict, classified.effect), (CompareVerdict::Differs, 0.5));
}
