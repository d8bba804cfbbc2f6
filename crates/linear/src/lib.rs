//! Whether what clients saw of one key could have come from one copy of it that does one operation
//! after the other: *linearizable* (Herlihy, Wing 1990).
//!
//! ```text
//!  call ──────────── answer        an operation takes effect at one moment between the two;
//!        call ── answer            one without an answer at any time after its call, or never
//! ```
//!
//! After Wing and Gong, *Testing and verifying concurrent objects* (1993), with what G. Lowe,
//! *Testing for linearizability* (2017) added: the history is gone through in the order of time,
//! and an operation takes effect in the search only when the next answer needs it. So what fails is
//! the shortest prefix that fails.
//!
//! Tags are opaque: two that are equal are of one state, the one that one operation made; two that
//! differ are of two. What is in a tag is checked by [`chain`] alone.

#![forbid(unsafe_code)]

pub mod chain;
pub mod families;
mod print;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use search::{SPARE, Search};

/// What a key may have as its value. Each write has one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// Something can be added to it.
    Number(i64),
    /// A value that is not a number, by its own number.
    Text(u64),
}

/// What identifies a state of the key to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Time and origin of the version of the plain write that it goes back to.
    pub family: (u64, u32),
    /// Conditional writes since, and the id of the last.
    pub last: Option<(u32, u64)>,
}

/// What must be true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Whatever there is.
    Any,
    /// There is a value.
    Exists,
    /// There is none.
    Absent,
    /// The value has one of these tags.
    OneOf(Vec<Tag>),
}

/// What is done then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// This is the value.
    Put(Value),
    /// There is none.
    Delete,
    /// It is more by this; no value counts as 0.
    Add(i64),
}

/// An operation; a plain write has the condition `Any`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// What the value is.
    Get,
    /// The value changes if a condition is met.
    Change(Condition, Change),
}

/// What a client was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The value, if there is one.
    Found(Option<(Value, Tag)>),
    /// It is done.
    Changed {
        /// Of the state that it made.
        tag: Tag,
        /// What an addition came to.
        sum: Option<i64>,
    },
    /// The condition is not true, for this is the value's tag.
    Unmet(Option<Tag>),
    /// Something was to be added to what is no number.
    NotANumber,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was answered then.
    At(u64, Response),
    /// It may have taken effect, or may yet do so.
    Unknown,
    /// It may have taken effect, but not after that time, nor after the next operation of the
    /// history: that one is the same write, which was given another version on its way, and may
    /// have been seen before under the first one.
    Before(u64),
}

/// Values expire: when they do is known, but not at which time a condition was evaluated, for that
/// is the time of some node's clock. A read shows what there is, expired or not, or nothing of what
/// has expired: whether it hides that is looked at elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// When the value expires that is written, or was found, in milliseconds; 0 = never, or as
    /// that of what is added to.
    pub expiry_ms: u64,
    /// The earliest and the latest time at which it was evaluated, in milliseconds.
    pub evaluated_ms: (u64, u64),
}

/// An operation as its client knows it. One that is known to have had no effect is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What people call it.
    pub number: u64,
    /// When it was called.
    pub call: u64,
    /// What was asked.
    pub asked: Asked,
    /// When what it wrote or found expires, and when it was evaluated.
    pub life: Life,
    /// How it ended.
    pub end: End,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// One copy could have answered like this.
    Linearizable,
    /// Why not, for people.
    Wrong(String),
    /// The search had gone through as many states as it may.
    GaveUp,
}

/// Operations of one key, in the order of their calls.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The operations, in the order of their calls.
    pub operations: Vec<Operation>,
}

/// The one copy: its value, and the operation that made it, by its place in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyState {
    pub(crate) value: Option<Value>,
    /// When that expires; 0 = never.
    pub(crate) expiry_ms: u64,
    /// Whether somebody has found it expired: nobody who is evaluated later finds it alive.
    pub(crate) is_over: bool,
    pub(crate) made_by: Option<u32>,
}

/// Who made the states that tags are of.
#[derive(Debug, Default)]
struct Tags {
    /// Places of operations that were answered a tag of their own.
    makers: BTreeMap<Tag, u32>,
    /// What the state of a tag has as its value, as far as anybody was told.
    values: BTreeMap<Tag, Value>,
}

impl History {
    /// Whether one copy could have answered like this; `most` is how many states are looked at.
    pub fn check(&self, most: usize) -> Verdict {
        let tags = match Tags::of(self) {
            Ok(tags) => tags,
            Err(wrong) => return Verdict::Wrong(wrong),
        };
        let search = |spare| Search::new(self, &tags, most, spare).run();
        let is_found = |spare| search(spare) == Verdict::Linearizable;
        if SPARE.into_iter().any(is_found) { Verdict::Linearizable } else { search(usize::MAX) }
    }
}

impl End {
    /// What the client was answered.
    pub(crate) fn response(self) -> Option<Response> {
        match self {
            Self::At(_, response) => Some(response),
            Self::Unknown | Self::Before(_) => None,
        }
    }
}

impl Tags {
    fn of(history: &History) -> Result<Self, String> {
        let mut tags = Self::default();
        for (place, operation) in (0..).zip(&history.operations) {
            match operation.end {
                End::At(_, Response::Changed { tag, .. }) => {
                    if let Some(other) = tags.makers.insert(tag, place) {
                        let other = history.operations[other as usize].number;
                        let number = operation.number;
                        return Err(format!("{number} and {other} both made {tag}"));
                    }
                }
                End::At(_, Response::Found(Some((value, tag)))) => {
                    if let Some(other) = tags.values.insert(tag, value)
                        && other != value
                    {
                        return Err(format!("{tag} is the tag of {value} and of {other}"));
                    }
                }
                End::At(..) | End::Unknown | End::Before(_) => {}
            }
        }
        Ok(tags)
    }

    /// Whether a tag can be that of a state.
    fn is_of(&self, tag: Tag, state: KeyState, history: &History) -> bool {
        if let Some(maker) = self.makers.get(&tag) {
            return state.made_by == Some(*maker);
        }
        // It was made by somebody who was told nothing. Who that is shows by the value.
        let has_another = state.made_by.is_none_or(|maker| {
            let operation = &history.operations[maker as usize];
            matches!(operation.end, End::At(..))
        });
        let value = self.values.get(&tag);
        !has_another && value.is_none_or(|value| state.value == Some(*value))
    }
}

impl Operation {
    /// A plain write that is given another version on its way may have been seen under the first
    /// one, and be seen again after what came between: a known anomaly.
    pub fn seen_twice(self) -> [Self; 2] {
        let end = self.end.at().map_or(End::Unknown, End::Before);
        [Self { end, ..self.clone() }, self]
    }

    /// What it makes of a state: a value may, or must, have expired by the time that it is
    /// evaluated by.
    fn outcomes(
        &self,
        place: u32,
        state: KeyState,
        tags: &Tags,
        history: &History,
    ) -> impl Iterator<Item = KeyState> {
        let (earliest, latest) = self.life.evaluated_ms;
        let expires = state.value.is_some() && state.expiry_ms != 0 && self.asked != Asked::Get;
        let may_live = !expires || !state.is_over && state.expiry_ms > earliest;
        let may_be_over = expires && state.expiry_ms <= latest;
        let living = may_live.then(|| self.apply(place, state, state.value, tags, history));
        let over = KeyState { is_over: true, ..state };
        let expired = may_be_over.then(|| self.apply(place, over, None, tags, history));
        [living, expired].into_iter().flatten().flatten()
    }

    /// The same, at `place` in the history, if `value` is what is left of the state's; `None` if
    /// its client would have been told something else, or if nobody could tell that it was done.
    fn apply(
        &self,
        place: u32,
        state: KeyState,
        value: Option<Value>,
        tags: &Tags,
        history: &History,
    ) -> Option<KeyState> {
        let has = |tag| value.is_some() && tags.is_of(tag, state, history);
        let response = self.end.response();
        let (condition, change) = match (&self.asked, response) {
            (Asked::Get, Some(Response::Found(found))) => {
                let held = (state.value, self.life.expiry_ms == state.expiry_ms);
                // What has expired may be purged.
                let (_, latest) = self.life.evaluated_ms;
                let has_expired = state.value.is_some() && (1..=latest).contains(&state.expiry_ms);
                if found.is_none() && has_expired {
                    return Some(KeyState { is_over: true, ..state });
                }
                let fits = (found.map(|(value, _)| value), true) == held;
                return (fits && found.is_none_or(|(_, tag)| has(tag))).then_some(state);
            }
            (Asked::Get, _) => return None,
            (Asked::Change(condition, change), _) => (condition, change),
        };
        let is_met = match (condition, response) {
            (Condition::Any, _) => true,
            (Condition::Exists, _) => value.is_some(),
            (Condition::Absent, _) => value.is_none(),
            (Condition::OneOf(tags), Some(Response::Unmet(current))) => {
                current.is_some_and(|current| tags.contains(&current))
            }
            (Condition::OneOf(tags), _) => tags.iter().any(|tag| has(*tag)),
        };
        if let Some(Response::Unmet(current)) = response {
            let fits = current.map_or(value.is_none(), has);
            return (!is_met && fits).then_some(state);
        }
        if !is_met {
            return None;
        }
        let own = self.life.expiry_ms;
        let (value, expiry_ms) = match (change, value) {
            (Change::Put(value), _) => (Some(*value), own),
            (Change::Delete, _) => (None, 0),
            (Change::Add(_), Some(Value::Text(_))) => {
                return (response == Some(Response::NotANumber)).then_some(state);
            }
            (Change::Add(number), None) => (Some(Value::Number(*number)), own),
            (Change::Add(number), Some(Value::Number(value))) => {
                let expiry_ms = if own == 0 { state.expiry_ms } else { own };
                (Some(Value::Number(value + number)), expiry_ms)
            }
        };
        let sum = match (change, value) {
            (Change::Add(_), Some(Value::Number(sum))) => Some(sum),
            _ => None,
        };
        let fits = match response {
            Some(Response::Changed { sum: stated, .. }) => stated == sum,
            Some(_) => false,
            None => true,
        };
        fits.then_some(KeyState { value, expiry_ms, is_over: false, made_by: Some(place) })
    }
}
