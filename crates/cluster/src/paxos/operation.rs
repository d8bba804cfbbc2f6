//! Conditional writes: what a client asks for, and what comes of it on the record that there is.
//!
//! ```text
//!  newest record ─▶ state ─▶ condition ─┬─ true ──▶ change ─▶ the state a step further ─▶ record
//!                                       └─ false ─▶ unmet: the tag of what there is
//! ```

use bytes::Bytes;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

use record::{Fields, Kind, Operation, Record, Steps, Version, has_expired};

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

/// The digest of a write as its client asked for it: xxh3-64 of the condition, the change and the
/// time to live in milliseconds (0 = none), never 0. A later write with the same key and
/// idempotency key but another digest is another request, and is refused.
///
/// The digest tells a client of its mistake, and protects nobody: two requests that collide (one
/// pair in 2⁶⁴ by chance) get the answer of the first, and only clients that may write the key, and
/// know the word, can bring that about.
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

/// Whether two requests with one idempotency key differ, by their digests; 0 = unknown digest.
pub(crate) fn are_other_requests(one: u64, other: u64) -> bool {
    one != 0 && other != 0 && one != other
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
    /// The digest of the client's request ([`digest_of_request`]), if it has an idempotency key;
    /// 0 = unknown.
    pub digest: u64,
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
        /// Greater than that of any conditional write of the key that came before: the ballot under
        /// which a majority has stored this state. 0 = it was followed by another one already, or
        /// a node told of it that does not know fences.
        fence: u64,
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
    /// An earlier write with the same idempotency key was another request. Nothing was done now.
    Reused,
}

/// A key's state, as conditional writes make it one after the other.
#[derive(Debug)]
pub(crate) struct KeyState {
    family: Version,
    value: Option<Bytes>,
    /// When that expires; 0 = never.
    expiry_ms: u64,
    steps: Steps,
    /// The time by which values have expired, in microseconds since 1970.
    wall: u64,
    /// Whether a condition was not met because the value had expired. The value is gone then.
    found_expired: bool,
}

impl Done {
    /// Whether it can have come of an addition (`adds`), or of another change: only an addition
    /// has a result.
    pub(crate) fn fits(&self, adds: bool) -> bool {
        match self {
            Self::Changed { result, .. } => result.is_some() == adds,
            Self::Unmet { .. } | Self::Forgotten | Self::Reused => true,
            Self::Impossible(_) => adds,
        }
    }

    /// The same, of a state that a majority is about to store, or has stored, under this ballot, if
    /// its last operation is `last`. Ballots of a key only grow, through whatever nodes, restarts
    /// and plain writes, and whether or not anything is left of the key: a replica promises them by
    /// the key alone, and no start of it goes back behind what it may have promised. A state that
    /// another operation has followed by now is told no fence: it may have been stored under
    /// an earlier ballot than this one, and the other operation told that.
    pub(crate) fn fenced(self, last: Option<u64>, ballot: u64) -> Self {
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
    /// The tag of a record.
    pub fn of(record: &Record) -> Self {
        Self { version: record.version(), last: record.view().last_step() }
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

impl KeyState {
    /// The state that a record says, or that there is none, when it is `wall`.
    /// `absent` is the family of what is made of none.
    pub(crate) fn of(newest: Option<&Record>, absent: Version, wall: u64) -> Self {
        let found_expired = false;
        let Some(newest) = newest else {
            let (family, steps) = (absent, Steps::default());
            return Self { family, value: None, expiry_ms: 0, steps, wall, found_expired };
        };
        let value = (newest.kind() == Kind::Value).then(|| newest.value());
        let (expiry_ms, steps) = (newest.expiry_ms(), newest.steps());
        Self { family: newest.version(), value, expiry_ms, steps, wall, found_expired }
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
        self.value.as_ref().filter(|_| !has_expired(self.expiry_ms, self.wall))
    }

    /// Whether a condition was not met because the value had expired. The state is without the
    /// value then, and has to be stored before that is answered: a later conditional write may be
    /// coordinated by a node whose wall clock is behind this one's, and would find the value alive.
    pub(crate) fn found_expired(&self) -> bool {
        self.found_expired
    }

    /// The conditional writes that are in it.
    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Does a conditional write, known as `id`, and says what came of it. It is not done twice.
    pub(crate) fn apply(&mut self, id: u64, conditional: &Conditional) -> Done {
        if self.has_other(id, conditional.digest) {
            return Done::Reused;
        }
        // An earlier try of its own was taken up by somebody.
        if let Some(done) = self.done(id) {
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
            // No tag at all is the condition of who asks for nothing, and relies on no answer.
            let asks = conditional.condition != Condition::OneOf(Vec::new());
            if asks && current.is_none() && self.value.is_some() {
                (self.value, self.expiry_ms, self.found_expired) = (None, 0, true);
            }
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
        self.steps = self.steps.and(Operation { id, result, digest: conditional.digest });
        Done::Changed { tag: self.tag(), result, expiry_ms, fence: 0 }
    }

    /// Whether the steps hold an operation of this id whose request has another digest.
    fn has_other(&self, id: u64, digest: u64) -> bool {
        let is_other = |it: &Operation| it.id == id && are_other_requests(it.digest, digest);
        self.steps.operations.iter().any(is_other)
    }

    /// The outcome of the operation of this id; `None` = the steps do not hold it.
    fn done(&self, id: u64) -> Option<Done> {
        let (step, operation) = self.steps.numbered().find(|(_, operation)| operation.id == id)?;
        let tag = Tag { version: self.family, last: Some((step, id)) };
        let expiry_ms = if step == self.steps.step { self.expiry_ms } else { 0 };
        Some(Done::Changed { tag, result: operation.result, expiry_ms, fence: 0 })
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
    pub(crate) fn record(&self, key: &[u8], ballot: u64) -> Record {
        let kind = if self.value.is_some() { Kind::Value } else { Kind::Tombstone };
        let value = self.value.as_deref().unwrap_or_default();
        let Steps { step, ref operations } = self.steps;
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

/// A decimal number of 64 bits: digits, with a minus before them or without. A plus is no part of
/// one, neither of what is stored nor of what is to be added.
pub fn decimal(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let are_digits = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| are_digits)?.parse().ok()
}

/// A decimal number, plus another one.
fn sum(value: Option<&[u8]>, number: i64) -> Result<i64, Impossible> {
    let value = value.map_or(Some(0), decimal).ok_or(Impossible::NotANumber)?;
    value.checked_add(number).ok_or(Impossible::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_700_000_000_000;

    /// A state whose value expires at `expiry_ms`, looked at `AT`.
    fn state(value: &'static str, expiry_ms: u64) -> KeyState {
        let (family, steps) = (Version { time: 5, origin: 1 }, Steps::default());
        let (wall, found_expired) = (AT * 1000 + 999, false);
        KeyState { family, value: Some(Bytes::from(value)), expiry_ms, steps, wall, found_expired }
    }

    fn write(condition: Condition, change: Change, expiry_ms: u64) -> Conditional {
        Conditional { condition, change, expiry_ms, digest: 0 }
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

    /// Nodes agree on it, and it stays on disk for a day.
    #[test]
    fn requests_are_told_apart_by_what_they_ask_for() {
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
    fn an_idempotency_key_is_good_for_one_request() {
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
                    let asks = condition != Condition::OneOf(Vec::new());
                    assert_eq!(
                        state.found_expired(),
                        asks && !is_there,
                        "{condition:?} {expiry_ms}"
                    );
                    assert_eq!(state.value.is_none(), state.found_expired());
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
    fn the_last_write_of_a_state_alone_is_fenced() {
        let mut state = state("1", 0);
        let put = write(Condition::Any, Change::Put(Bytes::from("2")), 0);
        let fence = |done: Done, state: &KeyState| match done.fenced(state.steps().last(), 9) {
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
