//! Fuzzes the reader of tables: patches or replaces a table of a store. Either the store must
//! refuse to open, or every later read, compaction and scan must succeed or report that the table
//! is corrupt.
//!
//! ```text
//!  input: mode u8 │ which table u8 │ patch … or the whole file
//!  patch: offset u16 │ length u8 │ bytes
//!  mode & 1: the checksums of the blocks are corrected, where the table had blocks
//!       & 2: the checksum of the table's end too, and the manifest names the resulting table
//!       & 4: the input is the whole file, without patches
//! ```
//!
//! The tables come from the fixtures, in all formats, and from a store with compressed blocks.
#![no_main]

mod store;

use std::ops::Range;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lsm::MemDisk;
use store::{STORE_ID, contents, ok_unless_corrupt, open, read_in_other_ways};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Lengths in bytes, from the layouts in `docs/formats/files.md`.
const FOOTER: usize = 72;
const MANIFEST_HEAD: usize = 40;
const EDIT_HEAD: usize = 12;
/// Distance in the manifest from a table's length to its checksum, in bytes.
const LENGTH_BEFORE_CHECK: usize = 24;

macro_rules! fixture {
    ($disk:expr, $($name:literal),*) => {
        $($disk.put_file($name, include_bytes!(concat!(
            "../../crates/lsm/tests/fixtures/store-v1/", $name
        )).to_vec());)*
    };
}

/// One table of a store.
struct Table {
    disk: MemDisk,
    name: String,
    bytes: Vec<u8>,
    blocks: Vec<Range<usize>>,
    seed: u64,
}

static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    let mut disks = [(); 2].map(|()| MemDisk::new());
    let [plain, packed] = &mut disks;
    fixture!(plain, "STORE", "MANIFEST", "0000000001.wal", "0000000001.sst", "0000000002.sst");
    let engine = open(packed, true).expect("an empty disk becomes a store");
    store::write(&engine, 1..40);
    engine.close().expect("nothing fails in memory");
    disks.iter().flat_map(tables_of).collect()
});

fn tables_of(disk: &MemDisk) -> Vec<Table> {
    let table = |id: u64| {
        let name = format!("{id:010}.sst");
        let bytes = disk.file(&name)?;
        let seed = xxh3_64(&[STORE_ID.to_le_bytes(), id.to_le_bytes()].concat());
        let blocks = blocks_of(&bytes[..bytes.len() - FOOTER], seed);
        Some(Table { disk: disk.deep_clone(), name, bytes, blocks, seed })
    };
    (1..8).filter_map(table).collect()
}

/// Finds the blocks of a valid table. The last eight bytes of a block are the checksum of its other
/// bytes.
fn blocks_of(bytes: &[u8], seed: u64) -> Vec<Range<usize>> {
    let (mut blocks, mut start) = (Vec::new(), 0);
    while start < bytes.len() {
        let is_end = |end: &usize| {
            let check = xxh3_64_with_seed(&bytes[start..end - 8], seed.wrapping_add(start as u64));
            bytes[end - 8..*end] == check.to_le_bytes()
        };
        let end = (start + 9..=bytes.len()).find(is_end).expect("blocks lie side by side");
        blocks.push(start..end);
        start = end;
    }
    blocks
}

fuzz_target!(|input: &[u8]| {
    let &[mode, which, ref rest @ ..] = input else { return };
    let table = &TABLES[usize::from(which) % TABLES.len()];
    let mut bytes = if mode & 4 != 0 { rest.to_vec() } else { apply_patches(&table.bytes, rest) };
    let len = bytes.len();
    if mode & 1 != 0 {
        for block in table.blocks.iter().filter(|block| block.end <= len) {
            let (content, check) = bytes[block.clone()].split_at_mut(block.len() - 8);
            let seed = table.seed.wrapping_add(block.start as u64);
            check.copy_from_slice(&xxh3_64_with_seed(content, seed).to_le_bytes());
        }
    }
    let disk = table.disk.deep_clone();
    if mode & 2 != 0
        && let Some((content, check)) = bytes.split_last_chunk_mut::<8>()
    {
        let top = content.len().checked_sub(FOOTER - 8).map(|footer| u64_at(content, footer));
        let tail = top.and_then(|top| content.get(usize::try_from(top).ok()?..));
        *check = xxh3_64(tail.unwrap_or_default()).to_le_bytes();
        let check = u64::from_le_bytes(*check);
        let new = (bytes.len() as u64, check);
        disk.put_file("MANIFEST", manifest_with_table(&disk, &table.bytes, new));
    }
    disk.put_file(&table.name, bytes);

    let Some(engine) = ok_unless_corrupt(open(&disk, true)) else { return };
    ok_unless_corrupt(contents(&engine));
    let keys: [&[u8]; 8] =
        [b"", b"alpha", b"beta", b"full", b"counter", b"Value 4", b"Tombstone 7", b"zz"];
    read_in_other_ways(&engine, &keys);
    ok_unless_corrupt(engine.compact_all());
    ok_unless_corrupt(contents(&engine));
});

fn apply_patches(table: &[u8], mut patches: &[u8]) -> Vec<u8> {
    let mut bytes = table.to_vec();
    while let &[low, high, length, ref rest @ ..] = patches {
        let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len();
        let length = usize::from(length).min(rest.len()).min(bytes.len() - at);
        let (patch, rest) = rest.split_at(length);
        bytes[at..at + length].copy_from_slice(patch);
        patches = rest;
    }
    bytes
}

/// Returns the manifest with a new length and a new checksum of a table.
fn manifest_with_table(disk: &MemDisk, old: &[u8], (length, check): (u64, u64)) -> Vec<u8> {
    let mut manifest = disk.file("MANIFEST").expect("every store has one");
    let old_check = &old[old.len() - 8..];
    let mut at = MANIFEST_HEAD;
    let mut number = u64_at(&manifest, 24);
    while let Some(head) = manifest.get(at..at + EDIT_HEAD) {
        let payload_len = u64_at(head, 0) as u32 as usize;
        let Some(payload) = manifest.get_mut(at + EDIT_HEAD..at + EDIT_HEAD + payload_len) else {
            break;
        };
        number += 1;
        for place in 0..payload.len().saturating_sub(7) {
            if payload[place..place + 8] == *old_check {
                payload[place..place + 8].copy_from_slice(&check.to_le_bytes());
                let before = place - LENGTH_BEFORE_CHECK;
                payload[before..before + 8].copy_from_slice(&length.to_le_bytes());
            }
        }
        let seed = STORE_ID ^ number.rotate_left(32) ^ payload_len as u64;
        let check = xxh3_64_with_seed(payload, seed);
        manifest[at + 4..at + EDIT_HEAD].copy_from_slice(&check.to_le_bytes());
        at += EDIT_HEAD + payload_len;
    }
    manifest
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
