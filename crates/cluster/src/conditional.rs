//! Conditional writes: what a client asks for, and what comes of it on the record that there is.
//!
//! ```text
//!  newest record ─▶ state ─▶ condition ─┬─ true ──▶ change ─▶ the state a step further ─▶ record
//!                                       └─ false ─▶ unmet: the tag of what there is
//! ```

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::clock::{Clock, Version};
use crate::record::{
    Kind, MAX_OPERATIONS, Next, Operation, Record, Steps, StepsCodec, has_expired,
};

/// The family of what a conditional write makes of a key that is absent: above all that may have
/// been purged up to the watermark, and below every version that is issued since. Later ballots
/// thus make later families. Of a key in a cluster that has proven nothing, below every version.
pub(crate) fn family_of_absent(watermark: u64) -> Version {
    Version { time: watermark, origin: u32::MAX }
}

/// For so long, in microseconds, a node remembers the writes that clients gave an idempotency key:
/// longer than anybody tries again by himself, and short enough for what it takes on disk.
pub const REMEMBERED_MICROS: u64 = 24 * 3600 * 1_000_000;

/// What a write of `key` with this idempotency key, `word`, is known by: the first 63 bits of
/// SHA-256 (FIPS 180-4) of the key's length, the key and the word. Nobody can make another key, of
/// those that a token lets him write, whose write would be taken for this one: what is remembered
/// names keys by a hash that is no secret and easily met.
pub fn id_of_idempotency_key(key: &[u8], word: &[u8]) -> u64 {
    let hash = Sha256::new().chain_update((key.len() as u64).to_le_bytes());
    let hash = hash.chain_update(key).chain_update(word).finalize();
    let first = hash.first_chunk().expect("SHA-256 has 32 bytes");
    u64::from_be_bytes(*first) | 1
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
    /// Nothing is required.
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
    /// The value is deleted.
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
    /// When the value that it writes expires, in milliseconds since 1970. 0: what is put never; a
    /// sum when what was added to would have.
    pub expiry_ms: u64,
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
        /// When the value expires that it left, in milliseconds since 1970; 0 = never, or the key
        /// does not tell any more.
        expiry_ms: u64,
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
pub(crate) struct KeyState {
    family: Version,
    value: Option<Bytes>,
    /// When that expires; 0 = never.
    expiry_ms: u64,
    steps: Steps,
    /// When it is looked at: whether the value has expired by then is what counts.
    micros: u64,
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

    /// Whether it is the tag of this state. What conditional writes have made is known by the last
    /// of them, for it may go on in another family.
    fn names(&self, state: &Self) -> bool {
        self == state || self.last.is_some() && self.last == state.last
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

    /// Whether they show if an operation was done that would have been this step or a later one.
    pub(crate) fn know_of(&self, id: u64, step: u32) -> bool {
        let forgotten = self.step.wrapping_sub(self.operations.len() as u32);
        comes_before(forgotten, step) || self.has(id)
    }

    /// Whether an operation is among them.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.operations.iter().any(|operation| operation.id == id)
    }

    /// What came of an operation that is among them. `expiry_ms` is that of what the last one left.
    fn done(&self, family: Version, id: u64, expiry_ms: u64) -> Option<Done> {
        let (step, operation) = self.numbered().find(|(_, operation)| operation.id == id)?;
        let tag = Tag { version: family, last: Some((step, id)) };
        let expiry_ms = if step == self.step { expiry_ms } else { 0 };
        Some(Done::Changed { tag, result: operation.result, expiry_ms })
    }
}

impl KeyState {
    /// The state that a record says, or that there is none, at a time of a version or ballot.
    /// `absent` is the family of what is made of none.
    pub(crate) fn of(
        newest: Option<&Record>,
        absent: Version,
        at: u64,
        codec: &StepsCodec,
    ) -> Self {
        let micros = Clock::micros(at);
        let Some(newest) = newest else {
            let (family, steps) = (absent, Steps::default());
            return Self { family, value: None, expiry_ms: 0, steps, micros };
        };
        let value = (newest.rank.kind == Kind::Value).then(|| (codec.value)(newest));
        let (expiry_ms, steps) = ((codec.expiry_ms)(newest), (codec.steps)(newest));
        Self { family: newest.rank.version, value, expiry_ms, steps, micros }
    }

    /// The family that it goes on in.
    pub(crate) fn family(&self) -> Version {
        self.family
    }

    /// Goes on in another family: its own has ended by a proof.
    pub(crate) fn goes_on_in(&mut self, family: Version) {
        self.family = family;
    }

    /// The value, unless it has expired.
    fn living(&self) -> Option<&Bytes> {
        self.value.as_ref().filter(|_| !has_expired(self.expiry_ms, self.micros))
    }

    /// The conditional writes that are in it.
    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Does a conditional write, known as `id`, and says what came of it. It is not done twice.
    pub(crate) fn apply(&mut self, id: u64, conditional: &Conditional) -> Done {
        // An earlier try of its own was taken up by somebody.
        if let Some(done) = self.steps.done(self.family, id, self.expiry_ms) {
            // A client may give another write the same idempotency key.
            let adds = matches!(conditional.change, Change::Add(_));
            return if done.fits(adds) { done } else { Done::Forgotten };
        }
        let current = self.living().map(|_| self.tag());
        let is_met = match &conditional.condition {
            Condition::Any => true,
            Condition::Exists => current.is_some(),
            Condition::Absent => current.is_none(),
            Condition::OneOf(tags) => {
                current.is_some_and(|current| tags.iter().any(|tag| tag.names(&current)))
            }
        };
        if !is_met {
            return Done::Unmet { current };
        }
        let (value, result, expiry_ms) = match &conditional.change {
            Change::Put(value) => (Some(value.clone()), None, conditional.expiry_ms),
            Change::Delete => (None, None, 0),
            Change::Add(number) => match sum(self.living().map(|value| &value[..]), *number) {
                Ok(sum) => (Some(sum.to_string().into()), Some(sum), self.expiry_of(conditional)),
                Err(why) => return Done::Impossible(why),
            },
        };
        (self.value, self.expiry_ms) = (value, expiry_ms);
        self.steps = self.steps.and(Operation { id, result });
        Done::Changed { tag: self.tag(), result, expiry_ms }
    }

    /// When the sum of an addition expires.
    fn expiry_of(&self, addition: &Conditional) -> u64 {
        match (addition.expiry_ms, self.living()) {
            (0, Some(_)) => self.expiry_ms,
            (0, None) => 0,
            (expiry_ms, _) => expiry_ms,
        }
    }

    /// The record that says so, under a ballot.
    pub(crate) fn record(&self, key: &[u8], ballot: u64, codec: &StepsCodec) -> Record {
        let kind = if self.value.is_some() { Kind::Value } else { Kind::Tombstone };
        let value = self.value.as_deref().unwrap_or_default();
        let Self { family, expiry_ms, ref steps, .. } = *self;
        (codec.build)(key, &Next { family, ballot, kind, copies: 0, expiry_ms, steps, value })
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

    const AT: u64 = 1_700_000_000_000;

    /// A state whose value expires at `expiry_ms`, looked at `AT`.
    fn state(value: &'static str, expiry_ms: u64) -> KeyState {
        let (family, steps) = (Version { time: 5, origin: 1 }, Steps::default());
        let micros = AT * 1000 + 999;
        KeyState { family, value: Some(Bytes::from(value)), expiry_ms, steps, micros }
    }

    fn write(condition: Condition, change: Change, expiry_ms: u64) -> Conditional {
        Conditional { condition, change, expiry_ms }
    }

    /// Nodes agree on it, and it stays on disk for a day.
    #[test]
    fn a_write_is_known_by_its_key_and_its_word() {
        let id = id_of_idempotency_key(b"a/account1", b"order-1001");
        assert_eq!(id, 0x098e_0b31_deee_3e4b);
        assert!(has_idempotency_key(id));
        assert_ne!(id, id_of_idempotency_key(b"b/account1", b"order-1001"));
        assert_ne!(id_of_idempotency_key(b"ab", b"c"), id_of_idempotency_key(b"a", b"bc"));
    }

    #[test]
    fn an_expired_value_is_none_to_every_condition() {
        let tag = state("1", 0).tag();
        let put = |condition| write(condition, Change::Put(Bytes::from("2")), 0);
        for (expiry_ms, is_there) in [(0, true), (AT + 1, true), (AT, false), (1, false)] {
            let current = is_there.then_some(tag);
            for (condition, is_met) in [
                (Condition::Any, true),
                (Condition::Exists, is_there),
                (Condition::Absent, !is_there),
                (Condition::OneOf(vec![tag]), is_there),
                (Condition::OneOf(Vec::new()), false),
            ] {
                let mut state = state("1", expiry_ms);
                let done = state.apply(2, &put(condition.clone()));
                if is_met {
                    assert!(matches!(done, Done::Changed { expiry_ms: 0, .. }), "{condition:?}");
                    assert_eq!((state.value, state.expiry_ms), (Some(Bytes::from("2")), 0));
                } else {
                    assert_eq!(done, Done::Unmet { current }, "{condition:?} {expiry_ms}");
                    assert_eq!(state.expiry_ms, expiry_ms, "it stays as it was");
                }
            }
        }
    }

    #[test]
    fn an_addition_keeps_the_expiry_of_what_it_adds_to_or_sets_another() {
        let later = AT + 9_000;
        let sum = |before, of: u64, expiry_ms| {
            let mut state = state(before, of);
            let done = state.apply(2, &write(Condition::Any, Change::Add(5), expiry_ms));
            let Done::Changed { result, expiry_ms, .. } = done else { return None };
            assert_eq!(expiry_ms, state.expiry_ms);
            Some((result.unwrap(), expiry_ms))
        };
        assert_eq!(sum("7", 0, 0), Some((12, 0)));
        assert_eq!(sum("7", later, 0), Some((12, later)));
        assert_eq!(sum("7", later, AT + 1), Some((12, AT + 1)));
        assert_eq!(sum("7", 0, later), Some((12, later)));
        assert_eq!(sum("7", AT, 0), Some((5, 0)), "what has expired is not added to");
        assert_eq!(sum("7", AT, later), Some((5, later)));
        assert_eq!(sum("x", AT, later), Some((5, later)));
        assert_eq!(sum("x", later, 0), None);
    }

    #[test]
    fn the_expiry_goes_with_the_value() {
        let mut state = state("1", AT + 5);
        state.apply(2, &write(Condition::Any, Change::Put(Bytes::from("2")), AT + 7));
        assert_eq!(state.expiry_ms, AT + 7);
        let again = state.apply(2, &write(Condition::Any, Change::Put(Bytes::from("2")), AT + 9));
        assert!(
            matches!(again, Done::Changed { expiry_ms, .. } if expiry_ms == AT + 7),
            "done once"
        );
        state.apply(4, &write(Condition::Exists, Change::Delete, 0));
        assert_eq!((state.value.clone(), state.expiry_ms), (None, 0));
        let first = state.apply(2, &write(Condition::Any, Change::Put(Bytes::from("2")), 0));
        assert!(matches!(first, Done::Changed { expiry_ms: 0, .. }), "it does not tell any more");
    }

    #[test]
    fn a_record_with_more_operations_than_steps_harms_nobody() {
        let operation = |id| Operation { id, result: None };
        let steps = Steps { step: 1, operations: (0..3).map(operation).collect() };
        let done = |id| match steps.done(family_of_absent(0), id, 0) {
            Some(Done::Changed { tag, .. }) => tag.last,
            _ => None,
        };
        assert_eq!([done(2), done(0), done(9)], [Some((1, 2)), Some((u32::MAX, 0)), None]);
        assert!(steps.know_of(9, 1));
    }

    #[test]
    fn after_four_billion_steps_they_go_on() {
        let operation = |id| Operation { id, result: None };
        let steps = Steps { step: u32::MAX, operations: (0..8).map(operation).collect() };
        let steps = steps.and(operation(8)).and(operation(9));
        assert_eq!((steps.step, steps.operations.len()), (1, 8));
        let tag = |id| match steps.done(family_of_absent(0), id, 0) {
            Some(Done::Changed { tag, .. }) => tag.last,
            _ => None,
        };
        assert_eq!([tag(9), tag(8), tag(7)], [Some((1, 9)), Some((0, 8)), Some((u32::MAX, 7))]);
        assert!(steps.know_of(99, 1) && steps.know_of(99, u32::MAX - 5));
        assert!(!steps.know_of(99, u32::MAX - 6) && steps.know_of(2, u32::MAX - 6));
    }
}
