use std::sync::Arc;

use lsm::{Fields, Kind, MemDisk, Options, Version};

use super::*;

fn db() -> Db {
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    Db::open(Arc::new(MemDisk::new()), options).unwrap()
}

fn put(db: &Db, key: &[u8], value: &[u8]) {
    db.put(Space::Data, key, Version { time: 1, origin: 0 }, value).unwrap();
}

fn all() -> Range {
    Range { start: vec![0], end: None }
}

/// Reads to the end; the items of each page.
fn read_all(db: &Db, mut range: Range) -> Vec<Vec<Bytes>> {
    let budget = Budget::new(1 << 20);
    let mut pages = Vec::new();
    loop {
        let mut page = read(db, &budget, range).unwrap();
        pages.push(std::iter::from_fn(|| page.next()).collect());
        assert!(page.is_low());
        match page.rest.take() {
            Some(rest) => range = rest,
            None => return pages,
        }
    }
}

#[test]
fn a_page_ends_before_the_item_that_does_not_fit() {
    let db = db();
    let value = vec![b'v'; PAGE_BYTES / 4 - 2];
    for key in b'a'..=b'k' {
        put(&db, &[key], &value);
    }
    put(&db, b"e5", &vec![b'L'; 3 * PAGE_BYTES]);
    let pages = read_all(&db, all());
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [4, 1, 1, 4, 2]);
    assert_eq!(pages[2][0].len(), 3 + 3 * PAGE_BYTES, "the large one has a page of its own");
    assert!(pages.concat().is_sorted());
}

#[test]
fn what_is_deleted_or_expired_is_left_out() {
    let db = db();
    let mut batch = lsm::Batch::new();
    let version = Version { time: 2, origin: 0 };
    for (key, expiry_ms) in [(b"dead", 1), (b"live", u64::MAX)] {
        let fields = Fields { expiry_ms, ..Fields::new(Kind::Value, version) };
        batch.write(Space::Data, key, &fields, b"v").unwrap();
    }
    batch.delete(Space::Data, b"gone", version).unwrap();
    db.write_batch(batch).unwrap();
    put(&db, b"gone", b"older");
    assert_eq!(read_all(&db, all()).concat(), [&b"live\nv"[..]]);
}

#[test]
fn a_desert_of_tombstones_is_crossed_in_steps() {
    let db = db();
    let mut batch = lsm::Batch::new();
    for key in 0..2 * PAGE_RECORDS as u32 {
        let version = Version { time: 1, origin: 0 };
        batch.delete(Space::Data, &key.to_be_bytes(), version).unwrap();
    }
    db.write_batch(batch).unwrap();
    put(&db, b"\xff", b"beyond");
    let pages = read_all(&db, all());
    assert!(pages.len() > 1 && pages[0].is_empty(), "{} pages", pages.len());
    assert_eq!(pages.concat(), [&b"\xff\nbeyond"[..]]);
}

#[test]
fn without_memory_the_range_comes_back() {
    let db = db();
    put(&db, b"a", &vec![0; 2 * PAGE_BYTES]);
    let budget = Budget::new(2 * PAGE_BYTES);
    let Err(PageError::NoRoom(range)) = read(&db, &budget, all()) else { panic!("took it") };
    assert_eq!((range, budget.held()), (all(), 0));
    let budget = Budget::new(4 * PAGE_BYTES);
    let page = read(&db, &budget, all()).unwrap();
    assert!(budget.held() > 2 * PAGE_BYTES);
    drop(page);
    assert_eq!(budget.held(), 0);
}
