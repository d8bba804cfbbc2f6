//! Searches for an order in which a single copy could have executed the operations of a history.
//!
//! ```text
//!  configuration   a state of the key, and the set of open operations that have taken effect
//!  call            adds an open operation to all configurations
//!  answer          replaces each configuration in which the operation has not yet taken effect by
//!                  its successors in which the operation has taken effect
//! ```
//!
//! If no configuration is left, the history is not linearizable.
//!
//! An operation without an answer stays open for ever, and need not take effect. Suppose two
//! configurations differ only in such operations, and the first used a subset of those that the
//! second used. Then every continuation of the second is possible from the first too, and the
//! search drops the second.
//!
//! Many operations without an answer still leave too many configurations. So the search first tries
//! configurations that use few such operations; any order found there is valid. Only if there is
//! none, the search tries all configurations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Completion, History, KeyState, Tags, Verdict, print};

/// Kinds of events in a history. Events are sorted by time; of simultaneous events, calls come
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    Call,
    Answer,
    /// The operation can no longer take effect.
    Over,
}

/// Operations, by their indexes, in order.
type OperationIndexes = Vec<u32>;

/// A possible state of the execution so far: a node of the search.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    state: KeyState,
    /// Open operations that have taken effect, and whose answer is still to come.
    done: OperationIndexes,
    /// Operations that have taken effect, and that have no answer.
    used: OperationIndexes,
}

/// A set of configurations, without redundant ones.
#[derive(Debug, Default)]
struct MinimalConfigurations {
    by_what: BTreeMap<(KeyState, OperationIndexes), Vec<OperationIndexes>>,
}

/// A search over one history; the module describes the algorithm.
pub(crate) struct Search<'a> {
    history: &'a History,
    tags: &'a Tags,
    /// Open operations, with and without an answer to come.
    open: BTreeSet<u32>,
    configurations: Vec<Configuration>,
    /// Number of configurations that the search may still examine before it gives up.
    left: usize,
    /// Maximum number of operations without an answer that a configuration may use between two
    /// answers, beyond the least number with which the next answer fits.
    spare: usize,
}

/// Values of [`Search::spare`] that are tried in this order, before the unlimited search.
pub(super) const SPARES_TRIED: [usize; 2] = [0, 1];

impl<'a> Search<'a> {
    pub(super) fn new(history: &'a History, tags: &'a Tags, most: usize, spare: usize) -> Self {
        let state = KeyState { value: None, expiry_ms: 0, was_found_expired: false, made_by: None };
        let begin = Configuration { state, done: Vec::new(), used: Vec::new() };
        let configurations = vec![begin];
        Self { history, tags, open: BTreeSet::new(), configurations, left: most, spare }
    }

    pub(super) fn run(mut self) -> Verdict {
        let operations = &self.history.operations;
        let mut events = Vec::new();
        for (place, operation) in (0..).zip(operations) {
            events.push((operation.call, EventKind::Call, place));
            match operation.end {
                Completion::At(at, _) => events.push((at, EventKind::Answer, place)),
                Completion::Before(at) => events.push((at, EventKind::Over, place)),
                Completion::Unknown => {}
            }
        }
        events.sort_unstable();
        for (at, what, place) in events {
            match what {
                EventKind::Call => {
                    self.open.insert(place);
                }
                EventKind::Over => self.close_operation(place),
                EventKind::Answer => {
                    let Some(next) = self.configurations_with_effect(place) else {
                        return Verdict::GaveUp;
                    };
                    if next.is_empty() {
                        return Verdict::Wrong(self.explain(at, place));
                    }
                    self.open.remove(&place);
                    self.configurations = next;
                }
            }
        }
        Verdict::Linearizable
    }

    fn close_operation(&mut self, place: u32) {
        self.open.remove(&place);
        let mut kept = MinimalConfigurations::default();
        for mut configuration in std::mem::take(&mut self.configurations) {
            configuration.used.retain(|used| *used != place);
            kept.add(configuration);
        }
        self.configurations = kept.into_all();
    }

    /// Returns all configurations in which the operation has taken effect at the time of its
    /// answer; `None` = the limit of configurations is reached.
    fn configurations_with_effect(&mut self, place: u32) -> Option<Vec<Configuration>> {
        let (mut seen, mut next) =
            (MinimalConfigurations::default(), MinimalConfigurations::default());
        let mut most_used = usize::MAX;
        // Configurations that use few operations without an answer come first, because they make
        // others redundant.
        let mut waiting: BTreeMap<usize, VecDeque<Configuration>> = BTreeMap::new();
        for mut configuration in self.configurations.iter().cloned() {
            if let Ok(at) = configuration.done.binary_search(&place) {
                configuration.done.remove(at);
                most_used = most_used.min(configuration.used.len().saturating_add(self.spare));
                next.add(configuration);
            } else if seen.add(configuration.clone()) {
                waiting.entry(configuration.used.len()).or_default().push_back(configuration);
            }
        }
        while let Some(mut first) = waiting.first_entry() {
            if *first.key() > most_used {
                break;
            }
            let Some(configuration) = first.get_mut().pop_front() else {
                first.remove();
                continue;
            };
            for other in &self.open {
                for mut after in self.configurations_after(&configuration, *other) {
                    self.left = self.left.checked_sub(1)?;
                    if *other == place {
                        after.done.retain(|done| *done != place);
                        most_used = most_used.min(after.used.len().saturating_add(self.spare));
                        next.add(after);
                    } else if seen.add(after.clone()) {
                        waiting.entry(after.used.len()).or_default().push_back(after);
                    }
                }
            }
        }
        Some(next.into_all())
    }

    /// Returns the configurations in which an open operation takes effect next; none if it has
    /// taken effect already.
    fn configurations_after(
        &self,
        configuration: &Configuration,
        place: u32,
    ) -> Vec<Configuration> {
        let operation = &self.history.operations[place as usize];
        let is_answered = matches!(operation.end, Completion::At(..));
        let taken = if is_answered { &configuration.done } else { &configuration.used };
        let Err(at) = taken.binary_search(&place) else { return Vec::new() };
        let is_before = matches!(operation.end, Completion::Before(_));
        if is_before && configuration.done.contains(&(place + 1)) {
            return Vec::new();
        }
        let states = operation.outcomes(place, configuration.state, self.tags, self.history);
        let after = |state| {
            let mut after = Configuration { state, ..configuration.clone() };
            let taken = if is_answered { &mut after.done } else { &mut after.used };
            taken.insert(at, place);
            after
        };
        states.map(after).collect()
    }

    fn explain(&self, at: u64, place: u32) -> String {
        let states: BTreeSet<KeyState> = self.configurations.iter().map(|c| c.state).collect();
        print::explain(self.history, &self.open, &states, at, place)
    }
}

impl MinimalConfigurations {
    /// Adds a configuration, unless a present one makes it redundant. Returns true if it was added.
    fn add(&mut self, Configuration { state, done, used }: Configuration) -> bool {
        let same = self.by_what.entry((state, done)).or_default();
        if same.iter().any(|fewer| is_within(fewer, &used)) {
            return false;
        }
        same.retain(|more| !is_within(&used, more));
        same.push(used);
        true
    }

    fn into_all(self) -> Vec<Configuration> {
        let all = self.by_what.into_iter().flat_map(|((state, done), used)| {
            used.into_iter().map(move |used| Configuration { state, done: done.clone(), used })
        });
        all.collect()
    }
}

/// Returns true if `many` contains all of `few`; both are sorted.
fn is_within(few: &[u32], many: &[u32]) -> bool {
    let mut many = many.iter();
    few.iter().all(|one| many.any(|other| other == one))
}
