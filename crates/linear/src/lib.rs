//! Checks a history of one key for *linearizability* (Herlihy, Wing 1990): whether a single copy
//! that executes one operation after the other could have given the same answers.
//!
//! ```text
//!  call ──────────── answer        an operation takes effect at one moment between the two;
//!        call ── answer            one without an answer at any time after its call, or never
//! ```
//!
//! The algorithm is that of Wing and Gong, *Testing and verifying concurrent objects* (1993),
//! extended after G. Lowe, *Testing for linearizability* (2017): the search follows the history in
//! order of time, and an operation takes effect only when the next answer needs it. So a failure is
//! found at the shortest prefix that fails.
//!
//! Tags are opaque: equal tags denote one state, made by one operation, and different tags denote
//! different states. Only [`chain`] checks the contents of tags.

#![forbid(unsafe_code)]

pub mod chain;
pub mod families;
mod print;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use search::{SPARES_TRIED, Search};

/// Value of a key. Each write has a unique value.
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
    /// Number of conditional writes since the base version, and the id of the last one; `None` =
    /// none.
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
    /// The value has one of these tags.
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

/// Answer to a client, or its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The value, if there is one.
    Found(Option<(Value, Tag)>),
    /// The change was made.
    Changed {
        /// Tag of the new state.
        tag: Tag,
        /// Result of an addition.
        sum: Option<i64>,
    },
    /// The condition is not met; the value has this tag.
    Unmet(Option<Tag>),
    /// The value to add to is not a number.
    NotANumber,
}

/// Outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// The operation was answered at this time, in microseconds.
    At(u64, Response),
    /// The operation may have taken effect, or may yet do so.
    Unknown,
    /// The operation may have taken effect, but neither after this time (in microseconds) nor after
    /// the next operation of the history. The next operation is the same write under another
    /// version: the version changed in transit, and clients may have seen the write under its first
    /// version before.
    Before(u64),
}

/// Expiry of a value. The time of expiry is known exactly. The time at which an operation was
/// evaluated is not, because some node read it from its clock. A read may return an expired value
/// or hide it; other checks verify that expired values are hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiryTimes {
    /// Expiry of the value written or found, in milliseconds; 0 = never. For an addition, 0 = the
    /// value keeps its previous expiry.
    pub expiry_ms: u64,
    /// Bounds of the time of evaluation, in milliseconds.
    pub evaluated_ms: (u64, u64),
}

/// An operation as its client knows it. A history leaves out operations that are known to have had
/// no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Number of the operation, for people to read.
    pub number: u64,
    /// Time of the call, in microseconds.
    pub call: u64,
    /// Request of the client.
    pub asked: Request,
    /// Expiry of the value written or found, and time of evaluation.
    pub life: ExpiryTimes,
    /// Outcome of the operation.
    pub end: Completion,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A single copy could have given these answers.
    Linearizable,
    /// No single copy could have given these answers, for this reason, for people to read.
    Wrong(String),
    /// The search reached its limit of configurations.
    GaveUp,
}

/// Operations of one key, in the order of their calls.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The operations, in the order of their calls.
    pub operations: Vec<Operation>,
}

/// State of the single copy: its value, and the index of the operation that made the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyState {
    pub(crate) value: Option<Value>,
    /// Expiry of the value; 0 = never.
    pub(crate) expiry_ms: u64,
    /// True once an operation has found the value expired: no later evaluation finds the value
    /// alive.
    pub(crate) is_over: bool,
    pub(crate) made_by: Option<u32>,
}

/// Knowledge about the states that tags denote.
#[derive(Debug, Default)]
struct Tags {
    /// Index of the operation that was answered with each tag.
    makers: BTreeMap<Tag, u32>,
    /// Value of the state that each tag denotes, as far as a client saw the value.
    values: BTreeMap<Tag, Value>,
}

impl History {
    /// Checks whether the history is linearizable. Each of up to three searches examines at most
    /// `most` configurations.
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
    /// Returns the client's answer, if it had one.
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
        // The operation that made the state had no answer, so its tag is unknown. The value
        // identifies the operation.
        let has_another = state.made_by.is_none_or(|maker| {
            let operation = &history.operations[maker as usize];
            matches!(operation.end, Completion::At(..))
        });
        let value = self.values.get(&tag);
        !has_another && value.is_none_or(|value| state.value == Some(*value))
    }
}

impl Operation {
    /// Splits a plain write whose version changed in transit. Clients may have seen the write under
    /// its first version, and may see it again after the writes in between: a known anomaly.
    pub fn split_reissued(self) -> [Self; 2] {
        let end = self.end.answered_at().map_or(Completion::Unknown, Completion::Before);
        [Self { end, ..self.clone() }, self]
    }

    /// Returns the states after the operation. At the operation's time of evaluation, the state's
    /// value may be alive, expired, or either.
    fn outcomes(
        &self,
        place: u32,
        state: KeyState,
        tags: &Tags,
        history: &History,
    ) -> impl Iterator<Item = KeyState> {
        let (earliest, latest) = self.life.evaluated_ms;
        let expires = state.value.is_some() && state.expiry_ms != 0 && self.asked != Request::Get;
        let may_live = !expires || !state.is_over && state.expiry_ms > earliest;
        let may_be_over = expires && state.expiry_ms <= latest;
        let living = may_live.then(|| self.apply(place, state, state.value, tags, history));
        let over = KeyState { is_over: true, ..state };
        let expired = may_be_over.then(|| self.apply(place, over, None, tags, history));
        [living, expired].into_iter().flatten().flatten()
    }

    /// Returns the state after the operation at index `place`; `value` is the state's value unless
    /// it has expired. Returns `None` if the client would have got another answer, or if an
    /// operation without an answer would have no effect.
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
                // An expired value may be purged.
                let (_, latest) = self.life.evaluated_ms;
                let has_expired = state.value.is_some() && (1..=latest).contains(&state.expiry_ms);
                if found.is_none() && has_expired {
                    return Some(KeyState { is_over: true, ..state });
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
        fits.then_some(KeyState { value, expiry_ms, is_over: false, made_by: Some(place) })
    }
}
