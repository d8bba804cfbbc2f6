//! Tests of searches and sweeps in the report: verdicts, doubts and trials.

use load::record::{Run, Series};

use super::fixture::{Page, ReportFixture, finding, run, search, trial, warning};

/// Renders the page of a search.
fn page(series: Series, trials: Vec<(load::record::Trial, Run)>) -> Page {
    let made = ReportFixture::new();
    made.series("search", series, trials);
    made.page("search")
}

#[test]
fn a_trial_that_was_ended_early_is_not_drawn_as_passed() {
    let trials = vec![
        (trial("1", "bracket", 1000.0, "pass"), run(1000.0, 1.0, 10_000)),
        (trial("2", "bracket", 2000.0, "fail"), run(2000.0, 100.0, 10_000)),
        (trial("3", "bisect", 1500.0, ""), run(1500.0, 900.0, 10_000)),
    ];
    let page = page(search("p99<10ms", vec![finding("", Some(1000.0), Some(2000.0))]), trials);
    let chart = page.markup("id=\"series-0-curve\"", "</svg>");
    assert!(chart.contains("<title>3: not judged at 1,500/s, 1.8 s. </title>"), "{chart}");
    assert_eq!(chart.matches("class=\"pass\"").count(), 1, "{chart}");
    assert_eq!(chart.matches("class=\"unjudged\"").count(), 1, "{chart}");
    assert!(chart.contains("○ not judged"), "{chart}");
}

#[test]
fn all_trials_are_within_the_axes() {
    let trials = vec![
        (trial("1", "confirm", 1000.0, "pass"), run(1000.0, 1.0, 10_000)),
        (trial("2", "confirm", 1000.0, "pass"), run(1000.0, 1.1, 10_000)),
        (trial("3", "confirm", 1000.0, "fail"), run(1000.0, 5000.0, 10_000)),
        (trial("4", "confirm", 2000.0, "fail"), run(2000.0, 50.0, 10_000)),
    ];
    let page = page(search("p99<10ms", vec![finding("", Some(1000.0), Some(2000.0))]), trials);
    let y = &page.chart("series-0-curve")["y"];
    assert!(y["max"].as_f64().unwrap() > 10_000.0 && y["min"].as_f64().unwrap() < 2.0, "{y}");
}

#[test]
fn a_narrow_range_of_rates_has_its_ticks() {
    let trials = [41_000.0, 44_000.0, 47_000.0]
        .map(|rate| (trial(&format!("{rate}"), "confirm", rate, "pass"), run(rate, 1.0, 10_000)));
    let page = page(search("p99<10ms", vec![finding("", Some(47_000.0), None)]), trials.to_vec());
    for class in ["wide", "narrow"] {
        let figure = page.markup("id=\"series-0-curve\"", "</figure>");
        let svg = &figure[figure.find(&format!("<svg class=\"{class}\"")).unwrap()..];
        let svg = &svg[..svg.find("</svg>").unwrap()];
        let ticks = svg.matches("text-anchor=\"middle\"").count();
        assert!(ticks >= 2, "{class}: {svg}");
    }
}

#[test]
fn warnings_of_a_finding_are_shown_below_it() {
    let trials = vec![(trial("1", "bracket", 1000.0, "pass"), run(1000.0, 1.0, 10_000))];
    let mut found = finding("", Some(1000.0), None);
    found.warnings = vec![
        warning("not-confirmed", "not confirmed: ended early"),
        warning("other-processes", "other processes took up to 1.9 CPUs"),
    ];
    let page = page(search("p99<10ms", vec![found]), trials);
    let above = page.part("<main>", "<section id=\"figures\">");
    let verdict = above.find("It holds 1,000/s").unwrap();
    for says in ["not-confirmed not confirmed: ended early", "other processes took up to 1.9 CPUs"]
    {
        assert!(above.find(says).unwrap() > verdict, "{above}");
    }
    assert!(!above.contains("nothing speaks against"), "{above}");
}

#[test]
fn a_finding_without_a_verdict_names_no_limit() {
    let mut found = finding("", None, None);
    (found.limit, found.why) = ("unknown".to_owned(), "the server took 0 % of its CPUs".to_owned());
    let trials = vec![(trial("1", "bracket", 10.0, "inconclusive"), run(10.0, 1.0, 100))];
    let page = page(search("p99<10ms", vec![found]), trials);
    let verdict = page.part("<p class=\"verdict found\">", "</p>");
    assert_eq!(verdict, "No breaking point was found.");
}

/// Returns two searches, each with three bracketing trials, one bisecting trial and five confirming
/// trials.
fn two_searches() -> (Series, Vec<(load::record::Trial, Run)>) {
    let mut trials = Vec::new();
    for (value, base) in [("put", 1000.0), ("get", 5000.0)] {
        for (place, (role, times, verdict)) in [
            ("bracket", 1.0, "pass"),
            ("bracket", 4.0, "fail"),
            ("bracket", 2.0, "pass"),
            ("bisect", 3.0, "fail"),
            ("confirm", 2.0, "pass"),
            ("confirm", 2.0, "pass"),
            ("confirm", 3.0, "fail"),
            ("confirm", 3.0, "pass"),
            ("confirm", 3.0, "fail"),
        ]
        .into_iter()
        .enumerate()
        {
            let mut trial = trial(&format!("{value}-{place}"), role, base * times, verdict);
            trial.value = value.to_owned();
            trials.push((trial, run(base * times, 1.0, 10_000)));
        }
    }
    let findings = vec![
        finding("put", Some(2000.0), Some(3000.0)),
        finding("get", Some(10_000.0), Some(15_000.0)),
    ];
    (search("p99<10ms", findings), trials)
}

/// Returns the names of the runs whose curves are shown at first.
fn shown_runs(page: &Page) -> Vec<String> {
    let legend = page.markup("<ul class=\"legend\">", "</ul>");
    let buttons = legend.split("<button").filter(|button| button.contains("aria-pressed=\"true\""));
    let name = |button: &str| {
        let end = &button[button.find("</svg>").unwrap() + 6..];
        end.split('<').next().unwrap().to_owned()
    };
    buttons.map(name).collect()
}

#[test]
fn the_edges_of_every_search_are_shown_at_first() {
    let (series, trials) = two_searches();
    let page = page(series, trials);
    assert_eq!(shown_runs(&page), ["put-5", "put-8", "get-5", "get-8"]);
}

#[test]
fn a_series_with_many_trials_shows_its_edges_in_full_and_lists_all_trials() {
    let (series, edges) = two_searches();
    let tiny = |number: usize| {
        let mut trial = trial(&format!("tiny-{number}"), "bisect", 10.0, "pass");
        trial.value = "put".to_owned();
        (trial, run(10.0, 1.0, 100))
    };
    let trials: Vec<_> = (0..300).map(tiny).chain(edges).collect();
    let page = page(series, trials);
    assert_eq!(page.0.matches("<details class=\"run\"").count(), 200);
    assert_eq!(shown_runs(&page), ["put-5", "put-8", "get-5", "get-8"]);
    let table = page.markup("<table class=\"trials\">", "</table>");
    assert_eq!(table.matches("<tr>").count(), 319);
    assert!(table.contains("<a href=\"#run-304\">put-4</a>"), "those to confirm are in full");
    assert!(table.contains("<th scope=\"row\">tiny-299</th>"), "what is not shown has no link");
    let text = page.text();
    assert!(text.contains("200 of 318 runs are shown in full"), "{text}");
}

#[test]
fn more_than_200_single_runs_are_refused() {
    let made = ReportFixture::new();
    (0..201).for_each(|number| made.run(&format!("all/{number}"), &run(1.0, 1.0, 1), ""));
    let report_error = made.report_error("all");
    assert!(report_error.contains("201 runs that are of no series are too many: at most 200"));
}

#[test]
fn a_trial_outside_its_series_is_refused() {
    let made = ReportFixture::new();
    made.run("secret", &run(1000.0, 1.0, 1000), "");
    for elsewhere in ["../secret", made.path("secret").to_str().unwrap()] {
        let mut series = search("", Vec::new());
        series.format = load::record::FORMAT;
        series.trials = vec![trial(elsewhere, "bracket", 1.0, "pass")];
        made.write_series("search", &series);
        let report_error = made.report_error("search");
        assert!(report_error.contains("series.json names"), "{report_error}");
        assert!(report_error.contains("which is not in it"), "{report_error}");
    }
}
