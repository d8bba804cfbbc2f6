//! Recovery of the log after a clean stop or a crash.
//!
//! Recovery reads segments in the order of their numbers and groups in the order of their
//! sequences. Where the chain breaks, the log itself distinguishes a *torn tail*, which was never
//! acknowledged as durable, from *damage* to durable data. See [`super`] for the rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::{
    BadHead, FORMAT, GROUP_ALIGN, SEGMENT_HEAD, SegmentHead, parse_segment_name, read_group,
    segment_name,
};
use crate::disk::{Disk, File};
use crate::error::{Error, IoOp};

/// The end of a recovered segment, as stored in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    pub(crate) segment: u64,
    /// Bytes of the segment that belong to the log; 0 = none.
    pub(crate) end: u64,
    /// Sequence after the segment's last group.
    pub(crate) next_sequence: u64,
}

/// The state of the log according to the manifest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedLog<'a> {
    pub(crate) store_id: u64,
    /// Number of the oldest segment in use; older files await removal. 0 = no log was ever started.
    pub(crate) oldest_segment: u64,
    /// Tables hold all groups before this sequence.
    pub(crate) floor: u64,
    /// Highest sequence in any table. The log must not end before this sequence.
    pub(crate) flushed: u64,
    pub(crate) ends: &'a [SegmentEnd],
}

/// Result of a recovery.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    pub(crate) next_sequence: u64,
    /// First sequence of each surviving segment.
    pub(crate) segments: BTreeMap<u64, u64>,
    /// Number for the next segment, never used before.
    pub(crate) next_segment: u64,
    /// Segment ends to record in the manifest before the next segment is used.
    pub(crate) ends: Vec<SegmentEnd>,
    /// Segments to remove once their ends are recorded.
    pub(crate) discarded: Vec<u64>,
    /// True if recovery found a torn group after the log's end, or groups that were never
    /// acknowledged as durable.
    pub(crate) torn: bool,
}

/// Refuses a manifest that is older than its log, or a log whose beginning is missing. Reads only
/// the segment headers and changes nothing.
pub(crate) fn check_not_stale(
    disk: &dyn Disk,
    expected: &ExpectedLog<'_>,
    manifest_edits: u64,
) -> Result<(), Error> {
    let ids = segments(disk)?;
    for end in expected.ends.iter().filter(|end| end.end > 0) {
        if end.segment >= expected.oldest_segment && !ids.contains(&end.segment) {
            let name = segment_name(end.segment);
            return Err(Error::corrupt(&name, 0, "it is missing, but the manifest names it"));
        }
    }
    let mut begun = false;
    for id in ids.into_iter().filter(|id| expected.is_in_use(*id)) {
        let name = segment_name(id);
        let failed = |error| Error::io(IoOp::Read, &name, error);
        let file = disk.open(&name).map_err(failed)?;
        let mut head = [0; SEGMENT_HEAD];
        if file.len().map_err(failed)? < SEGMENT_HEAD as u64 {
            continue;
        }
        file.read_exact_at(&mut head, 0).map_err(failed)?;
        // A segment without a valid header is empty, or the replay reports its damage.
        let Ok(head) = SegmentHead::decode(&head, expected.store_id, id) else { continue };
        if head.manifest_edits > manifest_edits {
            let what = format!(
                "it has {manifest_edits} edits, but {name} was begun after edit {}: \
                 an older copy was put back",
                head.manifest_edits
            );
            return Err(Error::corrupt("MANIFEST", 0, what));
        }
        if !begun && head.first_sequence > expected.floor {
            let what = format!(
                "it begins with sequence {}, but tables hold only those before {}: \
                 an older segment is missing, or an older manifest was put back",
                head.first_sequence, expected.floor
            );
            return Err(Error::corrupt(&name, 0, what));
        }
        begun = true;
    }
    Ok(())
}

/// Numbers of all segments on the disk, ascending.
fn segments(disk: &dyn Disk) -> Result<Vec<u64>, Error> {
    let names = disk.list().map_err(|error| Error::io(IoOp::List, "directory", error))?;
    let mut ids: Vec<u64> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    ids.sort_unstable();
    Ok(ids)
}

impl SegmentEnd {
    /// Returns true if any group of the segment belongs to the log.
    pub(crate) fn has_groups(&self) -> bool {
        self.end > SEGMENT_HEAD as u64
    }
}

impl ExpectedLog<'_> {
    fn recorded_end(&self, segment: u64) -> Option<&SegmentEnd> {
        self.ends.iter().find(|end| end.segment == segment)
    }

    /// Returns true if the segment is part of the log, false if its file awaits removal.
    fn is_in_use(&self, segment: u64) -> bool {
        segment >= self.oldest_segment && self.recorded_end(segment).is_none_or(|end| end.end > 0)
    }
}

/// Syncs the log and replays it through `apply` (sequence, payload).
pub(crate) fn recover(
    disk: &dyn Disk,
    expected: &ExpectedLog<'_>,
    apply: &mut dyn FnMut(u64, &[u8]) -> Result<(), Error>,
) -> Result<RecoveredLog, Error> {
    let ids = segments(disk)?;
    let mut replay = Replay {
        expected,
        next: None,
        last: None,
        found: RecoveredLog {
            next_sequence: 0,
            segments: BTreeMap::new(),
            next_segment: ids.last().map_or(1, |last| last + 1),
            ends: Vec::new(),
            discarded: Vec::new(),
            torn: false,
        },
    };
    for id in ids {
        let recorded = expected.recorded_end(id);
        if !expected.is_in_use(id) {
            replay.found.discarded.push(id);
            continue;
        }
        let segment = Segment::read(disk, id)?;
        // Rewriting and syncing come before the replay. Otherwise a flush during the replay could
        // put records into a table while the log may still lose those records.
        if recorded.is_none() {
            segment.rewrite()?;
        }
        segment.sync()?;
        replay.segment(&segment, recorded, apply)?;
    }
    replay.finish()
}

struct Segment {
    id: u64,
    name: String,
    file: Arc<dyn File>,
    bytes: Vec<u8>,
    /// Length without trailing zeros. A segment that was activated shortly before the stop is
    /// mostly zeros.
    written: usize,
}

/// Trailing zeros are skipped in chunks of this length.
const ZEROS: [u8; 4096] = [0; 4096];

fn written_len(bytes: &[u8]) -> usize {
    let zeros = bytes.rchunks(ZEROS.len()).take_while(|chunk| **chunk == ZEROS[..chunk.len()]);
    let rest = &bytes[..bytes.len() - zeros.map(<[u8]>::len).sum::<usize>()];
    rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

impl Segment {
    fn read(disk: &dyn Disk, id: u64) -> Result<Self, Error> {
        let name = segment_name(id);
        let failed = |error| Error::io(IoOp::Read, &name, error);
        let file = disk.open(&name).map_err(failed)?;
        let mut bytes = vec![0; file.len().map_err(failed)? as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let written = written_len(&bytes);
        Ok(Self { id, name, file, bytes, written })
    }

    /// Rewrites the segment with the same bytes. After a failed sync, the page cache may hold data
    /// that the disk lacks and consider the data clean; only rewritten data is sure to reach the
    /// disk with the next sync.
    fn rewrite(&self) -> Result<(), Error> {
        let again = self.file.write_all_at(&self.bytes[..self.written], 0);
        again.map_err(|error| Error::io(IoOp::Write, &self.name, error))
    }

    fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|error| Error::io(IoOp::Sync, &self.name, error))
    }

    fn corrupt(&self, offset: usize, what: impl Into<String>) -> Error {
        Error::corrupt(&self.name, offset as u64, what)
    }
}

struct Replay<'a> {
    expected: &'a ExpectedLog<'a>,
    /// Sequence of the next group; `None` before the first segment.
    next: Option<u64>,
    /// The last segment that holds part of the log, with the end of that part.
    last: Option<(u64, usize)>,
    found: RecoveredLog,
}

impl Replay<'_> {
    fn segment(
        &mut self,
        segment: &Segment,
        recorded: Option<&SegmentEnd>,
        apply: &mut dyn FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(head) = self.head(segment, recorded)? else { return Ok(()) };
        if !self.continues(segment, &head)? {
            if recorded.is_some() {
                return Err(segment.corrupt(0, "its end is recorded, but the log ends before it"));
            }
            return self.check_rest(segment, 0);
        }
        let start = self.next.unwrap_or(head.first_sequence);
        let (mut next, mut at) = (start, SEGMENT_HEAD);
        let limit = recorded.map_or(segment.bytes.len(), |end| end.end as usize);
        let Some(counted) = segment.bytes.get(..limit) else {
            return Err(segment.corrupt(segment.bytes.len(), "cut short of its recorded end"));
        };
        while let Some(group) = read_group(&counted[at.min(limit)..], self.store(), segment.id) {
            if group.sequence != next {
                break;
            }
            apply(group.sequence, group.payload)?;
            // A truncated file may lack the padding of its last group.
            at = (at + group.len).min(segment.bytes.len());
            next += 1;
        }
        self.next = Some(next);
        self.last = Some((segment.id, at));
        self.found.segments.insert(segment.id, head.first_sequence);
        match recorded {
            Some(end) if at == limit && next == end.next_sequence => Ok(()),
            Some(_) => Err(segment.corrupt(at, "a group before the recorded end does not match")),
            None => {
                let end = SegmentEnd { segment: segment.id, end: at as u64, next_sequence: next };
                self.found.ends.push(end);
                self.check_rest(segment, at)
            }
        }
    }

    /// The segment's header; `None` if the segment has no header and holds no synced group.
    fn head(
        &mut self,
        segment: &Segment,
        recorded: Option<&SegmentEnd>,
    ) -> Result<Option<SegmentHead>, Error> {
        match SegmentHead::decode(&segment.bytes, self.store(), segment.id) {
            Ok(head) => Ok(Some(head)),
            Err(BadHead::NewerVersion(found)) => {
                Err(Error::NewerFormat { file: segment.name.clone(), found, supported: FORMAT })
            }
            Err(BadHead::Invalid) if recorded.is_some() => {
                Err(segment.corrupt(0, "its header does not match"))
            }
            Err(BadHead::Invalid) => {
                self.check_rest(segment, 0)?;
                self.found.discarded.push(segment.id);
                Ok(None)
            }
        }
    }

    /// Returns true if the segment continues the log, false if the log ends before the segment.
    /// Fails if durable groups are missing between the two.
    fn continues(&mut self, segment: &Segment, head: &SegmentHead) -> Result<bool, Error> {
        match self.next {
            None => Ok(true),
            Some(next) if head.first_sequence == next && !self.found.torn => Ok(true),
            Some(next) if head.durable >= next || head.first_sequence < next => Err(segment
                .corrupt(
                    0,
                    format!("the log before it ends at sequence {next}, which had been synced"),
                )),
            Some(_) => {
                self.found.torn = true;
                self.found.discarded.push(segment.id);
                Ok(false)
            }
        }
    }

    /// Checks the bytes of a segment from `from` on, which is the log's end. Fails if a later group
    /// proves that the group at the log's end had been synced.
    fn check_rest(&mut self, segment: &Segment, from: usize) -> Result<(), Error> {
        let mut at = from.next_multiple_of(GROUP_ALIGN);
        while at < segment.written {
            match read_group(&segment.bytes[at..], self.store(), segment.id) {
                Some(group) => {
                    if group.durable >= self.next.unwrap_or(self.expected.floor) {
                        return Err(segment.corrupt(
                            from,
                            format!(
                                "a group there is damaged although the one at byte {at} shows \
                                 that it had been synced"
                            ),
                        ));
                    }
                    self.found.torn = true;
                    at += group.len;
                }
                None => at += GROUP_ALIGN,
            }
        }
        self.found.torn |= from > 0 && from < segment.written;
        Ok(())
    }

    fn finish(mut self) -> Result<RecoveredLog, Error> {
        let (Some(next), Some((segment, end))) = (self.next, self.last) else {
            if self.expected.oldest_segment == 0 {
                // The process crashed while it created the store, before it activated the first
                // segment.
                self.found.next_sequence = self.expected.floor;
                return Ok(self.found);
            }
            return Err(Error::corrupt(
                "*.wal",
                0,
                "no log segment is there, but the store exists",
            ));
        };
        if next <= self.expected.flushed {
            return Err(Error::corrupt(
                &segment_name(segment),
                end as u64,
                format!(
                    "the log ends before sequence {next}, but tables hold sequence {}: \
                     an older log was put back",
                    self.expected.flushed
                ),
            ));
        }
        let discarded_ends =
            self.found.discarded.iter().filter(|id| self.expected.recorded_end(**id).is_none());
        let discarded_ends =
            discarded_ends.map(|&segment| SegmentEnd { segment, end: 0, next_sequence: next });
        self.found.ends.extend(discarded_ends);
        self.found.next_sequence = next;
        Ok(self.found)
    }

    fn store(&self) -> u64 {
        self.expected.store_id
    }
}
