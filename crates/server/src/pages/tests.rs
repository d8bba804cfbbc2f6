use std::sync::Arc;

use lsm::{Batch, Fields, MemDisk, Options, Version};
use protocol::{Clock, Filter, Kind, Member, Membership, MembershipState, Topology};

use super::*;

const PAGE_BYTES: usize = protocol::PAGE_BYTES as usize;

/// Ids of a request of another node and of a request of this node.
const OTHERS: OpId =
    OpId::Peer { connection: protocol::ConnectionId(1), id: 1, partition: None, placement: 0 };
const OWN: OpId = OpId::Slot(protocol::SlotId(1));

/// Returns the shared state of a single-node cluster.
fn alone() -> Arc<Shared> {
    let member = Member { name: "a".to_owned(), zone: String::new(), weight: 1 };
    let topology = Topology::new(vec![member], 3).unwrap();
    let (own, clock) = (topology.find("a").unwrap(), Arc::new(Clock::start(1, 0, 0)));
    let logs = Arc::new(protocol::Logs::first(protocol::Incarnation(1)));
    Arc::new(Shared::new(
        topology,
        own,
        clock,
        Membership::new(MembershipState::Member, 0, true),
        0,
        logs,
    ))
}

/// Returns a request for all keys.
fn all() -> PageRequest {
    let filter = Filter::Chosen { ack: 1, from: 1, preference: vec![alone().own] };
    PageRequest { start: Bytes::new(), end: None, filter, max_bytes: protocol::PAGE_BYTES }
}

fn engine() -> Engine {
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    Engine::open(Arc::new(MemDisk::new()), options).unwrap()
}

fn pages(total: usize) -> Pages {
    Pages::new(total, PageWork::SERVING)
}

fn commit(engine: &Engine, batch: Batch) {
    crate::Store::commit(engine, batch).unwrap();
}

fn put(engine: &Engine, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(Space::Data, key, Version { time: 1, origin: 0 }, value).unwrap();
    commit(engine, batch);
}

/// Reads to the end; returns the items of each page.
fn read_all(engine: &Engine) -> Vec<Vec<(Bytes, protocol::Record)>> {
    let (reader, mut request) = (pages(1 << 20), all());
    let mut pages = Vec::new();
    loop {
        let page = reader.read(engine, &alone(), OTHERS, &request).unwrap();
        pages.push(page.items);
        match page.next {
            Some(next) => request.start = next,
            None => return pages,
        }
    }
}

#[test]
fn a_page_ends_before_the_item_that_does_not_fit() {
    let engine = engine();
    // An item also has a key of one byte and a record header of 24 bytes.
    let value = vec![b'v'; PAGE_BYTES / 4 - 25];
    for key in b'a'..=b'k' {
        put(&engine, &[key], &value);
    }
    put(&engine, b"e5", &vec![b'L'; 3 * PAGE_BYTES]);
    let pages = read_all(&engine);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [4, 1, 1, 4, 2]);
    let large = &pages[2][0].1;
    assert_eq!(large.byte_len(), 24 + 3 * PAGE_BYTES, "the large one has a page of its own");
    assert!(pages.concat().is_sorted_by_key(|(key, _)| key.clone()));
}

#[test]
fn tombstones_are_sent_to_nodes_that_may_have_hidden_records() {
    let engine = engine();
    let mut batch = Batch::new();
    let version = Version { time: 2, origin: 0 };
    let fields = Fields { copies: 2, ..Fields::new(lsm::Kind::Value, version) };
    batch.write(Space::Data, b"here", &fields, b"v").unwrap();
    batch.delete(Space::Data, b"gone", version).unwrap();
    commit(&engine, batch);
    put(&engine, b"gone", b"older");
    let kinds = |filter| {
        let request = PageRequest { filter, ..all() };
        let page = pages(1 << 20).read(&engine, &alone(), OTHERS, &request).unwrap();
        let kinds = page.items.iter().map(|(key, r)| (key.to_vec(), r.kind(), r.copies()));
        kinds.collect::<Vec<_>>()
    };
    let here = (b"here".to_vec(), Kind::Value, 2);
    let gone = (b"gone".to_vec(), Kind::Tombstone, 0);
    assert_eq!(
        kinds(Filter::HeldBy { node: alone().own, since: 0, promise: 0, partitions: Vec::new() }),
        [gone, here.clone()]
    );
    assert_eq!(kinds(all().filter), [here], "nobody else is asked for these keys");
}

/// A node receives the writes that it has missed since a time, including conditional writes with an
/// older base version.
#[test]
fn a_record_of_a_conditional_write_is_as_new_as_its_ballot() {
    for flushed in [false, true] {
        let engine = engine();
        put(&engine, b"plain", b"v");
        for (key, ballot) in [(b"a", 8), (b"b", 9)] {
            let version = Version { time: 1, origin: 0 };
            let fields = Fields { ballot, step: 1, ..Fields::new(lsm::Kind::Value, version) };
            let mut batch = Batch::new();
            batch.write(Space::Data, key, &fields, b"v").unwrap();
            commit(&engine, batch);
            if flushed {
                engine.rotate_all();
                engine.flush_one().unwrap();
            }
        }
        for (since, expected) in [(2, &["a", "b"][..]), (9, &["b"]), (10, &[])] {
            let filter =
                Filter::HeldBy { node: alone().own, since, promise: 0, partitions: Vec::new() };
            let request = PageRequest { filter, ..all() };
            let page = pages(1 << 20).read(&engine, &alone(), OTHERS, &request).unwrap();
            let keys: Vec<_> = page.items.iter().map(|(key, _)| &key[..]).collect();
            assert_eq!(keys, expected.iter().map(|key| key.as_bytes()).collect::<Vec<_>>());
        }
    }
}

/// Only partitions that move to a node are sent, and only once all earlier writes are known.
#[test]
fn idempotency_entries_are_sent_to_the_nodes_to_which_their_partitions_move() {
    let topology = |count: u16| {
        let member = |id: u16| Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
        let ids = (0..count).map(|id| (protocol::NodeId(id), member(id)));
        Topology::of(ids.collect(), 1).unwrap()
    };
    let (before, after) = (topology(1), topology(2));
    let own = protocol::NodeId(0);
    let clock = Arc::new(Clock::start(1, 1_000_000, 0));
    let (state, logs) =
        (MembershipState::Member, Arc::new(protocol::Logs::first(protocol::Incarnation(1))));
    let membership = Membership::new(state, 0, true);
    let shared = Shared::new(before.clone(), own, clock, membership, 0, logs);
    let engine = engine();
    let remembered = |partition: u16| {
        let (key_hash, family) =
            (u64::from(partition) << 48, protocol::Version { time: 1, origin: 1 });
        let (id, time, step, result) = (7, 9, 1, Some(-1));
        let ballots = protocol::AcceptedBallots::one(9);
        let via = protocol::Via::Accept;
        protocol::Remembered { key_hash, id, time, via, ballots, family, step, result, digest: 0 }
    };
    let mut batch = Batch::new();
    let all: Vec<_> = (0..50).map(remembered).collect();
    all.iter().for_each(|entry| crate::idempotency::put_entry(&mut batch, entry).unwrap());
    commit(&engine, batch);
    let told = || {
        let filter = Filter::Remembered { node: protocol::NodeId(1), lost: false };
        let request = PageRequest { filter, max_bytes: 500, ..self::all() };
        let (mut told, mut start, mut knows) = (Vec::new(), Some(Bytes::new()), true);
        while let Some(from) = start {
            let request = PageRequest { start: from, ..request.clone() };
            let page = pages(1 << 20).read(&engine, &shared, OTHERS, &request).unwrap();
            told.extend(page.items.iter().map(|(name, it)| crate::decode_entry(name, it).unwrap()));
            (start, knows) = (page.next, knows && page.authoritative);
        }
        (told, knows)
    };
    assert_eq!(told(), (Vec::new(), true), "nothing moves");
    shared.membership.views.install(protocol::View::new_moving(2, 2, before, after.clone()));
    let moves = |it: &protocol::Remembered| after.holds(protocol::NodeId(1), it.partition(), 0);
    let expected: Vec<_> = all.into_iter().filter(moves).collect();
    assert!((10..40).contains(&expected.len()), "about a half: {}", expected.len());
    assert_eq!(told(), (expected.clone(), true));
    shared.membership.state.mark_lost(shared.clock.last());
    assert_eq!(told(), (expected, false), "its disk was replaced: it may have forgotten some");
}

/// Returns the number of pages of a store with `tombstones` tombstones, followed by a single value.
fn pages_over(tombstones: u32, key_len: usize) -> usize {
    let engine = engine();
    let key = |number: u32| [&number.to_be_bytes()[..], &vec![0; key_len - 4]].concat();
    for first in (0..tombstones).step_by(1000) {
        let mut batch = Batch::new();
        for number in first..tombstones.min(first + 1000) {
            batch.delete(Space::Data, &key(number), Version { time: 1, origin: 0 }).unwrap();
        }
        commit(&engine, batch);
    }
    put(&engine, b"\xff", b"beyond");
    let pages = read_all(&engine);
    let found = pages.concat();
    assert_eq!(found.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), [b"\xff"]);
    pages.len()
}

#[test]
fn a_page_without_items_ends_after_bounded_work() {
    assert_eq!(pages_over(PageWork::SERVING.records as u32 - 1, 4), 1);
    assert_eq!(pages_over(2 * PageWork::SERVING.records as u32, 4), 3, "so many records");
    let record = 1024 + 24;
    let in_a_page = (PageWork::SERVING.bytes / record) as u32;
    assert_eq!(pages_over(3 * in_a_page + 1, 1024), 4, "so many bytes");
}

#[test]
fn without_memory_there_is_no_page() {
    let engine = engine();
    put(&engine, b"a", &vec![0; 2 * PAGE_BYTES]);
    put(&engine, b"b", &[0]);
    // Four pages for ranges, two for other nodes, and two for large items.
    let memory = pages(8 * PAGE_BYTES);
    let read_for = |op, start: &'static [u8]| {
        let request = PageRequest { start: Bytes::from_static(start), ..all() };
        memory.read(&engine, &alone(), op, &request)
    };
    let read = |start| read_for(OTHERS, start);
    let page = read(b"a").unwrap();
    let len = page.items[0].1.byte_len();
    assert_eq!(len, 24 + 2 * PAGE_BYTES, "whatever its size, one at a time");
    assert_eq!(memory.reserved_bytes(), 2 * PAGE_BYTES);
    assert!(matches!(read(b"a"), Err(StoreError::Busy(_))));
    let short: Vec<_> = std::iter::from_fn(|| read(b"b").ok()).collect();
    assert_eq!(short.len(), 2);
    assert!(memory.reserve_for_range(4).is_some(), "what ranges reserve is apart");
    assert!(read_for(OWN, b"b").is_ok(), "and all that a range of this node needs");
    drop(page);
    assert_eq!(memory.reserved_bytes(), 2 * PAGE_BYTES);
    drop(short);
    assert_eq!(memory.reserved_bytes(), 0, "took it");
}
