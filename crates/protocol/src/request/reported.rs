//! A record as a replica reported it.

use record::{Rank, Record, RecordOutline};

/// A replica's record, reported whole or as an outline.
#[derive(Debug, Clone)]
pub(crate) enum ReportedRecord {
    /// The whole record.
    Whole(Record),
    /// The record without its content, because the record is long and was not sent, or because the
    /// content was dropped.
    Outline(RecordOutline),
}

impl ReportedRecord {
    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Whole(record) => record.rank(),
            Self::Outline(outline) => outline.rank,
        }
    }

    /// Returns the time at which the record was written ([`Rank::write_time`]).
    pub(crate) fn write_time(&self) -> u64 {
        match self {
            Self::Whole(record) => record.write_time(),
            Self::Outline(outline) => outline.rank.write_time(),
        }
    }

    pub(crate) fn whole(&self) -> Option<&Record> {
        match self {
            Self::Whole(record) => Some(record),
            Self::Outline(_) => None,
        }
    }

    pub(crate) fn into_whole(self) -> Option<Record> {
        match self {
            Self::Whole(record) => Some(record),
            Self::Outline(_) => None,
        }
    }

    /// Drops the record's content, and keeps the outline.
    pub(crate) fn drop_content(&mut self) {
        if let Self::Whole(record) = self {
            *self = Self::Outline(record.outline());
        }
    }
}
