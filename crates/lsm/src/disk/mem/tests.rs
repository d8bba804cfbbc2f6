//! Tests of the memory disk: crashes, faults, capacity and tampering.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use super::super::Disk;
use super::{Fault, MemDisk, Op};

const EIO: i32 = 5;
const SEEDS: u64 = 300;

/// A disk with one durable file.
fn disk_with(name: &str, bytes: &[u8]) -> MemDisk {
    let disk = MemDisk::new();
    disk.create(name).unwrap().write_all_at(bytes, 0).unwrap();
    disk.open(name).unwrap().sync_data().unwrap();
    disk.sync_dir().unwrap();
    disk
}

/// All contents that the file can have after a crash, over many seeds.
fn outcomes(disk: &MemDisk, name: &str) -> BTreeSet<Option<Vec<u8>>> {
    (0..SEEDS).map(|seed| disk.crash(seed).file(name)).collect()
}

#[test]
fn a_power_cut_keeps_synced_bytes_and_is_deterministic_per_seed() {
    let disk = disk_with("a.wal", &[1; 3000]);
    disk.open("a.wal").unwrap().write_all_at(&[2; 3000], 3000).unwrap();
    for seed in 0..SEEDS {
        let after = disk.deep_clone().crash(seed).file("a.wal").unwrap();
        assert_eq!(after[..3000], [1; 3000]);
        assert!(after[3000..].iter().all(|byte| *byte == 0 || *byte == 2));
        assert_eq!(disk.deep_clone().crash(seed).file("a.wal").unwrap(), after);
    }
}

#[test]
fn a_power_cut_keeps_any_of_the_sectors_that_were_not_synced() {
    let disk = disk_with("a.wal", &[0; 4096]);
    let file = disk.open("a.wal").unwrap();
    for turn in 1..=4 {
        file.write_all_at(&[turn; 2048], 0).unwrap();
    }
    let mut mixed = 0;
    let mut torn = 0;
    let mut seen = BTreeSet::new();
    for after in outcomes(&disk, "a.wal") {
        let after = after.unwrap();
        assert_eq!(after.len(), 4096);
        assert!(after[2048..].iter().all(|byte| *byte == 0), "nobody wrote there");
        let sectors: Vec<_> = after[..2048].chunks(512).collect();
        let whole = |sector: &&&[u8]| sector.iter().all(|byte| *byte == sector[0]);
        let whole_sectors = sectors.iter().filter(whole).count();
        assert!(whole_sectors >= 3, "at most one sector is torn");
        torn += usize::from(whole_sectors == 3);
        mixed += usize::from(sectors.iter().any(|sector| sector[0] != sectors[0][0]));
        seen.extend(sectors.iter().map(|sector| sector[0]));
    }
    assert!(mixed > 10 && torn > 10, "{mixed} mixed, {torn} torn");
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_later_write_may_survive_an_earlier_one() {
    let disk = disk_with("a.wal", &[0; 1024]);
    let file = disk.open("a.wal").unwrap();
    file.write_all_at(&[1; 512], 0).unwrap();
    file.write_all_at(&[2; 512], 512).unwrap();
    let reordered = [[0; 512], [2; 512]].concat();
    assert!(outcomes(&disk, "a.wal").contains(&Some(reordered)));
}

#[test]
fn a_power_cut_leaves_any_length_between_the_durable_and_the_newest() {
    let disk = disk_with("a.sst", &[1; 100]);
    let file = disk.open("a.sst").unwrap();
    file.write_all_at(&[2; 100], 100).unwrap();
    file.allocate(300, false).unwrap();
    let lens: BTreeSet<_> =
        outcomes(&disk, "a.sst").into_iter().map(|after| after.unwrap().len()).collect();
    assert!(lens.contains(&100) && lens.contains(&300) && lens.len() > 20, "{lens:?}");
    assert!(lens.iter().all(|len| (100..=300).contains(len)));
}

#[test]
fn a_power_cut_keeps_a_prefix_of_the_name_changes() {
    let disk = disk_with("MANIFEST", b"old");
    disk.create("MANIFEST.new").unwrap().write_all_at(b"new", 0).unwrap();
    disk.open("MANIFEST.new").unwrap().sync_data().unwrap();
    disk.rename("MANIFEST.new", "MANIFEST").unwrap();
    disk.create("a.wal").unwrap();
    disk.remove("a.wal").unwrap();
    let all: BTreeSet<_> = (0..SEEDS)
        .map(|seed| {
            let after = disk.crash(seed);
            let manifest = after.file("MANIFEST").unwrap();
            (after.list().unwrap(), manifest)
        })
        .collect();
    let state = |names: &[&str], manifest: &[u8]| {
        (names.iter().map(|name| name.to_string()).collect::<Vec<_>>(), manifest.to_vec())
    };
    let expected = [
        state(&["MANIFEST"], b"old"),
        state(&["MANIFEST", "MANIFEST.new"], b"old"),
        state(&["MANIFEST"], b"new"),
        state(&["MANIFEST", "a.wal"], b"new"),
    ];
    assert_eq!(all, expected.into_iter().collect());
}

#[test]
fn a_directory_sync_makes_a_name_durable_but_not_its_content() {
    let disk = MemDisk::new();
    disk.create("a.sst").unwrap().write_all_at(&[1; 10], 0).unwrap();
    assert!(outcomes(&disk.deep_clone(), "a.sst").contains(&None));
    disk.sync_dir().unwrap();
    let after = outcomes(&disk, "a.sst");
    assert!(!after.contains(&None) && after.contains(&Some(vec![])));
}

#[test]
fn a_power_cut_may_undo_an_unsynced_removal_and_keeps_the_content() {
    let disk = disk_with("a.sst", b"table");
    disk.remove("a.sst").unwrap();
    assert_eq!(outcomes(&disk.deep_clone(), "a.sst"), [None, Some(b"table".to_vec())].into());
    disk.sync_dir().unwrap();
    assert_eq!(outcomes(&disk, "a.sst"), [None].into());
}

#[test]
fn a_kill_loses_no_writes_and_syncs_none() {
    let disk = disk_with("a.wal", b"");
    disk.open("a.wal").unwrap().write_all_at(b"written", 0).unwrap();
    disk.create("b.wal").unwrap();
    let next = disk.process_crash();
    assert_eq!(next.list().unwrap(), ["a.wal", "b.wal"]);
    assert_eq!(next.file("a.wal").unwrap(), b"written");
    assert!(outcomes(&next, "a.wal").contains(&Some(vec![])), "a power cut may still take it");
}

#[test]
fn a_disk_without_power_refuses_every_call() {
    let disk = disk_with("a.wal", b"durable");
    let file = disk.open("a.wal").unwrap();
    let next = disk.crash(0);
    let refused = [
        disk.create("b").err(),
        disk.open("a.wal").err(),
        disk.rename("a.wal", "b").err(),
        disk.remove("a.wal").err(),
        disk.list().err(),
        disk.sync_dir().err(),
        disk.find("a.wal").err(),
        file.len().err(),
        file.read_exact_at(&mut [0], 0).err(),
        file.try_read_exact_at(&mut [0], 0).err(),
        file.write_all_at(b"x", 0).err(),
        file.allocate(100, true).err(),
        file.sync_data().err(),
    ];
    for error in refused {
        assert!(error.unwrap().to_string().contains("powered off"));
    }
    assert_eq!(next.file("a.wal").unwrap(), b"durable");
    next.open("a.wal").unwrap().write_all_at(b"x", 0).unwrap();
}

/// A short run of a small store; each step is one mutating call.
fn run_small_store(disk: &MemDisk) -> std::io::Result<()> {
    let file = disk.create("000001.wal")?;
    file.allocate(1024, true)?;
    file.sync_data()?;
    disk.sync_dir()?;
    file.write_all_at(&[7; 600], 0)?;
    file.sync_data()?;
    disk.rename("000001.wal", "MANIFEST-000002")?;
    disk.remove("MANIFEST-000002")
}

#[test]
fn a_power_cut_can_strike_any_call() {
    let whole = MemDisk::new();
    run_small_store(&whole).unwrap();
    assert_eq!(whole.operations(), 8);
    let sites = whole.sites();
    assert_eq!(sites["sync wal"], 2);
    let expected = [
        "allocate wal",
        "create wal",
        "remove MANIFEST",
        "rename MANIFEST",
        "sync directory",
        "sync wal",
        "write wal",
    ];
    assert_eq!(sites.keys().collect::<Vec<_>>(), expected);

    let mut cuts = BTreeSet::new();
    for operations in 0..whole.operations() {
        let disk = MemDisk::new();
        disk.crash_after(operations);
        run_small_store(&disk).unwrap_err();
        assert_eq!(disk.operations(), operations + 1);
        cuts.insert(disk.cut_site().unwrap());
        disk.list().unwrap_err();
        let killed = disk.deep_clone().process_crash();
        let written = killed.file("000001.wal");
        match operations {
            0 => assert_eq!(written, None),
            1 => assert_eq!(written.unwrap(), b""),
            2 | 3 => assert_eq!(written.unwrap(), [0; 1024]),
            4..7 => {
                let bytes = written.unwrap();
                let part = bytes.iter().position(|byte| *byte == 0).unwrap();
                assert!(bytes[part..].iter().all(|byte| *byte == 0));
                assert_eq!(part < 600, operations == 4, "torn by the cut at {operations}");
            }
            _ => assert_eq!(written, None),
        }
        let durable = disk.crash(operations).file("000001.wal");
        let synced = durable.is_some_and(|bytes| bytes.len() == 1024);
        assert!(operations < 4 || synced || operations == 7, "lost by the cut at {operations}");
    }
    assert_eq!(cuts, sites.into_keys().collect());

    let disk = MemDisk::new();
    disk.crash_after(8);
    run_small_store(&disk).unwrap();
    assert_eq!(disk.cut_site(), None);
}

#[test]
fn after_a_failed_sync_bytes_read_back_and_never_become_durable() {
    let disk = disk_with("a.wal", &[1; 600]);
    let file = disk.open("a.wal").unwrap();
    file.write_all_at(&[2; 600], 300).unwrap();
    disk.fail(Fault::once(Op::Sync, EIO));
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(EIO));

    let cached = [&[1; 300][..], &[2; 600]].concat();
    assert_eq!(disk.file("a.wal").unwrap(), cached);
    file.sync_data().unwrap();
    assert_eq!(disk.deep_clone().process_crash().file("a.wal").unwrap(), cached);
    assert_eq!(outcomes(&disk.deep_clone(), "a.wal"), [Some(vec![1; 600])].into());

    file.write_all_at(&[3; 10], 0).unwrap();
    file.sync_data().unwrap();
    let later = [&[3; 10][..], &[1; 590]].concat();
    assert_eq!(outcomes(&disk, "a.wal"), [Some(later)].into());
}

#[test]
fn a_fault_fails_only_the_calls_it_names() {
    let disk = MemDisk::new();
    let (wal, table) = (disk.create("1.wal").unwrap(), disk.create("2.sst").unwrap());
    disk.fail(Fault::once(Op::Write, EIO).suffix(".wal").prefix("1").after(1));
    disk.fail(Fault::forever(Op::Read, EIO).suffix(".sst"));
    wal.write_all_at(b"first", 0).unwrap();
    table.write_all_at(b"other", 0).unwrap();
    wal.write_all_at(b"second", 5).unwrap_err();
    wal.write_all_at(b"third", 5).unwrap();
    for _ in 0..3 {
        assert_eq!(table.read_exact_at(&mut [0], 0).unwrap_err().raw_os_error(), Some(EIO));
        assert_eq!(table.try_read_exact_at(&mut [0], 0).unwrap_err().raw_os_error(), Some(EIO));
        wal.read_exact_at(&mut [0], 0).unwrap();
    }
    disk.clear_faults();
    table.read_exact_at(&mut [0], 0).unwrap();
}

#[test]
fn a_failed_call_of_any_kind_has_no_effect() {
    for op in Op::ALL {
        let disk = disk_with("a", b"bytes");
        let file = disk.open("a").unwrap();
        disk.fail(Fault::once(op, EIO));
        let call = || match op {
            Op::Create => disk.create("b").map(drop),
            Op::Open => disk.open("a").map(drop),
            Op::Read => file.read_exact_at(&mut [0; 5], 0),
            Op::Write => file.write_all_at(b"BYTES", 0),
            Op::Allocate => file.allocate(100, false),
            Op::Sync => file.sync_data(),
            Op::Rename => disk.rename("a", "a"),
            Op::Remove => disk.remove("a"),
            Op::List => disk.list().map(drop),
            Op::SyncDir => disk.sync_dir(),
            Op::Find => disk.find("a"),
        };
        assert_eq!(call().unwrap_err().raw_os_error(), Some(EIO), "{op:?}");
        assert_eq!(disk.list().unwrap(), ["a"], "{op:?}");
        let same = disk.file("a").unwrap().eq_ignore_ascii_case(b"bytes");
        assert!(same, "{op:?}: all that a failed write may have done is a part of it");
        call().unwrap();
    }
}

#[test]
fn a_full_disk_accepts_writes_that_fit_and_more_once_space_is_freed() {
    let disk = disk_with("a", &[1; 600]);
    let file = disk.open("a").unwrap();
    disk.set_capacity(Some(1000));
    file.write_all_at(&[2; 600], 0).unwrap();
    let full = file.write_all_at(&[3; 600], 600).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 1000);
    assert_eq!(file.allocate(1001, true).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 1000);
    assert_eq!(disk.create("b").err().unwrap().kind(), ErrorKind::StorageFull);
    file.write_all_at(&[4; 1000], 0).unwrap();
    file.read_exact_at(&mut [0; 1000], 0).unwrap();
    file.sync_data().unwrap();

    disk.set_capacity(Some(1500));
    let other = disk.create("b").unwrap();
    other.allocate(500, false).unwrap();
    other.write_all_at(&[5; 500], 0).unwrap();
    assert_eq!(other.write_all_at(&[5], 500).unwrap_err().kind(), ErrorKind::StorageFull);
    disk.remove("a").unwrap();
    other.write_all_at(&[5; 1000], 500).unwrap();
    disk.set_capacity(None);
    other.write_all_at(&[5; 1000], 1500).unwrap();
}

#[test]
fn handles_of_removed_and_replaced_files_fail() {
    let disk = disk_with("a", b"a");
    let (removed, replaced) = (disk.open("a").unwrap(), disk.create("b").unwrap());
    disk.create("c").unwrap();
    disk.rename("c", "b").unwrap();
    disk.remove("a").unwrap();
    for file in [removed, replaced] {
        assert_eq!(file.read_exact_at(&mut [], 0).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(file.write_all_at(b"x", 0).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(file.sync_data().unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn a_cold_disk_reports_that_reads_would_block() {
    let disk = disk_with("a", b"a");
    let file = disk.open("a").unwrap();
    disk.set_cold(true);
    let kind = file.try_read_exact_at(&mut [0], 0).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::WouldBlock);
    file.read_exact_at(&mut [0], 0).unwrap();
    disk.set_cold(false);
    file.try_read_exact_at(&mut [0], 0).unwrap();
}

#[test]
fn tampering_is_durable_at_once() {
    let disk = disk_with("a", &[0; 1000]);
    disk.open("a").unwrap().write_all_at(&[0; 1000], 500).unwrap();
    assert!(disk.flip_bit("a", 8 * 700 + 3) && disk.flip_bit("a", 0));
    assert!(!disk.flip_bit("a", 8 * 1500) && !disk.flip_bit("b", 0));
    for after in outcomes(&disk.deep_clone(), "a") {
        let after = after.unwrap();
        assert_eq!((after[0], after[700]), (1, 8));
    }
    assert!(disk.truncate("a", 800) && !disk.truncate("a", 800) && !disk.truncate("b", 0));
    assert!(outcomes(&disk.deep_clone(), "a").iter().flatten().all(|after| after.len() == 800));
    assert!(disk.truncate("a", 200));
    assert_eq!(disk.file("a").unwrap(), [&[1][..], &[0; 199]].concat());

    disk.put_file("a", b"swapped".to_vec());
    disk.put_file("b", b"found".to_vec());
    let after = disk.deep_clone().crash(1);
    assert_eq!(after.file("a").unwrap(), b"swapped");
    assert_eq!(after.file("b").unwrap(), b"found");
    assert!(disk.delete("b") && !disk.delete("b"));
    assert_eq!(disk.crash(1).list().unwrap(), ["a"]);
}

#[test]
fn a_deep_clone_is_independent() {
    let disk = disk_with("a", b"one");
    let file = disk.open("a").unwrap();
    file.write_all_at(b"two", 0).unwrap();
    let copy = disk.deep_clone();
    file.write_all_at(b"six", 0).unwrap();
    assert_eq!(copy.file("a").unwrap(), b"two");
    assert!(outcomes(&copy, "a").contains(&Some(b"one".to_vec())));
    file.sync_data().unwrap();
    assert_eq!(outcomes(&disk, "a"), [Some(b"six".to_vec())].into());
}
