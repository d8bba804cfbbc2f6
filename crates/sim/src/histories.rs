//! Contended keys: a few keys that are written only conditionally or with majority quorums, so that
//! each key is a linearizable register to its clients. The requests and answers of each key are
//! recorded as a history, whose linearizability is checked at the end of a run.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use linear::{
    Change, Completion, Condition, ExpiryTimes, History, Operation, Response, Tag, Verdict, chain,
    families,
};
use protocol::{Answer, Conditional, Done, Impossible, Record, Version};

use crate::fences::{self, Fenced};
use crate::ledger::{ClientOutcome, ClientRequest, RequestKind};
use crate::values::{decode, encode, value_of};

/// Prefix of the keys' names.
const PREFIX: &str = "contended-";

/// Maximum number of configurations that the linearizability check of one key visits: some seconds
/// of work.
const MOST_CONFIGURATIONS: usize = 2_000_000;

/// Numbers of operations on contended keys, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContendedTally {
    /// Reads and plain writes that were answered.
    pub plain: u64,
    /// Conditional writes that took effect.
    pub changed: u64,
    /// Conditional writes whose condition was not met, or whose change is impossible.
    pub unmet: u64,
    /// Operations that were refused, or failed without effect.
    pub failed: u64,
    /// Writes with an unknown outcome.
    pub unknown: u64,
    /// Writes with an unknown outcome that were sent again, and then answered.
    pub again: u64,
    /// Histories found to be linearizable.
    pub checked: u64,
    /// Histories for which the search was given up.
    pub gave_up: u64,
}

impl ContendedTally {
    /// Adds the outcomes of another run.
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

impl fmt::Display for ContendedTally {
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

/// A client's write to a contended key, without the value, which follows from the write's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContendedWrite {
    pub(crate) condition: protocol::Condition,
    pub(crate) action: Action,
    pub(crate) retry: RetryState,
}

/// Retry state of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryState {
    /// The write has no idempotency key, so the client never sends it again.
    Once,
    /// The first attempt of a write with an idempotency key.
    First,
    /// A retry of the write first sent under this number.
    Again(u64),
}

/// Effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Put,
    Delete,
    Add(i64),
}

impl ContendedWrite {
    /// Returns the number under which the write was first sent.
    pub(crate) fn first_number(&self, number: u64) -> u64 {
        match self.retry {
            RetryState::Once | RetryState::First => number,
            RetryState::Again(first) => first,
        }
    }

    /// Returns the id of the write's idempotency key, if it has one.
    pub(crate) fn idempotency_id(&self, number: u64) -> Option<u64> {
        let word = self.first_number(number).to_le_bytes();
        (self.retry != RetryState::Once).then(|| protocol::id_of_idempotency_key(b"", &word))
    }

    /// Converts the write to the protocol's type.
    pub(crate) fn into_conditional(self, number: u64, expiry_ms: u64) -> Conditional {
        let change = match self.action {
            Action::Put => {
                protocol::Change::Put(Bytes::from(encode(value_of(self.first_number(number)))))
            }
            Action::Delete => protocol::Change::Delete,
            Action::Add(number) => protocol::Change::Add(number),
        };
        let condition = self.condition;
        let digest = protocol::digest_of_request(&condition, &change, 0);
        Conditional { condition, change, expiry_ms, digest }
    }
}

/// An operation of a history, with facts for the final check.
#[derive(Debug)]
struct RecordedOperation {
    operation: Operation,
    /// True if the operation had no effect, or is a read without an answer.
    is_void: bool,
    is_plain: bool,
    /// First version of a plain write. `is_reissued` is true once the write has another version.
    first: Option<Version>,
    is_reissued: bool,
    /// Fence of a conditional write that took effect; 0 = none was returned.
    fence: u64,
    /// The first attempt of a write with an idempotency key, as its client sent it.
    repeatable: Option<ContendedWrite>,
}

/// A write with an idempotency key that was answered as done.
#[derive(Debug)]
pub(crate) struct AcknowledgedWrite {
    pub(crate) key: Bytes,
    /// The write, marked as a retry.
    pub(crate) again: ContendedWrite,
    /// The time of the answer.
    pub(crate) answered: u64,
}

#[derive(Debug, Default)]
struct KeyHistory {
    recorded: BTreeMap<u64, RecordedOperation>,
    /// True once the key is abandoned. Later answers no longer count.
    is_over: bool,
}

/// The histories of all contended keys: see the module.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    by_key: BTreeMap<Bytes, KeyHistory>,
    /// Maximum number of milliseconds by which the evaluation time of a conditional write may be
    /// behind every wall clock. A leader may use a time from an earlier comparison with other
    /// nodes' clocks.
    pub(crate) lag_ms: u64,
    /// Number of times that all keys were abandoned for new ones.
    generation: u32,
    pub(crate) tally: ContendedTally,
}

/// Returns true for a contended key.
pub(crate) fn is_contended(key: &[u8]) -> bool {
    key.starts_with(PREFIX.as_bytes())
}

impl Histories {
    /// Returns the name of a key.
    pub(crate) fn key(&self, name: impl std::fmt::Display) -> Bytes {
        Bytes::from(format!("{PREFIX}{}-{name}", self.generation))
    }

    /// Records the start of an operation. Every clock that may judge the operation's expiry
    /// shows `earliest_ms` or later.
    pub(crate) fn begin(&mut self, number: u64, now: u64, earliest_ms: u64, asked: &ClientRequest) {
        let put = Change::Put(value_of(number));
        let (is_plain, asked_for) = match &asked.what {
            RequestKind::Scan => return,
            RequestKind::Get => (true, linear::Request::Get),
            RequestKind::Put => (true, linear::Request::Change(Condition::Any, put)),
            RequestKind::Delete => (true, linear::Request::Change(Condition::Any, Change::Delete)),
            RequestKind::Change(wanted @ ContendedWrite { condition, action, .. }) => {
                let change = match action {
                    Action::Put => Change::Put(value_of(wanted.first_number(number))),
                    Action::Delete => Change::Delete,
                    Action::Add(number) => Change::Add(*number),
                };
                (false, linear::Request::Change(condition_of(condition), change))
            }
        };
        let end = Completion::Unknown;
        let earliest_ms = earliest_ms.saturating_sub(self.lag_ms);
        let life = ExpiryTimes { expiry_ms: 0, evaluated_ms: (earliest_ms, u64::MAX) };
        let operation = Operation { number, call: now, asked: asked_for, life, end };
        // A retry is part of the first attempt's operation, unless the retry's condition is not
        // met.
        let retry = match &asked.what {
            RequestKind::Change(wanted) => wanted.retry,
            _ => RetryState::Once,
        };
        let is_void = matches!(retry, RetryState::Again(_));
        let (first, is_reissued, fence) = (None, false, 0);
        let repeatable = match &asked.what {
            RequestKind::Change(wanted) if retry == RetryState::First => Some(wanted.clone()),
            _ => None,
        };
        let recorded = RecordedOperation {
            operation,
            is_void,
            is_plain,
            first,
            is_reissued,
            fence,
            repeatable,
        };
        self.by_key.entry(asked.key.clone()).or_default().recorded.insert(number, recorded);
    }

    /// Records a version of a plain write to a contended key. Returns false if no history contains
    /// the write.
    pub(crate) fn record_version(&mut self, key: &Bytes, number: u64, version: Version) -> bool {
        let of_key = self.by_key.get_mut(key);
        let Some(recorded) = of_key.and_then(|of_key| of_key.recorded.get_mut(&number)) else {
            return false;
        };
        let first = *recorded.first.get_or_insert(version);
        recorded.is_reissued |= first != version;
        true
    }

    /// Records the expiry of a write's value.
    pub(crate) fn record_expiry(&mut self, key: &Bytes, number: u64, expiry_ms: u64) {
        let of_key = self.by_key.get_mut(key);
        if let Some(recorded) = of_key.and_then(|of_key| of_key.recorded.get_mut(&number)) {
            recorded.operation.life.expiry_ms = expiry_ms;
        }
    }

    /// Notes that a clock is set back to `wall_ms`. Open operations may be evaluated at that time.
    pub(crate) fn record_clock_set_back(&mut self, wall_ms: u64) {
        let all = self.by_key.values_mut().flat_map(|of_key| of_key.recorded.values_mut());
        for recorded in all.filter(|recorded| recorded.operation.end == Completion::Unknown) {
            let (earliest, _) = &mut recorded.operation.life.evaluated_ms;
            *earliest = wall_ms.saturating_sub(self.lag_ms).min(*earliest);
        }
    }

    /// Records the version with which a plain write is sent to a replica. It may differ from the
    /// write's first version, and perhaps no read ever shows it: a conditional write that continues
    /// this version may replace the record.
    pub(crate) fn record_sent_version(&mut self, key: &Bytes, record: &Record) {
        if is_contended(key)
            && let Some((number, version)) = write_of(record)
        {
            self.record_version(key, number, version);
        }
    }

    /// Records the outcome of an operation. Returns an error if the outcome is wrong whatever the
    /// other operations are. No clock that evaluated the operation was ahead of `latest_ms`.
    pub(crate) fn end(
        &mut self,
        (now, latest_ms): (u64, u64),
        number: u64,
        asked: &ClientRequest,
        outcome: &ClientOutcome,
    ) -> Option<String> {
        let (number, again) = match &asked.what {
            RequestKind::Change(wanted) => (wanted.first_number(number), number),
            _ => (number, number),
        };
        let is_again = again != number;
        // A retry whose condition is not met is an operation of its own, because the first attempt
        // may still be in transit.
        let unmet = matches!(
            outcome,
            ClientOutcome::Answer(Answer::Done(Done::Unmet { .. } | Done::Impossible(_), _))
        );
        let number = if unmet { again } else { number };
        let of_key = self.by_key.get_mut(&asked.key)?;
        let recorded = of_key.recorded.get_mut(&number)?;
        recorded.is_void &= !unmet;
        let answered = match outcome {
            ClientOutcome::Answer(Answer::Failed(failed)) if failed.unknown => None,
            // An earlier attempt may have taken effect.
            ClientOutcome::Answer(Answer::Failed(_)) | ClientOutcome::Refused if is_again => None,
            ClientOutcome::Answer(Answer::Done(Done::Forgotten, _)) => None,
            ClientOutcome::Answer(Answer::Failed(_)) | ClientOutcome::Refused => {
                self.tally.failed += 1;
                recorded.is_void = true;
                return None;
            }
            ClientOutcome::Nothing => None,
            ClientOutcome::Answer(Answer::Found(record)) => {
                let Some(found) = convert_read(&asked.key, record.as_ref()) else {
                    return Some(format!("invented: {number} returns {record:?}"));
                };
                Some(Response::Found(found))
            }
            ClientOutcome::Answer(Answer::Written(version, _)) => {
                let tag = tag_of(protocol::Tag { version: *version, last: None });
                Some(Response::Changed { tag, sum: None })
            }
            ClientOutcome::Answer(Answer::Done(done, _)) => {
                match response_of(*done, number, &recorded.operation) {
                    Ok(response) => Some(response),
                    Err(wrong) => return Some(wrong),
                }
            }
            ClientOutcome::Range(_) => return Some(format!("{number} is not a range")),
        };
        match answered {
            None if recorded.operation.asked == linear::Request::Get => recorded.is_void = true,
            None if is_again => {}
            None => self.tally.unknown += 1,
            Some(_) if is_again => self.tally.again += 1,
            Some(_) if recorded.is_plain => self.tally.plain += 1,
            Some(Response::Changed { .. }) => self.tally.changed += 1,
            Some(_) => self.tally.unmet += 1,
        }
        if is_again && recorded.is_changed() {
            return answered.and_then(|answered| recorded.compare_repeat(again, &answered));
        }
        if let Some(answered) = answered
            && !of_key.is_over
        {
            recorded.operation.end = Completion::At(now, answered);
            recorded.record_evaluation(latest_ms, outcome);
        }
        let seen = match outcome {
            ClientOutcome::Answer(Answer::Found(Some(record))) => write_of(record),
            ClientOutcome::Answer(Answer::Written(version, _)) => Some((number, *version)),
            _ => None,
        };
        if let Some((number, version)) = seen {
            self.record_version(&asked.key, number, version);
        }
        None
    }

    /// Abandons the keys, because acknowledged writes may be lost without a bug in the cluster.
    /// Clients continue with new keys.
    pub(crate) fn give_up_keys(&mut self) {
        self.generation += 1;
        self.by_key.values_mut().for_each(|of_key| of_key.is_over = true);
    }

    /// Returns the writes with an idempotency key that were answered as done, on keys in use.
    pub(crate) fn acknowledged_writes(&self) -> Vec<AcknowledgedWrite> {
        let used = self.by_key.iter().filter(|(_, of_key)| !of_key.is_over);
        let recorded = used.flat_map(|(key, of_key)| {
            of_key.recorded.iter().map(move |(number, recorded)| (key, *number, recorded))
        });
        let acknowledged = recorded.filter_map(|(key, number, recorded)| {
            let first = recorded.repeatable.as_ref().filter(|_| recorded.is_changed())?;
            let Completion::At(answered, _) = recorded.operation.end else { return None };
            let retry = RetryState::Again(number);
            let again = ContendedWrite { retry, ..first.clone() };
            Some(AcknowledgedWrite { key: key.clone(), again, answered })
        });
        acknowledged.collect()
    }

    /// Returns the keys in use.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Bytes> + '_ {
        let used = self.by_key.iter().filter(|(_, of_key)| !of_key.is_over);
        used.map(|(key, _)| key.clone())
    }

    /// Checks every history; returns the errors.
    pub(crate) fn check(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, of_key) in std::mem::take(&mut self.by_key) {
            wrong.extend(
                fences::check(of_key.fenced_writes()).map(|what| format!("{key:?}: {what}")),
            );
            let recorded = of_key.recorded.into_values().filter(|recorded| !recorded.is_void);
            let operations = recorded.flat_map(RecordedOperation::operations).collect();
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

impl KeyHistory {
    /// Returns the conditional writes that were answered with a fence.
    fn fenced_writes(&self) -> Vec<Fenced> {
        let told = self.recorded.values().filter(|recorded| recorded.fence != 0);
        let fenced = told.filter_map(|recorded| match &recorded.operation.end {
            Completion::At(answered, Response::Changed { tag, .. }) => Some(Fenced {
                number: recorded.operation.number,
                call: recorded.operation.call,
                answered: *answered,
                fence: recorded.fence,
                step: tag.last.map(|(step, _)| (tag.family, step)),
            }),
            _ => None,
        });
        fenced.collect()
    }
}

impl RecordedOperation {
    /// True if the operation was answered as a write that took effect.
    fn is_changed(&self) -> bool {
        matches!(self.operation.end, Completion::At(_, Response::Changed { .. }))
    }

    /// Compares the answer to the repeat `again` of a write that took effect with the first answer.
    /// Returns an error if they differ.
    fn compare_repeat(&self, again: u64, answered: &Response) -> Option<String> {
        let Completion::At(_, first) = &self.operation.end else { return None };
        (!are_equal_outcomes(first, answered)).then(|| {
            let number = self.operation.number;
            format!("{number} was answered {first:?}, and its repeat {again} {answered:?}")
        })
    }

    /// Records the latest time at which an answered operation was evaluated, the expiry of the
    /// value that a read returned, and the fence of a write.
    fn record_evaluation(&mut self, latest_ms: u64, outcome: &ClientOutcome) {
        let ExpiryTimes { expiry_ms, evaluated_ms: (_, latest) } = &mut self.operation.life;
        *latest = latest_ms;
        if let ClientOutcome::Answer(Answer::Found(found)) = outcome {
            *expiry_ms = found.as_ref().map_or(0, Record::expiry_ms);
        }
        if let ClientOutcome::Answer(Answer::Done(Done::Changed { fence, .. }, _)) = outcome {
            self.fence = *fence;
        }
    }

    /// Returns the operation, or two operations if the write was reissued, because each of its
    /// versions may take effect.
    fn operations(self) -> Vec<Operation> {
        if !self.is_reissued {
            return vec![self.operation];
        }
        self.operation.split_reissued().into()
    }
}

/// Returns the number and version of a plain write; `None` if a conditional write made the record.
fn write_of(record: &Record) -> Option<(u64, Version)> {
    let extension = record.view().extension();
    let number = u64::from_le_bytes(extension.try_into().ok()?);
    (record.ballot() == 0).then_some((number, record.version()))
}

fn condition_of(condition: &protocol::Condition) -> Condition {
    match condition {
        protocol::Condition::Any => Condition::Any,
        protocol::Condition::Exists => Condition::Exists,
        protocol::Condition::Absent => Condition::Absent,
        protocol::Condition::OneOf(tags) => {
            Condition::OneOf(tags.iter().map(|tag| tag_of(*tag)).collect())
        }
    }
}

/// Converts the answer to a conditional write. Returns an error if the answer is wrong whatever the
/// other operations are.
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

/// True if both answers give the same outcome of a write that was done. The base version of the tag
/// may differ: a proof may have ended it in between.
fn are_equal_outcomes(one: &Response, other: &Response) -> bool {
    match (one, other) {
        (
            Response::Changed { tag: one, sum: one_sum },
            Response::Changed { tag: other, sum: other_sum },
        ) => (one.last, one_sum) == (other.last, other_sum),
        _ => false,
    }
}

fn tag_of(protocol::Tag { version, last }: protocol::Tag) -> Tag {
    let Version { time, origin } = version;
    Tag { family: (time, origin), last }
}

/// Converts the answer to a read. Returns `None` if no client can have written the value.
fn convert_read(key: &[u8], record: Option<&Record>) -> Option<Option<(linear::Value, Tag)>> {
    let Some(record) = record else { return Some(None) };
    let tag = tag_of(protocol::Tag::of(record));
    Some(decode(key, record)?.map(|value| (value, tag)))
}
