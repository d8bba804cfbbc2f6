//! The writer of the log. One thread at a time, the commit leader, appends. A second thread
//! prepares segments ahead of use and, in the mode `Interval`, syncs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SegmentEnd;
use super::format::{GROUP_HEAD, SEGMENT_HEAD, SegmentHead, finish_group, segment_name};
use crate::disk::{Disk, File};
use crate::error::{Error, IoOp};

/// An allocated segment without a header.
pub(crate) struct PreparedSegment {
    segment: u64,
    file: Arc<dyn File>,
    bytes: u64,
}

impl PreparedSegment {
    /// The name of the segment's file.
    pub(crate) fn name(&self) -> String {
        segment_name(self.segment)
    }

    /// Allocated bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Creates and allocates a segment, and makes its name and length durable.
pub(crate) fn prepare(
    disk: &dyn Disk,
    segment: u64,
    bytes: u64,
    zeroed: bool,
) -> Result<PreparedSegment, Error> {
    let name = segment_name(segment);
    let made = disk.create(&name).map_err(|error| Error::io(IoOp::Create, &name, error));
    let file = made?;
    let ready = file
        .allocate(bytes, zeroed)
        .map_err(|error| Error::io(IoOp::Allocate, &name, error))
        .and_then(|()| file.sync_data().map_err(|error| Error::io(IoOp::Sync, &name, error)))
        .and_then(|()| disk.sync_dir().map_err(|error| Error::io(IoOp::Sync, "directory", error)));
    match ready {
        Ok(()) => Ok(PreparedSegment { segment, file, bytes }),
        Err(error) => {
            // Nothing refers to the segment yet; if the removal also fails, recovery finds a
            // segment without a header.
            let _ = disk.remove(&name);
            Err(error.with_purpose("the log"))
        }
    }
}

/// Files to sync, and the sequence up to which the log is durable after the sync.
pub(crate) struct SyncTarget {
    pub(crate) files: Vec<(String, Arc<dyn File>)>,
    pub(crate) sequence: u64,
}

/// The writer of the log.
pub(crate) struct Wal {
    store_id: u64,
    segment: u64,
    file: Arc<dyn File>,
    offset: u64,
    capacity: u64,
    next_sequence: u64,
    /// Highest sequence known to be durable. The interval sync raises this sequence too.
    durable: Arc<AtomicU64>,
    /// Segments written since the last sync, oldest first; the last is the current one.
    unsynced: VecDeque<(u64, Arc<dyn File>)>,
    /// First sequence of every segment that is still on disk.
    segments: BTreeMap<u64, u64>,
    buffer: Vec<u8>,
    written: u64,
}

/// Capacity of the group buffer in bytes beyond which the buffer is freed after a large group.
const KEEP_BUFFER: usize = 1 << 20;

impl Wal {
    /// Starts the log of this process run in a prepared segment.
    pub(crate) fn start(
        store_id: u64,
        prepared: PreparedSegment,
        next_sequence: u64,
        manifest_edits: u64,
        older: BTreeMap<u64, u64>,
    ) -> Result<Self, Error> {
        let mut wal = Self {
            store_id,
            segment: 0,
            file: Arc::clone(&prepared.file),
            offset: 0,
            capacity: 0,
            next_sequence,
            durable: Arc::new(AtomicU64::new(next_sequence - 1)),
            unsynced: VecDeque::new(),
            segments: older,
            buffer: Vec::new(),
            written: 0,
        };
        wal.activate(prepared, manifest_edits)?;
        wal.sync()?;
        Ok(wal)
    }

    /// Returns true if a payload of this length needs the next segment.
    pub(crate) fn needs_new_segment(&self, payload_len: usize) -> bool {
        self.offset + group_bound(payload_len) > self.capacity
    }

    /// Bytes that a new segment needs for a payload of this length.
    pub(crate) fn segment_bound(payload_len: usize) -> u64 {
        SEGMENT_HEAD as u64 + group_bound(payload_len)
    }

    /// Activates a prepared segment.
    pub(crate) fn activate(
        &mut self,
        next: PreparedSegment,
        manifest_edits: u64,
    ) -> Result<(), Error> {
        assert!(next.segment > self.segment, "segments only go forward");
        let head = SegmentHead {
            store_id: self.store_id,
            segment: next.segment,
            first_sequence: self.next_sequence,
            durable: self.durable.load(Ordering::Acquire),
            manifest_edits,
        };
        let name = segment_name(next.segment);
        next.file
            .write_all_at(&head.encode(), 0)
            .map_err(|error| Error::io(IoOp::Write, &name, error))?;
        self.segments.insert(next.segment, self.next_sequence);
        self.unsynced.push_back((next.segment, Arc::clone(&next.file)));
        self.segment = next.segment;
        self.file = next.file;
        self.offset = SEGMENT_HEAD as u64;
        self.capacity = next.bytes;
        self.written += SEGMENT_HEAD as u64;
        Ok(())
    }

    /// Writes one group and returns its sequence. After an error the content of the file is
    /// unknown, and the caller must not append again.
    pub(crate) fn append<'a>(
        &mut self,
        payloads: impl Iterator<Item = &'a [u8]>,
        operations: u32,
    ) -> Result<u64, Error> {
        self.buffer.clear();
        self.buffer.resize(GROUP_HEAD, 0);
        for payload in payloads {
            self.buffer.extend_from_slice(payload);
        }
        assert!(!self.needs_new_segment(self.buffer.len() - GROUP_HEAD), "the caller makes room");
        let sequence = self.next_sequence;
        let durable = self.durable.load(Ordering::Acquire);
        assert!(durable < sequence, "what is not written is not durable");
        finish_group(&mut self.buffer, self.store_id, self.segment, sequence, durable, operations);
        self.file
            .write_all_at(&self.buffer, self.offset)
            .map_err(|error| Error::io(IoOp::Write, &segment_name(self.segment), error))?;
        self.offset += self.buffer.len() as u64;
        self.written += self.buffer.len() as u64;
        self.next_sequence += 1;
        if self.buffer.capacity() > KEEP_BUFFER {
            self.buffer = Vec::new();
        }
        if self.unsynced.is_empty() {
            self.unsynced.push_back((self.segment, Arc::clone(&self.file)));
        }
        Ok(sequence)
    }

    /// Syncs all appended groups.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        let target = self.sync_target();
        target.run()?;
        self.record_synced(&target);
        Ok(())
    }

    /// The files for a sync that runs without the log's lock.
    pub(crate) fn sync_target(&self) -> SyncTarget {
        let files = self.unsynced.iter();
        SyncTarget {
            files: files.map(|(id, file)| (segment_name(*id), Arc::clone(file))).collect(),
            sequence: self.next_sequence - 1,
        }
    }

    /// Marks the groups of `target` as durable after [`SyncTarget::run`].
    pub(crate) fn record_synced(&mut self, target: &SyncTarget) {
        self.durable.fetch_max(target.sequence, Ordering::AcqRel);
        if target.sequence == self.next_sequence - 1 {
            self.unsynced.clear();
        } else {
            while self.unsynced.len() > 1 && self.unsynced[1].0 <= self.segment_of(target.sequence)
            {
                self.unsynced.pop_front();
            }
        }
    }

    fn segment_of(&self, sequence: u64) -> u64 {
        let holds = self.segments.iter().rev().find(|(_, first)| **first <= sequence);
        holds.map_or(0, |(segment, _)| *segment)
    }

    /// Sequence of the last appended group.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// The current end of the log.
    pub(crate) fn end(&self) -> SegmentEnd {
        SegmentEnd { segment: self.segment, end: self.offset, next_sequence: self.next_sequence }
    }

    /// Sequence of the first group of the current segment.
    pub(crate) fn first_sequence(&self) -> u64 {
        self.segments[&self.segment]
    }

    /// Highest durable sequence.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Bytes written since the log was started.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Number of segments on disk, without the prepared one.
    pub(crate) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The oldest segment that is needed to replay all groups from sequence `floor` on.
    pub(crate) fn oldest_needed(&self, floor: u64) -> u64 {
        self.segment_of(floor).max(self.segments.keys().next().copied().unwrap_or(0))
    }

    /// Drops the segments before `oldest` from the list and returns them for removal.
    pub(crate) fn release_segments(&mut self, oldest: u64) -> Vec<u64> {
        assert!(oldest <= self.segment, "the current segment stays");
        let kept = self.segments.split_off(&oldest);
        let released = std::mem::replace(&mut self.segments, kept);
        self.unsynced.retain(|(segment, _)| *segment >= oldest);
        released.into_keys().collect()
    }
}

impl SyncTarget {
    /// Syncs the files, oldest first.
    pub(crate) fn run(&self) -> Result<(), Error> {
        for (name, file) in &self.files {
            file.sync_data().map_err(|error| Error::io(IoOp::Sync, name, error))?;
        }
        Ok(())
    }
}

fn group_bound(payload_len: usize) -> u64 {
    (GROUP_HEAD + payload_len + super::format::GROUP_ALIGN) as u64
}
