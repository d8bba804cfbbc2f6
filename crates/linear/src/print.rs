//! Formats histories for reports.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter, Result};

use super::{
    Change, Completion, Condition, ExpiryTimes, History, KeyState, Operation, Request, Response,
    Tag, Value,
};

/// Maximum number of answered operations that are printed.
const BEFORE: usize = 24;

/// Explains why a history is not linearizable: the operation whose answer does not fit, the
/// possible states of the key before it, and the open operations.
pub(super) fn explain(
    history: &History,
    open: &BTreeSet<u32>,
    states: &BTreeSet<KeyState>,
    at: u64,
    place: u32,
) -> String {
    let wrong = &history.operations[place as usize];
    let mut lines = vec![format!("not linearizable, as of the answer to {}:", wrong.number)];
    let mut answered: Vec<&Operation> =
        history.operations.iter().filter(|operation| operation.has_ended_before(at)).collect();
    answered.sort_by_key(|operation| operation.end.answer_time());
    let shown = answered.len().saturating_sub(BEFORE);
    if shown > 0 {
        lines.push(format!("  ({shown} operations before these)"));
    }
    lines.extend(answered[shown..].iter().map(|operation| format!("  {operation}")));
    let states: Vec<String> = states.iter().map(|state| state.describe(history)).collect();
    lines.push(format!("then the key had {}", states.join(", or ")));
    lines.push("under way, or without an answer:".to_owned());
    let others = open.iter().filter(|other| **other != place);
    lines.extend(others.map(|other| format!("  {}", history.operations[*other as usize])));
    lines.push(format!("does not fit:\n  {wrong}"));
    lines.join("\n")
}

impl Operation {
    fn has_ended_before(&self, at: u64) -> bool {
        self.end.answer_time().is_some_and(|end| end < at)
    }
}

impl Completion {
    /// Returns the time of the answer in microseconds; `None` = there was no answer.
    pub fn answer_time(&self) -> Option<u64> {
        match self {
            Self::At(at, _) => Some(*at),
            Self::Unknown | Self::Before(_) => None,
        }
    }
}

impl KeyState {
    fn describe(&self, history: &History) -> String {
        let value = self.value.map_or("nothing".to_owned(), |value| value.to_string());
        let value = value + &until(self.expiry_ms);
        match self.made_by {
            Some(maker) => format!("{value} of {}", history.operations[maker as usize].number),
            None => value,
        }
    }
}

/// Formats the expiry of a value.
fn until(expiry_ms: u64) -> String {
    if expiry_ms == 0 { String::new() } else { format!(" until {expiry_ms}") }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "text-{text}"),
        }
    }
}

impl Display for Tag {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (time, origin) = self.family;
        write!(f, "\"{time:x}-{origin:08x}")?;
        match self.last {
            Some((step, id)) => write!(f, "-{step}-{id:x}\""),
            None => write!(f, "\""),
        }
    }
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let seconds = |micros: u64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        let end = self.end.answer_time().map_or("never".to_owned(), seconds);
        write!(f, "{:>6} {} to {end:<10} ", self.number, seconds(self.call))?;
        match &self.asked {
            Request::Get => write!(f, "get")?,
            Request::Change(condition, change) => {
                match change {
                    Change::Put(value) => write!(f, "put {value}")?,
                    Change::Delete => write!(f, "delete")?,
                    Change::Add(number) => write!(f, "add {number}")?,
                }
                match condition {
                    Condition::Any => {}
                    Condition::Exists => write!(f, " if there is a value")?,
                    Condition::Absent => write!(f, " if there is none")?,
                    Condition::OneOf(tags) => {
                        let tags: Vec<String> = tags.iter().map(Tag::to_string).collect();
                        write!(f, " if it is {}", tags.join(" or "))?;
                    }
                }
            }
        }
        let ExpiryTimes { expiry_ms, evaluated_ms: (earliest, latest) } = self.life;
        write!(f, "{}", until(expiry_ms))?;
        if latest != 0 {
            write!(f, " (judged at {earliest} to {latest})")?;
        }
        match &self.end {
            Completion::Unknown => write!(f, ": not known"),
            Completion::Before(_) => write!(f, ": under its first version"),
            Completion::At(_, Response::Found(None)) => write!(f, ": nothing"),
            Completion::At(_, Response::Found(Some((value, tag)))) => write!(f, ": {value} {tag}"),
            Completion::At(_, Response::Changed { tag, sum: None }) => write!(f, ": done, {tag}"),
            Completion::At(_, Response::Changed { tag, sum: Some(sum) }) => {
                write!(f, ": done, {sum} {tag}")
            }
            Completion::At(_, Response::Unmet(None)) => write!(f, ": unmet, there is none"),
            Completion::At(_, Response::Unmet(Some(tag))) => write!(f, ": unmet, it is {tag}"),
            Completion::At(_, Response::NotANumber) => write!(f, ": not a number"),
        }
    }
}
