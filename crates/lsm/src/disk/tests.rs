//! What both disks must do alike.

use std::io::ErrorKind;

use super::{Disk, MemDisk, RealDisk};

fn conforms(disk: &dyn Disk) {
    assert!(disk.list().unwrap().is_empty());
    let file = disk.create("a").unwrap();
    assert_eq!(disk.create("a").err().unwrap().kind(), ErrorKind::AlreadyExists);
    file.write_all_at(b"hello", 0).unwrap();
    file.sync_data().unwrap();
    let mut buf = [0; 5];
    disk.open("a").unwrap().read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"hello");
}

#[test]
fn a_directory_conforms() {
    let directory = tempfile::tempdir().unwrap();
    conforms(&RealDisk::open(directory.path()).unwrap());
}

#[test]
fn memory_conforms() {
    conforms(&MemDisk::new());
}
