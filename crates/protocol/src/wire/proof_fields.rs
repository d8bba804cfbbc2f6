//! The encoding of a repair round's steps, and of a node's state in a round.

use super::Malformed;
use super::field::Field;
use super::out::Out;
use super::reader::FieldReader;
use crate::membership::disk_ids::BootId;
use crate::message::NodeId;
use crate::repair::watermark::{Proof, RoundId, RoundState, RoundStep};

impl Field for RoundId {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        out.u64(value.time);
        NodeId::put(&value.node, out);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(Self { time: from.u64()?, node: NodeId::take(from)? })
    }
}

/// The step's code, the floor of the promises, and whether copies are uniform.
impl Field for RoundStep {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let (code, (floor, is_uniform)) = match *value {
            Self::Ask => (0, (0, false)),
            Self::Seal => (1, (0, false)),
            Self::Ready => (2, (0, false)),
            Self::Commit { floor, is_uniform } => (3, (floor, is_uniform)),
        };
        out.u8(code);
        out.u64(floor);
        out.bool(is_uniform);
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        match (from.u8()?, from.u64()?, from.bool()?) {
            (0, 0, false) => Ok(Self::Ask),
            (1, 0, false) => Ok(Self::Seal),
            (2, 0, false) => Ok(Self::Ready),
            (3, floor, is_uniform) => Ok(Self::Commit { floor, is_uniform }),
            _ => Err(Malformed("an unknown step of a round")),
        }
    }
}

/// The node's boot id, three rounds, the time at which its directory was made, two ballots, whether
/// copies are uniform, and whether a round is active.
impl Field for RoundState {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { life, proof, promised, is_active } = value;
        let Proof { seal, ready, proven, floor, is_uniform, made } = proof;
        out.u64(life.0);
        [seal, ready, proven].into_iter().for_each(|round| RoundId::put(round, out));
        [made, floor, promised].into_iter().for_each(|n| out.u64(*n));
        [is_uniform, is_active].into_iter().for_each(|yes| out.bool(*yes));
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let life = BootId(from.u64()?);
        let (seal, ready) = (RoundId::take(from)?, RoundId::take(from)?);
        let proven = RoundId::take(from)?;
        let (made, floor, promised) = (from.u64()?, from.u64()?, from.u64()?);
        let (is_uniform, is_active) = (from.bool()?, from.bool()?);
        let proof = Proof { seal, ready, proven, floor, is_uniform, made };
        Ok(Self { life, proof, promised, is_active })
    }
}
