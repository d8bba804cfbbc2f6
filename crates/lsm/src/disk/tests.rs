//! Tests of both disks, then tests of the real disk only.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;

use super::{Disk, File, MemDisk, RealDisk};
use crate::error::Error;

/// Length in bytes of a file that takes several steps to zero and to remove.
const LARGE: u64 = (20 << 20) + 5;

fn check_disk_contract(disk: &dyn Disk) {
    names_follow_create_rename_and_remove(disk);
    reads_and_writes_are_exact(disk);
    allocation_reads_as_zeros(disk);
    handles_follow_a_rename(disk);
    threads_share_a_file(disk);
    large_files_can_be_removed(disk);
}

fn names_follow_create_rename_and_remove(disk: &dyn Disk) {
    assert_eq!(names(disk), [""; 0]);
    for name in ["b", "a.1", "MANIFEST"] {
        disk.create(name).unwrap();
    }
    assert_eq!(names(disk), ["MANIFEST", "a.1", "b"]);
    assert_eq!(disk.create("b").err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(disk.open("c").err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(disk.remove("c").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(disk.rename("c", "b").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(disk), ["MANIFEST", "a.1", "b"]);

    disk.open("b").unwrap().write_all_at(b"new", 0).unwrap();
    disk.rename("b", "a.1").unwrap();
    assert_eq!(names(disk), ["MANIFEST", "a.1"]);
    assert_eq!(content(&*disk.open("a.1").unwrap()), b"new");
    disk.rename("a.1", "a.1").unwrap();
    assert_eq!(content(&*disk.open("a.1").unwrap()), b"new");
    disk.remove("a.1").unwrap();
    disk.remove("MANIFEST").unwrap();
    assert_eq!(names(disk), [""; 0]);
    disk.sync_dir().unwrap();
}

fn reads_and_writes_are_exact(disk: &dyn Disk) {
    let file = disk.create("file").unwrap();
    assert_eq!(file.len().unwrap(), 0);
    file.write_all_at(b"", 7).unwrap();
    assert_eq!(file.len().unwrap(), 0, "writing nothing writes nothing");
    file.write_all_at(b"hello", 0).unwrap();
    file.write_all_at(b"world", 8).unwrap();
    file.write_all_at(b"LO", 3).unwrap();
    file.start_writeback(0, 13);
    file.start_writeback(u64::MAX, u64::MAX);
    assert_eq!(content(&*file), b"helLO\0\0\0world");
    assert_eq!(content(&*disk.open("file").unwrap()), b"helLO\0\0\0world");
    file.sync_data().unwrap();
    assert_eq!(content(&*file), b"helLO\0\0\0world");

    let mut buf = [0; 4];
    file.read_exact_at(&mut buf, 9).unwrap();
    assert_eq!(&buf, b"orld");
    for offset in [10, 13, 1 << 40] {
        let error = file.read_exact_at(&mut buf, offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "at {offset}");
    }
    file.read_exact_at(&mut [], 13).unwrap();

    let tried = |buf: &mut [u8], offset| file.try_read_exact_at(buf, offset).map_err(|e| e.kind());
    match tried(&mut buf, 8) {
        Ok(()) => assert_eq!(&buf, b"worl"),
        Err(kind) => assert_eq!(kind, ErrorKind::WouldBlock),
    }
    for offset in [10, 13, 1 << 40] {
        // A disk that cannot read without waiting does not detect the end of the file here.
        let kind = tried(&mut buf, offset).unwrap_err();
        assert!(matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::WouldBlock), "{kind}");
    }
    disk.remove("file").unwrap();
}

fn allocation_reads_as_zeros(disk: &dyn Disk) {
    for zeroed in [false, true] {
        let file = disk.create("segment").unwrap();
        file.write_all_at(b"head", 0).unwrap();
        file.allocate(3 << 20, zeroed).unwrap();
        assert_eq!(file.len().unwrap(), 3 << 20);
        file.write_all_at(b"tail", (3 << 20) - 4).unwrap();
        file.allocate(5, zeroed).unwrap();
        assert_eq!(file.len().unwrap(), 3 << 20, "never shortens");
        let bytes = content(&*file);
        let (head, rest) = bytes.split_at(4);
        let (zeros, tail) = rest.split_at(rest.len() - 4);
        assert_eq!((head, tail), (&b"head"[..], &b"tail"[..]));
        assert!(zeros.iter().all(|byte| *byte == 0));
        disk.remove("segment").unwrap();
    }
}

fn handles_follow_a_rename(disk: &dyn Disk) {
    let file = disk.create("MANIFEST.new").unwrap();
    file.write_all_at(b"one", 0).unwrap();
    disk.rename("MANIFEST.new", "MANIFEST").unwrap();
    file.write_all_at(b" two", 3).unwrap();
    file.sync_data().unwrap();
    assert_eq!(content(&*disk.open("MANIFEST").unwrap()), b"one two");
    disk.remove("MANIFEST").unwrap();
}

fn threads_share_a_file(disk: &dyn Disk) {
    let file = disk.create("shared").unwrap();
    thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for turn in 0..50 {
                    let offset = (turn * 4 + u64::from(thread)) * 100;
                    file.write_all_at(&[thread + 1; 100], offset).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    let bytes = content(&*file);
    assert_eq!(bytes.len(), 20_000);
    for (index, piece) in bytes.chunks(100).enumerate() {
        assert!(piece.iter().all(|byte| usize::from(*byte) == index % 4 + 1), "piece {index}");
    }
    disk.remove("shared").unwrap();
}

fn large_files_can_be_removed(disk: &dyn Disk) {
    for zeroed in [false, true] {
        disk.create("large").unwrap().allocate(LARGE, zeroed).unwrap();
        disk.remove("large").unwrap();
        assert_eq!(names(disk), [""; 0]);
    }
}

fn names(disk: &dyn Disk) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.sort_unstable();
    names
}

fn content(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_real_directory_conforms_to_the_disk_contract() {
    let directory = tempfile::tempdir().unwrap();
    check_disk_contract(&RealDisk::open(directory.path()).unwrap());
}

#[test]
fn the_memory_disk_conforms_to_the_disk_contract() {
    check_disk_contract(&MemDisk::new());
}

#[test]
fn a_missing_directory_is_created_with_its_parents() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("above").join("data");
    RealDisk::open(&path).unwrap().create("file").unwrap();
    assert!(path.join("file").is_file());
}

#[test]
fn a_directory_has_one_owner() {
    let directory = tempfile::tempdir().unwrap();
    let owner = RealDisk::open(directory.path()).unwrap();
    let error = RealDisk::open(directory.path()).unwrap_err();
    let Error::Locked { directory: named } = &error else { panic!("{error}") };
    assert_eq!(Path::new(named), directory.path());
    drop(owner);
    RealDisk::open(directory.path()).unwrap();
}

/// Deleting the lock file must not admit a second process.
#[test]
fn a_directory_has_one_owner_even_without_its_lock_file() {
    let directory = tempfile::tempdir().unwrap();
    let owner = RealDisk::open(directory.path()).unwrap();
    fs::remove_file(directory.path().join("LOCK")).unwrap();
    for _ in 0..2 {
        let error = RealDisk::open(directory.path()).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    }
    drop(owner);
    RealDisk::open(directory.path()).unwrap();
}

/// Network file systems lock files only, not directories.
#[test]
fn the_lock_file_alone_keeps_two_processes_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("LOCK");
    let other = fs::File::create(&path).unwrap();
    other.try_lock().unwrap();
    let error = RealDisk::open(directory.path()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    drop(other);
    let owner = RealDisk::open(directory.path()).unwrap();
    assert!(fs::File::open(&path).unwrap().try_lock().is_err());
    drop(owner);
    fs::File::open(&path).unwrap().try_lock().unwrap();
}

#[test]
fn find_fails_if_the_directory_was_moved_replaced_emptied_or_removed() {
    let around = tempfile::tempdir().unwrap();
    let (path, moved) = (around.path().join("data"), around.path().join("moved"));
    let disk = RealDisk::open(&path).unwrap();
    disk.create("file").unwrap();
    disk.find("file").unwrap();
    let lost = |what: &str| {
        let error = disk.find("file").unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{what}: {error}");
    };
    fs::rename(&path, &moved).unwrap();
    lost("moved");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("file"), b"").unwrap();
    lost("another one in its place");
    fs::remove_dir_all(&path).unwrap();
    fs::rename(&moved, &path).unwrap();
    disk.find("file").unwrap();
    fs::remove_file(path.join("file")).unwrap();
    lost("emptied");
    fs::remove_dir_all(&path).unwrap();
    lost("removed");
}

#[test]
fn opening_a_path_that_is_not_a_directory_fails_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"precious").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = RealDisk::open(&path).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn opening_an_unwritable_directory_fails_with_its_path() {
    // Even root cannot create files in this directory.
    let path = Path::new("/proc/self");
    let error = RealDisk::open(path).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("/proc/self"), "{error}");
}

#[test]
fn only_files_of_the_store_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(directory.path()).unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    fs::write(directory.path().join("foreign"), b"").unwrap();
    assert_eq!(names(&disk), ["foreign"]);
}

#[test]
fn a_hard_link_keeps_the_content_of_a_removed_file() {
    let directory = tempfile::tempdir().unwrap();
    let backup = tempfile::tempdir_in(directory.path()).unwrap();
    let disk = RealDisk::open(directory.path()).unwrap();
    let file = disk.create("table").unwrap();
    file.allocate(LARGE, false).unwrap();
    file.write_all_at(b"end", LARGE - 3).unwrap();
    fs::hard_link(directory.path().join("table"), backup.path().join("table")).unwrap();
    disk.remove("table").unwrap();
    let kept = fs::read(backup.path().join("table")).unwrap();
    assert_eq!((kept.len() as u64, &kept[kept.len() - 3..]), (LARGE, &b"end"[..]));
}

#[test]
fn nonblocking_reads_return_data_or_would_block() {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(directory.path()).unwrap();
    let file = disk.create("table").unwrap();
    let written: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
    file.write_all_at(&written, 0).unwrap();
    file.sync_data().unwrap();
    let mut buf = vec![0; 5000];
    // The call fails only on a file system without support for nonblocking reads.
    if file.try_read_exact_at(&mut buf, 4000).is_ok() {
        assert_eq!(buf, written[4000..9000]);
        let past = file.try_read_exact_at(&mut buf, written.len() as u64 - 4999).unwrap_err();
        assert_eq!(past.kind(), ErrorKind::UnexpectedEof);
    }

    let evicted = fs::File::open(directory.path().join("table")).unwrap();
    rustix::fs::fadvise(&evicted, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    buf.fill(0);
    match file.try_read_exact_at(&mut buf, 600_000) {
        Ok(()) => assert_eq!(buf, written[600_000..605_000]),
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    }
    file.read_exact_at(&mut buf, 600_000).unwrap();
    assert_eq!(buf, written[600_000..605_000]);
}
