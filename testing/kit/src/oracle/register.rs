//! A key as a register: records requests, with and without conditions, and their answers as a
//! history, and checks whether the history is linearizable.

use std::io;
use std::time::Instant;

use linear::{
    Change, Completion, Condition, ExpiryTimes, History, Operation, Request, Response, Tag, Value,
    Verdict, chain,
};
use parking_lot::Mutex;

use crate::Failure;
use crate::client::{Answer, Client};
use crate::random::Random;

/// Number of operations on a key before clients continue with the next key. The check of a short
/// history is fast.
const OPERATIONS: usize = 14;

/// Limit on the configurations that a check examines.
const MOST_CONFIGURATIONS: usize = 500_000;

/// Number of recent tags that clients use in conditions.
const TAGS: usize = 3;

/// A sequence of keys that clients use one after another, each for a few operations.
#[derive(Debug)]
pub struct Register {
    name: String,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// History of the current key. `generation` is the key's number.
    kept: Vec<RecordedOperation>,
    generation: u32,
    tags: Vec<Tag>,
    finished: Vec<Vec<RecordedOperation>>,
}

#[derive(Debug)]
struct RecordedOperation {
    operation: Operation,
    /// True if the operation certainly had no effect.
    is_void: bool,
    is_plain_write: bool,
}

/// An operation that a client has begun.
#[derive(Debug)]
pub struct Call {
    key: String,
    generation: u32,
    place: usize,
    asked: Request,
    is_plain: bool,
}

/// Results of the checks of all histories.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckSummary {
    /// Number of keys whose history was checked.
    pub histories: u64,
    /// Number of operations in the histories, without those that certainly had no effect.
    pub operations: u64,
    /// Number of conditional writes that took effect.
    pub conditional: u64,
    /// Number of operations whose condition was not met, or whose value is not a number.
    pub unmet: u64,
    /// Number of operations with an unknown outcome.
    pub unknown: u64,
    /// Number of histories that are linearizable only if a plain write was visible twice, under two
    /// versions.
    pub twice: u64,
    /// Number of histories whose check exceeded the limit of configurations.
    pub gave_up: u64,
}

/// The result of a call.
enum Outcome {
    Told(Response),
    Void,
    Unknown,
}

impl Register {
    /// Creates the sequence of keys `h<place>-0`, `h<place>-1` and so on. Times count from `begun`.
    pub fn new(place: usize, begun: Instant) -> Self {
        Self { name: format!("h{place}"), begun, state: Mutex::default() }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Begins an operation on the current key. `number` must be unique among all operations.
    pub fn call(&self, number: u64, random: &mut Random) -> Call {
        let mut state = self.state.lock();
        if state.kept.len() >= OPERATIONS {
            let kept = std::mem::take(&mut state.kept);
            state.finished.push(kept);
            state.generation += 1;
            state.tags.clear();
        }
        let (asked, is_plain) = choose_operation(number, &state.tags, random);
        let (call, end) = (self.now(), Completion::Unknown);
        // The values of these histories never expire.
        let life = ExpiryTimes { expiry_ms: 0, evaluated_ms: (0, u64::MAX) };
        let operation = Operation { number, call, asked: asked.clone(), life, end };
        let is_plain_write = is_plain && asked != Request::Get;
        state.kept.push(RecordedOperation { operation, is_void: false, is_plain_write });
        let (generation, place) = (state.generation, state.kept.len() - 1);
        Call { key: format!("{}-{generation}", self.name), generation, place, asked, is_plain }
    }

    /// Records the answer to an operation; an answer that the request cannot have is an error.
    pub fn end(&self, call: &Call, answer: io::Result<Answer>) -> Result<(), Failure> {
        let now = self.now();
        let outcome = match answer {
            Err(_) => Outcome::Unknown,
            Ok(answer) => outcome(call, &answer)?,
        };
        let mut state = self.state.lock();
        if let Outcome::Told(Response::Changed { tag, .. } | Response::Found(Some((_, tag)))) =
            outcome
            && state.generation == call.generation
        {
            state.tags.insert(0, tag);
            state.tags.truncate(TAGS);
        }
        let kept = state.operation_of(call);
        match outcome {
            Outcome::Told(told) => kept.operation.end = Completion::At(now, told),
            Outcome::Void => kept.is_void = true,
            // A read without an answer shows nothing about the register.
            Outcome::Unknown => kept.is_void = call.asked == Request::Get,
        }
        Ok(())
    }

    /// Checks all histories. No operation may be in progress.
    pub fn check(&self) -> Result<CheckSummary, Failure> {
        let mut state = self.state.lock();
        let last = std::mem::take(&mut state.kept);
        let all = std::mem::take(&mut state.finished).into_iter().chain([last]);
        let mut checked = CheckSummary::default();
        for (generation, kept) in all.enumerate() {
            check(kept, &mut checked)
                .map_err(|what| Failure::Broken(format!("{}-{generation}: {what}", self.name)))?;
        }
        Ok(checked)
    }
}

impl State {
    fn operation_of(&mut self, call: &Call) -> &mut RecordedOperation {
        if call.generation == self.generation {
            &mut self.kept[call.place]
        } else {
            &mut self.finished[call.generation as usize][call.place]
        }
    }
}

impl CheckSummary {
    /// Adds the results of another register.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.operations += other.operations;
        self.conditional += other.conditional;
        self.unmet += other.unmet;
        self.unknown += other.unknown;
        self.twice += other.twice;
        self.gave_up += other.gave_up;
    }

    fn count(&mut self, kept: &RecordedOperation) {
        self.operations += 1;
        match &kept.operation.end {
            Completion::At(_, Response::Changed { .. }) if !kept.is_plain_write => {
                self.conditional += 1;
            }
            Completion::At(_, Response::Unmet(_) | Response::NotANumber) => self.unmet += 1,
            Completion::Unknown => self.unknown += 1,
            _ => {}
        }
    }
}

fn check(kept: Vec<RecordedOperation>, checked: &mut CheckSummary) -> Result<(), String> {
    let kept: Vec<RecordedOperation> = kept.into_iter().filter(|kept| !kept.is_void).collect();
    kept.iter().for_each(|kept| checked.count(kept));
    checked.histories += 1;
    let operations = kept.iter().map(|kept| kept.operation.clone()).collect();
    let history = History { operations };
    if let Some(what) = chain::check(&history) {
        return Err(what);
    }
    match history.check(MOST_CONFIGURATIONS) {
        Verdict::Linearizable => return Ok(()),
        Verdict::GaveUp => checked.gave_up += 1,
        Verdict::Wrong(what) => {
            // An answer does not show whether a coordinator issued a plain write again under
            // another version.
            let operations = kept.into_iter().flat_map(RecordedOperation::split_reissued).collect();
            match (History { operations }).check(MOST_CONFIGURATIONS) {
                Verdict::Wrong(_) => return Err(what),
                Verdict::Linearizable => checked.twice += 1,
                Verdict::GaveUp => checked.gave_up += 1,
            }
        }
    }
    Ok(())
}

impl RecordedOperation {
    fn split_reissued(self) -> Vec<Operation> {
        if !self.is_plain_write {
            return vec![self.operation];
        }
        self.operation.split_reissued().into()
    }
}

/// Chooses a client's next operation at random. The second value is true if the operation has no
/// condition.
fn choose_operation(number: u64, tags: &[Tag], random: &mut Random) -> (Request, bool) {
    let text = Change::Put(Value::Text(number));
    let any = |change| Request::Change(Condition::Any, change);
    let conditional = |condition, change| (Request::Change(condition, change), false);
    let tag = || tags.first().copied().into_iter().collect::<Vec<Tag>>();
    match random.below(100) {
        0..24 => (Request::Get, true),
        24..36 => (any(text), true),
        36..40 => (any(Change::Delete), true),
        40..50 => conditional(Condition::Absent, text),
        50..56 => conditional(Condition::Exists, Change::Put(Value::Number(number as i64 * 1000))),
        56..60 => conditional(Condition::Exists, Change::Delete),
        60..64 => conditional(Condition::OneOf(tag()), Change::Delete),
        64..68 => conditional(Condition::OneOf(tags.to_vec()), text),
        68..82 => conditional(Condition::OneOf(tag()), text),
        _ => conditional(Condition::Any, Change::Add(1 + random.below(9) as i64)),
    }
}

impl Call {
    /// Sends the request, and waits for the answer.
    pub fn ask(&self, client: &mut Client) -> io::Result<Answer> {
        let target = format!("/v0/entity?id={}", self.key);
        let (condition, change) = match &self.asked {
            Request::Get => return client.request("GET", &target, b""),
            Request::Change(condition, change) => (condition, change),
        };
        let condition = match condition {
            Condition::Any => String::new(),
            Condition::Exists => "If-Match: *\r\n".to_owned(),
            Condition::Absent => "If-None-Match: *\r\n".to_owned(),
            Condition::OneOf(tags) => {
                // An empty list is not allowed, so the list ends with a tag that no value has.
                let tags = tags.iter().copied().map(text_of).chain(["\"none\"".to_owned()]);
                format!("If-Match: {}\r\n", tags.collect::<Vec<_>>().join(", "))
            }
        };
        let (method, target, body) = match change {
            Change::Put(Value::Text(number)) => ("PUT", target, format!("t{number}")),
            Change::Put(Value::Number(number)) => ("PUT", target, number.to_string()),
            // The answer to a deletion has no ETag; a receipt contains the version.
            Change::Delete => ("DELETE", format!("{target}&receipt=true"), String::new()),
            Change::Add(number) => ("POST", format!("{target}&add={number}"), String::new()),
        };
        client.request_with(method, &target, &condition, body.as_bytes())
    }
}

fn outcome(call: &Call, answer: &Answer) -> Result<Outcome, Failure> {
    let text = String::from_utf8_lossy(&answer.body);
    let odd = || {
        let (asked, status) = (&call.asked, answer.status);
        Failure::Broken(format!("{}: {asked:?} is answered {status}: {text}", call.key))
    };
    let tag = || answer.version.as_deref().map(tag_of).transpose();
    let tag = tag().map_err(|()| odd())?;
    let told = match (&call.asked, answer.status) {
        (Request::Get, 200) => {
            Response::Found(Some((value_of(&text).ok_or_else(odd)?, tag.ok_or_else(odd)?)))
        }
        (Request::Get, 404) => Response::Found(None),
        (Request::Change(_, Change::Add(_)), 200) => {
            let sum = Some(text.parse().map_err(|_| odd())?);
            Response::Changed { tag: tag.ok_or_else(odd)?, sum }
        }
        (Request::Change(_, Change::Add(_)), 409) => Response::NotANumber,
        (Request::Change(..), 201 | 202) => {
            Response::Changed { tag: tag.ok_or_else(odd)?, sum: None }
        }
        (Request::Change(..), 412) if !call.is_plain => Response::Unmet(tag),
        (_, 503 | 504 | 507) if text.contains("\"outcome\":\"none\"") => return Ok(Outcome::Void),
        (_, 500..) => return Ok(Outcome::Unknown),
        _ => return Err(odd()),
    };
    Ok(Outcome::Told(told))
}

fn value_of(text: &str) -> Option<Value> {
    match text.strip_prefix('t') {
        Some(number) => number.parse().ok().map(Value::Text),
        None => text.parse().ok().map(Value::Number),
    }
}

fn text_of(tag: Tag) -> String {
    let (time, origin) = tag.family;
    let last = tag.last.map(|(step, id)| format!("-{step}-{id:016x}")).unwrap_or_default();
    format!("\"{time:016x}-{origin:08x}{last}\"")
}

fn tag_of(text: &str) -> Result<Tag, ()> {
    let hex = |text: Option<&str>| u64::from_str_radix(text.ok_or(())?, 16).map_err(drop);
    let mut parts = text.split('-');
    let family = (hex(parts.next())?, hex(parts.next())? as u32);
    let last = match parts.next() {
        None => None,
        Some(step) => Some((step.parse().map_err(drop)?, hex(parts.next())?)),
    };
    Ok(Tag { family, last })
}
