//! Conditional writes: what a client asks for, and what comes of it on the record that there is.
//!
//! ```text
//!  newest record ─▶ state ─▶ condition ─┬─ true ──▶ change ─▶ the state a step further ─▶ record
//!                                       └─ false ─▶ unmet: the tag of what there is
//! ```

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::Version;
use crate::record::{Kind, MAX_OPERATIONS, Next, Operation, Record, Steps, StepsCodec};

/// The family of a key that nobody ever wrote: below every version that a clock issues.
pub(crate) const NEVER_WRITTEN: Version = Version { time: 0, origin: u32::MAX };

/// For so long, in microseconds, a node remembers the writes that clients gave an idempotency key:
/// longer than anybody tries again by himself, and short enough for what it takes on disk.
pub const REMEMBERED_MICROS: u64 = 24 * 3600 * 1_000_000;

/// What a write with this idempotency key is known by.
pub fn id_of_idempotency_key(key: &[u8]) -> u64 {
    xxh3_64(key) | 1
}

/// Whether what is known by this id was given an idempotency key: it may come again, from a client
/// that has lost the answer. All others have even ids.
pub fn has_idempotency_key(id: u64) -> bool {
    id & 1 == 1
}

/// What identifies a state of a key: what its `ETag` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The version of the plain write that it goes back to.
    pub version: Version,
    /// How many conditional writes there were since, and the id of the last one.
    pub last: Option<(u32, u64)>,
}

/// What must be true of the newest record for a change to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Any,
    /// There is a value.
    Exists,
    /// There is none.
    Absent,
    /// There is a value, and its tag is one of these.
    OneOf(Vec<Tag>),
}

/// What is to be done to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It becomes this one.
    Put(Bytes),
    /// It goes.
    Delete,
    /// It is a decimal number, and this is added to it. No value counts as 0.
    Add(i64),
}

/// A conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditional {
    /// What must be true.
    pub condition: Condition,
    /// What is done then.
    pub change: Change,
}

/// Why a change can't be made of any value like the one that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impossible {
    /// Something is to be added to a value that is no decimal number of 64 bits.
    NotANumber,
    /// The sum does not fit into 64 bits.
    Overflow,
}

/// What comes of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It was done.
    Changed {
        /// The key's state after it.
        tag: Tag,
        /// What an addition came to.
        result: Option<i64>,
    },
    /// The condition is not true.
    Unmet {
        /// The tag of the value that there is.
        current: Option<Tag>,
    },
    /// It can't be done.
    Impossible(Impossible),
    /// A write with the same idempotency key was begun before, and it can't be told any more what
    /// became of it. Nothing was done now.
    Forgotten,
}

/// A key's state, as conditional writes make it one after the other.
#[derive(Debug)]
pub(crate) struct State {
    family: Version,
    value: Option<Bytes>,
    steps: Steps,
}

impl Done {
    /// Whether it can have come of an addition (`adds`), or of another change: only an addition
    /// has a result.
    pub(crate) fn fits(&self, adds: bool) -> bool {
        match self {
            Self::Changed { result, .. } => result.is_some() == adds,
            Self::Unmet { .. } | Self::Forgotten => true,
            Self::Impossible(_) => adds,
        }
    }
}

impl Tag {
    /// The tag of a record.
    pub fn of(record: &Record, codec: &StepsCodec) -> Self {
        let version = record.rank.version;
        if record.rank.ballot == 0 {
            return Self { version, last: None };
        }
        Self::after(version, &(codec.steps)(record))
    }

    fn after(version: Version, steps: &Steps) -> Self {
        let last = steps.operations.last().map(|last| (steps.step, last.id));
        Self { version, last }
    }
}

impl Steps {
    /// These and one more.
    fn and(&self, operation: Operation) -> Self {
        let skip = (self.operations.len() + 1).saturating_sub(MAX_OPERATIONS);
        let mut operations = self.operations[skip..].to_vec();
        operations.push(operation);
        Self { step: self.step.wrapping_add(1), operations }
    }

    /// Whether they tell if an operation was done that would have been this step or a later one.
    pub(crate) fn tell_of(&self, id: u64, step: u32) -> bool {
        let forgotten = self.step.wrapping_sub(self.operations.len() as u32);
        comes_before(forgotten, step) || self.has(id)
    }

    /// Whether an operation is among them.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.operations.iter().any(|operation| operation.id == id)
    }

    /// What came of an operation that is among them.
    fn done(&self, family: Version, id: u64) -> Option<Done> {
        let (step, operation) = self.numbered().find(|(_, operation)| operation.id == id)?;
        let tag = Tag { version: family, last: Some((step, id)) };
        Some(Done::Changed { tag, result: operation.result })
    }
}

impl State {
    /// The state that a record says, or that there is none.
    pub(crate) fn of(newest: Option<&Record>, codec: &StepsCodec) -> Self {
        let Some(newest) = newest else {
            return Self { family: NEVER_WRITTEN, value: None, steps: Steps::default() };
        };
        let value = (newest.rank.kind == Kind::Value).then(|| (codec.value)(newest));
        Self { family: newest.rank.version, value, steps: (codec.steps)(newest) }
    }

    /// The conditional writes that are in it.
    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Does a conditional write, known as `id`, and says what came of it. It is not done twice.
    pub(crate) fn apply(&mut self, id: u64, conditional: &Conditional) -> Done {
        // An earlier try of its own was taken up by somebody.
        if let Some(done) = self.steps.done(self.family, id) {
            // A client may give another write the same idempotency key.
            let adds = matches!(conditional.change, Change::Add(_));
            return if done.fits(adds) { done } else { Done::Forgotten };
        }
        let current = self.value.as_ref().map(|_| self.tag());
        let is_met = match &conditional.condition {
            Condition::Any => true,
            Condition::Exists => current.is_some(),
            Condition::Absent => current.is_none(),
            Condition::OneOf(tags) => current.is_some_and(|current| tags.contains(&current)),
        };
        if !is_met {
            return Done::Unmet { current };
        }
        let (value, result) = match &conditional.change {
            Change::Put(value) => (Some(value.clone()), None),
            Change::Delete => (None, None),
            Change::Add(number) => match sum(self.value.as_deref(), *number) {
                Ok(sum) => (Some(Bytes::from(sum.to_string())), Some(sum)),
                Err(why) => return Done::Impossible(why),
            },
        };
        self.value = value;
        self.steps = self.steps.and(Operation { id, result });
        Done::Changed { tag: self.tag(), result }
    }

    /// The record that says so, under a ballot.
    pub(crate) fn record(&self, key: &[u8], ballot: u64, codec: &StepsCodec) -> Record {
        let kind = if self.value.is_some() { Kind::Value } else { Kind::Tombstone };
        let value = self.value.as_deref().unwrap_or_default();
        let (family, steps) = (self.family, &self.steps);
        (codec.build)(key, &Next { family, ballot, kind, copies: 0, steps, value })
    }

    fn tag(&self) -> Tag {
        Tag::after(self.family, &self.steps)
    }
}

/// Which of two steps of a family is the earlier one. They begin anew after 2³² (serial number
/// arithmetic, RFC 1982, section 3.2).
pub(crate) fn comes_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

/// A decimal number, plus another one.
fn sum(value: Option<&[u8]>, number: i64) -> Result<i64, Impossible> {
    let value = value.map_or(Some(0), |value| std::str::from_utf8(value).ok()?.parse().ok());
    let value: i64 = value.ok_or(Impossible::NotANumber)?;
    value.checked_add(number).ok_or(Impossible::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_with_more_operations_than_steps_harms_nobody() {
        let operation = |id| Operation { id, result: None };
        let steps = Steps { step: 1, operations: (0..3).map(operation).collect() };
        let done = |id| match steps.done(NEVER_WRITTEN, id) {
            Some(Done::Changed { tag, .. }) => tag.last,
            _ => None,
        };
        assert_eq!([done(2), done(0), done(9)], [Some((1, 2)), Some((u32::MAX, 0)), None]);
        assert!(steps.tell_of(9, 1));
    }

    #[test]
    fn after_four_billion_steps_they_go_on() {
        let operation = |id| Operation { id, result: None };
        let steps = Steps { step: u32::MAX, operations: (0..8).map(operation).collect() };
        let steps = steps.and(operation(8)).and(operation(9));
        assert_eq!((steps.step, steps.operations.len()), (1, 8));
        let tag = |id| match steps.done(NEVER_WRITTEN, id) {
            Some(Done::Changed { tag, .. }) => tag.last,
            _ => None,
        };
        assert_eq!([tag(9), tag(8), tag(7)], [Some((1, 9)), Some((0, 8)), Some((u32::MAX, 7))]);
        assert!(steps.tell_of(99, 1) && steps.tell_of(99, u32::MAX - 5));
        assert!(!steps.tell_of(99, u32::MAX - 6) && steps.tell_of(2, u32::MAX - 6));
    }
}
