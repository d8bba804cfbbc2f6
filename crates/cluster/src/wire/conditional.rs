//! Conditional writes as bytes: what is asked of a key's home, and what came of it.

use super::Malformed;
use super::decode::Reader;
use crate::acks::ReplicaSet;
use crate::clock::Version;
use crate::conditional::{Change, Condition, Conditional, Done, Impossible, Tag};

/// Bytes of a tag: time, origin, whether there is a last step, that, its id.
const TAG_LEN: usize = 8 + 4 + 1 + 4 + 8;

/// Bytes of a length before a value, and of how many tags there are.
const VALUE_LEN: usize = 4;
const COUNT_LEN: usize = 2;

pub(super) fn conditional_len(Conditional { condition, change }: &Conditional) -> usize {
    let condition = match condition {
        Condition::Any | Condition::Exists | Condition::Absent => 0,
        Condition::OneOf(tags) => COUNT_LEN + TAG_LEN * tags.len(),
    };
    let change = match change {
        Change::Put(value) => VALUE_LEN + value.len(),
        Change::Delete => 0,
        Change::Add(_) => size_of::<i64>(),
    };
    1 + condition + 1 + change
}

pub(super) fn put_conditional(out: &mut Vec<u8>, conditional: &Conditional) {
    match &conditional.condition {
        Condition::Any => out.push(0),
        Condition::Exists => out.push(1),
        Condition::Absent => out.push(2),
        Condition::OneOf(tags) => {
            out.push(3);
            out.extend_from_slice(&(tags.len() as u16).to_le_bytes());
            tags.iter().for_each(|tag| put_tag(out, *tag));
        }
    }
    match &conditional.change {
        Change::Put(value) => {
            out.push(0);
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        }
        Change::Delete => out.push(1),
        Change::Add(number) => {
            out.push(2);
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

pub(super) fn done_len(done: &Done) -> usize {
    // Which replicas, and what it is.
    1 + 1
        + match done {
            Done::Changed { result, .. } => TAG_LEN + 1 + result.map_or(0, |_| size_of::<i64>()),
            Done::Unmet { current } => 1 + current.map_or(0, |_| TAG_LEN),
            Done::Impossible(_) => 1,
        }
}

pub(super) fn put_done(out: &mut Vec<u8>, done: &Done, by: ReplicaSet) {
    out.push(by.0);
    match done {
        Done::Changed { tag, result } => {
            out.push(0);
            put_tag(out, *tag);
            out.push(u8::from(result.is_some()));
            out.extend(result.iter().flat_map(|result| result.to_le_bytes()));
        }
        Done::Unmet { current } => {
            out.extend_from_slice(&[1, u8::from(current.is_some())]);
            current.iter().for_each(|tag| put_tag(out, *tag));
        }
        Done::Impossible(Impossible::NotANumber) => out.extend_from_slice(&[2, 0]),
        Done::Impossible(Impossible::Overflow) => out.extend_from_slice(&[2, 1]),
    }
}

fn put_tag(out: &mut Vec<u8>, Tag { version, last }: Tag) {
    let (step, id) = last.unwrap_or_default();
    out.extend_from_slice(&version.time.to_le_bytes());
    out.extend_from_slice(&version.origin.to_le_bytes());
    out.push(u8::from(last.is_some()));
    out.extend_from_slice(&step.to_le_bytes());
    out.extend_from_slice(&id.to_le_bytes());
}

impl Reader {
    pub(super) fn conditional(&mut self) -> Result<Conditional, Malformed> {
        let condition = match self.u8()? {
            0 => Condition::Any,
            1 => Condition::Exists,
            2 => Condition::Absent,
            3 => {
                let count = usize::from(self.u16()?);
                if count > self.left() / TAG_LEN {
                    return Err(Malformed("it ends too early"));
                }
                Condition::OneOf((0..count).map(|_| self.tag()).collect::<Result<_, _>>()?)
            }
            _ => return Err(Malformed("an unknown condition")),
        };
        let change = match self.u8()? {
            0 => {
                let length = self.u32()? as usize;
                Change::Put(self.take(length)?)
            }
            1 => Change::Delete,
            2 => Change::Add(i64::from_le_bytes(self.array()?)),
            _ => return Err(Malformed("an unknown change")),
        };
        Ok(Conditional { condition, change })
    }

    pub(super) fn done(&mut self) -> Result<(Done, ReplicaSet), Malformed> {
        let by = ReplicaSet(self.u8()?);
        let done = match self.u8()? {
            0 => {
                let tag = self.tag()?;
                let has_result = self.flag()?;
                let result = has_result.then(|| self.array()).transpose()?;
                Done::Changed { tag, result: result.map(i64::from_le_bytes) }
            }
            1 => {
                let has_current = self.flag()?;
                Done::Unmet { current: has_current.then(|| self.tag()).transpose()? }
            }
            2 => Done::Impossible(match self.flag()? {
                false => Impossible::NotANumber,
                true => Impossible::Overflow,
            }),
            _ => return Err(Malformed("an unknown outcome")),
        };
        Ok((done, by))
    }

    fn tag(&mut self) -> Result<Tag, Malformed> {
        let version = Version { time: self.u64()?, origin: self.u32()? };
        let has_last = self.flag()?;
        let last = (self.u32()?, self.u64()?);
        if !has_last && last != (0, 0) {
            return Err(Malformed("a step of a plain write"));
        }
        Ok(Tag { version, last: has_last.then_some(last) })
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }
}
