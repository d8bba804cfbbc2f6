//! The details of one run: plan, machine, servers and results.

use maud::{Markup, html};

use super::chart::key;
use super::key_figures;
use super::run_view::RunView;
use super::timelines;
use crate::record::{PlanRecord, Run, Server};

/// Maximum number of runs that are unfolded at first.
const UNFOLDED: usize = 3;

/// Renders all runs as foldable sections.
pub(crate) fn all(runs: &[RunView<'_>]) -> Markup {
    html! {
        @for run in runs {
            details.run id={ "run-" (run.number) } open[runs.len() <= UNFOLDED] {
                summary { (key(run.colour)) span.name { (run.name()) } span.what { (what(run)) } }
                (one(run))
            }
        }
    }
}

/// Describes a run in one line.
fn what(run: &RunView<'_>) -> String {
    let plan = &run.run().plan;
    let rate = match plan.rate {
        Some(rate) => format!("{} requests/s", key_figures::rate(rate)),
        None if plan.closed => "closed loop".to_owned(),
        None => "rate unknown".to_owned(),
    };
    let duration = key_figures::three(plan.duration_s);
    let (connections, each) = (plan.connections, each(plan));
    format!("{rate} for {duration} s over {connections} connections{each}; {}", plan.requests)
}

/// Returns a note that rate, threads and connections are per URL, or an empty text if they are
/// totals.
fn each(plan: &PlanRecord) -> String {
    if plan.copies > 1 { format!(" to each of {} URLs", plan.copies) } else { String::new() }
}

fn one(shown: &RunView<'_>) -> Markup {
    let run = shown.run();
    let charts = timelines::charts(shown);
    html! {
        @if !run.warnings.is_empty() {
            ul.warnings {
                @for warning in &run.warnings { li { b { (warning.code) } " " (warning.text) } }
            }
        }
        @if charts.is_empty() {
            p.hint { (timelines::no_charts_reason(shown)) }
        } @else {
            div.stack { @for chart in &charts { (chart.markup()) } }
        }
        div.columns {
            (plan_facts(run))
            (answers(shown))
            (machine(run))
        }
        @if !run.servers.is_empty() { (servers(&run.servers)) }
        @if !run.argv.is_empty() {
            h4 { "Command" }
            pre tabindex="0" { (command(&run.argv)) }
        }
        @if let Some(script) = &shown.saved.script {
            h4 { "Script " code { (run.plan.script) } }
            pre tabindex="0" { (script) }
        }
        @if !run.missing.is_empty() {
            h4 { "What the imported output does not say" }
            ul { @for missing in &run.missing { li { (missing) } } }
        }
    }
}

/// Quotes the words as for a shell.
pub(crate) fn command(argv: &[String]) -> String {
    let words = argv.iter().map(String::as_str);
    shlex::try_join(words).unwrap_or_else(|_| argv.join(" "))
}

fn plan_facts(run: &Run) -> Markup {
    let plan = &run.plan;
    let each = each(plan);
    let comma = if each.is_empty() { "" } else { "," };
    let rate = plan.rate.map_or_else(
        || "–".to_owned(),
        |rate| format!("{} requests/s, {}{comma}{each}", key_figures::rate(rate), plan.arrival),
    );
    let recorded = match run.profiled_events() {
        events if events.is_empty() => "nothing".to_owned(),
        events => format!("{events}: the servers' CPU time has that in it"),
    };
    facts(
        "Asked",
        &[
            ("targets", plan.targets.join(" ")),
            ("requests", plan.requests.clone()),
            ("rate", if plan.closed { "closed loop".to_owned() } else { rate }),
            ("duration", format!("{} s", key_figures::three(plan.duration_s))),
            ("warm-up", format!("{} s", key_figures::three(plan.warmup_s))),
            ("threads", format!("{}{each}", plan.threads)),
            ("connections", format!("{}{each}", plan.connections)),
            ("seed", plan.seed.to_string()),
            ("recorded", recorded),
        ],
    )
}

fn answers(shown: &RunView<'_>) -> Markup {
    let run = shown.run();
    let counts = &run.counts;
    let count = |number: u64| key_figures::group_digits(number as f64);
    let answered = if run.is_counted() { count(counts.answered) } else { "–".to_owned() };
    let mut rows = vec![
        ("due".to_owned(), count(counts.planned)),
        ("answered".to_owned(), answered),
        ("a second".to_owned(), key_figures::rate(run.throughput)),
    ];
    for (status, number) in &counts.statuses {
        let share = key_figures::share(*number as f64 / counts.answered.max(1) as f64);
        rows.push((format!("status {status}"), format!("{} ({share})", count(*number))));
    }
    if counts.statuses.is_empty() {
        rows.push(("not 2xx/3xx".to_owned(), count(counts.refused)));
    }
    let rest = [
        ("unfinished", counts.unfinished),
        ("connect errors", counts.connect_errors),
        ("read errors", counts.read_errors),
        ("write errors", counts.write_errors),
        ("timeouts", counts.timeouts),
        ("wrong values", counts.wrong_values),
    ];
    rows.extend(
        rest.iter()
            .filter(|(_, number)| *number > 0)
            .map(|(name, number)| ((*name).to_owned(), count(*number))),
    );
    rows.push(("received".to_owned(), key_figures::bytes(counts.bytes as f64)));
    if let Some(latency) = shown.latency() {
        let figures = [latency.mean, latency.stdev].map(key_figures::ms);
        rows.push(("mean latency".to_owned(), format!("{} ± {}", figures[0], figures[1])));
        rows.push(("latency".to_owned(), shown.describe_latency_start().to_owned()));
    }
    let rows: Vec<_> = rows.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    facts("Answered", &rows)
}

fn machine(run: &Run) -> Markup {
    let machine = &run.machine;
    let cpus = if machine.cpus > 0 { format!("{} of it", machine.cpus) } else { String::new() };
    let memory =
        if machine.memory > 0 { key_figures::bytes(machine.memory as f64) } else { String::new() };
    let cpu = if run.client_cpu_s > 0.0 && run.elapsed_s > 0.0 {
        let cores = run.client_cpu_s / run.elapsed_s;
        format!("{} s ({} cores)", key_figures::three(run.client_cpu_s), key_figures::three(cores))
    } else {
        String::new()
    };
    facts(
        "Measured by",
        &[
            ("tool", run.tool.clone()),
            ("began", run.started.clone()),
            ("took", format!("{} s", key_figures::three(run.elapsed_s))),
            ("host", machine.host.clone()),
            ("processor", machine.cpu.clone()),
            ("processors", cpus),
            ("memory", memory),
            ("kernel", machine.kernel.clone()),
            ("client's CPU", cpu),
        ],
    )
}

/// Renders a list of facts. Unknown facts are left out.
fn facts(title: &str, rows: &[(&str, String)]) -> Markup {
    html! {
        div.facts {
            h4 { (title) }
            dl {
                @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
                    dt { (name) } dd { (value) }
                }
            }
        }
    }
}

/// Renders a table with a column for each server.
fn servers(servers: &[Server]) -> Markup {
    let metrics = names(servers, |server| server.metrics.keys().cloned().collect());
    let about = names(servers, |server| server.about.keys().cloned().collect());
    html! {
        h4 { "Servers" }
        div.scroll tabindex="0" role="region" aria-label="Servers" {
            table.servers {
                thead { tr { th scope="col" { "" } @for server in servers {
                    th scope="col" { (server.url) }
                } } }
                tbody {
                    tr { th scope="row" { "CPU time" } @for server in servers {
                        td { (server.cpu_s.map_or_else(|| "–".to_owned(),
                            |cpu| format!("{} s", key_figures::three(cpu)))) }
                    } }
                    tr { th scope="row" { "resident memory" } @for server in servers {
                        td { (server.rss.map_or_else(|| "–".to_owned(),
                            |rss| key_figures::bytes(rss as f64))) }
                    } }
                    @for (name, ratios) in hit_ratios(servers) {
                        tr { th scope="row" { (name) } @for ratio in ratios {
                            td { (ratio.map_or_else(|| "–".to_owned(), key_figures::share)) }
                        } }
                    }
                    @for name in &about { tr { th scope="row" { (name) } @for server in servers {
                        td { (server.about.get(name).map_or("–", String::as_str)) }
                    } } }
                }
            }
        }
        @if !metrics.is_empty() {
            details.metrics {
                summary { (metrics.len()) " metrics" }
                div.scroll tabindex="0" role="region" aria-label="Metrics" { table.servers {
                    thead { tr { th scope="col" { "" } @for server in servers {
                        th scope="col" { (server.url) }
                    } } }
                    tbody { @for name in &metrics { tr {
                        th scope="row" { code { (name) } }
                        @for server in servers {
                            td { (server.metrics.get(name).map_or_else(|| "–".to_owned(),
                                |value| key_figures::rate(*value))) }
                        }
                    } } }
                } }
            }
        }
    }
}

/// Returns all names of the servers' values, sorted, without duplicates.
fn names(servers: &[Server], of: impl Fn(&Server) -> Vec<String>) -> Vec<String> {
    let mut names: Vec<_> = servers.iter().flat_map(of).collect();
    names.sort();
    names.dedup();
    names
}

/// Computes `X hit ratio` of each server, for every pair of counters `X_hits…` and `X_misses…`.
fn hit_ratios(servers: &[Server]) -> Vec<(String, Vec<Option<f64>>)> {
    let metrics = names(servers, |server| server.metrics.keys().cloned().collect());
    let hits = metrics.iter().filter(|name| name.contains("_hits"));
    hits.map(|hits| {
        let misses = hits.replacen("_hits", "_misses", 1);
        let ratio = |server: &Server| {
            let (hits, misses) = (server.metrics.get(hits)?, server.metrics.get(&misses)?);
            (hits + misses > 0.0).then(|| hits / (hits + misses))
        };
        let name = hits.split("_hits").next().unwrap_or_default().replace('_', " ");
        (format!("{name} hit ratio"), servers.iter().map(ratio).collect())
    })
    .filter(|(_, ratios): &(String, Vec<Option<f64>>)| ratios.iter().any(Option::is_some))
    .collect()
}
