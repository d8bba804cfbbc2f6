//! Tests of `compare` on run directories: the recognition of repeats, and comparisons of single
//! runs.

use std::fs;
use std::path::Path;

use load::compare::{CompareArgs, compare};
use load::record::{Counts, FORMAT, Latency, Point, Profile, Run, Server};

/// Creates a run of 10 s whose median is `p50` milliseconds.
fn run(p50: f64) -> Run {
    let points = [(0.5, p50), (0.75, p50 * 2.0), (0.99, p50 * 4.0), (1.0, p50 * 5.0)];
    let point = |(quantile, value)| Point { value, quantile, count: (quantile * 2e4) as u64 };
    let mut run = Run { format: FORMAT, throughput: Some(2000.0), ..Run::default() };
    (run.plan.rate, run.plan.duration_s) = (Some(2000.0), 10.0);
    run.plan.requests = "put=100".to_owned();
    run.counts = Counts { planned: 20_000, answered: 20_000, ..Counts::default() };
    run.latency = vec![Latency {
        from: "intended".to_owned(),
        count: 20_000,
        spectrum: points.map(point).to_vec(),
        ..Latency::default()
    }];
    run
}

fn write(dir: &Path, run: &Run) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("run.json"), serde_json::to_string(run).unwrap()).unwrap();
    for profile in &run.profiles {
        fs::write(dir.join(&profile.folded), "loop-0;f 1\n").unwrap();
    }
}

/// Compares two sides, each with one or several runs. Returns the output or the error.
fn compare_runs(a: &[Run], b: &[Run]) -> Result<String, String> {
    let scratch = tempfile::tempdir().unwrap();
    let side = |name: &str, runs: &[Run]| {
        let dir = scratch.path().join(name);
        match runs {
            [one] => write(&dir, one),
            many => many.iter().enumerate().for_each(|(at, one)| {
                write(&dir.join(format!("run-{at}")), one);
            }),
        }
        dir
    };
    let (a, b) = (side("a", a), side("b", b));
    compare(&CompareArgs { a, b }).map_err(|error| error.to_string())
}

#[test]
fn single_runs_are_shown_beside_each_other_without_a_verdict() {
    let told = compare_runs(&[run(1.0)], &[run(1.5)]).unwrap();
    assert!(told.contains("p50: A 1.000 ms, B 1.500 ms. No verdict\n"), "{told}");
    assert!(told.contains("throughput: A 2000.0/s, B 2000.0/s. No verdict\n"), "{told}");
    assert!(told.contains("not all runs tell them: server CPU per request\n"), "{told}");
    assert!(told.contains("cannot be told from noise"), "{told}");
    assert!(told.contains("5 repeats of each, or a timeline.csv of 40 s"), "{told}");
    assert!(told.ends_with("verdict: cannot be told\n"), "{told}");
    // wrk does not print the number of samples of its percentiles.
    let mut imported = Run { source: "import".to_owned(), ..run(1.0) };
    imported.latency[0].count = 0;
    let told = compare_runs(&[imported.clone()], &[imported]).unwrap();
    assert!(told.contains("p99: A 4.000 ms, B 4.000 ms. No verdict\n"), "{told}");
}

#[test]
fn runs_that_are_not_repeats_are_refused() {
    let of = |change: fn(&mut Run)| {
        let mut other = run(1.0);
        change(&mut other);
        compare_runs(&[run(1.0), run(1.1)], &[run(1.0), run(1.1), other]).unwrap_err()
    };
    let rate = of(|run| run.plan.rate = Some(3000.0));
    assert!(rate.contains("/b: its runs are not repeats of the same"), "{rate}");
    assert!(rate.contains("plan: rate is 2000 in run-0, but 3000 in run-2. Give"), "{rate}");
    let method = of(|run| run.plan.requests = "get=100".to_owned());
    assert!(method.contains("plan: requests is put=100 in run-0, but get=100 in run-2"));
    let ceiling = of(|run| (run.plan.rate, run.plan.closed) = (None, true));
    assert!(ceiling.contains("plan: closed loop is false in run-0, but true in"), "{ceiling}");
    let version = |version: &str| {
        let mut run = run(1.0);
        let about = [("version".to_owned(), version.to_owned())].into();
        run.servers = vec![Server { about, ..Server::default() }];
        run
    };
    let two = compare_runs(&[version("1.0"), version("2.0")], &[run(1.0)]).unwrap_err();
    assert!(two.contains("server 1: version is 1.0 in run-0, but 2.0 in run-1"), "{two}");
}

#[test]
fn metrics_of_a_server_are_not_parameters() {
    let of = |about: [(&str, &str); 5]| {
        let mut run = run(1.0);
        let about = about.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        run.servers = vec![Server { about, ..Server::default() }];
        run
    };
    let at = |number: &'static str, loops: &'static str| {
        of([
            ("memory_bytes", number),
            ("keys", number),
            ("disk_bytes", number),
            ("url", number),
            ("loops", loops),
        ])
    };
    let told = compare_runs(&[at("1", "2")], &[at("2", "2")]).unwrap();
    assert!(told.contains("Parameters: the same\n"), "{told}");
    let told = compare_runs(&[at("1", "2")], &[at("2", "4")]).unwrap();
    assert!(told.contains("differ:\n  server 1: loops: 2 | 4\n"), "{told}");
    assert!(!told.contains("bytes"), "{told}");
}

#[test]
fn a_recording_during_a_run_counts_as_a_parameter() {
    let profile = |event: &str| {
        let folded = format!("{event}.folded");
        Profile { url: "http://h:1".to_owned(), event: event.to_owned(), folded }
    };
    let recorded = Run { profiles: vec![profile("lock"), profile("cpu")], ..run(1.0) };
    let told = compare_runs(&[run(1.0)], &[recorded]).unwrap();
    assert!(told.contains("differ:\n  recorded meanwhile: – | cpu, lock\n"), "{told}");
}
