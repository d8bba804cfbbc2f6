//! Tests of the recovery of logs that were truncated, overwritten or bit-flipped, or whose segments
//! are missing or exchanged. A recovery must return a prefix of the appended groups that contains
//! all groups proven durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::format::{GROUP_HEAD, SEGMENT_HEAD};
use super::*;
use crate::disk::{Disk, Fault, MemDisk, Op};
use crate::error::Error;

const STORE: u64 = 9;
const SEGMENT_BYTES: u64 = 2048;

type Groups = Vec<(u64, Vec<u8>)>;

/// A log and the groups appended to it.
struct Log {
    disk: MemDisk,
    wal: Wal,
    groups: Groups,
}

fn expected_log(ends: &[SegmentEnd]) -> ExpectedLog<'_> {
    ExpectedLog { store_id: STORE, oldest_segment: 1, floor: 1, flushed: 0, ends }
}

fn start(disk: &MemDisk, segment: u64, next: u64, older: BTreeMap<u64, u64>) -> Wal {
    let prepared = prepare(disk, segment, SEGMENT_BYTES, true).unwrap();
    Wal::start(STORE, prepared, next, 1, older).unwrap()
}

impl Log {
    fn new() -> Self {
        let disk = MemDisk::new();
        let wal = start(&disk, 1, 1, BTreeMap::new());
        Self { disk, wal, groups: Vec::new() }
    }

    /// Continues after a recovery, in a new segment.
    fn after(disk: &MemDisk, found: &RecoveredLog, groups: Groups) -> Self {
        let segments = found.segments.clone();
        let wal = start(disk, found.next_segment, found.next_sequence, segments);
        Self { disk: disk.clone(), wal, groups }
    }

    fn append(&mut self, len: usize) {
        let sequence = self.wal.last_sequence() + 1;
        let payload = vec![sequence as u8; len];
        if self.wal.needs_new_segment(len) {
            let next = self.wal.end().segment + 1;
            let prepared = prepare(&self.disk, next, SEGMENT_BYTES, true).unwrap();
            self.wal.activate(prepared, 1).unwrap();
        }
        let appended = self.wal.append(std::iter::once(&payload[..]), 1).unwrap();
        assert_eq!(appended, sequence);
        self.groups.push((sequence, payload));
    }

    /// Appends and syncs a group, as `SyncMode::Always` does.
    fn commit(&mut self, len: usize) {
        self.append(len);
        self.wal.sync().unwrap();
    }
}

/// Checks that the manifest is not stale, then replays the log, as the open of a store does.
fn replay(disk: &MemDisk, ends: &[SegmentEnd]) -> Result<(RecoveredLog, Groups), Error> {
    let mut groups = Groups::new();
    check_not_stale(disk, &expected_log(ends), 1)?;
    let found = recover(disk, &expected_log(ends), &mut |sequence, payload| {
        groups.push((sequence, payload.to_vec()));
        Ok(())
    })?;
    Ok((found, groups))
}

fn assert_refused(disk: &MemDisk, ends: &[SegmentEnd], what: &str) {
    match replay(disk, ends) {
        Ok((_, groups)) => panic!("{what} went unnoticed: {} groups", groups.len()),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{what}: {error}"),
    }
}

/// A log of one segment with groups of different lengths, each synced, and the end of each group.
fn one_segment() -> (Log, Vec<u64>) {
    let mut log = Log::new();
    let mut ends = vec![log.wal.end().end];
    for len in [1, 40, 0, 333, 8, 90] {
        log.commit(len);
        ends.push(log.wal.end().end);
    }
    (log, ends)
}

#[test]
fn all_groups_are_recovered_across_segments_and_restarts() {
    let mut log = Log::new();
    let mut ends = Vec::new();
    for life in 0..3 {
        for i in 0..40 {
            log.commit(i * 7 % 300);
        }
        assert!(log.wal.segment_count() > 3);
        let (found, groups) = replay(&log.disk.crash(life), &ends).unwrap();
        assert_eq!(groups, log.groups);
        assert!(!found.torn);
        assert_eq!(found.next_sequence, groups.len() as u64 + 1);
        ends.extend(&found.ends);
        log = Log::after(&log.disk.deep_clone().crash(life), &found, groups);
    }
}

/// Row 5 of `docs/results/reliability.md`: the tail is cut at every byte and followed by nothing,
/// zeros or garbage; then the log is extended and crashes again.
#[test]
fn a_torn_tail_keeps_earlier_groups_and_later_appends() {
    let (log, ends) = one_segment();
    let name = segment_name(1);
    let whole = log.disk.file(&name).unwrap();
    let last = *ends.last().unwrap() as usize;
    for cut in 0..=last {
        for filler in 0..3_u8 {
            let disk = MemDisk::new();
            let mut bytes = whole[..cut].to_vec();
            if filler > 0 {
                let garbage = |i: usize| (i as u8).wrapping_mul(151) ^ (i >> 3) as u8 | 1;
                bytes.extend((cut..whole.len()).map(|i| if filler == 1 { 0 } else { garbage(i) }));
            }
            disk.put_file(&name, bytes);
            let kept = ends.iter().filter(|end| **end as usize <= cut).count();
            // The last bytes of a group may be padding, which is zero anyway.
            check_cut(&disk, &log.groups, kept.saturating_sub(1), cut);
        }
    }
}

fn check_cut(disk: &MemDisk, all: &Groups, least: usize, cut: usize) {
    let (found, groups) = match replay(disk, &[]) {
        // The header was synced before the store was first opened, so no crash can cut it.
        Err(Error::Corrupt { .. }) if cut < SEGMENT_HEAD => return,
        replayed => replayed.unwrap_or_else(|error| panic!("cut at {cut}: {error}")),
    };
    assert!(groups.len() >= least && groups.len() <= least + 1, "cut at {cut}: {}", groups.len());
    assert_eq!(groups[..], all[..groups.len()], "cut at {cut}");
    let mut after = Log::after(disk, &found, groups);
    after.commit(5);
    after.commit(6);
    let expected_groups = after.groups.clone();
    let (_, again) = replay(&after.disk.crash(cut as u64), &found.ends)
        .unwrap_or_else(|error| panic!("second recovery after a cut at {cut}: {error}"));
    assert_eq!(again, expected_groups, "second recovery after a cut at {cut}");
}

/// Row 6 of `docs/results/reliability.md`: a flipped bit in the middle of a crashed log is damage;
/// in the last group it is indistinguishable from a torn write.
#[test]
fn a_flipped_bit_before_the_last_group_is_refused() {
    let (log, ends) = one_segment();
    let [.., middle, _] = ends[..] else { panic!("several groups") };
    for byte in 0..*ends.last().unwrap() {
        let disk = log.disk.deep_clone();
        disk.flip_bit(&segment_name(1), byte * 8 + byte % 8);
        match replay(&disk, &[]) {
            Ok((_, groups)) if groups == log.groups => {
                let covered = is_covered(&log.groups, byte as usize);
                assert!(!covered, "byte {byte} means something, but nobody noticed");
            }
            Ok((_, groups)) => {
                assert!(byte >= middle, "the flip at byte {byte} cut the log off silently");
                assert_eq!(groups[..], log.groups[..log.groups.len() - 1]);
            }
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "byte {byte}: {error}"),
        }
    }
}

/// After a clean stop, the manifest records the end of the log, so every flip is detected.
#[test]
fn a_flipped_bit_is_refused_anywhere_once_the_end_is_recorded() {
    let (log, _) = one_segment();
    let end = log.wal.end();
    assert_eq!(replay(&log.disk, &[end]).unwrap().1, log.groups);
    for bit in 0..end.end * 8 {
        let disk = log.disk.deep_clone();
        disk.flip_bit(&segment_name(1), bit);
        match replay(&disk, &[end]) {
            Ok((_, groups)) => {
                assert_eq!(groups, log.groups, "bit {bit}");
                assert!(!is_covered(&log.groups, (bit / 8) as usize), "bit {bit} went unnoticed");
            }
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "bit {bit}: {error}"),
        }
    }
}

/// Returns true if a checksum covers the byte of the first segment: it is not padding of a group.
fn is_covered(groups: &Groups, byte: usize) -> bool {
    let mut at = SEGMENT_HEAD;
    for (_, payload) in groups {
        let end = at + GROUP_HEAD + payload.len();
        if (at..end).contains(&byte) {
            return true;
        }
        at = end.next_multiple_of(8);
    }
    byte < SEGMENT_HEAD
}

#[test]
fn a_missing_or_exchanged_segment_is_refused() {
    let mut log = Log::new();
    while log.wal.segment_count() < 5 {
        log.commit(200);
    }
    let end = [log.wal.end()];
    for (missing, ends) in [(1, &[][..]), (2, &[]), (4, &[]), (5, &end), (1, &end)] {
        let disk = log.disk.deep_clone();
        disk.delete(&segment_name(missing));
        assert_refused(&disk, ends, &format!("segment {missing} of 5 missing"));
    }
    for (a, b) in [(1, 2), (2, 4), (3, 4)] {
        let disk = log.disk.deep_clone();
        let content = |segment| log.disk.file(&segment_name(segment)).unwrap();
        disk.put_file(&segment_name(a), content(b));
        disk.put_file(&segment_name(b), content(a));
        assert_refused(&disk, &[], "two segments exchanged");
    }
    let disk = log.disk.deep_clone();
    for segment in 1..=5 {
        disk.delete(&segment_name(segment));
    }
    assert_refused(&disk, &[], "the whole log missing");
}

/// An older copy of the log lacks sequences that tables already contain.
#[test]
fn an_older_log_beside_newer_tables_is_refused() {
    let mut log = Log::new();
    log.commit(10);
    let older = log.disk.deep_clone();
    log.commit(10);
    let newer = ExpectedLog { flushed: 2, ..expected_log(&[]) };
    assert!(recover(&log.disk, &newer, &mut |_, _| Ok(())).is_ok());
    let error = recover(&older, &newer, &mut |_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("older log"), "{error}");
}

/// Without a sync, nothing proves that a bad group was durable. The bad group ends the log, and no
/// later recovery may return a group after it.
#[test]
fn groups_after_a_torn_group_never_reappear() {
    let mut log = Log::new();
    for _ in 0..4 {
        log.append(700);
    }
    assert_eq!(log.wal.segment_count(), 2);
    let disk = log.disk.deep_clone();
    disk.flip_bit(&segment_name(1), (SEGMENT_HEAD as u64 + 100) * 8);
    let (found, groups) = replay(&disk, &[]).unwrap();
    assert!(groups.is_empty() && found.torn);
    assert_eq!((found.next_sequence, &found.discarded[..]), (1, &[2][..]));
    let mut after = Log::after(&disk, &found, groups);
    after.commit(7);
    // The discarded segment still exists: its removal may fail or be lost.
    assert!(disk.file(&segment_name(2)).is_some());
    assert_eq!(replay(&disk, &found.ends).unwrap().1, after.groups);
}

/// A later group states that the damaged group had been synced, so the damaged group's writes were
/// acknowledged.
#[test]
fn a_damaged_group_that_a_later_group_proves_synced_is_refused() {
    for later_in_next_segment in [false, true] {
        let mut log = Log::new();
        log.append(700);
        log.append(100);
        log.wal.sync().unwrap();
        log.append(if later_in_next_segment { 1500 } else { 50 });
        assert_eq!(log.wal.segment_count(), 1 + usize::from(later_in_next_segment));
        log.disk.flip_bit(&segment_name(1), (SEGMENT_HEAD as u64 + 800) * 8);
        assert_refused(&log.disk, &[], "damage to what was synced");
    }
}

#[test]
fn a_power_cut_without_syncs_keeps_a_prefix() {
    for seed in 0..200 {
        let mut log = Log::new();
        for i in 0..12 {
            log.append(300);
            if i == 4 {
                log.wal.sync().unwrap();
            }
        }
        let disk = log.disk.crash(seed);
        let (found, groups) = replay(&disk, &[]).unwrap();
        assert!(groups.len() >= 5, "seed {seed}: what was synced is lost");
        assert_eq!(groups[..], log.groups[..groups.len()], "seed {seed}");
        let mut after = Log::after(&disk, &found, groups);
        after.commit(1);
        let again = replay(&disk.crash(seed), &found.ends).unwrap().1;
        assert_eq!(again, after.groups, "seed {seed}: the second recovery");
    }
}

#[test]
fn a_segment_that_cannot_be_created_leaves_no_file() {
    for (op, errno) in [(Op::Create, 24), (Op::Allocate, 28), (Op::Sync, 5), (Op::SyncDir, 5)] {
        let disk = MemDisk::new();
        disk.fail(Fault::once(op, errno));
        let error = prepare(&disk, 1, SEGMENT_BYTES, true).map(|_| ()).unwrap_err();
        assert_eq!(error.is_no_space(), errno == 28, "{error}");
        assert_eq!(disk.list().unwrap(), Vec::<String>::new(), "after a failed {op:?}");
    }
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    assert!(prepare(&*disk, 1, SEGMENT_BYTES, true).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A segment overwritten anywhere with any bytes: recovery fails, or returns a prefix of the
    /// appended groups.
    #[test]
    fn random_bytes_in_a_segment_are_refused_or_end_the_log(
        at in any::<prop::sample::Index>(),
        bytes in vec(any::<u8>(), 1..300),
    ) {
        let (log, _) = one_segment();
        let file = log.disk.open(&segment_name(1)).unwrap();
        let at = at.index(SEGMENT_BYTES as usize);
        let fits = bytes.len().min(SEGMENT_BYTES as usize - at);
        file.write_all_at(&bytes[..fits], at as u64).unwrap();
        if let Ok((_, groups)) = replay(&log.disk, &[]) {
            prop_assert!(log.groups.starts_with(&groups));
        }
    }
}
