//! The encoding of conditional writes: the request to a key's leader, and the outcome.

use super::Malformed;
use super::field::{DigestIfAny, Field};
use super::out::Out;
use super::reader::FieldReader;
use crate::paxos::accepted_ballots::{AcceptedBallots, MOST_BALLOTS};
use crate::paxos::operation::{Change, Condition, Conditional, Done, Impossible, Tag};
use crate::paxos::recent::OpLookup;
use record::Version;

/// The length of a tag in bytes: time, origin, whether there is a last step, the step's number, the
/// id of its write.
const TAG_LEN: usize = 8 + 4 + 1 + 4 + 8;

/// The first bytes of requested changes. If the value expires, the expiry follows.
const PUT: u8 = 0;
const DELETE: u8 = 1;
const ADD: u8 = 2;
const PUT_EXPIRING: u8 = 3;
const ADD_EXPIRING: u8 = 4;

/// The first bytes of completed changes. If the value expires, the expiry follows the result.
const CHANGED: u8 = 0;
const CHANGED_EXPIRING: u8 = 4;
/// The first bytes of completed changes with a fence. The fence is the last field.
const CHANGED_FENCED: u8 = 6;
const CHANGED_EXPIRING_FENCED: u8 = 7;

/// The first byte of the outcome `Reused`: another request used the idempotency key.
const REUSED: u8 = 5;

/// The first byte of the reply to a Recall if the write was accepted under several ballots.
const STORED_UNDER_SEVERAL: u8 = 4;

/// The first byte of the reply to a Recall if the write is known to be chosen.
const CHOSEN: u8 = 5;

impl Field for Conditional {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        Condition::put(&value.condition, out);
        // A deletion has no expiry.
        let expires = value.expiry_ms != 0;
        out.u8(match (&value.change, expires) {
            (Change::Put(_), false) => PUT,
            (Change::Put(_), true) => PUT_EXPIRING,
            (Change::Delete, _) => DELETE,
            (Change::Add(_), false) => ADD,
            (Change::Add(_), true) => ADD_EXPIRING,
        });
        if expires && value.change != Change::Delete {
            out.u64(value.expiry_ms);
        }
        match &value.change {
            Change::Put(value) => {
                out.u32(value.len() as u32);
                out.bytes(value);
            }
            Change::Delete => {}
            Change::Add(number) => out.bytes(&number.to_le_bytes()),
        }
        DigestIfAny::put(&value.digest, out);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let condition = Condition::take(from)?;
        let code = from.u8()?;
        let expires = matches!(code, PUT_EXPIRING | ADD_EXPIRING);
        let expiry_ms = if expires { take_expiry(from)? } else { 0 };
        let change = match code {
            PUT | PUT_EXPIRING => {
                let length = from.u32()? as usize;
                Change::Put(from.take(length)?)
            }
            DELETE => Change::Delete,
            ADD | ADD_EXPIRING => Change::Add(i64::from_le_bytes(from.array()?)),
            _ => return Err(Malformed("an unknown change")),
        };
        let digest = DigestIfAny::take(from)?;
        Ok(Self { condition, change, expiry_ms, digest })
    }
}

impl Field for Condition {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        match value {
            Self::Any => out.u8(0),
            Self::Exists => out.u8(1),
            Self::Absent => out.u8(2),
            Self::OneOf(tags) => {
                out.u8(3);
                out.u16(tags.len() as u16);
                tags.iter().for_each(|tag| Tag::put(tag, out));
            }
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            0 => Self::Any,
            1 => Self::Exists,
            2 => Self::Absent,
            3 => {
                let count = usize::from(from.u16()?);
                if count > from.unread_bytes() / TAG_LEN {
                    return Err(Malformed("it ends too early"));
                }
                Self::OneOf((0..count).map(|_| Tag::take(from)).collect::<Result<_, _>>()?)
            }
            _ => return Err(Malformed("an unknown condition")),
        })
    }
}

/// Reads an expiry. It is present only if the value expires, and is never 0.
fn take_expiry(from: &mut FieldReader<'_>) -> Result<u64, Malformed> {
    match from.u64()? {
        0 => Err(Malformed("an expiry of never")),
        expiry_ms => Ok(expiry_ms),
    }
}

/// Reads a fence. It is present only if the change has one, and is never 0.
fn take_fence(from: &mut FieldReader<'_>) -> Result<u64, Malformed> {
    match from.u64()? {
        0 => Err(Malformed("a fence of none")),
        fence => Ok(fence),
    }
}

impl Field for Done {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        match value {
            Self::Changed { tag, result, expiry_ms, fence } => {
                out.u8(match (*expiry_ms != 0, *fence != 0) {
                    (false, false) => CHANGED,
                    (true, false) => CHANGED_EXPIRING,
                    (false, true) => CHANGED_FENCED,
                    (true, true) => CHANGED_EXPIRING_FENCED,
                });
                Tag::put(tag, out);
                out.bool(result.is_some());
                result.iter().for_each(|result| out.bytes(&result.to_le_bytes()));
                if *expiry_ms != 0 {
                    out.u64(*expiry_ms);
                }
                if *fence != 0 {
                    out.u64(*fence);
                }
            }
            Self::Unmet { current } => {
                out.u8(1);
                out.bool(current.is_some());
                current.iter().for_each(|tag| Tag::put(tag, out));
            }
            Self::Impossible(Impossible::NotANumber) => out.bytes(&[2, 0]),
            Self::Impossible(Impossible::Overflow) => out.bytes(&[2, 1]),
            Self::Forgotten => out.u8(3),
            Self::Reused => out.u8(REUSED),
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            code @ (CHANGED | CHANGED_EXPIRING | CHANGED_FENCED | CHANGED_EXPIRING_FENCED) => {
                let tag = Tag::take(from)?;
                let result = if from.bool()? { Some(from.array()?) } else { None };
                let result = result.map(i64::from_le_bytes);
                let expires = matches!(code, CHANGED_EXPIRING | CHANGED_EXPIRING_FENCED);
                let expiry_ms = if expires { take_expiry(from)? } else { 0 };
                let is_fenced = matches!(code, CHANGED_FENCED | CHANGED_EXPIRING_FENCED);
                let fence = if is_fenced { take_fence(from)? } else { 0 };
                Self::Changed { tag, result, expiry_ms, fence }
            }
            1 => Self::Unmet { current: if from.bool()? { Some(Tag::take(from)?) } else { None } },
            2 => Self::Impossible(match from.bool()? {
                false => Impossible::NotANumber,
                true => Impossible::Overflow,
            }),
            3 => Self::Forgotten,
            REUSED => Self::Reused,
            _ => return Err(Malformed("an unknown outcome")),
        })
    }
}

impl Field for OpLookup {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        match value {
            Self::Never => out.u8(0),
            Self::Forgotten => out.u8(1),
            Self::Reused => out.u8(3),
            Self::Chosen { done } => {
                out.u8(CHOSEN);
                Done::put(done, out);
            }
            Self::Stored { ballots, done } => {
                let count = ballots.iter().count();
                if count > 1 {
                    out.bytes(&[STORED_UNDER_SEVERAL, count as u8]);
                    ballots.iter().for_each(|ballot| out.u64(ballot));
                } else {
                    out.u8(2);
                    out.u64(ballots.greatest());
                }
                Done::put(done, out);
            }
        }
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            0 => Self::Never,
            1 => Self::Forgotten,
            2 => {
                Self::Stored { ballots: AcceptedBallots::one(from.u64()?), done: Done::take(from)? }
            }
            3 => Self::Reused,
            STORED_UNDER_SEVERAL => {
                let count = usize::from(from.u8()?);
                if !(2..=MOST_BALLOTS).contains(&count) {
                    return Err(Malformed("a wrong number of ballots"));
                }
                let ballots = (0..count).map(|_| from.u64()).collect::<Result<Vec<_>, _>>()?;
                let are_ordered = ballots.windows(2).all(|pair| pair[0] > pair[1]);
                if !are_ordered || ballots.last() == Some(&0) {
                    return Err(Malformed("ballots not in order"));
                }
                let ballots = ballots.into_iter().collect();
                Self::Stored { ballots, done: Done::take(from)? }
            }
            CHOSEN => Self::Chosen { done: Done::take(from)? },
            _ => return Err(Malformed("an unknown word of what was stored")),
        })
    }
}

impl Field for Tag {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { version, last } = value;
        let (step, id) = last.unwrap_or_default();
        out.u64(version.time);
        out.u32(version.origin);
        out.bool(last.is_some());
        out.u32(step);
        out.u64(id);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let version = Version { time: from.u64()?, origin: from.u32()? };
        let has_last = from.bool()?;
        let last = (from.u32()?, from.u64()?);
        if !has_last && last != (0, 0) {
            return Err(Malformed("a step of a plain write"));
        }
        Ok(Self { version, last: has_last.then_some(last) })
    }
}
