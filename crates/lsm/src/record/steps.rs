//! What a conditional write adds to a record: its ballot, and the last conditional writes of the
//! key, by which one that is sent again is known.
//!
//! ```text
//!  ballot u64 │ step u32 │ count u8 │ results u8 │ id u64 × count │ result i64 × ones in results
//! ```
//!
//! Bit *k* of `results`: operation *k* has a result. The oldest operation is the first.

use bytes::BufMut;

use super::BadRecord;

/// How many conditional writes a record remembers.
pub const MAX_OPERATIONS: usize = 8;

const STEP_AT: usize = 8;
const COUNT_AT: usize = 12;
const RESULTS_AT: usize = 13;
const IDS_AT: usize = 14;

/// What a conditional write adds to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps<'a> {
    /// Under which ballot the record was made, a time of a version; not 0. Of two records of one
    /// version it decides.
    pub ballot: u64,
    /// How many conditional writes there were since the plain one that has the version.
    pub step: u32,
    /// The last of them, at most [`MAX_OPERATIONS`], the newest last.
    pub operations: &'a [Operation],
}

/// A conditional write that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Which one it was.
    pub id: u64,
    /// What an addition came to.
    pub result: Option<i64>,
}

impl Steps<'_> {
    pub(super) fn encoded_len(&self) -> usize {
        let results = self.operations.iter().filter(|operation| operation.result.is_some());
        IDS_AT + 8 * (self.operations.len() + results.count())
    }

    pub(super) fn encode(&self, out: &mut impl BufMut) {
        let count = self.operations.len();
        assert!(self.ballot != 0 && count <= MAX_OPERATIONS, "no ballot, or too many operations");
        let has_result =
            |(k, operation): (usize, &Operation)| u8::from(operation.result.is_some()) << k;
        out.put_u64_le(self.ballot);
        out.put_u32_le(self.step);
        out.put_u8(count as u8);
        out.put_u8(self.operations.iter().enumerate().map(has_result).sum());
        self.operations.iter().for_each(|operation| out.put_u64_le(operation.id));
        self.operations.iter().filter_map(|o| o.result).for_each(|result| out.put_i64_le(result));
    }
}

/// The steps of an encoded record, with what follows them.
#[derive(Debug, Clone, Copy)]
pub struct StepsRef<'a>(&'a [u8]);

impl<'a> StepsRef<'a> {
    /// Looks at the start of `raw`, which goes on behind them.
    pub(super) fn parse(raw: &'a [u8]) -> Result<Self, BadRecord> {
        if raw.len() < IDS_AT {
            return Err(BadRecord("shorter than its own parts"));
        }
        let (count, results) = (u32::from(raw[COUNT_AT]), u32::from(raw[RESULTS_AT]));
        if count as usize > MAX_OPERATIONS || results >> count != 0 {
            return Err(BadRecord("numbers of operations and results that do not fit"));
        }
        let steps = Self(raw);
        if steps.ballot() == 0 {
            return Err(BadRecord("a conditional write without a ballot"));
        }
        if steps.len() > raw.len() {
            return Err(BadRecord("shorter than its own parts"));
        }
        Ok(steps)
    }

    /// Looks at what was parsed before.
    pub(super) fn trusted(raw: &'a [u8]) -> Self {
        Self(raw)
    }

    /// Under which ballot the record was made.
    pub fn ballot(&self) -> u64 {
        self.u64_at(0)
    }

    /// How many conditional writes there were since the plain one that has the version.
    pub fn step(&self) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[STEP_AT..STEP_AT + 4]);
        u32::from_le_bytes(bytes)
    }

    /// The last of them, the newest last.
    pub fn operations(&self) -> impl ExactSizeIterator<Item = Operation> + use<'a> {
        let steps = *self;
        let mut result_at = IDS_AT + 8 * steps.count();
        (0..steps.count()).map(move |k| {
            let result = (steps.0[RESULTS_AT] >> k & 1 == 1).then(|| {
                result_at += 8;
                steps.u64_at(result_at - 8) as i64
            });
            Operation { id: steps.u64_at(IDS_AT + 8 * k), result }
        })
    }

    /// Bytes that they take.
    pub(super) fn len(&self) -> usize {
        IDS_AT + 8 * (self.count() + self.0[RESULTS_AT].count_ones() as usize)
    }

    fn count(&self) -> usize {
        usize::from(self.0[COUNT_AT])
    }

    fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(bytes)
    }
}
