use std::sync::Arc;

use cluster::{Clock, Filter, Kind, Member, Standing, Topology, Vouching};
use lsm::{Fields, MemDisk, Options, Version};

use super::*;

const PAGE_BYTES: usize = cluster::PAGE_BYTES as usize;

/// What the machines of a node of a cluster of one share.
pub(crate) fn alone() -> Arc<Shared> {
    let member = Member { name: "a".to_owned(), zone: String::new(), weight: 1 };
    let topology = Topology::new(vec![member], 3).unwrap();
    let (own, clock) = (topology.own("a").unwrap(), Arc::new(Clock::start(1, 0, 0)));
    let logs = Arc::new(cluster::Logs::first(1, 1));
    Arc::new(Shared::new(topology, own, clock, Vouching::new(Standing::Member, 0, true), 0, logs))
}

/// All keys.
pub(crate) fn all() -> PageRequest {
    let filter = Filter::Chosen { ack: 1, from: 1, preference: vec![alone().own] };
    PageRequest { start: Bytes::new(), end: None, filter, max_bytes: cluster::PAGE_BYTES }
}

fn db() -> Db {
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    Db::open(Arc::new(MemDisk::new()), options).unwrap()
}

fn put(db: &Db, key: &[u8], value: &[u8]) {
    db.put(Space::Data, key, Version { time: 1, origin: 0 }, value).unwrap();
}

/// Reads to the end; the items of each page.
fn read_all(db: &Db) -> Vec<Vec<(Bytes, cluster::Record)>> {
    let (budget, mut request) = (Budget::new(1 << 20), all());
    let mut pages = Vec::new();
    loop {
        let page = read(db, &alone(), &budget, &request).unwrap();
        pages.push(page.items);
        match page.next {
            Some(next) => request.start = next,
            None => return pages,
        }
    }
}

#[test]
fn a_page_ends_before_the_item_that_does_not_fit() {
    let db = db();
    // A key of one byte and a record's 24 bytes come on top.
    let value = vec![b'v'; PAGE_BYTES / 4 - 25];
    for key in b'a'..=b'k' {
        put(&db, &[key], &value);
    }
    put(&db, b"e5", &vec![b'L'; 3 * PAGE_BYTES]);
    let pages = read_all(&db);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [4, 1, 1, 4, 2]);
    let large = &pages[2][0].1;
    assert_eq!(large.bytes.len(), 24 + 3 * PAGE_BYTES, "the large one has a page of its own");
    assert!(pages.concat().is_sorted_by_key(|(key, _)| key.clone()));
}

#[test]
fn tombstones_are_part_of_a_page() {
    let db = db();
    let mut batch = lsm::Batch::new();
    let version = Version { time: 2, origin: 0 };
    let fields = Fields { copies: 2, ..Fields::new(lsm::Kind::Value, version) };
    batch.write(Space::Data, b"here", &fields, b"v").unwrap();
    batch.delete(Space::Data, b"gone", version).unwrap();
    db.write_batch(batch).unwrap();
    put(&db, b"gone", b"older");
    let items = read_all(&db).concat();
    let kinds = items.iter().map(|(key, record)| (&key[..], record.rank.kind, record.copies));
    let expected = [(&b"gone"[..], Kind::Tombstone, 0), (&b"here"[..], Kind::Value, 2)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn a_page_looks_at_so_many_records_at_most() {
    let db = db();
    let mut batch = lsm::Batch::new();
    for key in 0..2 * PAGE_RECORDS as u32 {
        let version = Version { time: 1, origin: 0 };
        batch.delete(Space::Data, &key.to_be_bytes(), version).unwrap();
    }
    db.write_batch(batch).unwrap();
    put(&db, b"\xff", b"beyond");
    let pages = read_all(&db);
    assert!(pages.len() > 2, "{} pages", pages.len());
    assert_eq!(pages.concat().len(), 2 * PAGE_RECORDS + 1);
    assert_eq!(pages.concat().pop().unwrap().0, b"\xff"[..]);
}

#[test]
fn without_memory_there_is_no_page() {
    let db = db();
    put(&db, b"a", &vec![0; 2 * PAGE_BYTES]);
    let budget = Budget::new(2 * PAGE_BYTES);
    let none = read(&db, &alone(), &budget, &all());
    assert!(matches!(none, Err(PageError::NoRoom)) && budget.held() == 0, "took it");
    let budget = Budget::new(4 * PAGE_BYTES);
    let page = read(&db, &alone(), &budget, &all()).unwrap();
    assert!(budget.held() > 2 * PAGE_BYTES);
    drop(page);
    assert_eq!(budget.held(), 0);
}
