//! Synthetic run directories and series for tests of the report.

use std::fs;
use std::path::{Path, PathBuf};

use load::record::{
    Counts, FORMAT, Finding, Latency, PlanRecord, Point, Run, Series, Trial, Warning,
};
use load::report::{Error, ReportArgs, report};
use tempfile::TempDir;

/// Tool name in these pages.
pub(crate) const TOOL: &str = "kit 1.2.3";

/// A test's directories and its report.
pub(crate) struct ReportFixture {
    dir: TempDir,
}

impl ReportFixture {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a run, and its timeline unless the timeline is empty.
    pub(crate) fn run(&self, name: &str, run: &Run, timeline: &str) {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("run.json"), serde_json::to_vec(run).unwrap()).unwrap();
        if !timeline.is_empty() {
            fs::write(dir.join("timeline.csv"), timeline).unwrap();
        }
    }

    /// Writes a series of trials, and the run of each.
    pub(crate) fn series(&self, name: &str, mut series: Series, trials: Vec<(Trial, Run)>) {
        for (trial, run) in &trials {
            self.run(&format!("{name}/{}", trial.dir), run, "");
        }
        series.format = FORMAT;
        series.trials = trials.into_iter().map(|(trial, _)| trial).collect();
        self.write_series(name, &series);
    }

    pub(crate) fn write_series(&self, name: &str, series: &Series) {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("series.json"), serde_json::to_vec(series).unwrap()).unwrap();
    }

    /// Renders the page of one directory.
    pub(crate) fn page(&self, name: &str) -> Page {
        Page(fs::read_to_string(self.write_page(name).unwrap()).unwrap())
    }

    /// Returns the error of a report that can't be written.
    pub(crate) fn report_error(&self, name: &str) -> String {
        self.write_page(name).unwrap_err().to_string()
    }

    fn write_page(&self, name: &str) -> Result<PathBuf, Error> {
        let out = Path::new(&self.path("page.html")).to_owned();
        let directories = vec![self.path(name)];
        report(&ReportArgs { directories, out: out.clone(), title: None }, TOOL).map(|_| out)
    }
}

/// A rendered page.
pub(crate) struct Page(pub(crate) String);

impl Page {
    /// Returns the visible text, without drawings, data and markup. `|` separates the cells of a
    /// table.
    pub(crate) fn text(&self) -> String {
        text(&self.0)
    }

    /// Returns the text of the first part that begins with `from` and ends at the next `to`.
    pub(crate) fn part(&self, from: &str, to: &str) -> String {
        text(self.markup(from, to))
    }

    /// Returns the markup of the first part that begins with `from` and ends at the next `to`.
    pub(crate) fn markup(&self, from: &str, to: &str) -> &str {
        let begin = self.0.find(from).unwrap_or_else(|| panic!("no {from} in the page"));
        let rest = &self.0[begin..];
        &rest[..rest.find(to).unwrap_or(rest.len())]
    }

    /// Returns the data of a chart for the page's script.
    pub(crate) fn chart(&self, id: &str) -> serde_json::Value {
        let figure = self.markup(&format!("id=\"{id}\""), "</figure>");
        let (_, json) = figure.split_once("application/json\">").unwrap();
        serde_json::from_str(json.split("</script>").next().unwrap()).unwrap()
    }
}

fn text(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some(begin) = rest.find('<') {
        text.push_str(&rest[..begin]);
        rest = &rest[begin..];
        for (element, end) in [("<svg", "</svg>"), ("<script", "</script>"), ("<style", "</style>")]
        {
            if rest.starts_with(element) {
                rest = &rest[rest.find(end).unwrap_or(0)..];
            }
        }
        let cell = ["</td", "</th", "</tr"].iter().any(|end| rest.starts_with(end));
        text.push_str(if cell { "|" } else { "" });
        rest = &rest[rest.find('>').unwrap_or(rest.len() - 1) + 1..];
    }
    text.push_str(rest);
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// Creates a run of `count` answers within ten seconds with latencies up to three times `ms`.
pub(crate) fn run(rate: f64, ms: f64, count: u64) -> Run {
    let curve = [(0.0, 0.5), (0.5, 1.0), (0.9, 1.5), (0.99, 2.0), (0.999, 2.5), (1.0, 3.0)];
    let spectrum = curve.map(|(quantile, times)| Point { value: ms * times, quantile, count });
    Run {
        format: FORMAT,
        source: "load".to_owned(),
        tool: "kvorum 0.1.0".to_owned(),
        plan: PlanRecord {
            targets: vec!["http://127.0.0.1:8080".to_owned()],
            threads: 1,
            connections: 8,
            rate: Some(rate),
            arrival: "even".to_owned(),
            duration_s: 10.0,
            ..PlanRecord::default()
        },
        throughput: Some(rate),
        counts: Counts { planned: count, answered: count, ..Counts::default() },
        latency: vec![Latency {
            from: "intended".to_owned(),
            count,
            mean: ms,
            max: ms * 3.0,
            spectrum: spectrum.to_vec(),
            ..Latency::default()
        }],
        ..Run::default()
    }
}

pub(crate) fn trial(dir: &str, role: &str, rate: f64, verdict: &str) -> Trial {
    Trial {
        dir: dir.to_owned(),
        role: role.to_owned(),
        rate: Some(rate),
        verdict: verdict.to_owned(),
        ..Trial::default()
    }
}

pub(crate) fn search(slo: &str, findings: Vec<Finding>) -> Series {
    Series { kind: "search".to_owned(), slo: slo.to_owned(), findings, ..Series::default() }
}

pub(crate) fn finding(value: &str, passes: Option<f64>, fails: Option<f64>) -> Finding {
    Finding { value: value.to_owned(), passes, fails, ..Finding::default() }
}

pub(crate) fn warning(code: &str, text: &str) -> Warning {
    Warning { code: code.to_owned(), text: text.to_owned() }
}
