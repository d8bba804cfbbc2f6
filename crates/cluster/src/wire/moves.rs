//! What is asked of sources and receivers while partitions move, as bytes.
//!
//! ```text
//!   moved:  node 2 │ first 1 │ seed 8 │ n 4 │ n × digest 8
//!   state:  epoch 8 │ has all 1 │ sources done 2, of 2 │ records 8 │ bytes 8
//! ```

use super::Malformed;
use super::decode::Reader;
use crate::filter::MAX_KNOWN;
use crate::message::{Filter, MovesState, NodeId};

/// Bytes of what a receiver reports.
pub(super) const MOVES_LEN: usize = 8 + 1 + 4 + 16;

/// Bytes of a filter before its digests.
const MOVED_LEN: usize = 2 + 1 + 8 + 4;

pub(super) fn moved_len(known: &[u64]) -> usize {
    MOVED_LEN + 8 * known.len()
}

pub(super) fn put_moved(
    out: &mut Vec<u8>,
    (node, first, seed): (NodeId, bool, u64),
    known: &[u64],
) {
    out.extend_from_slice(&node.0.to_le_bytes());
    out.push(u8::from(first));
    out.extend_from_slice(&seed.to_le_bytes());
    out.extend_from_slice(&(known.len() as u32).to_le_bytes());
    known.iter().for_each(|digest| out.extend_from_slice(&digest.to_le_bytes()));
}

pub(super) fn put_moves(out: &mut Vec<u8>, state: &MovesState) {
    let MovesState { epoch, has_all, sources: (done, all), records, bytes } = state;
    out.extend_from_slice(&epoch.to_le_bytes());
    out.push(u8::from(*has_all));
    [done, all].into_iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
    [records, bytes].into_iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
}

impl Reader {
    pub(super) fn moved(&mut self) -> Result<Filter, Malformed> {
        let (node, first, seed) = (NodeId(self.u16()?), self.yes_or_no()?, self.u64()?);
        let count = self.u32()? as usize;
        if count > MAX_KNOWN || count > self.left() / 8 {
            return Err(Malformed("more digests than may be told"));
        }
        let known = (0..count).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(Filter::Moved { node, first, seed, known })
    }

    pub(super) fn moves(&mut self) -> Result<MovesState, Malformed> {
        let (epoch, has_all) = (self.u64()?, self.yes_or_no()?);
        let sources = (self.u16()?, self.u16()?);
        Ok(MovesState { epoch, has_all, sources, records: self.u64()?, bytes: self.u64()? })
    }
}
