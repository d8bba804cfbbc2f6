//! Checks whether a history of one key is *linearizable* (Herlihy, Wing 1990): whether a single
//! copy that executes one operation at a time could have given the same answers.
//!
//! ```text
//!  call ──────────── answer        an operation takes effect at one moment between the two;
//!        call ── answer            one without an answer at any time after its call, or never
//! ```
//!
//! The algorithm is that of Wing and Gong, *Testing and verifying concurrent objects* (1993), with
//! an extension from G. Lowe, *Testing for linearizability* (2017): the search follows the history
//! in order of time, and lets an operation take effect only when the next answer needs it. So it
//! finds a failure at the shortest prefix that fails.
//!
//! Tags are opaque: equal tags denote one state, which one operation made; different tags denote
//! different states. Only [`chain`] reads the contents of tags.

#![forbid(unsafe_code)]

pub mod chain;
pub mod families;
mod print;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use search::{SPARES_TRIED, Search};

/// Value of a key. No two writes have the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A number, which additions can change.
    Number(i64),
    /// A text, identified by a number.
    Text(u64),
}

/// Identity of a key's state, as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Base version: time and origin of the plain write that the state continues.
    pub family: (u64, u32),
    /// Number of conditional writes since the base version, and the id of the last of them; `None`
    /// = there was none.
    pub last: Option<(u32, u64)>,
}

/// Condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Met by every state.
    Any,
    /// The key has a value.
    Exists,
    /// The key has no value.
    Absent,
    /// The key has a value with one of these tags.
    OneOf(Vec<Tag>),
}

/// Effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Sets the value.
    Put(Value),
    /// Removes the value.
    Delete,
    /// Adds to the number; a missing value counts as 0.
    Add(i64),
}

/// Request of a client. A plain write has the condition `Any`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Reads the value.
    Get,
    /// Changes the value if the condition is met.
    Change(Condition, Change),
}

/// Answer to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The value and its tag; `None` = the key has no value.
    Found(Option<(Value, Tag)>),
    /// The change was made.
    Changed {
        /// Tag of the new state.
        tag: Tag,
        /// Result of an addition.
        sum: Option<i64>,
    },
    /// The condition is not met. The tag is that of the value; `None` = there is no value.
    Unmet(Option<Tag>),
    /// The addition failed, because the value is not a number.
    NotANumber,
}

/// Outcome of an operation, as far as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// The operation was answered at this time, in microseconds.
    At(u64, Response),
    /// No answer: the operation may have taken effect, or may still do so.
    Unknown,
    /// No answer: the operation may have taken effect, but only before this time (in microseconds)
    /// and before the next operation of the history. The next operation is the same write under
    /// another version: the version changed while the write was in transit, and clients may have
    /// read the write under its first version.
    Before(u64),
}

/// Expiry of a value, and the time at which an operation judged it. The expiry is exact. The time
/// of judgement has only bounds, because a node read it from its own clock. A read may return or
/// hide an expired value: other checks verify that expired values are hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiryTimes {
    /// Expiry of the value written or found, in milliseconds since 1970; 0 = never. For an
    /// addition, 0 = the value keeps its previous expiry.
    pub expiry_ms: u64,
    /// Bounds of the time at which the operation judged expiry, in milliseconds since 1970.
    pub evaluated_ms: (u64, u64),
}

/// An operation as its client knows it. A history omits operations that certainly had no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Number of the operation in reports.
    pub number: u64,
    /// Time of the call, in microseconds.
    pub call: u64,
    /// Request of the client.
    pub asked: Request,
    /// Expiry of the value written or found, and time of judgement.
    pub life: ExpiryTimes,
    /// Outcome of the operation.
    pub end: Completion,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A single copy could have given the answers.
    Linearizable,
    /// No single copy could have given the answers; the text explains why.
    Wrong(String),
    /// The search reached its limit of configurations without a result.
    GaveUp,
}

/// Operations of one key, in the order of their calls.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The operations, in the order of their calls.
    pub operations: Vec<Operation>,
}

/// State of the single copy: its value, and the operation that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyState {
    pub(crate) value: Option<Value>,
    /// Expiry of the value; 0 = never.
    pub(crate) expiry_ms: u64,
    /// True once an operation has found the value expired. No later operation then finds it alive.
    pub(crate) was_found_expired: bool,
    pub(crate) made_by: Option<u32>,
}

/// Knowledge about the states that tags denote.
#[derive(Debug, Default)]
struct Tags {
    /// Index of the operation that was answered with each tag.
    makers: BTreeMap<Tag, u32>,
    /// Value of the state that each tag denotes, if a client read it.
    values: BTreeMap<Tag, Value>,
}

impl History {
    /// Checks whether the history is linearizable. Makes up to three searches, each of which
    /// examines at most `most` configurations.
    pub fn check(&self, most: usize) -> Verdict {
        let tags = match Tags::of(self) {
            Ok(tags) => tags,
            Err(wrong) => return Verdict::Wrong(wrong),
        };
        let search = |spare| Search::new(self, &tags, most, spare).run();
        let is_found = |spare| search(spare) == Verdict::Linearizable;
        if SPARES_TRIED.into_iter().any(is_found) {
            Verdict::Linearizable
        } else {
            search(usize::MAX)
        }
    }
}

impl Completion {
    /// Returns the client's answer; `None` = there was none.
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
                Completion::At(_, Response::Changed { tag, .. }) => {
                    if let Some(other) = tags.makers.insert(tag, place) {
                        let other = history.operations[other as usize].number;
                        let number = operation.number;
                        return Err(format!("{number} and {other} both made {tag}"));
                    }
                }
                Completion::At(_, Response::Found(Some((value, tag)))) => {
                    if let Some(other) = tags.values.insert(tag, value)
                        && other != value
                    {
                        return Err(format!("{tag} is the tag of {value} and of {other}"));
                    }
                }
                Completion::At(..) | Completion::Unknown | Completion::Before(_) => {}
            }
        }
        Ok(tags)
    }

    /// Returns true if the tag may denote the state.
    fn may_denote(&self, tag: Tag, state: KeyState, history: &History) -> bool {
        if let Some(maker) = self.makers.get(&tag) {
            return state.made_by == Some(*maker);
        }
        // The operation that made the state had no answer, so its tag is unknown. The unique value
        // identifies it.
        let has_another = state.made_by.is_none_or(|maker| {
            let operation = &history.operations[maker as usize];
            matches!(operation.end, Completion::At(..))
        });
        let value = self.values.get(&tag);
        !has_another && value.is_none_or(|value| state.value == Some(*value))
    }
}

impl Operation {
    /// Splits a plain write whose version changed in transit into two operations. Clients may have
    /// read the write under its first version, and again after writes in between: a known anomaly.
    pub fn split_reissued(self) -> [Self; 2] {
        let end = self.end.answer_time().map_or(Completion::Unknown, Completion::Before);
        [Self { end, ..self.clone() }, self]
    }

    /// Returns the possible states after the operation: one if the value was alive when the
    /// operation judged it, one if it had expired.
    fn outcomes(
        &self,
        place: u32,
        state: KeyState,
        tags: &Tags,
        history: &History,
    ) -> impl Iterator<Item = KeyState> {
        let (earliest, latest) = self.life.evaluated_ms;
        let expires = state.value.is_some() && state.expiry_ms != 0 && self.asked != Request::Get;
        let may_live = !expires || !state.was_found_expired && state.expiry_ms > earliest;
        let may_be_over = expires && state.expiry_ms <= latest;
        let living = may_live.then(|| self.apply(place, state, state.value, tags, history));
        let over = KeyState { was_found_expired: true, ..state };
        let expired = may_be_over.then(|| self.apply(place, over, None, tags, history));
        [living, expired].into_iter().flatten().flatten()
    }

    /// Returns the state after the operation at index `place`. `value` is the state's value; `None`
    /// = it has expired, or there is none. Returns `None` if the client's answer does not fit, or
    /// if the operation had no answer and would have no effect.
    fn apply(
        &self,
        place: u32,
        state: KeyState,
        value: Option<Value>,
        tags: &Tags,
        history: &History,
    ) -> Option<KeyState> {
        let has = |tag| value.is_some() && tags.may_denote(tag, state, history);
        let response = self.end.response();
        let (condition, change) = match (&self.asked, response) {
            (Request::Get, Some(Response::Found(found))) => {
                let held = (state.value, self.life.expiry_ms == state.expiry_ms);
                // The value may have been purged after its expiry.
                let (_, latest) = self.life.evaluated_ms;
                let has_expired = state.value.is_some() && (1..=latest).contains(&state.expiry_ms);
                if found.is_none() && has_expired {
                    return Some(KeyState { was_found_expired: true, ..state });
                }
                let fits = (found.map(|(value, _)| value), true) == held;
                return (fits && found.is_none_or(|(_, tag)| has(tag))).then_some(state);
            }
            (Request::Get, _) => return None,
            (Request::Change(condition, change), _) => (condition, change),
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
        fits.then_some(KeyState {
            value,
            expiry_ms,
            was_found_expired: false,
            made_by: Some(place),
        })
    }
}
