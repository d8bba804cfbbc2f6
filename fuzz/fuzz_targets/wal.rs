//! Fuzzes the replay of the log of a killed store. The engine must refuse or replay a log of
//! arbitrary bytes, and the replayed records must survive a power cut.
//!
//! ```text
//!  input: mode u8 │ [length of the first segment u16] │ bytes of the segments
//!  mode & 1: groups get their segment's number and a length that fits in the segment; then the
//!            checksums of segments and groups are corrected
//!       & 2: with & 1, a group's records get correct checksums, up to the first that is too long
//!       & 4: there are two segments
//! ```
#![no_main]

#[allow(dead_code, reason = "the other target and the seeds use the rest")]
mod store;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lsm::MemDisk;
use store::{STORE_ID, contents, ok_unless_corrupt, open, read_in_other_ways};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Lengths in bytes, from the layouts in `docs/formats/files.md`.
const SEGMENT_HEAD: usize = 64;
const GROUP_HEAD: usize = 40;
const OPERATION_HEAD: usize = 7;

/// A new store that was killed while its log was in use.
static KILLED: LazyLock<MemDisk> = LazyLock::new(|| {
    let disk = MemDisk::new();
    open(&disk, false).expect("an empty disk becomes a store");
    disk.process_crash()
});

fuzz_target!(|input: &[u8]| {
    let Some((&mode, mut bytes)) = input.split_first() else { return };
    let mut first = bytes.len();
    if mode & 4 != 0 {
        let Some((length, rest)) = bytes.split_first_chunk() else { return };
        (first, bytes) = (usize::from(u16::from_le_bytes(*length)).min(rest.len()), rest);
    }
    let (first, second) = bytes.split_at(first);
    let disk = KILLED.deep_clone();
    for (number, segment) in [(1, first), (2, second)] {
        if number == 1 || mode & 4 != 0 {
            let mut segment = segment.to_vec();
            if mode & 1 != 0 {
                correct_checksums(&mut segment, number, mode & 2 != 0);
            }
            disk.put_file(&format!("{number:010}.wal"), segment);
        }
    }
    let Some(engine) = ok_unless_corrupt(open(&disk, false)) else { return };
    let held = ok_unless_corrupt(contents(&engine));
    read_in_other_ways(&engine, &[b"", b"Value 4", b"Tombstone 7", b"z"]);
    drop(engine);

    let disk = disk.crash(u64::from(mode) + bytes.len() as u64);
    let engine = open(&disk, false).expect("what was recovered once is recovered again");
    let Some(held) = held else { return };
    assert_eq!(contents(&engine).expect("it was read before"), held);
    engine.compact_all().expect("it was read before");
    assert_eq!(contents(&engine).expect("it was read before"), held);
});

/// Corrects the checksums and segment numbers of a segment, and shortens groups to the existing
/// bytes.
fn correct_checksums(segment: &mut [u8], number: u64, records: bool) {
    let Some((head, mut groups)) = segment.split_at_mut_checked(SEGMENT_HEAD) else { return };
    let check = xxh3_64_with_seed(&head[..56], number);
    head[56..].copy_from_slice(&check.to_le_bytes());
    while let Some((head, rest)) = groups.split_at_mut_checked(GROUP_HEAD) {
        let length = u32_at(head, 32).min(rest.len());
        head[8..16].copy_from_slice(&number.to_le_bytes());
        head[32..36].copy_from_slice(&(length as u32).to_le_bytes());
        if records {
            correct_record_checksums(&mut rest[..length]);
        }
        let seed = STORE_ID ^ number.rotate_left(32);
        let check = xxh3_64_with_seed(&groups[8..GROUP_HEAD + length], seed);
        groups[..8].copy_from_slice(&check.to_le_bytes());
        let next = (GROUP_HEAD + length).next_multiple_of(8).min(groups.len());
        groups = &mut groups[next..];
    }
}

fn correct_record_checksums(mut operations: &mut [u8]) {
    while let Some((head, rest)) = operations.split_at_mut_checked(OPERATION_HEAD) {
        let (key, record) = (usize::from(head[1]) | usize::from(head[2]) << 8, u32_at(head, 3));
        let Some((key, rest)) = rest.split_at_mut_checked(key) else { return };
        let Some((record, rest)) = rest.split_at_mut_checked(record) else { return };
        if let Some((content, check)) = record.split_last_chunk_mut::<8>()
            && content.len() >= 2
        {
            *check = xxh3_64_with_seed(&content[2..], xxh3_64(key)).to_le_bytes();
        }
        operations = rest;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}
