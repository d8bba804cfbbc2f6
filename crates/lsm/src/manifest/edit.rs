//! Edits of the manifest's state, and their encoding (specified in `docs/formats/files.md`).

use super::{LevelTable, ManifestState};
use crate::table::{PurgeableSummary, TableMeta};
use crate::wal::SegmentEnd;
use record::Version;

/// One change of the state. Edits applied together become durable together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Replaces the whole state; the first edit of every file.
    Reset(ManifestState),
    /// Adds a table to the store.
    Add(LevelTable),
    /// Removes a table from the store.
    Remove(u64),
    /// Moves a table to another level, unchanged.
    Move(u64, u8),
    /// Raises the last sequence in the tables of a tree.
    Flushed {
        /// The number of the tree.
        tree: u8,
        /// The last sequence in the tree's tables.
        sequence: u64,
    },
    /// Raises the log's floor: the start of the part of the log that is still needed.
    Floor {
        /// Tables hold all groups before this sequence.
        sequence: u64,
        /// Oldest segment that is still needed.
        oldest_segment: u64,
    },
    /// Records the end of a segment that receives no more groups.
    End(SegmentEnd),
}

const RESET: u8 = 1;
const ADD: u8 = 2;
const REMOVE: u8 = 3;
const MOVE: u8 = 4;
const FLUSHED: u8 = 5;
const FLOOR: u8 = 6;
const END: u8 = 7;

impl Edit {
    pub(super) fn apply(&self, state: &mut ManifestState) {
        match self {
            Self::Reset(new) => *state = new.clone(),
            Self::Add(placed) => {
                state.next_table = state.next_table.max(placed.meta.id + 1);
                let old = state.tables.insert(placed.meta.id, placed.clone());
                assert!(old.is_none(), "table {} was there already", placed.meta.id);
            }
            Self::Remove(id) => {
                let old = state.tables.remove(id);
                assert!(old.is_some(), "table {id} was not there");
            }
            Self::Move(id, level) => {
                let table = state.tables.get_mut(id);
                table.expect("a table that moves is there").level = *level;
            }
            Self::Flushed { tree, sequence } => {
                let old = state.flushed.insert(*tree, *sequence);
                assert!(old.unwrap_or(0) <= *sequence, "flushes keep their order");
            }
            Self::Floor { sequence, oldest_segment } => {
                assert!(state.floor <= *sequence, "the log's floor only rises");
                (state.floor, state.oldest_segment) = (*sequence, *oldest_segment);
                state.ends.retain(|end| end.segment >= *oldest_segment);
            }
            Self::End(end) => {
                state.ends.retain(|old| old.segment != end.segment);
                state.ends.push(*end);
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Reset(state) => {
                out.push(RESET);
                put(out, &[state.floor, state.oldest_segment, state.next_table]);
                put(out, &[state.tables.len() as u64]);
                state.tables.values().for_each(|placed| encode_placed(out, placed));
                put(out, &[state.flushed.len() as u64]);
                for (tree, sequence) in &state.flushed {
                    out.push(*tree);
                    put(out, &[*sequence]);
                }
                put(out, &[state.ends.len() as u64]);
                state.ends.iter().for_each(|end| encode_end(out, end));
            }
            Self::Add(placed) => {
                out.push(ADD);
                encode_placed(out, placed);
            }
            Self::Remove(id) => {
                out.push(REMOVE);
                put(out, &[*id]);
            }
            Self::Move(id, level) => {
                out.push(MOVE);
                put(out, &[*id]);
                out.push(*level);
            }
            Self::Flushed { tree, sequence } => {
                out.push(FLUSHED);
                out.push(*tree);
                put(out, &[*sequence]);
            }
            Self::Floor { sequence, oldest_segment } => {
                out.push(FLOOR);
                put(out, &[*sequence, *oldest_segment]);
            }
            Self::End(end) => {
                out.push(END);
                encode_end(out, end);
            }
        }
    }
}

pub(super) fn encode(edits: &[Edit]) -> Vec<u8> {
    let mut out = Vec::new();
    for edit in edits {
        edit.encode(&mut out);
    }
    out
}

/// Decodes the edits of one entry of the manifest.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Edit>, &'static str> {
    let mut input = Input { bytes };
    let mut edits = Vec::new();
    while !input.bytes.is_empty() {
        edits.push(decode_one(&mut input)?);
    }
    Ok(edits)
}

fn decode_one(input: &mut Input<'_>) -> Result<Edit, &'static str> {
    Ok(match input.u8()? {
        RESET => {
            let mut state = ManifestState {
                floor: input.u64()?,
                oldest_segment: input.u64()?,
                next_table: input.u64()?,
                ..ManifestState::default()
            };
            for _ in 0..input.u64()? {
                let placed = decode_placed(input)?;
                state.tables.insert(placed.meta.id, placed);
            }
            for _ in 0..input.u64()? {
                let tree = input.u8()?;
                state.flushed.insert(tree, input.u64()?);
            }
            for _ in 0..input.u64()? {
                state.ends.push(decode_end(input)?);
            }
            Edit::Reset(state)
        }
        ADD => Edit::Add(decode_placed(input)?),
        REMOVE => Edit::Remove(input.u64()?),
        MOVE => Edit::Move(input.u64()?, input.u8()?),
        FLUSHED => Edit::Flushed { tree: input.u8()?, sequence: input.u64()? },
        FLOOR => Edit::Floor { sequence: input.u64()?, oldest_segment: input.u64()? },
        END => Edit::End(decode_end(input)?),
        _ => return Err("an edit of unknown kind"),
    })
}

fn put(out: &mut Vec<u8>, fields: &[u64]) {
    for field in fields {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn encode_end(out: &mut Vec<u8>, end: &SegmentEnd) {
    put(out, &[end.segment, end.end, end.next_sequence]);
}

fn decode_end(input: &mut Input<'_>) -> Result<SegmentEnd, &'static str> {
    Ok(SegmentEnd { segment: input.u64()?, end: input.u64()?, next_sequence: input.u64()? })
}

fn encode_placed(out: &mut Vec<u8>, placed: &LevelTable) {
    let meta = &placed.meta;
    out.push(placed.tree);
    out.push(placed.level);
    put(out, &[meta.id, meta.bytes, meta.entries, meta.values, meta.check]);
    put(out, &[meta.max_version.time]);
    out.extend_from_slice(&meta.max_version.origin.to_le_bytes());
    put(out, &[meta.min_write_time, meta.max_write_time]);
    for purgeable in [&meta.deleted, &meta.expiring] {
        put(out, &[purgeable.records, purgeable.bytes, purgeable.latest]);
    }
    put_bytes(out, &meta.smallest);
    put_bytes(out, &meta.largest);
}

fn decode_placed(input: &mut Input<'_>) -> Result<LevelTable, &'static str> {
    let (tree, level) = (input.u8()?, input.u8()?);
    let (id, bytes, entries) = (input.u64()?, input.u64()?, input.u64()?);
    let (values, check) = (input.u64()?, input.u64()?);
    let max_version = Version { time: input.u64()?, origin: input.u32()? };
    let (min_write_time, max_write_time) = (input.u64()?, input.u64()?);
    let (deleted, expiring) = (decode_purgeable(input)?, decode_purgeable(input)?);
    let (smallest, largest) = (input.bytes()?.to_vec(), input.bytes()?.to_vec());
    let meta = TableMeta {
        id,
        bytes,
        entries,
        values,
        smallest: smallest.into(),
        largest: largest.into(),
        max_version,
        min_write_time,
        max_write_time,
        deleted,
        expiring,
        check,
    };
    Ok(LevelTable { tree, level, meta })
}

fn decode_purgeable(input: &mut Input<'_>) -> Result<PurgeableSummary, &'static str> {
    Ok(PurgeableSummary { records: input.u64()?, bytes: input.u64()?, latest: input.u64()? })
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        if self.bytes.len() < len {
            return Err("an edit is cut short");
        }
        let (taken, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        let mut field = [0; 4];
        field.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(field))
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        let mut field = [0; 8];
        field.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(field))
    }

    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let len = self.u32()? as usize;
        self.take(len)
    }
}
