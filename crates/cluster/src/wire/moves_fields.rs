//! How far a node is in a transition, as bytes.
//!
//! ```text
//!   epoch 8 │ has all 1 │ sources done 2, of 2 │ records 8 │ bytes 8
//! ```

use super::Malformed;
use super::field::Field;
use super::out::Out;
use super::reader::FieldReader;
use crate::message::MovesState;

impl Field for MovesState {
    type Value = Self;

    fn put(value: &Self, out: &mut impl Out) {
        let Self { epoch, has_all, sources: (done, all), records, bytes } = *value;
        out.u64(epoch);
        out.yes_or_no(has_all);
        [done, all].into_iter().for_each(|n| out.u16(n));
        [records, bytes].into_iter().for_each(|n| out.u64(n));
    }

    fn take(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        let (epoch, has_all) = (from.u64()?, from.yes_or_no()?);
        let sources = (from.u16()?, from.u16()?);
        Ok(Self { epoch, has_all, sources, records: from.u64()?, bytes: from.u64()? })
    }
}
