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
    let logs = Arc::new(cluster::Logs::first(1));
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
    let (memory, mut request) = (PageMemory::new(1 << 20), all());
    let mut pages = Vec::new();
    loop {
        let page = read(db, &alone(), &memory, &request).unwrap();
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
fn tombstones_are_sent_where_others_may_hold_what_they_hide() {
    let db = db();
    let mut batch = lsm::Batch::new();
    let version = Version { time: 2, origin: 0 };
    let fields = Fields { copies: 2, ..Fields::new(lsm::Kind::Value, version) };
    batch.write(Space::Data, b"here", &fields, b"v").unwrap();
    batch.delete(Space::Data, b"gone", version).unwrap();
    db.write_batch(batch).unwrap();
    put(&db, b"gone", b"older");
    let kinds = |filter| {
        let request = PageRequest { filter, ..all() };
        let page = read(&db, &alone(), &PageMemory::new(1 << 20), &request).unwrap();
        let kinds = page.items.iter().map(|(key, r)| (key.to_vec(), r.rank.kind, r.copies));
        kinds.collect::<Vec<_>>()
    };
    let here = (b"here".to_vec(), Kind::Value, 2);
    let gone = (b"gone".to_vec(), Kind::Tombstone, 0);
    assert_eq!(
        kinds(Filter::HeldBy { node: alone().own, since: 0, partitions: Vec::new() }),
        [gone, here.clone()]
    );
    assert_eq!(kinds(all().filter), [here], "nobody else is asked for these keys");
}

/// A page for each so many tombstones, the last with the one value that is behind them all.
fn pages_over(tombstones: u32, key_len: usize) -> usize {
    let db = db();
    let key = |number: u32| [&number.to_be_bytes()[..], &vec![0; key_len - 4]].concat();
    for first in (0..tombstones).step_by(1000) {
        let mut batch = lsm::Batch::new();
        for number in first..tombstones.min(first + 1000) {
            batch.delete(Space::Data, &key(number), Version { time: 1, origin: 0 }).unwrap();
        }
        db.write_batch(batch).unwrap();
    }
    put(&db, b"\xff", b"beyond");
    let pages = read_all(&db);
    let found = pages.concat();
    assert_eq!(found.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), [b"\xff"]);
    pages.len()
}

#[test]
fn a_page_ends_by_what_was_looked_at_though_nothing_was_found() {
    assert_eq!(pages_over(PAGE_RECORDS as u32 - 1, 4), 1);
    assert_eq!(pages_over(2 * PAGE_RECORDS as u32, 4), 3, "so many records");
    let record = 1024 + 24;
    let in_a_page = (PAGE_WORK_BYTES / record) as u32;
    assert_eq!(pages_over(3 * in_a_page + 1, 1024), 4, "so many bytes");
}

#[test]
fn without_memory_there_is_no_page() {
    let db = db();
    put(&db, b"a", &vec![0; 2 * PAGE_BYTES]);
    let memory = PageMemory::new(8 * PAGE_BYTES);
    let others = memory.take(6 * PAGE_BYTES).unwrap();
    let none = read(&db, &alone(), &memory, &all());
    assert!(matches!(none, Err(PageError::NoRoom)));
    drop(others);
    let others = memory.take(5 * PAGE_BYTES).unwrap();
    let page = read(&db, &alone(), &memory, &all()).unwrap();
    assert_eq!(
        page.items[0].1.bytes.len(),
        24 + 2 * PAGE_BYTES,
        "whatever its size, one at a time"
    );
    assert_eq!(memory.held(), 7 * PAGE_BYTES);
    let second = read(&db, &alone(), &memory, &all());
    assert!(matches!(second, Err(PageError::NoRoom)));
    drop(page);
    assert_eq!(memory.held(), 5 * PAGE_BYTES);
    drop(others);
    assert_eq!(memory.held(), 0, "took it");
}
