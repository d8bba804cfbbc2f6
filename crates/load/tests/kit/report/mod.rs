//! Tests of the report's visible text, over synthetic runs and series.

mod fixture;
mod searches;
mod seconds;

use fixture::{ReportFixture, TOOL, run, trial};
use load::record::{Series, Trial};

/// Writes pairs of a cold and a hot run of `PUT`, given by their medians in milliseconds.
fn coldhot(pairs: &[(f64, f64)]) -> ReportFixture {
    let made = ReportFixture::new();
    let mut trials = Vec::new();
    for (place, (cold, hot)) in pairs.iter().enumerate() {
        for (role, ms) in [("put-cold", *cold), ("put-hot", *hot)] {
            let dir = format!("{}-{role}", place * 2 + 1);
            trials.push((trial(&dir, role, 1000.0, ""), run(1000.0, ms, 100_000)));
        }
    }
    let series = Series { kind: "coldhot".to_owned(), ..Series::default() };
    made.series("cold-hot", series, trials);
    made
}

#[test]
fn every_repeat_of_cold_and_hot_has_its_own_pair() {
    let page = coldhot(&[(4.0, 2.0), (3.0, 2.5), (5.0, 3.5)]).page("cold-hot");
    for (repeat, says) in [
        (1, "p50|4 ms|2 ms|50 % faster"),
        (2, "p50|3 ms|2.5 ms|16.7 % faster"),
        (3, "p50|5 ms|3.5 ms|30 % faster"),
    ] {
        let table = page.part(&format!("<caption>put, repeat {repeat}<"), "</table>");
        assert!(table.contains(says), "{table}");
    }
    let medians = page.part("<caption>put: medians of 3 repeats<", "</table>");
    assert!(medians.contains("p50|4 ms|2.5 ms|37.5 % faster (the repeats overlap)|"), "{medians}");
    assert!(medians.contains("answered/s|1,000|1,000|the same|"), "{medians}");
    assert!(!page.text().contains("One run each"));
}

#[test]
fn separate_repeats_are_not_reported_as_overlapping() {
    let page = coldhot(&[(4.0, 2.0), (3.0, 2.5)]).page("cold-hot");
    let medians = page.part("<caption>put: medians of 2 repeats<", "</table>");
    assert!(medians.contains("p50|4 ms|2.5 ms|37.5 % faster|"), "{medians}");
}

#[test]
fn a_single_pair_gets_a_hint_about_noise() {
    let page = coldhot(&[(4.0, 2.0)]).page("cold-hot");
    let table = page.part("<caption>put<", "</table>");
    assert!(table.contains("p50|4 ms|2 ms|50 % faster"), "{table}");
    assert!(page.text().contains("One run each: a difference may be noise"));
}

#[test]
fn an_interrupted_repeat_has_no_pair() {
    let made = ReportFixture::new();
    let ended = load::record::Run { interrupted: true, ..run(1000.0, 9.0, 100) };
    let trials = vec![
        (trial("1", "put-cold", 1000.0, ""), run(1000.0, 4.0, 100_000)),
        (trial("2", "put-hot", 1000.0, ""), run(1000.0, 2.0, 100_000)),
        (trial("3", "put-cold", 1000.0, ""), run(1000.0, 4.0, 100_000)),
        (Trial { why: "ended early".to_owned(), ..trial("4", "put-hot", 1000.0, "") }, ended),
    ];
    made.series("cold-hot", Series { kind: "coldhot".to_owned(), ..Series::default() }, trials);
    let page = made.page("cold-hot");
    assert_eq!(page.0.matches("<table class=\"pair\">").count(), 1);
    assert!(!page.part("<table class=\"pair\">", "</table>").contains("9 ms"));
}

#[test]
fn percentiles_with_few_samples_are_grey_in_every_table() {
    let made = ReportFixture::new();
    let few = |ms| run(1000.0, ms, 500);
    let trials = vec![
        (trial("1", "put-cold", 1000.0, ""), few(4.0)),
        (trial("2", "put-hot", 1000.0, ""), few(2.0)),
    ];
    made.series("cold-hot", Series { kind: "coldhot".to_owned(), ..Series::default() }, trials);
    let page = made.page("cold-hot");
    let p99 = "<td class=\"few\">8 ms</td>";
    for table in ["pair", "trials", "runs"] {
        let markup = page.markup(&format!("<table class=\"{table}\">"), "</table>");
        assert!(markup.contains(p99), "{table}: {markup}");
        assert!(markup.contains("<td class=\"\">4 ms</td>"), "{table}: {markup}");
    }
}

#[test]
fn the_page_names_the_tool_that_made_it() {
    let made = ReportFixture::new();
    made.run("one", &run(1000.0, 1.0, 1000), "");
    let text = made.page("one").text();
    assert!(text.contains(&format!("Made by {TOOL} from 1 run.")), "{text}");
}

#[test]
fn the_rate_per_url_is_shown_as_a_total_in_the_table() {
    let made = ReportFixture::new();
    let mut each = run(30_000.0, 1.0, 300_000);
    each.plan.rate = Some(10_000.0);
    each.plan.targets = (8080..8083).map(|port| format!("http://127.0.0.1:{port}")).collect();
    each.plan.copies = 3;
    made.run("each", &each, "");
    let page = made.page("each");
    let figures = page.part("<table class=\"runs\">", "</table>");
    assert!(figures.contains("|each|30,000|30,000|"), "{figures}");
    let heading = page.part("<summary>", "</summary>");
    assert!(heading.contains("10,000 requests/s for 10 s over 8 connections to each of 3 URLs"));
    let asked = page.part("<h4>Asked</h4>", "</dl>");
    assert!(asked.contains("10,000 requests/s, even, to each of 3 URLs"), "{asked}");
}

#[test]
fn each_run_says_from_when_its_latencies_are_counted() {
    let made = ReportFixture::new();
    made.run("all/open", &run(1000.0, 1.0, 1000), "");
    let open = made.page("all");
    let due = "Latencies are counted from the moment that a request was due.";
    assert!(open.text().contains(due));
    let mut wrk = run(1000.0, 1.0, 1000);
    (wrk.plan.rate, wrk.plan.closed, wrk.latency[0].from) = (None, true, "written".to_owned());
    made.run("all/wrk", &wrk, "");
    let text = made.page("all").text();
    assert!(!text.contains(due), "{text}");
    let says = "was due; but those of wrk from the writing of a request (a closed loop";
    assert!(text.contains(says), "{text}");
    let page = made.page("all/wrk");
    assert!(page.text().contains("Latencies are counted from the writing of a request"));
    assert!(!page.0.contains("from the intended start"));
}
