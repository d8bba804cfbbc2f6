//! Flame graphs of the runs side by side, and their differences from a base graph.

use maud::{Markup, PreEscaped, html};
use profile::Folded;
use profile::graph::{Fragments, Tab, Unit};

use super::Error;
use super::run_view::RunView;

/// Maximum number of graphs in a report. Each graph contains its compressed stacks, up to some
/// hundred kilobytes.
const MAX_GRAPHS: usize = 24;

/// The events, in display order.
const EVENTS: [&str; 4] = ["cpu", "wall", "lock", "alloc"];

struct Graph {
    name: String,
    folded: Folded,
}

/// Renders all graphs, grouped by event. Empty without profiles.
pub(crate) fn section(runs: &[RunView<'_>]) -> Result<Markup, Error> {
    let mut events = Vec::new();
    for event in EVENTS {
        let graphs = graphs(runs, event)?;
        if !graphs.is_empty() {
            events.push((event, graphs));
        }
    }
    let mut fragments = Fragments::default();
    Ok(html! {
        @if !events.is_empty() {
            section #flames {
                h2 { "Flame graphs" }
                (PreEscaped(profile::graph::assets()))
                @for (event, graphs) in &events {
                    h3 { (event) }
                    div.flames {
                        @for (place, graph) in graphs.iter().enumerate() {
                            figure { figcaption { (graph.name) }
                                (PreEscaped(fragments.fragment(&tabs(event, graph,
                                    base(graphs, place))))) }
                        }
                    }
                }
            }
        }
    })
}

fn graphs(runs: &[RunView<'_>], event: &str) -> Result<Vec<Graph>, Error> {
    let mut graphs = Vec::new();
    for run in runs {
        let several = run.run().servers.len() > 1;
        for (profile, text) in run.saved.profiles.iter().filter(|(known, _)| known.event == event) {
            let folded = Folded::parse(text).map_err(|source| Error::Profile {
                file: run.saved.dir.join(&profile.folded),
                source,
            })?;
            let name = if several {
                format!("{} {}", run.name(), profile.url)
            } else {
                run.name().to_owned()
            };
            graphs.push(Graph { name, folded });
        }
    }
    graphs.truncate(MAX_GRAPHS);
    Ok(graphs)
}

/// Returns the base graph of a comparison: for a hot run the graph of the cold run, otherwise the
/// first graph. Returns `None` for the first graph itself.
fn base(graphs: &[Graph], place: usize) -> Option<&Graph> {
    let cold = graphs[place].name.replace("-hot", "-cold");
    let other = |graph: &&Graph| graph.name == cold && graph.name != graphs[place].name;
    graphs.iter().find(other).or_else(|| graphs.first().filter(|_| place > 0))
}

/// Returns the tabs of a graph: the graph itself, and its difference from the base graph `first`.
fn tabs<'a>(event: &str, graph: &'a Graph, first: Option<&'a Graph>) -> Vec<Tab<'a>> {
    let unit = if event == "alloc" { Unit::Bytes } else { Unit::Nanos };
    let plain = Tab {
        name: event.to_owned(),
        unit,
        note: String::new(),
        folded: &graph.folded,
        counts: None,
        base: None,
    };
    let difference = first.map(|first| Tab {
        name: format!("against {}", first.name),
        base: Some(&first.folded),
        ..plain.clone()
    });
    [plain].into_iter().chain(difference).collect()
}
