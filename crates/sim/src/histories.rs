//! Contended keys: few, of which all writes are with conditions or quorums of majorities, so that
//! each is one register to its clients. What they asked of each key and were answered is kept as a
//! history, and is checked in the end.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use cluster::{Answer, Conditional, Done, Impossible, Record, Version};
use linear::{
    Change, Condition, End, History, Life, Operation, Response, Tag, Verdict, chain, families,
};

use crate::fences::{self, Fenced};
use crate::ledger::{Asked, ClientOutcome, What};
use crate::values::{decode, encode, value_of};

/// How the keys' names begin.
const PREFIX: &str = "contended-";

/// Most configurations that the search for one key's order looks at: some seconds.
const MOST_CONFIGURATIONS: usize = 2_000_000;

/// How operations on contended keys ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contended {
    /// Reads, and plain writes, that were answered.
    pub plain: u64,
    /// Conditional writes that were done.
    pub changed: u64,
    /// Those whose condition was not true, or that can't be done.
    pub unmet: u64,
    /// What was refused, or failed with nothing done.
    pub failed: u64,
    /// Writes of which nobody knows.
    pub unknown: u64,
    /// Those of them that were sent again, and answered then.
    pub again: u64,
    /// Histories that were found right.
    pub checked: u64,
    /// Histories for which the search was given up.
    pub gave_up: u64,
}

impl Contended {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.plain += other.plain;
        self.changed += other.changed;
        self.unmet += other.unmet;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.again += other.again;
        self.checked += other.checked;
        self.gave_up += other.gave_up;
    }
}

impl fmt::Display for Contended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plain, changed, unmet, failed, unknown, again, checked, gave_up } = self;
        write!(
            f,
            "contended keys: {changed} changed, {unmet} unmet, {plain} plain, {failed} failed, \
             {unknown} unknown, {again} of them not when sent again; {checked} histories checked, \
             {gave_up} given up"
        )
    }
}

/// What a client wants of a contended key, apart from the value, which follows from its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) condition: cluster::Condition,
    pub(crate) action: Action,
    pub(crate) sent: Sent,
}

/// Whether it can be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It has no idempotency key.
    Once,
    /// It has one.
    First,
    /// It is what the client sent under this number.
    Again(u64),
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Put,
    Delete,
    Add(i64),
}

impl Wanted {
    /// The number under which it was sent first.
    pub(crate) fn first(&self, number: u64) -> u64 {
        match self.sent {
            Sent::Once | Sent::First => number,
            Sent::Again(first) => first,
        }
    }

    /// What it is known by, if it has an idempotency key.
    pub(crate) fn id(&self, number: u64) -> Option<u64> {
        let word = self.first(number).to_le_bytes();
        (self.sent != Sent::Once).then(|| cluster::id_of_idempotency_key(b"", &word))
    }

    /// As the protocol has it.
    pub(crate) fn of(self, number: u64, expiry_ms: u64) -> Conditional {
        let change = match self.action {
            Action::Put => cluster::Change::Put(Bytes::from(encode(value_of(self.first(number))))),
            Action::Delete => cluster::Change::Delete,
            Action::Add(number) => cluster::Change::Add(number),
        };
        let condition = self.condition;
        let digest = cluster::digest_of_request(&condition, &change, 0);
        Conditional { condition, change, expiry_ms, digest }
    }
}

/// An operation as it is kept until the end.
#[derive(Debug)]
struct Kept {
    operation: Operation,
    /// Known to have had no effect, or a read without an answer.
    is_void: bool,
    is_plain: bool,
    /// The first version of a plain write, and whether it was given another one.
    first: Option<Version>,
    is_reissued: bool,
    /// Of a conditional write that was done; 0 = none was told.
    fence: u64,
}

#[derive(Debug, Default)]
struct OfKey {
    kept: BTreeMap<u64, Kept>,
    /// Nothing that is answered from here on counts.
    is_over: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    of_keys: BTreeMap<Bytes, OfKey>,
    /// How far conditional writes may be evaluated by a time before any wall clock's, in
    /// milliseconds: by other nodes' clocks as they were when they were compared.
    pub(crate) lag_ms: u64,
    /// How often all keys were given up for new ones.
    generation: u32,
    pub(crate) tally: Contended,
}

/// Whether a key is one of those.
pub(crate) fn is_contended(key: &[u8]) -> bool {
    key.starts_with(PREFIX.as_bytes())
}

impl Histories {
    /// The name of a key.
    pub(crate) fn key(&self, name: impl std::fmt::Display) -> Bytes {
        Bytes::from(format!("{PREFIX}{}-{name}", self.generation))
    }

    /// `earliest_ms`: no clock that it may be evaluated by is behind that.
    pub(crate) fn begin(&mut self, number: u64, now: u64, earliest_ms: u64, asked: &Asked) {
        let put = Change::Put(value_of(number));
        let (is_plain, asked_for) = match &asked.what {
            What::Scan => return,
            What::Get => (true, linear::Asked::Get),
            What::Put => (true, linear::Asked::Change(Condition::Any, put)),
            What::Delete => (true, linear::Asked::Change(Condition::Any, Change::Delete)),
            What::Change(wanted @ Wanted { condition, action, .. }) => {
                let change = match action {
                    Action::Put => Change::Put(value_of(wanted.first(number))),
                    Action::Delete => Change::Delete,
                    Action::Add(number) => Change::Add(*number),
                };
                (false, linear::Asked::Change(condition_of(condition), change))
            }
        };
        let end = End::Unknown;
        let earliest_ms = earliest_ms.saturating_sub(self.lag_ms);
        let life = Life { expiry_ms: 0, evaluated_ms: (earliest_ms, u64::MAX) };
        let operation = Operation { number, call: now, asked: asked_for, life, end };
        // What is sent again is the same write, unless it turns out to find its condition not true.
        let sent = match &asked.what {
            What::Change(wanted) => wanted.sent,
            _ => Sent::Once,
        };
        let is_void = matches!(sent, Sent::Again(_));
        let (first, is_reissued, fence) = (None, false, 0);
        let kept = Kept { operation, is_void, is_plain, first, is_reissued, fence };
        self.of_keys.entry(asked.key.clone()).or_default().kept.insert(number, kept);
    }

    /// A plain write has a version. Returns whether it is one of a contended key.
    pub(crate) fn versioned(&mut self, key: &Bytes, number: u64, version: Version) -> bool {
        let of_key = self.of_keys.get_mut(key);
        let Some(kept) = of_key.and_then(|of_key| of_key.kept.get_mut(&number)) else {
            return false;
        };
        let first = *kept.first.get_or_insert(version);
        kept.is_reissued |= first != version;
        true
    }

    /// What a write writes expires then.
    pub(crate) fn expires(&mut self, key: &Bytes, number: u64, expiry_ms: u64) {
        let of_key = self.of_keys.get_mut(key);
        if let Some(kept) = of_key.and_then(|of_key| of_key.kept.get_mut(&number)) {
            kept.operation.life.expiry_ms = expiry_ms;
        }
    }

    /// Somebody sets a clock back: what is under way may be evaluated by that.
    pub(crate) fn clock_is_at(&mut self, wall_ms: u64) {
        let all = self.of_keys.values_mut().flat_map(|of_key| of_key.kept.values_mut());
        for kept in all.filter(|kept| kept.operation.end == End::Unknown) {
            let (earliest, _) = &mut kept.operation.life.evaluated_ms;
            *earliest = wall_ms.saturating_sub(self.lag_ms).min(*earliest);
        }
    }

    /// A replica is sent a plain write, maybe with another version than it had at first: one that
    /// no read may ever show, for a conditional write comes on top of it.
    pub(crate) fn is_sent(&mut self, key: &Bytes, record: &Record) {
        if is_contended(key)
            && let Some((number, version)) = write_of(record)
        {
            self.versioned(key, number, version);
        }
    }

    /// A client has its outcome; returns what is wrong with that by itself. `latest_ms`: no clock
    /// that it was evaluated by was ahead of that.
    pub(crate) fn end(
        &mut self,
        (now, latest_ms): (u64, u64),
        number: u64,
        asked: &Asked,
        outcome: &ClientOutcome,
    ) -> Option<String> {
        let (number, again) = match &asked.what {
            What::Change(wanted) => (wanted.first(number), number),
            _ => (number, number),
        };
        let is_again = again != number;
        // The first one may be on its way still, and find its condition true later.
        let unmet = matches!(
            outcome,
            ClientOutcome::Answer(Answer::Done(Done::Unmet { .. } | Done::Impossible(_), _))
        );
        let number = if unmet { again } else { number };
        let of_key = self.of_keys.get_mut(&asked.key)?;
        let kept = of_key.kept.get_mut(&number)?;
        kept.is_void &= !unmet;
        let answered = match outcome {
            ClientOutcome::Answer(Answer::Failed(failed)) if failed.unknown => None,
            // What was sent before may have been done.
            ClientOutcome::Answer(Answer::Failed(_)) | ClientOutcome::Refused if is_again => None,
            ClientOutcome::Answer(Answer::Done(Done::Forgotten, _)) => None,
            ClientOutcome::Answer(Answer::Failed(_)) | ClientOutcome::Refused => {
                self.tally.failed += 1;
                kept.is_void = true;
                return None;
            }
            ClientOutcome::Nothing => None,
            ClientOutcome::Answer(Answer::Found(record)) => {
                let Some(found) = found(&asked.key, record.as_ref()) else {
                    return Some(format!("invented: {number} returns {record:?}"));
                };
                Some(Response::Found(found))
            }
            ClientOutcome::Answer(Answer::Written(version, _)) => {
                let tag = tag_of(cluster::Tag { version: *version, last: None });
                Some(Response::Changed { tag, sum: None })
            }
            ClientOutcome::Answer(Answer::Done(done, _)) => {
                match response_of(*done, number, &kept.operation) {
                    Ok(response) => Some(response),
                    Err(wrong) => return Some(wrong),
                }
            }
            ClientOutcome::Range(_) => return Some(format!("{number} is not a range")),
        };
        match answered {
            None if kept.operation.asked == linear::Asked::Get => kept.is_void = true,
            None if is_again => {}
            None => self.tally.unknown += 1,
            Some(_) if is_again => self.tally.again += 1,
            Some(_) if kept.is_plain => self.tally.plain += 1,
            Some(Response::Changed { .. }) => self.tally.changed += 1,
            Some(_) => self.tally.unmet += 1,
        }
        if let Some(answered) = answered
            && !of_key.is_over
        {
            kept.operation.end = End::At(now, answered);
            kept.evaluated(latest_ms, outcome);
            if let ClientOutcome::Answer(Answer::Done(Done::Changed { fence, .. }, _)) = outcome {
                kept.fence = *fence;
            }
        }
        let seen = match outcome {
            ClientOutcome::Answer(Answer::Found(Some(record))) => write_of(record),
            ClientOutcome::Answer(Answer::Written(version, _)) => Some((number, *version)),
            _ => None,
        };
        if let Some((number, version)) = seen {
            self.versioned(&asked.key, number, version);
        }
        None
    }

    /// What was acknowledged may be gone, and nobody is to blame: clients go on with other keys.
    pub(crate) fn give_up_keys(&mut self) {
        self.generation += 1;
        self.of_keys.values_mut().for_each(|of_key| of_key.is_over = true);
    }

    /// Keys that are in use.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Bytes> + '_ {
        let used = self.of_keys.iter().filter(|(_, of_key)| !of_key.is_over);
        used.map(|(key, _)| key.clone())
    }

    /// Checks every history; returns what is wrong.
    pub(crate) fn check(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, of_key) in std::mem::take(&mut self.of_keys) {
            wrong.extend(fences::check(of_key.fenced()).map(|what| format!("{key:?}: {what}")));
            let kept = of_key.kept.into_values().filter(|kept| !kept.is_void);
            let operations = kept.flat_map(Kept::operations).collect();
            let mut history = History { operations };
            families::unite(&mut history);
            if let Some(what) = chain::check(&history) {
                wrong.push(format!("{key:?}: {what}"));
            }
            match history.check(MOST_CONFIGURATIONS) {
                Verdict::Linearizable => self.tally.checked += 1,
                Verdict::GaveUp => self.tally.gave_up += 1,
                Verdict::Wrong(what) => wrong.push(format!("{key:?}: {what}")),
            }
        }
        wrong
    }
}

impl OfKey {
    /// Conditional writes that were told a fence.
    fn fenced(&self) -> Vec<Fenced> {
        let told = self.kept.values().filter(|kept| kept.fence != 0);
        let fenced = told.filter_map(|kept| match &kept.operation.end {
            End::At(answered, Response::Changed { tag, .. }) => Some(Fenced {
                number: kept.operation.number,
                call: kept.operation.call,
                answered: *answered,
                fence: kept.fence,
                step: tag.last.map(|(step, _)| (tag.family, step)),
            }),
            _ => None,
        });
        fenced.collect()
    }
}

impl Kept {
    /// It was answered: by when it was evaluated, and when what it found expires.
    fn evaluated(&mut self, latest_ms: u64, outcome: &ClientOutcome) {
        let Life { expiry_ms, evaluated_ms: (_, latest) } = &mut self.operation.life;
        *latest = latest_ms;
        if let ClientOutcome::Answer(Answer::Found(found)) = outcome {
            *expiry_ms = found.as_ref().map_or(0, Record::expiry_ms);
        }
    }

    /// What takes effect.
    fn operations(self) -> Vec<Operation> {
        if !self.is_reissued {
            return vec![self.operation];
        }
        self.operation.seen_twice().into()
    }
}

/// The number and version of a plain write; `None` = a conditional one made the record.
fn write_of(record: &Record) -> Option<(u64, Version)> {
    let extension = record.view().extension();
    let number = u64::from_le_bytes(extension.try_into().ok()?);
    (record.ballot() == 0).then_some((number, record.version()))
}

fn condition_of(condition: &cluster::Condition) -> Condition {
    match condition {
        cluster::Condition::Any => Condition::Any,
        cluster::Condition::Exists => Condition::Exists,
        cluster::Condition::Absent => Condition::Absent,
        cluster::Condition::OneOf(tags) => {
            Condition::OneOf(tags.iter().map(|tag| tag_of(*tag)).collect())
        }
    }
}

/// The answer that a client had of a conditional write that was done, or what is wrong with the
/// answer by itself.
fn response_of(done: Done, number: u64, operation: &Operation) -> Result<Response, String> {
    Ok(match done {
        Done::Changed { tag, result, .. } => Response::Changed { tag: tag_of(tag), sum: result },
        Done::Unmet { current } => Response::Unmet(current.map(tag_of)),
        Done::Impossible(Impossible::NotANumber) => Response::NotANumber,
        Done::Impossible(Impossible::Overflow) => {
            return Err(format!("{number} overflows: {operation:?}"));
        }
        Done::Reused => return Err(format!("{number} is told to be another request")),
        Done::Forgotten => unreachable!("the caller has looked for it"),
    })
}

fn tag_of(cluster::Tag { version, last }: cluster::Tag) -> Tag {
    let Version { time, origin } = version;
    Tag { family: (time, origin), last }
}

/// What a read returned; `None` = what nobody can have written.
fn found(key: &[u8], record: Option<&Record>) -> Option<Option<(linear::Value, Tag)>> {
    let Some(record) = record else { return Some(None) };
    let tag = tag_of(cluster::Tag::of(record));
    Some(decode(key, record)?.map(|value| (value, tag)))
}
