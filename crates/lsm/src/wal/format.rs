//! The byte format of a segment: its header and the group headers. `docs/formats/files.md`
//! specifies the format, and tests compare it with the fixtures in `tests/`.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Current version of the segment format.
pub(crate) const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"KVWALSEG";
/// Length of a segment header in bytes.
pub(super) const SEGMENT_HEAD: usize = 64;
/// Length of a group header in bytes.
pub(super) const GROUP_HEAD: usize = 40;
/// Alignment of groups in bytes, which limits the offsets at which recovery searches for a group.
pub(super) const GROUP_ALIGN: usize = 8;

/// File name of a segment.
pub(crate) fn segment_name(segment: u64) -> String {
    format!("{segment:010}.wal")
}

/// Segment number in a file name; `None` if the name is not a segment's.
pub(crate) fn parse_segment_name(name: &str) -> Option<u64> {
    name.strip_suffix(".wal").filter(|digits| digits.len() >= 10)?.parse().ok()
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHead {
    pub(super) store_id: u64,
    pub(super) segment: u64,
    /// Sequence of the segment's first group.
    pub(super) first_sequence: u64,
    /// Highest sequence known to be durable when the segment was activated.
    pub(super) durable: u64,
    /// Number of manifest edits at activation. A manifest with fewer edits is a stale copy.
    pub(super) manifest_edits: u64,
}

/// Reason why bytes are not a segment header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    /// The header is missing or damaged.
    Invalid,
    /// A newer release wrote the header.
    NewerVersion(u32),
}

impl SegmentHead {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEAD] {
        let mut head = [0; SEGMENT_HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        let fields =
            [self.store_id, self.segment, self.first_sequence, self.durable, self.manifest_edits];
        for (at, field) in (16..).step_by(8).zip(fields) {
            head[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        let check = xxh3_64_with_seed(&head[..56], self.segment);
        head[56..].copy_from_slice(&check.to_le_bytes());
        head
    }

    pub(super) fn decode(bytes: &[u8], store_id: u64, segment: u64) -> Result<Self, BadHead> {
        let Some(bytes) = bytes.get(..SEGMENT_HEAD) else { return Err(BadHead::Invalid) };
        if &bytes[..8] != MAGIC || u64_at(bytes, 56) != xxh3_64_with_seed(&bytes[..56], segment) {
            return Err(BadHead::Invalid);
        }
        let format = u32_at(bytes, 8);
        if format > FORMAT {
            return Err(BadHead::NewerVersion(format));
        }
        let head = Self {
            store_id: u64_at(bytes, 16),
            segment: u64_at(bytes, 24),
            first_sequence: u64_at(bytes, 32),
            durable: u64_at(bytes, 40),
            manifest_edits: u64_at(bytes, 48),
        };
        let ours = head.store_id == store_id && head.segment == segment;
        if ours { Ok(head) } else { Err(BadHead::Invalid) }
    }
}

/// A group read from a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group<'a> {
    pub(super) sequence: u64,
    /// Highest sequence known to be durable when the group was built.
    pub(super) durable: u64,
    /// Encoded operations of the group's batches, concatenated.
    pub(super) payload: &'a [u8],
    /// Bytes of the group in the segment, including padding.
    pub(super) len: usize,
}

/// Seed of the group checksum, which binds a group to its segment and store.
fn seed(store_id: u64, segment: u64) -> u64 {
    store_id ^ segment.rotate_left(32)
}

/// Completes the group in `buffer`, which holds [`GROUP_HEAD`] reserved bytes and the payload.
pub(super) fn finish_group(
    buffer: &mut Vec<u8>,
    store_id: u64,
    segment: u64,
    sequence: u64,
    durable: u64,
    operations: u32,
) {
    let payload_len = (buffer.len() - GROUP_HEAD) as u32;
    for (at, field) in [(8, segment), (16, sequence), (24, durable)] {
        buffer[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    buffer[32..36].copy_from_slice(&payload_len.to_le_bytes());
    buffer[36..40].copy_from_slice(&operations.to_le_bytes());
    let check = xxh3_64_with_seed(&buffer[8..], seed(store_id, segment));
    buffer[..8].copy_from_slice(&check.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(GROUP_ALIGN), 0);
}

/// The group at the start of `bytes`; `None` = it is incomplete or damaged.
pub(super) fn read_group(bytes: &[u8], store_id: u64, segment: u64) -> Option<Group<'_>> {
    let head = bytes.get(..GROUP_HEAD)?;
    if u64_at(head, 8) != segment {
        return None;
    }
    let end = GROUP_HEAD + u32_at(head, 32) as usize;
    let covered = bytes.get(8..end)?;
    if u64_at(head, 0) != xxh3_64_with_seed(covered, seed(store_id, segment)) {
        return None;
    }
    Some(Group {
        sequence: u64_at(head, 16),
        durable: u64_at(head, 24),
        payload: &bytes[GROUP_HEAD..end],
        len: end.next_multiple_of(GROUP_ALIGN),
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}
