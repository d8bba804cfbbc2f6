//! The encoding of a node's progress in a transition. Each field is followed by its length in
//! bytes.
//!
//! ```text
//!   epoch 8 │ has all 1 │ completed sources 2 │ all sources 2 │ pulled records 8 │ pulled bytes 8
//!   source waited for 2 │ end of the wait 8 (both 0 = no wait)
//! ```

use super::Malformed;
use super::field::Field;
use super::out::Out;
use super::reader::FieldReader;
use crate::message::{MovesState, NodeId, Waits};

impl Field for MovesState {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { epoch, has_all, sources: (done, all), records, bytes, waits } = *value;
        out.u64(epoch);
        out.bool(has_all);
        [done, all].into_iter().for_each(|n| out.u16(n));
        [records, bytes].into_iter().for_each(|n| out.u64(n));
        out.u16(waits.map_or(0, |waits| waits.source.0));
        out.u64(waits.map_or(0, |waits| waits.until));
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let (epoch, has_all) = (from.u64()?, from.bool()?);
        let sources = (from.u16()?, from.u16()?);
        let (records, bytes) = (from.u64()?, from.u64()?);
        let waits = Waits { source: NodeId(from.u16()?), until: from.u64()? };
        let waits = match waits {
            Waits { source: NodeId(0), until: 0 } => None,
            Waits { until: 0, .. } => return Err(Malformed("a wait without an end")),
            waits => Some(waits),
        };
        Ok(Self { epoch, has_all, sources, records, bytes, waits })
    }
}
