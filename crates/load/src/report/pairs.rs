//! Comparison of cold and hot runs: the pair of each repeat, and the medians over all repeats.
//!
//! A repeat's cold run is paired with the hot run of the same repeat. An interrupted run has no
//! pair. With several repeats, the medians come first. If the values of the two sides overlap, the
//! difference may be noise. The difference between two single runs may also be noise.

use maud::{Markup, html};

use super::chart::key;
use super::key_figures;
use super::overview::at;
use super::run_view::RunView;
use crate::record::Trial;

/// Maximum number of repeats whose tables are unfolded at first.
const UNFOLDED: usize = 3;

/// The compared percentiles.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// Text for two figures within half a percent of each other.
const SAME: &str = "the same";

/// The cold and hot repeats of one load: `put` or `get`.
struct Pairs<'a> {
    name: String,
    /// Pairs of a cold and a hot run.
    repeats: Vec<(RunView<'a>, RunView<'a>)>,
}

/// A compared figure.
struct Figure<'a> {
    name: &'a str,
    of: &'a dyn Fn(&RunView<'_>) -> Option<f64>,
    write: fn(f64) -> String,
    /// Words for a larger and a smaller value.
    words: (&'static str, &'static str),
}

/// Renders all pairs among the runs of `trials`. Empty without pairs.
pub(crate) fn all(trials: &[Trial], runs: &[RunView<'_>]) -> Markup {
    let pairs = pair_runs(trials, runs);
    html! {
        @for pairs in &pairs {
            @match pairs.repeats.as_slice() {
                [(cold, hot)] => (pair(&pairs.name, cold, hot)),
                repeats => {
                    (medians(&pairs.name, repeats))
                    details.repeats open[repeats.len() <= UNFOLDED] {
                        summary { (pairs.name) ": each of the " (repeats.len()) " repeats" }
                        @for (place, (cold, hot)) in repeats.iter().enumerate() {
                            (pair(&format!("{}, repeat {}", pairs.name, place + 1), cold, hot))
                        }
                    }
                }
            }
        }
        @if pairs.iter().any(|pairs| pairs.repeats.len() == 1) {
            p.hint { "One run each: a difference may be noise; coldhot --repeats 3 shows it." }
        }
    }
}

/// Pairs the runs whose roles are `X-cold` and `X-hot`, in order.
fn pair_runs<'a>(trials: &[Trial], runs: &[RunView<'a>]) -> Vec<Pairs<'a>> {
    let of = |role: String| {
        let trials = trials.iter().zip(runs).filter(move |(trial, _)| trial.role == role);
        trials.map(|(_, run)| *run).filter(|run| !run.run().interrupted)
    };
    let mut pairs: Vec<Pairs<'_>> = Vec::new();
    for name in trials.iter().filter_map(|trial| trial.role.strip_suffix("-cold")) {
        if pairs.iter().any(|known| known.name == name) {
            continue;
        }
        let repeats: Vec<_> = of(format!("{name}-cold")).zip(of(format!("{name}-hot"))).collect();
        if !repeats.is_empty() {
            pairs.push(Pairs { name: name.to_owned(), repeats });
        }
    }
    pairs
}

/// Renders the table of one cold–hot pair.
fn pair(name: &str, cold: &RunView<'_>, hot: &RunView<'_>) -> Markup {
    let runs = [cold, hot];
    let row = |figure: &Figure<'_>| {
        let [cold, hot] = runs.map(|run| (figure.of)(run));
        change(cold, hot, figure.words)
    };
    let keys = (key(cold.colour), key(hot.colour));
    table(name, keys, |figure| match QUANTILES.iter().find(|(name, _)| *name == figure.name) {
        Some((_, quantile)) => html! {
            @for run in runs { (at(run.latency(), *quantile)) }
            td { (row(figure)) }
        },
        None => html! {
            @for run in runs { td { (format_or_dash((figure.of)(run), figure.write)) } }
            td { (row(figure)) }
        },
    })
}

/// Renders the medians of the repeats, and says whether the two sides overlap.
fn medians(name: &str, repeats: &[(RunView<'_>, RunView<'_>)]) -> Markup {
    let caption = format!("{name}: medians of {} repeats", repeats.len());
    table(&caption, (html! {}, html! {}), |figure| {
        let mut cold: Vec<f64> = repeats.iter().filter_map(|pair| (figure.of)(&pair.0)).collect();
        let mut hot: Vec<f64> = repeats.iter().filter_map(|pair| (figure.of)(&pair.1)).collect();
        cold.sort_by(f64::total_cmp);
        hot.sort_by(f64::total_cmp);
        let middle = |values: &[f64]| values.get(values.len() / 2).copied();
        let (middles, ends) = ([middle(&cold), middle(&hot)], (ends(&cold), ends(&hot)));
        let apart = match ends {
            (Some(cold), Some(hot)) => hot.1 < cold.0 || cold.1 < hot.0,
            _ => true,
        };
        let change = change(middles[0], middles[1], figure.words);
        html! {
            @for value in middles { td { (format_or_dash(value, figure.write)) } }
            td { (change) @if !apart && change != SAME { " (the repeats overlap)" } }
        }
    })
}

/// Returns the least and the greatest of sorted values, or `None` without values.
fn ends(values: &[f64]) -> Option<(f64, f64)> {
    Some((*values.first()?, *values.last()?))
}

/// Renders a table with a row for each figure. `cells` renders the cells of a row after the
/// figure's name.
fn table(caption: &str, keys: (Markup, Markup), cells: impl Fn(&Figure<'_>) -> Markup) -> Markup {
    let percentile =
        |quantile| move |run: &RunView<'_>| run.latency().and_then(|latency| latency.at(quantile));
    let quantiles = QUANTILES.map(|(name, quantile)| (name, percentile(quantile)));
    let micros = |cpu: f64| format!("{} µs", key_figures::three(cpu));
    let throughput = |run: &RunView<'_>| run.run().throughput;
    let max = |run: &RunView<'_>| run.latency().map(|latency| latency.max);
    let cpu = |run: &RunView<'_>| run.cpu_per_answer();
    let words = ("more", "fewer");
    let mut all =
        vec![Figure { name: "answered/s", of: &throughput, write: key_figures::rate, words }];
    let slower = ("slower", "faster");
    all.extend(quantiles.iter().map(|(name, of)| Figure {
        name,
        of,
        write: key_figures::ms,
        words: slower,
    }));
    all.push(Figure { name: "max", of: &max, write: key_figures::ms, words: slower });
    all.push(Figure { name: "CPU/request", of: &cpu, write: micros, words: ("more", "less") });
    html! {
        div.scroll tabindex="0" role="region" aria-label={ (caption) ", cold and hot" } {
            table.pair {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "" } th scope="col" { (keys.0) "cold" }
                    th scope="col" { (keys.1) "hot" } th scope="col" { "hot is" }
                } }
                tbody { @for figure in &all { tr {
                    th scope="row" { (figure.name) } (cells(figure))
                } } }
            }
        }
    }
}

fn format_or_dash(value: Option<f64>, write: fn(f64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), write)
}

/// Describes the change from `before` to `after` in words, or by a dash if the change is unknown.
fn change(before: Option<f64>, after: Option<f64>, (more, less): (&str, &str)) -> String {
    let (Some(before), Some(after)) = (before, after) else { return "–".to_owned() };
    if before <= 0.0 {
        return "–".to_owned();
    }
    match after / before - 1.0 {
        by if by.abs() < 0.005 => SAME.to_owned(),
        by if by > 0.0 => format!("{} {more}", key_figures::share(by)),
        by => format!("{} {less}", key_figures::share(-by)),
    }
}
