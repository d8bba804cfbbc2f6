//! Tests of the report's charts over time.

use super::fixture::{ReportFixture, run};

const HEAD: &str = "second,length_s,sent,answered,refused,lost,timeouts,connect_errors,bytes,\
                    backlog,p50_ms,p99_ms,max_ms,h:1 kv_cpu_seconds_total,h:1 kv_bytes_total,\
                    h:1 kv_syncs_total,h:1 kv_memtable_bytes,h:1 kv_queue_depth";

/// Returns a timeline of `seconds` rows, and a last row of `rest` seconds.
fn timeline(seconds: usize, rest: f64) -> String {
    let mut csv = format!("{HEAD}\n");
    let row = |second: usize, length: f64, sent: u64| {
        let (cpu, bytes) = (second as f64 * 1.5, second * 1024);
        format!(
            "{second},{length:.3},{sent},{sent},0,0,0,0,0,1,1,2,3,{cpu},{bytes},{},5,6\n",
            second * 7
        )
    };
    (0..seconds).for_each(|second| csv.push_str(&row(second, 1.0, 1000)));
    csv.push_str(&row(seconds, rest, 0));
    csv
}

fn page(seconds: usize, rest: f64) -> super::fixture::Page {
    let made = ReportFixture::new();
    made.run("one", &run(1000.0, 1.0, 10_000), &timeline(seconds, rest));
    made.page("one")
}

/// Returns the values of a chart's first line.
fn figures(chart: &serde_json::Value) -> Vec<Option<f64>> {
    let points = chart["lines"][0]["points"].as_array().unwrap();
    points.iter().map(|point| point[1].as_f64()).collect()
}

#[test]
fn a_short_last_row_is_not_charted_as_a_second() {
    let rate = page(10, 0.004).chart("run-0-rate");
    assert_eq!(figures(&rate), [Some(1000.0); 10], "a rest of 4 ms is no cliff");
    assert_eq!(rate["x"]["max"], 10.0);
    assert_eq!(figures(&page(10, 0.5).chart("run-0-rate")).len(), 11, "half a second is told");
}

#[test]
fn counters_are_charted_per_second_with_their_unit() {
    let page = page(10, 0.004);
    let notes = ["CPUs", "bytes a second", "a second", "bytes", ""];
    let figures_of = [1.5, 1024.0, 7.0, 5.0, 6.0];
    for (place, (note, figure)) in notes.iter().zip(figures_of).enumerate() {
        let id = format!("run-0-metric-{place}");
        let markup = page.markup(&format!("id=\"{id}\""), "</figcaption>");
        assert!(markup.contains(&format!("<span class=\"note\">{note}</span>")), "{markup}");
        assert_eq!(figures(&page.chart(&id))[1..], [Some(figure); 9], "{markup}");
    }
}

#[test]
fn a_run_too_short_for_charts_says_so() {
    let page = page(3, 0.004);
    assert!(!page.0.contains("run-0-rate"));
    assert!(
        page.text().contains("No charts over time: 3 seconds are too few for them, 8 are not.")
    );
}
