//! Conditional writes as bytes: what is asked of a key's home, and what came of it.

use super::Malformed;
use super::decode::Reader;
use crate::clock::Version;
use crate::conditional::{Change, Condition, Conditional, Done, Impossible, Tag};
use crate::recent::Recalled;

/// Bytes of a tag: time, origin, whether there is a last step, that, its id.
const TAG_LEN: usize = 8 + 4 + 1 + 4 + 8;

/// What a change begins with. Of a value that expires, when it does follows.
const PUT: u8 = 0;
const DELETE: u8 = 1;
const ADD: u8 = 2;
const PUT_EXPIRING: u8 = 3;
const ADD_EXPIRING: u8 = 4;

/// What a change that was made begins with.
const CHANGED: u8 = 0;
const CHANGED_EXPIRING: u8 = 4;

/// Bytes of a length before a value, and of how many tags there are.
const VALUE_LEN: usize = 4;
const COUNT_LEN: usize = 2;

/// When a value expires, which follows only if it does.
const EXPIRY_LEN: usize = 8;

pub(super) fn conditional_len(conditional: &Conditional) -> usize {
    let Conditional { condition, change, .. } = conditional;
    let condition = match condition {
        Condition::Any | Condition::Exists | Condition::Absent => 0,
        Condition::OneOf(tags) => COUNT_LEN + TAG_LEN * tags.len(),
    };
    let change = match change {
        Change::Put(value) => VALUE_LEN + value.len(),
        Change::Delete => 0,
        Change::Add(_) => size_of::<i64>(),
    };
    1 + condition + 1 + expiry_of(conditional).map_or(0, |_| EXPIRY_LEN) + change
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
    let expiry = expiry_of(conditional).map(u64::to_le_bytes);
    out.push(match (&conditional.change, expiry) {
        (Change::Put(_), None) => PUT,
        (Change::Put(_), Some(_)) => PUT_EXPIRING,
        (Change::Delete, _) => DELETE,
        (Change::Add(_), None) => ADD,
        (Change::Add(_), Some(_)) => ADD_EXPIRING,
    });
    out.extend(expiry.into_iter().flatten());
    match &conditional.change {
        Change::Put(value) => {
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        }
        Change::Delete => {}
        Change::Add(number) => out.extend_from_slice(&number.to_le_bytes()),
    }
}

/// What is deleted does not expire.
fn expiry_of(conditional: &Conditional) -> Option<u64> {
    let expires = conditional.expiry_ms != 0 && conditional.change != Change::Delete;
    expires.then_some(conditional.expiry_ms)
}

pub(super) fn done_len(done: &Done) -> usize {
    1 + match done {
        Done::Changed { result, expiry_ms, .. } => {
            let expiry = if *expiry_ms == 0 { 0 } else { EXPIRY_LEN };
            TAG_LEN + 1 + result.map_or(0, |_| size_of::<i64>()) + expiry
        }
        Done::Unmet { current } => 1 + current.map_or(0, |_| TAG_LEN),
        Done::Impossible(_) => 1,
        Done::Forgotten => 0,
    }
}

pub(super) fn put_done(out: &mut Vec<u8>, done: &Done) {
    match done {
        Done::Changed { tag, result, expiry_ms } => {
            out.push(if *expiry_ms == 0 { CHANGED } else { CHANGED_EXPIRING });
            put_tag(out, *tag);
            out.push(u8::from(result.is_some()));
            out.extend(result.iter().flat_map(|result| result.to_le_bytes()));
            if *expiry_ms != 0 {
                out.extend_from_slice(&expiry_ms.to_le_bytes());
            }
        }
        Done::Unmet { current } => {
            out.extend_from_slice(&[1, u8::from(current.is_some())]);
            current.iter().for_each(|tag| put_tag(out, *tag));
        }
        Done::Impossible(Impossible::NotANumber) => out.extend_from_slice(&[2, 0]),
        Done::Impossible(Impossible::Overflow) => out.extend_from_slice(&[2, 1]),
        Done::Forgotten => out.push(3),
    }
}

pub(super) fn recalled_len(recalled: &Recalled) -> usize {
    1 + match recalled {
        Recalled::Never | Recalled::Forgotten => 0,
        Recalled::Stored { done, .. } => size_of::<u64>() + done_len(done),
    }
}

pub(super) fn put_recalled(out: &mut Vec<u8>, recalled: &Recalled) {
    match recalled {
        Recalled::Never => out.push(0),
        Recalled::Forgotten => out.push(1),
        Recalled::Stored { ballot, done } => {
            out.push(2);
            out.extend_from_slice(&ballot.to_le_bytes());
            put_done(out, done);
        }
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
        let code = self.u8()?;
        let expiry_ms =
            if matches!(code, PUT_EXPIRING | ADD_EXPIRING) { self.expiry()? } else { 0 };
        let change = match code {
            PUT | PUT_EXPIRING => {
                let length = self.u32()? as usize;
                Change::Put(self.take(length)?)
            }
            DELETE => Change::Delete,
            ADD | ADD_EXPIRING => Change::Add(i64::from_le_bytes(self.array()?)),
            _ => return Err(Malformed("an unknown change")),
        };
        Ok(Conditional { condition, change, expiry_ms })
    }

    fn expiry(&mut self) -> Result<u64, Malformed> {
        match self.u64()? {
            0 => Err(Malformed("an expiry of never")),
            expiry_ms => Ok(expiry_ms),
        }
    }

    pub(super) fn done(&mut self) -> Result<Done, Malformed> {
        Ok(match self.u8()? {
            code @ (CHANGED | CHANGED_EXPIRING) => {
                let tag = self.tag()?;
                let has_result = self.flag()?;
                let result = has_result.then(|| self.array()).transpose()?;
                let result = result.map(i64::from_le_bytes);
                let expiry_ms = if code == CHANGED_EXPIRING { self.expiry()? } else { 0 };
                Done::Changed { tag, result, expiry_ms }
            }
            1 => {
                let has_current = self.flag()?;
                Done::Unmet { current: has_current.then(|| self.tag()).transpose()? }
            }
            2 => Done::Impossible(match self.flag()? {
                false => Impossible::NotANumber,
                true => Impossible::Overflow,
            }),
            3 => Done::Forgotten,
            _ => return Err(Malformed("an unknown outcome")),
        })
    }

    pub(super) fn recalled(&mut self) -> Result<Recalled, Malformed> {
        Ok(match self.u8()? {
            0 => Recalled::Never,
            1 => Recalled::Forgotten,
            2 => Recalled::Stored { ballot: self.u64()?, done: self.done()? },
            _ => return Err(Malformed("an unknown word of what was stored")),
        })
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
