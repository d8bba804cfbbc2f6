//! The operation history of a record: the last conditional writes of its key. It shows whether a
//! retried conditional write was done before.

use crate::layout::BadRecord;

/// Maximum number of conditional writes in a record.
pub const MAX_OPERATIONS: usize = 8;

const STEP_AT: usize = 8;
const COUNT_AT: usize = 12;
const RESULTS_AT: usize = 13;
const IDS_AT: usize = 14;

/// First byte of an extension with digests.
const DIGESTS: u8 = 1;

/// The operation history of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpHistory {
    /// Number of conditional writes since the plain write of the base version.
    pub step: u32,
    /// The last conditional writes, at most [`MAX_OPERATIONS`], oldest first.
    pub operations: Vec<Operation>,
}

/// A completed conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Id that identifies the conditional write when it is retried.
    pub id: u64,
    /// Result of an addition; `None` for other operations.
    pub result: Option<i64>,
    /// Digest of the client's request, if it has an idempotency key; 0 = unknown.
    pub digest: u64,
}

impl OpHistory {
    /// Returns the operations with their step numbers, newest first.
    pub fn with_step_numbers(&self) -> impl Iterator<Item = (u32, &Operation)> {
        let newest_first = self.operations.iter().rev().enumerate();
        newest_first.map(|(later, operation)| (self.step.wrapping_sub(later as u32), operation))
    }

    /// Returns a copy with one more operation at the end. The copy has at most [`MAX_OPERATIONS`],
    /// so the oldest operation may be dropped.
    #[must_use]
    pub fn with_operation(&self, operation: Operation) -> Self {
        let skip = (self.operations.len() + 1).saturating_sub(MAX_OPERATIONS);
        let mut operations = self.operations[skip..].to_vec();
        operations.push(operation);
        Self { step: self.step.wrapping_add(1), operations }
    }

    /// Returns true if the history decides whether the operation `id` was done, given that the
    /// operation cannot have a step before `step`.
    pub fn can_tell_outcome(&self, id: u64, step: u32) -> bool {
        let forgotten = self.step.wrapping_sub(self.operations.len() as u32);
        is_earlier_step(forgotten, step) || self.has(id)
    }

    /// The id of the last operation.
    pub fn last(&self) -> Option<u64> {
        self.operations.last().map(|operation| operation.id)
    }

    /// Returns true if the operation is in the history.
    pub fn has(&self, id: u64) -> bool {
        self.operations.iter().any(|operation| operation.id == id)
    }
}

/// Returns true if step `one` precedes step `other` of the same base version. Steps wrap around at
/// 2³² (serial number arithmetic, RFC 1982, section 3.2), so they must be less than 2³¹ apart.
pub fn is_earlier_step(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

/// Encoded length of a record's history in bytes.
pub(crate) fn encoded_len(operations: &[Operation]) -> usize {
    let results = operations.iter().filter(|operation| operation.result.is_some());
    IDS_AT + 8 * (operations.len() + results.count())
}

/// Appends the history of a record.
pub(crate) fn encode(out: &mut Vec<u8>, ballot: u64, step: u32, operations: &[Operation]) {
    let count = operations.len();
    assert!(count <= MAX_OPERATIONS, "too many operations");
    let has_result =
        |(k, operation): (usize, &Operation)| u8::from(operation.result.is_some()) << k;
    out.extend_from_slice(&ballot.to_le_bytes());
    out.extend_from_slice(&step.to_le_bytes());
    out.push(count as u8);
    out.push(operations.iter().enumerate().map(has_result).sum());
    operations.iter().for_each(|operation| out.extend_from_slice(&operation.id.to_le_bytes()));
    let results = operations.iter().filter_map(|operation| operation.result);
    results.for_each(|result| out.extend_from_slice(&result.to_le_bytes()));
}

/// Length in bytes of the extension with the operations' digests; 0 = no digest is known.
pub(crate) fn digests_len(operations: &[Operation]) -> usize {
    match operations.iter().filter(|operation| operation.digest != 0).count() {
        0 => 0,
        known => 2 + 8 * known,
    }
}

/// Appends the extension with the operations' digests, if any is known.
pub(crate) fn encode_digests(out: &mut Vec<u8>, operations: &[Operation]) {
    let known = operations.iter().enumerate().filter(|(_, operation)| operation.digest != 0);
    let mask: u8 = known.clone().map(|(k, _)| 1 << k).sum();
    if mask != 0 {
        out.extend_from_slice(&[DIGESTS, mask]);
        known.for_each(|(_, operation)| out.extend_from_slice(&operation.digest.to_le_bytes()));
    }
}

/// Decodes the digests of `operations` operations from a record's extension. Returns zeros if the
/// extension has no digests or does not match the operations.
pub(crate) fn digests(extension: &[u8], operations: usize) -> [u64; MAX_OPERATIONS] {
    let mut digests = [0; MAX_OPERATIONS];
    let [DIGESTS, known, rest @ ..] = extension else { return digests };
    if u32::from(*known) >> operations != 0 || rest.len() != 8 * known.count_ones() as usize {
        return digests;
    }
    let are_known = digests.iter_mut().enumerate().filter(|(k, _)| known >> k & 1 == 1);
    for ((_, digest), bytes) in are_known.zip(rest.as_chunks().0) {
        *digest = u64::from_le_bytes(*bytes);
    }
    digests
}

/// An encoded history, followed by the rest of its record.
#[derive(Clone, Copy)]
pub(crate) struct OpHistoryRef<'a>(&'a [u8]);

impl<'a> OpHistoryRef<'a> {
    /// Checks and wraps the history at the start of `raw`.
    pub(crate) fn parse(raw: &'a [u8]) -> Result<Self, BadRecord> {
        if raw.len() < IDS_AT {
            return Err(BadRecord("shorter than its own parts"));
        }
        let (count, results) = (u32::from(raw[COUNT_AT]), u32::from(raw[RESULTS_AT]));
        if count as usize > MAX_OPERATIONS || results >> count != 0 {
            return Err(BadRecord("numbers of operations and results that do not fit"));
        }
        let history = Self(raw);
        if history.u64_at(0) == 0 {
            return Err(BadRecord("a conditional write without a ballot"));
        }
        if history.len() > raw.len() {
            return Err(BadRecord("shorter than its own parts"));
        }
        Ok(history)
    }

    /// Wraps bytes that [`Self::parse`] has checked before.
    pub(crate) fn from_trusted(raw: &'a [u8]) -> Self {
        Self(raw)
    }

    /// Number of conditional writes since the plain write of the base version.
    pub(crate) fn step(&self) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[STEP_AT..STEP_AT + 4]);
        u32::from_le_bytes(bytes)
    }

    /// The id of the last operation.
    pub(crate) fn last(&self) -> Option<u64> {
        let before = self.count().checked_sub(1)?;
        Some(self.u64_at(IDS_AT + 8 * before))
    }

    /// Decodes the history, with the digests from the record's extension.
    pub(crate) fn to_op_history(self, extension: &[u8]) -> OpHistory {
        let count = self.count();
        let (mut result_at, digests) = (IDS_AT + 8 * count, digests(extension, count));
        let operation = |(k, digest): (usize, u64)| {
            let result = (self.0[RESULTS_AT] >> k & 1 == 1).then(|| {
                result_at += 8;
                self.u64_at(result_at - 8) as i64
            });
            Operation { id: self.u64_at(IDS_AT + 8 * k), result, digest }
        };
        let operations = digests.into_iter().take(count).enumerate().map(operation).collect();
        OpHistory { step: self.step(), operations }
    }

    /// Encoded length of the history in bytes.
    pub(crate) fn len(&self) -> usize {
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
