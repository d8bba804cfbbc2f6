//! The semantics of conditional writes: the request, and its outcome when applied to a record.
//!
//! ```text
//!  newest record ─▶ state ─▶ condition ─┬─ true ──▶ change ─▶ the next state ─▶ record
//!                                       └─ false ─▶ unmet: the tag of the current value
//! ```

use bytes::Bytes;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

use record::{Fields, Kind, OpHistory, Operation, Record, Version, has_expired};

/// Returns the base version of the record that a conditional write makes for an absent key. The
/// version is above all versions that may have been purged up to the watermark, and below all
/// versions issued since: a later watermark gives a later base version. Without a proven watermark,
/// it is below all versions.
pub(crate) fn family_of_absent(watermark: u64) -> Version {
    Version { time: watermark, origin: u32::MAX }
}

/// The retention time of writes with an idempotency key, in microseconds: longer than clients retry
/// automatically, and short enough to bound the disk space.
pub const IDEMPOTENCY_RETENTION_MICROS: u64 = 24 * 3600 * 1_000_000;

/// Returns the id of a write of `key` with the idempotency key `word`: the first 63 bits of SHA-256
/// (FIPS 180-4) of the key's length, the key and the word, with the lowest bit set. The hash is
/// cryptographic so that a client cannot find another key for which a write gets the same id:
/// remembered writes name their keys by a public hash for which collisions are easy to find.
pub fn id_of_idempotency_key(key: &[u8], word: &[u8]) -> u64 {
    let hash = Sha256::new().chain_update((key.len() as u64).to_le_bytes());
    let hash = hash.chain_update(key).chain_update(word).finalize();
    let first = hash.first_chunk().expect("SHA-256 has 32 bytes");
    u64::from_be_bytes(*first) | 1
}

/// Returns the digest of a client's request: xxh3-64 of the condition, the change and the time to
/// live in milliseconds (0 = none); never 0. A later write with the same key and idempotency key
/// but another digest is a different request, and is refused.
///
/// The digest detects client mistakes; it is no protection. If two requests collide (one pair in
/// 2⁶⁴ by chance), the second gets the answer of the first. Only a client that may write the key
/// and knows the idempotency key can construct a collision.
pub fn digest_of_request(condition: &Condition, change: &Change, ttl_ms: u64) -> u64 {
    let mut digest = Xxh3::new();
    let mut tags: &[Tag] = &[];
    digest.update(match condition {
        Condition::Any => b"*",
        Condition::Exists => b"e",
        Condition::Absent => b"a",
        Condition::OneOf(listed) => {
            tags = listed;
            b"t"
        }
    });
    digest.update(&(tags.len() as u64).to_le_bytes());
    for Tag { version, last } in tags {
        let (step, id) = last.unwrap_or_default();
        digest.update(&version.time.to_le_bytes());
        digest.update(&version.origin.to_le_bytes());
        digest.update(&[u8::from(last.is_some())]);
        digest.update(&step.to_le_bytes());
        digest.update(&id.to_le_bytes());
    }
    digest.update(&ttl_ms.to_le_bytes());
    match change {
        Change::Put(value) => {
            digest.update(b"p");
            digest.update(value);
        }
        Change::Delete => digest.update(b"d"),
        Change::Add(number) => {
            digest.update(b"+");
            digest.update(&number.to_le_bytes());
        }
    }
    digest.digest().max(1)
}

/// True if two requests with one idempotency key differ, by their digests; a digest of 0 is
/// unknown.
pub(crate) fn are_different_requests(one: u64, other: u64) -> bool {
    one != 0 && other != 0 && one != other
}

/// True if a write's id comes from an idempotency key: a client that lost the answer may send the
/// write again. All other ids are even.
pub fn has_idempotency_key(id: u64) -> bool {
    id & 1 == 1
}

/// The identity of a key's state, sent as its `ETag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The version of the plain write from which the state continues.
    pub version: Version,
    /// The number of conditional writes since that plain write, and the id of the last one; `None`
    /// = there was none.
    pub last: Option<(u32, u64)>,
}

/// The precondition on the newest record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The condition is always true.
    Any,
    /// The key has a value.
    Exists,
    /// The key has no value.
    Absent,
    /// The key has a value, and its tag is in this list.
    OneOf(Vec<Tag>),
}

/// The change to a key's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The value is replaced by this one.
    Put(Bytes),
    /// The value is deleted.
    Delete,
    /// This number is added to the value, a decimal number; an absent value counts as 0.
    Add(i64),
}

/// A conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditional {
    /// The precondition for the change.
    pub condition: Condition,
    /// The change made if the precondition is true.
    pub change: Change,
    /// The expiry of the written value, in milliseconds since 1970. 0 = a put value never expires,
    /// and a sum keeps the expiry of the previous value.
    pub expiry_ms: u64,
    /// The digest of the client's request ([`digest_of_request`]), if it has an idempotency key;
    /// 0 = unknown.
    pub digest: u64,
}

/// The reason why a change cannot be made to the current value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impossible {
    /// An addition to a value that is not a decimal number of 64 bits.
    NotANumber,
    /// The sum does not fit into 64 bits.
    Overflow,
}

/// The outcome of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The write was done.
    Changed {
        /// The tag of the key's state after the write.
        tag: Tag,
        /// The sum, if the change was an addition.
        result: Option<i64>,
        /// The expiry of the value after the write, in milliseconds since 1970; 0 = never, or the
        /// key no longer records it.
        expiry_ms: u64,
        /// The fencing token: the ballot under which a majority has stored this state, greater than
        /// the token of any earlier conditional write of the key. 0 = another write has followed
        /// already, or the node that reported the outcome does not support fencing tokens.
        fence: u64,
    },
    /// The condition is false.
    Unmet {
        /// The tag of the current value; `None` = there is no value.
        current: Option<Tag>,
    },
    /// The change is impossible on the current value.
    Impossible(Impossible),
    /// An earlier write with the same idempotency key was begun, and its outcome is no longer
    /// known. This request did nothing.
    Forgotten,
    /// An earlier write with the same idempotency key was a different request. This request did
    /// nothing.
    Reused,
}

/// A key's state, to which conditional writes are applied in sequence.
#[derive(Debug)]
pub(crate) struct KeyState {
    family: Version,
    value: Option<Bytes>,
    /// The expiry of the value, in milliseconds since 1970; 0 = never.
    expiry_ms: u64,
    steps: OpHistory,
    /// The time against which expiries are judged, in microseconds since 1970.
    wall: u64,
    /// True if a condition was false because the value had expired. The value is then removed.
    found_expired: bool,
}

impl Done {
    /// True if this can be the outcome of an addition (`adds` is true) or of another change (`adds`
    /// is false). Only an addition has a result.
    pub(crate) fn is_possible_for(&self, adds: bool) -> bool {
        match self {
            Self::Changed { result, .. } => result.is_some() == adds,
            Self::Unmet { .. } | Self::Forgotten | Self::Reused => true,
            Self::Impossible(_) => adds,
        }
    }

    /// Returns the outcome with `ballot` as its fencing token, if this write is the last operation
    /// (`last`) of a state that a majority stores, or is about to store, under `ballot`. A key's
    /// ballots only grow, across nodes, restarts, plain writes and purges: a replica's promise
    /// needs no record of the key, and no replica restarts below a ballot that it may have
    /// promised. If another operation has followed, the outcome gets no token, because `ballot` is
    /// the token of that operation.
    pub(crate) fn with_fence(self, last: Option<u64>, ballot: u64) -> Self {
        match self {
            Self::Changed { tag, result, expiry_ms, .. }
                if tag.last.map(|(_, id)| id) == last && last.is_some() =>
            {
                Self::Changed { tag, result, expiry_ms, fence: ballot }
            }
            other => other,
        }
    }
}

impl Tag {
    /// Returns the tag of a record.
    pub fn of(record: &Record) -> Self {
        Self { version: record.version(), last: record.view().last_step() }
    }

    /// True if this tag identifies `state`. The last conditional write alone identifies a state,
    /// because the state may continue under another base version.
    fn names(&self, state: &Self) -> bool {
        self == state || self.last.is_some() && self.last == state.last
    }

    fn after(version: Version, steps: &OpHistory) -> Self {
        let last = steps.operations.last().map(|last| (steps.step, last.id));
        Self { version, last }
    }
}

impl KeyState {
    /// Makes the state of the newest record at time `wall` (microseconds since 1970). If the key is
    /// absent, the state has the base version `absent`.
    pub(crate) fn of(newest: Option<&Record>, absent: Version, wall: u64) -> Self {
        let found_expired = false;
        let Some(newest) = newest else {
            let (family, steps) = (absent, OpHistory::default());
            return Self { family, value: None, expiry_ms: 0, steps, wall, found_expired };
        };
        let value = (newest.kind() == Kind::Value).then(|| newest.value());
        let (expiry_ms, steps) = (newest.expiry_ms(), newest.op_history());
        Self { family: newest.version(), value, expiry_ms, steps, wall, found_expired }
    }

    /// Returns the base version of the state.
    pub(crate) fn family(&self) -> Version {
        self.family
    }

    /// Continues under another base version, after a proof has ended the present one.
    pub(crate) fn continue_under(&mut self, family: Version) {
        self.family = family;
    }

    /// Returns the value, unless it has expired.
    fn unexpired_value(&self) -> Option<&Bytes> {
        self.value.as_ref().filter(|_| !has_expired(self.expiry_ms, self.wall))
    }

    /// True if a condition was false because the value had expired. The state then lacks the value,
    /// and must be stored before the outcome is answered: the coordinator of the next write may
    /// have an earlier wall clock, and would find the value alive.
    pub(crate) fn has_found_expired(&self) -> bool {
        self.found_expired
    }

    /// Returns the conditional writes contained in the state.
    pub(crate) fn steps(&self) -> &OpHistory {
        &self.steps
    }

    /// Applies the conditional write `id`, and returns its outcome. A write that the state already
    /// contains is not applied again.
    pub(crate) fn apply(&mut self, id: u64, conditional: &Conditional) -> Done {
        if self.has_other(id, conditional.digest) {
            return Done::Reused;
        }
        // Another write's round may have preserved an earlier try of this write.
        if let Some(done) = self.outcome_of(id) {
            // A client may reuse an idempotency key for another kind of write.
            let adds = matches!(conditional.change, Change::Add(_));
            return if done.is_possible_for(adds) { done } else { Done::Forgotten };
        }
        let current = self.unexpired_value().map(|_| self.tag());
        let is_met = match &conditional.condition {
            Condition::Any => true,
            Condition::Exists => current.is_some(),
            Condition::Absent => current.is_none(),
            Condition::OneOf(tags) => {
                current.is_some_and(|current| tags.iter().any(|tag| tag.names(&current)))
            }
        };
        if !is_met {
            // An empty list of tags marks the completion of a read, which needs no outcome.
            let asks = conditional.condition != Condition::OneOf(Vec::new());
            if asks && current.is_none() && self.value.is_some() {
                (self.value, self.expiry_ms, self.found_expired) = (None, 0, true);
            }
            return Done::Unmet { current };
        }
        let (value, result, expiry_ms) = match &conditional.change {
            Change::Put(value) => (Some(value.clone()), None, conditional.expiry_ms),
            Change::Delete => (None, None, 0),
            Change::Add(number) => {
                match sum(self.unexpired_value().map(|value| &value[..]), *number) {
                    Ok(sum) => {
                        (Some(sum.to_string().into()), Some(sum), self.expiry_of(conditional))
                    }
                    Err(why) => return Done::Impossible(why),
                }
            }
        };
        (self.value, self.expiry_ms) = (value, expiry_ms);
        self.steps =
            self.steps.with_operation(Operation { id, result, digest: conditional.digest });
        Done::Changed { tag: self.tag(), result, expiry_ms, fence: 0 }
    }

    /// True if the state contains an operation of this id whose request has another digest.
    fn has_other(&self, id: u64, digest: u64) -> bool {
        let is_other = |it: &Operation| it.id == id && are_different_requests(it.digest, digest);
        self.steps.operations.iter().any(is_other)
    }

    /// Returns the outcome of the operation with this id; `None` = the state does not contain it.
    fn outcome_of(&self, id: u64) -> Option<Done> {
        let (step, operation) =
            self.steps.with_step_numbers().find(|(_, operation)| operation.id == id)?;
        let tag = Tag { version: self.family, last: Some((step, id)) };
        let expiry_ms = if step == self.steps.step { self.expiry_ms } else { 0 };
        Some(Done::Changed { tag, result: operation.result, expiry_ms, fence: 0 })
    }

    /// Returns the expiry of the sum that an addition makes.
    fn expiry_of(&self, addition: &Conditional) -> u64 {
        match (addition.expiry_ms, self.unexpired_value()) {
            (0, Some(_)) => self.expiry_ms,
            (0, None) => 0,
            (expiry_ms, _) => expiry_ms,
        }
    }

    /// Returns the record of this state under a ballot.
    pub(crate) fn record(&self, key: &[u8], ballot: u64) -> Record {
        let kind = if self.value.is_some() { Kind::Value } else { Kind::Tombstone };
        let value = self.value.as_deref().unwrap_or_default();
        let OpHistory { step, ref operations } = self.steps;
        let fields = Fields {
            ballot,
            step,
            operations,
            expiry_ms: self.expiry_ms,
            ..Fields::new(kind, self.family)
        };
        Record::new(key, &fields, value)
    }

    fn tag(&self) -> Tag {
        Tag::after(self.family, &self.steps)
    }
}

/// Parses a decimal number of 64 bits: digits with an optional minus. A plus sign is an error, in a
/// stored value as in a summand. `None` = the text is no such number.
pub fn decimal(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let are_digits = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| are_digits)?.parse().ok()
}

/// Adds `number` to a decimal number; an absent value counts as 0.
fn sum(value: Option<&[u8]>, number: i64) -> Result<i64, Impossible> {
    let value = value.map_or(Some(0), decimal).ok_or(Impossible::NotANumber)?;
    value.checked_add(number).ok_or(Impossible::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_700_000_000_000;

    /// A state whose value expires at `expiry_ms`, read at time `AT`.
    fn state(value: &'static str, expiry_ms: u64) -> KeyState {
        let (family, steps) = (Version { time: 5, origin: 1 }, OpHistory::default());
        let (wall, found_expired) = (AT * 1000 + 999, false);
        KeyState { family, value: Some(Bytes::from(value)), expiry_ms, steps, wall, found_expired }
    }

    fn write(condition: Condition, change: Change, expiry_ms: u64) -> Conditional {
        Conditional { condition, change, expiry_ms, digest: 0 }
    }

    /// Nodes agree on the id, and it stays on disk for a day.
    #[test]
    fn a_write_id_depends_on_key_and_idempotency_key() {
        let id = id_of_idempotency_key(b"a/account1", b"order-1001");
        assert_eq!(id, 0x098e_0b31_deee_3e4b);
        assert!(has_idempotency_key(id));
        assert_ne!(id, id_of_idempotency_key(b"b/account1", b"order-1001"));
        assert_ne!(id_of_idempotency_key(b"ab", b"c"), id_of_idempotency_key(b"a", b"bc"));
    }

    /// Nodes agree on the digest, and it stays on disk for a day.
    #[test]
    fn request_digests_differ_by_condition_change_and_time_to_live() {
        let put = |value| Change::Put(Bytes::from_static(value));
        let (one, other) = (state("1", 0).tag(), Tag { last: Some((1, 9)), ..state("1", 0).tag() });
        let requests = [
            (Condition::Any, put(b"1"), 0),
            (Condition::Any, put(b"2"), 0),
            (Condition::Any, put(b""), 0),
            (Condition::Any, put(b"1"), 60_000),
            (Condition::Exists, put(b"1"), 0),
            (Condition::Absent, put(b"1"), 0),
            (Condition::OneOf(vec![]), put(b"1"), 0),
            (Condition::OneOf(vec![one]), put(b"1"), 0),
            (Condition::OneOf(vec![other]), put(b"1"), 0),
            (Condition::OneOf(vec![one, other]), put(b"1"), 0),
            (Condition::Any, Change::Delete, 0),
            (Condition::Any, Change::Add(1), 0),
            (Condition::Any, Change::Add(-1), 0),
        ];
        let digests =
            requests.map(|(condition, change, ttl)| digest_of_request(&condition, &change, ttl));
        for (place, digest) in digests.iter().enumerate() {
            assert!(*digest != 0 && !digests[..place].contains(digest), "{place}");
        }
        assert_eq!(digests[0], 0x117a_afce_8fa7_1b09);
    }

    #[test]
    fn an_idempotency_key_is_valid_for_one_request() {
        let mut key = state("1", 0);
        let put = |digest| Conditional {
            digest,
            ..write(Condition::Any, Change::Put(Bytes::from_static(b"2")), 0)
        };
        let done = key.apply(5, &put(7));
        assert!(matches!(done, Done::Changed { .. }));
        assert_eq!([key.apply(5, &put(7)), key.apply(5, &put(0))], [done; 2]);
        assert_eq!((key.apply(5, &put(8)), key.steps().step), (Done::Reused, 1));
    }

    #[test]
    fn every_condition_treats_an_expired_value_as_absent() {
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
                    let asks = condition != Condition::OneOf(Vec::new());
                    assert_eq!(
                        state.has_found_expired(),
                        asks && !is_there,
                        "{condition:?} {expiry_ms}"
                    );
                    assert_eq!(state.value.is_none(), state.has_found_expired());
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
    fn only_the_last_write_of_a_state_gets_a_fencing_token() {
        let mut state = state("1", 0);
        let put = write(Condition::Any, Change::Put(Bytes::from("2")), 0);
        let fence = |done: Done, state: &KeyState| match done.with_fence(state.steps().last(), 9) {
            Done::Changed { fence, .. } => Some(fence),
            _ => None,
        };
        let first = state.apply(2, &put);
        assert_eq!(fence(first, &state), Some(9));
        assert_eq!(fence(state.apply(2, &put), &state), Some(9), "it is told again");
        let second = state.apply(4, &put);
        assert_eq!([fence(first, &state), fence(second, &state)], [Some(0), Some(9)]);
        let unmet = state.apply(6, &write(Condition::Absent, Change::Delete, 0));
        assert_eq!(fence(unmet, &state), None);
    }
}
