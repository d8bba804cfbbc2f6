//! Steps of rounds as bytes, and what a node reports of itself in one.

use super::Malformed;
use super::decode::Reader;
use crate::directory::LifeId;
use crate::message::NodeId;
use crate::proof::{Proof, RoundId, RoundState, RoundStep};

/// Bytes of a round.
pub(super) const ROUND_LEN: usize = 8 + 2;

/// Bytes of a step: its round, which one it is, a ballot, and whether copies are uniform.
pub(super) const STEP_LEN: usize = ROUND_LEN + 1 + 8 + 1;

/// Bytes of what a node reports: its life, three rounds, when its directory was made, two ballots,
/// and whether copies are uniform and a round is at work.
pub(super) const STATE_LEN: usize = 8 + 3 * ROUND_LEN + 8 + 2 * 8 + 2;

pub(super) fn put_round(out: &mut Vec<u8>, round: RoundId) {
    out.extend_from_slice(&round.time.to_le_bytes());
    out.extend_from_slice(&round.node.0.to_le_bytes());
}

pub(super) fn put_step(out: &mut Vec<u8>, round: RoundId, step: RoundStep) {
    put_round(out, round);
    let (code, (floor, is_uniform)) = match step {
        RoundStep::Ask => (0, (0, false)),
        RoundStep::Seal => (1, (0, false)),
        RoundStep::Ready => (2, (0, false)),
        RoundStep::Commit { floor, is_uniform } => (3, (floor, is_uniform)),
    };
    out.push(code);
    out.extend_from_slice(&floor.to_le_bytes());
    out.push(u8::from(is_uniform));
}

pub(super) fn put_state(out: &mut Vec<u8>, state: &RoundState) {
    let RoundState { life, proof, promised, is_active } = state;
    let Proof { seal, ready, proven, floor, is_uniform, made } = proof;
    out.extend_from_slice(&life.0.to_le_bytes());
    [seal, ready, proven].into_iter().for_each(|round| put_round(out, *round));
    [made, floor, promised].into_iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
    out.extend_from_slice(&[u8::from(*is_uniform), u8::from(*is_active)]);
}

impl Reader {
    pub(super) fn round(&mut self) -> Result<RoundId, Malformed> {
        Ok(RoundId { time: self.u64()?, node: NodeId(self.u16()?) })
    }

    pub(super) fn step(&mut self) -> Result<(RoundId, RoundStep), Malformed> {
        let (round, code, floor) = (self.round()?, self.u8()?, self.u64()?);
        let is_uniform = self.yes_or_no()?;
        let step = match (code, floor, is_uniform) {
            (0, 0, false) => RoundStep::Ask,
            (1, 0, false) => RoundStep::Seal,
            (2, 0, false) => RoundStep::Ready,
            (3, floor, is_uniform) => RoundStep::Commit { floor, is_uniform },
            _ => return Err(Malformed("an unknown step of a round")),
        };
        Ok((round, step))
    }

    pub(super) fn state(&mut self) -> Result<RoundState, Malformed> {
        let life = LifeId(self.u64()?);
        let (seal, ready, proven) = (self.round()?, self.round()?, self.round()?);
        let (made, floor, promised) = (self.u64()?, self.u64()?, self.u64()?);
        let (is_uniform, is_active) = (self.yes_or_no()?, self.yes_or_no()?);
        let proof = Proof { seal, ready, proven, floor, is_uniform, made };
        Ok(RoundState { life, proof, promised, is_active })
    }

    pub(super) fn yes_or_no(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }
}
