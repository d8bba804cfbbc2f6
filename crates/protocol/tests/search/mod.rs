//! Searches a model. A *world* is one configuration of the model. A search is breadth-first from
//! the initial states, or follows random walks, each to a state without further actions.

use std::env;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Path, UniformChooser};

/// The maximum number of states, with repeated states, in a search for the failure that a
/// switched-off rule permits.
pub(crate) const MOST_STATES: usize = 2_000_000;

/// The maximum number of steps to such a failure.
const MOST_STEPS: usize = 20;

/// A model that can be searched.
pub(crate) trait Searched:
    Model<
        State: Hash + Send + Sync + Clone + PartialEq + 'static,
        Action: Clone + PartialEq + Debug,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

/// The result of a search.
pub(crate) struct SearchResult {
    /// The first violated property, and the number of steps to the violation.
    pub(crate) broken: Option<(&'static str, usize)>,
    /// True if each `sometimes` property of the world, such as its end, holds on some path.
    pub(crate) has_ended: bool,
}

/// Returns the number of states from the environment variable `MODEL_STATES`; `None` = it is not
/// set.
pub(crate) fn states_from_env() -> Option<usize> {
    env::var("MODEL_STATES").ok().map(|text| text.parse().expect("MODEL_STATES is a number"))
}

/// Searches a world breadth-first, up to `most` states or until a property is violated.
pub(crate) fn search_breadth_first<M: Searched>(
    name: &str,
    world: &M,
    most: usize,
) -> SearchResult {
    let checker = world.clone().checker().target_state_count(most);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth() - 1);
    let all = if checker.state_count() < most { "all " } else { "" };
    let seen = SearchResult::of(&checker, None);
    println!("{name}: {all}{states} states up to {depth} steps, broken: {:?}", seen.broken);
    seen
}

/// Follows random paths, up to `most` states or until a property is violated; with `only`, until
/// that property is violated.
pub(crate) fn walk_randomly<M: Searched>(
    name: &str,
    world: &M,
    most: usize,
    only: Option<&'static str>,
) -> SearchResult {
    let any = HasDiscoveries::AnyFailures;
    let until = only.map_or(any, |property| HasDiscoveries::AnyOf([property].into()));
    let checker = world.clone().checker().target_state_count(most).finish_when(until);
    let checker = checker.spawn_simulation(1, UniformChooser).join();
    let (states, depth) = (checker.state_count(), checker.max_depth() - 1);
    let seen = SearchResult::of(&checker, only);
    println!("{name}: {states} states by chance, up to {depth} steps, broken: {:?}", seen.broken);
    seen
}

/// True if some path reaches the world's end within [`MOST_STATES`].
pub(crate) fn can_end<M: Searched>(name: &str, world: &M) -> bool {
    let may = world.properties().into_iter().filter(|may| !may.expectation.discovery_is_failure());
    let until = HasDiscoveries::AllOf(may.map(|may| may.name).collect());
    let checker = world.clone().checker().target_state_count(MOST_STATES).finish_when(until);
    let seen = SearchResult::of(&checker.spawn_bfs().join(), None);
    println!("{name}: has a way to its end: {}", seen.has_ended);
    seen.has_ended
}

/// Returns the number of steps to a violation of a property; `None` = none was found. With
/// `MODEL_STATES`, returns the least number.
pub(crate) fn steps_to<M: Searched>(property: &'static str, world: &M) -> Option<usize> {
    let mut found: Option<Path<M::State, M::Action>> = None;
    // The first path that is found need not be the shortest.
    loop {
        let until = HasDiscoveries::AnyOf([property].into());
        let most = found.as_ref().map_or(MOST_STEPS, |path| path.clone().into_actions().len() - 1);
        let checker = world.clone().checker().target_max_depth(most + 2).finish_when(until);
        let checker = checker.target_state_count(MOST_STATES).spawn_bfs().join();
        let Some(path) = checker.discovery(property) else { break };
        found = Some(path);
        if states_from_env().is_none() {
            break;
        }
    }
    found.map(|path| count_steps(&path))
}

impl SearchResult {
    fn of<M: Searched>(checker: &impl Checker<M>, only: Option<&'static str>) -> Self {
        let properties = checker.model().properties();
        let (must, may): (Vec<_>, Vec<_>) =
            properties.iter().partition(|property| property.expectation.discovery_is_failure());
        let must = must.iter().filter(|must| only.is_none_or(|only| only == must.name));
        let mut broken = must.filter_map(|must| Some((must.name, checker.discovery(must.name)?)));
        Self {
            broken: broken.next().map(|(property, path)| (property, count_steps(&path))),
            has_ended: may.iter().all(|may| checker.discovery(may.name).is_some()),
        }
    }
}

/// Returns the number of steps of a path, and prints the path if `MODEL_TRACES` is set.
fn count_steps<S: Clone, A: Clone + Debug>(path: &Path<S, A>) -> usize {
    let actions = path.clone().into_actions();
    if env::var("MODEL_TRACES").is_ok() {
        actions.iter().for_each(|action| println!("    {action:?}"));
    }
    actions.len()
}
