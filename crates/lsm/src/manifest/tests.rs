//! Tests of manifests that are truncated or bit-flipped, or on a full or failing disk. The open
//! returns the state after some edit, never a state older than the last applied edit.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::disk::{Fault, MemDisk, Op};
use crate::table::PurgeableSummary;
use record::Version;

const STORE: u64 = 5;

fn level_table(id: u64, key: &'static [u8]) -> LevelTable {
    let meta = TableMeta {
        id,
        bytes: 1000 + id,
        entries: 10,
        values: 1,
        smallest: key.into(),
        largest: [key, b"z"].concat().into(),
        max_version: Version { time: id, origin: 3 },
        min_write_time: id / 2,
        max_write_time: id * 2,
        deleted: PurgeableSummary { records: 1, bytes: 40, latest: id },
        expiring: PurgeableSummary { records: id, bytes: id * 50, latest: id * 9 },
        check: id * 31,
    };
    LevelTable { tree: (id % 2) as u8, level: 0, meta }
}

/// One edit of every kind, in a plausible order.
fn edits() -> Vec<Vec<Edit>> {
    let end = |segment, end| Edit::End(SegmentEnd { segment, end, next_sequence: 9 });
    vec![
        vec![Edit::Floor { sequence: 1, oldest_segment: 1 }],
        vec![Edit::Add(level_table(1, b"a")), Edit::Flushed { tree: 1, sequence: 4 }],
        vec![Edit::Add(level_table(2, b"")), Edit::Flushed { tree: 0, sequence: 6 }],
        vec![Edit::Move(1, 1)],
        vec![end(1, 100), end(2, 0)],
        vec![Edit::Remove(1), Edit::Remove(2), Edit::Add(level_table(7, b"a"))],
        vec![Edit::Floor { sequence: 7, oldest_segment: 2 }],
        vec![end(3, 4096)],
    ]
}

fn open(disk: &MemDisk) -> Result<Manifest, Error> {
    Manifest::open(Arc::new(disk.clone()), STORE, |_, _| Ok(()))
}

/// A manifest with all edits appended, and the state after each.
fn manifest_with_all_edits() -> (MemDisk, Vec<ManifestState>) {
    let disk = MemDisk::new();
    let mut manifest = Manifest::create(Arc::new(disk.clone()), STORE).unwrap();
    let mut states = vec![manifest.state().clone()];
    for edit in edits() {
        manifest.apply(&edit).unwrap();
        states.push(manifest.state().clone());
    }
    (disk, states)
}

#[test]
fn edits_are_read_back_appended_or_rewritten() {
    let (disk, states) = manifest_with_all_edits();
    let first = open(&disk).unwrap();
    assert_eq!(first.state(), states.last().unwrap());
    // The first open rewrote the manifest as one state.
    let second = open(&disk).unwrap();
    assert_eq!(second.state(), first.state());
    assert_eq!(second.edits(), first.edits() + 1, "edits are counted for life");
    assert_eq!(second.state().next_table, 8, "ids of removed tables do not come back");
}

#[test]
fn a_grown_manifest_is_rewritten() {
    let disk = MemDisk::new();
    let mut manifest = Manifest::create(Arc::new(disk.clone()), STORE).unwrap();
    let mut largest = 0;
    for id in 1..12_000 {
        let mut edits = vec![Edit::Add(level_table(id, b"key"))];
        if id > 10 {
            edits.push(Edit::Remove(id - 10));
        }
        manifest.apply(&edits).unwrap();
        largest = largest.max(disk.file(NAME).unwrap().len() as u64);
    }
    assert!(largest < REWRITE_BYTES + 4096, "{largest} bytes");
    assert!(disk.sites()["rename MANIFEST"] > 1);
    assert_eq!(open(&disk.crash(1)).unwrap().state(), manifest.state());
}

/// Row 7 of `docs/results/reliability.md`: the file is cut at every byte. A crash can lose the last
/// edit; any other loss is refused.
#[test]
fn a_manifest_cut_at_any_byte_is_a_prefix_of_edits_or_refused() {
    let (disk, states) = manifest_with_all_edits();
    let whole = disk.file(NAME).unwrap();
    for zeros in [0, 64] {
        let mut seen = 0;
        for len in 0..whole.len() {
            let cut = MemDisk::new();
            cut.put_file(NAME, [&whole[..len], &vec![0; zeros]].concat());
            match open(&cut) {
                Ok(manifest) => {
                    let at = states.iter().position(|state| state == manifest.state());
                    let at = at.unwrap_or_else(|| panic!("cut at {len}: a state that never was"));
                    assert!(at >= seen, "cut at {len}: goes back");
                    seen = at;
                }
                Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{len}: {error}"),
            }
        }
        assert!(seen >= states.len() - 2, "only the last edit is missing from the longest cut");
    }
}

#[test]
fn a_flipped_bit_is_refused_or_loses_only_the_last_edit() {
    let (disk, states) = manifest_with_all_edits();
    let bits = disk.file(NAME).unwrap().len() as u64 * 8;
    let mut refused = 0;
    for bit in 0..bits {
        let flipped = disk.deep_clone();
        flipped.flip_bit(NAME, bit);
        match open(&flipped) {
            Ok(manifest) => {
                let last_but_one = &states[states.len() - 2];
                assert_eq!(manifest.state(), last_but_one, "bit {bit} of {bits}");
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, Error::Corrupt { .. } | Error::NewerFormat { .. }));
            }
        }
    }
    println!("row 7: {refused} of {bits} flips in a manifest refused, the others in its last edit");
}

#[test]
fn after_a_failed_edit_the_next_edit_rewrites_the_manifest() {
    for (op, errno) in [(Op::Write, 28), (Op::Write, 5), (Op::Sync, 5)] {
        for at in 0..edits().len() {
            let disk = MemDisk::new();
            let mut manifest = Manifest::create(Arc::new(disk.clone()), STORE).unwrap();
            let renames = disk.sites()["rename MANIFEST"];
            for (i, edit) in edits().iter().enumerate() {
                if i == at {
                    let before = manifest.state().clone();
                    disk.fail(Fault::once(op, errno));
                    assert!(manifest.apply(edit).is_err());
                    assert_eq!(manifest.state(), &before);
                    // The file holds either all of the failed edit or none of it.
                    let found = open(&disk.deep_clone().crash(i as u64)).unwrap();
                    let mut after = before.clone();
                    edit.iter().for_each(|edit| edit.apply(&mut after));
                    assert!(*found.state() == before || *found.state() == after);
                }
                manifest.apply(edit).unwrap();
            }
            assert!(disk.sites()["rename MANIFEST"] > renames, "appended to a failed file");
            assert_eq!(open(&disk.crash(1)).unwrap().state(), manifest.state());
        }
    }
}

/// A call without edits rewrites the manifest after a failed edit. If another call has already
/// rewritten it, the call must write nothing: a reader takes an empty edit for the end of the file.
#[test]
fn an_empty_edit_writes_only_after_a_failed_edit() {
    let disk = MemDisk::new();
    let mut manifest = Manifest::create(Arc::new(disk.clone()), STORE).unwrap();
    manifest.apply(&[]).unwrap();
    manifest.apply(&edits()[0]).unwrap();
    assert_eq!(open(&disk.deep_clone()).unwrap().state(), manifest.state());
    disk.fail(Fault::once(Op::Write, 28));
    assert!(manifest.apply(&edits()[1]).is_err());
    manifest.apply(&[]).unwrap();
    assert_eq!(open(&disk.crash(1)).unwrap().state(), manifest.state());
}

#[test]
fn a_failed_rewrite_leaves_the_old_or_the_new_manifest() {
    for op in [Op::List, Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir] {
        let (disk, states) = manifest_with_all_edits();
        disk.fail(Fault::once(op, 5));
        assert!(open(&disk).is_err(), "{op:?}");
        for seed in 0..8 {
            let crashed = disk.deep_clone().crash(seed);
            assert_eq!(open(&crashed).unwrap().state(), states.last().unwrap(), "{op:?}");
        }
        assert_eq!(open(&disk).unwrap().state(), states.last().unwrap(), "{op:?}");
    }
}

#[test]
fn a_power_cut_keeps_all_applied_edits() {
    for at in 0.. {
        let disk = MemDisk::new();
        disk.crash_after(at);
        let mut applied = None;
        if let Ok(mut manifest) = Manifest::create(Arc::new(disk.clone()), STORE) {
            applied = Some(0);
            for edit in edits() {
                if manifest.apply(&edit).is_err() {
                    break;
                }
                applied = applied.map(|n| n + 1);
            }
        }
        let finished = disk.cut_site().is_none();
        let (_, states) = manifest_with_all_edits();
        for seed in 0..8 {
            let found = open(&disk.crash(seed));
            let Some(applied) = applied else { continue };
            let found = found.unwrap().state().clone();
            let next = states.get(applied + 1);
            assert!(found == states[applied] || Some(&found) == next, "cut after {at}");
        }
        if finished {
            return;
        }
    }
}

#[test]
fn a_manifest_that_is_not_accepted_stays_unchanged() {
    let (disk, _) = manifest_with_all_edits();
    let before = disk.file(NAME).unwrap();
    let stale = || Error::corrupt(NAME, 0, "stale");
    let refused = Manifest::open(Arc::new(disk.clone()), STORE, |_, _| Err(stale()));
    assert!(refused.is_err());
    assert_eq!(disk.file(NAME).unwrap(), before);
}

#[test]
fn a_manifest_of_another_store_or_of_a_newer_format_is_refused() {
    let (disk, _) = manifest_with_all_edits();
    let other = Manifest::open(Arc::new(disk.clone()), STORE + 1, |_, _| Ok(()));
    assert!(other.is_err_and(|error| error.to_string().contains("another store")));
    let mut bytes = disk.file(NAME).unwrap();
    bytes[8] = FORMAT as u8 + 1;
    let check = xxh3_64_with_seed(&bytes[..32], 0);
    bytes[32..40].copy_from_slice(&check.to_le_bytes());
    disk.put_file(NAME, bytes);
    let newer = open(&disk).err().unwrap();
    assert!(matches!(newer, Error::NewerFormat { found: 2, supported: 1, .. }), "{newer}");
}

proptest! {
    /// Impossible counts, truncated edits and unknown kinds are errors and allocate no memory.
    #[test]
    fn any_bytes_are_edits_or_refused(
        kinds in vec((0u8..10, vec(any::<u8>(), 0..60)), 0..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes: Vec<u8> = Vec::new();
        for (kind, content) in kinds {
            bytes.push(kind);
            bytes.extend(content);
        }
        if let Ok(edits) = edit::decode(&bytes[..cut.index(bytes.len() + 1)]) {
            prop_assert!(edits.len() <= bytes.len());
        }
    }

    #[test]
    fn truncated_edits_are_refused_or_decode_to_fewer_edits(cut in any::<prop::sample::Index>()) {
        let all: Vec<Edit> = edits().concat();
        let bytes = edit::encode(&all);
        let cut = cut.index(bytes.len());
        if let Ok(fewer) = edit::decode(&bytes[..cut]) {
            prop_assert!(fewer.len() < all.len());
        }
    }
}
