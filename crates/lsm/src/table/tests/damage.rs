//! Tests of tables that are damaged, foreign or truncated, or on a failing disk.

use super::*;
use crate::disk::{Fault, Op};
use crate::table::entries::{find, find_from};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[test]
fn a_flipped_bit_is_reported_and_no_read_returns_wrong_data() {
    let model = model(700, 60);
    let (bytes, meta) = write(params(1), &model);
    let mut rejected = [0, 0];
    for bit in (0..bytes.len() * 8).step_by(101) {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let table = match open(damaged, &meta, 1 << 20) {
            Err(Error::Corrupt { .. }) => {
                rejected[0] += 1;
                continue;
            }
            Err(other) => panic!("bit {bit}: {other}"),
            Ok(table) => table,
        };
        let mut errors = 0;
        for (key, raw) in &model {
            match get(&table, key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&raw[..]), "bit {bit}"),
                Err(Error::Corrupt { .. }) => errors += 1,
                Err(other) => panic!("bit {bit}: {other}"),
            }
        }
        assert!(errors > 0, "bit {bit} went unnoticed by every get");
        rejected[1] += 1;
        for access in [Access::Cached, Access::Sequential] {
            // Iterators do not read the filter, so they must return everything.
            match all(&table, access) {
                Ok(items) => assert!(items.iter().map(|(k, r)| (k, r)).eq(&model), "bit {bit}"),
                Err(error) => assert!(matches!(error, Error::Corrupt { .. })),
            }
        }
    }
    assert!(rejected.iter().all(|n| *n > 10), "{rejected:?}");
}

#[test]
fn a_truncated_or_foreign_table_is_not_opened() {
    let model = model(500, 60);
    let (bytes, meta) = write(params(1), &model);
    for len in (0..bytes.len()).step_by(37).chain(bytes.len() - 100..bytes.len()) {
        let cut = bytes[..len].to_vec();
        let wrong_meta = TableMeta { bytes: len as u64, ..meta.clone() };
        for meta in [&meta, &wrong_meta] {
            let error = open(cut.clone(), meta, 0).err();
            assert!(matches!(error, Some(Error::Corrupt { .. })), "{len} bytes: {error:?}");
        }
    }
    let error = |bytes: &[u8], meta: &TableMeta| match open(bytes.to_vec(), meta, 0) {
        Ok(_) => panic!("a foreign table was opened"),
        Err(error) => error.to_string(),
    };
    let (other, _) = write(params(2), &model);
    assert!(error(&other, &meta).contains("table 2"), "{}", error(&other, &meta));
    let (other, _) = write(TableParams { store_id: 9, ..params(1) }, &model);
    assert!(error(&other, &meta).contains("store 0000000000000009"));
    let wrong_meta = TableMeta { check: meta.check ^ 1, ..meta.clone() };
    assert!(error(&bytes, &wrong_meta).contains("the manifest names"));
    for wrong_meta in [
        TableMeta { entries: meta.entries + 1, ..meta.clone() },
        TableMeta { min_write_time: meta.min_write_time - 1, ..meta.clone() },
        TableMeta { max_write_time: meta.max_write_time + 1, ..meta.clone() },
        TableMeta { expiring: meta.deleted, ..meta.clone() },
    ] {
        assert!(error(&bytes, &wrong_meta).contains("properties"));
    }
}

#[test]
fn a_newer_format_is_reported_as_newer() {
    let (mut bytes, meta) = write(params(1), &model(10, 10));
    let (version_at, check_at) = (bytes.len() - 24, bytes.len() - 8);
    bytes[version_at] = 2;
    assert!(matches!(open(bytes.clone(), &meta, 0), Err(Error::Corrupt { .. })));
    let footer = &bytes[bytes.len() - 72..];
    let top_at = u64::from_le_bytes(footer[..8].try_into().unwrap()) as usize;
    let check = xxh3_64(&bytes[top_at..check_at]);
    bytes[check_at..].copy_from_slice(&check.to_le_bytes());
    let error = open(bytes, &meta, 0).err().unwrap();
    assert!(matches!(error, Error::NewerFormat { found: 2, supported: 1, .. }), "{error}");
}

#[test]
fn a_misplaced_block_is_detected() {
    let model = model(400, 60);
    let (mut bytes, meta) = write(TableParams { compress: false, ..params(1) }, &model);
    let table = open(bytes.clone(), &meta, 0).unwrap();
    let mut index = Cursor::default();
    let Ok(block) = table.block(table.top.partitions[0].index, ReadMode::Blocking) else {
        panic!()
    };
    index.set_block(block).unwrap();
    index.seek_to_first().unwrap();
    let mut handles = Vec::new();
    while index.valid() {
        handles.push(BlockHandle::take(&mut index.value(), u64::MAX).unwrap());
        index.next().unwrap();
    }
    let twins = handles.iter().flat_map(|a| handles.iter().map(move |b| (*a, *b)));
    let (a, b) = twins.clone().find(|(a, b)| a.offset < b.offset && a.len == b.len).unwrap();
    let (low, high) = bytes.split_at_mut(b.offset as usize);
    let a_at = a.offset as usize;
    low[a_at..a_at + a.len as usize].swap_with_slice(&mut high[..b.len as usize]);
    let table = open(bytes, &meta, 0).unwrap();
    let errors = model.keys().filter(|key| get(&table, key).is_err()).count();
    assert!(errors > 0);
    assert!(all(&table, Access::Sequential).is_err());
}

#[test]
fn a_disk_error_during_the_write_of_a_table_is_returned() {
    let model = model(30_000, 100);
    for (op, errno, passes) in
        [(Op::Create, EIO, 0), (Op::Write, ENOSPC, 0), (Op::Write, EIO, 2), (Op::Sync, EIO, 0)]
    {
        let disk = MemDisk::new();
        disk.fail(Fault::once(op, errno).after(passes));
        let written = TableWriter::create(&disk, params(1)).and_then(|mut writer| {
            model.iter().try_for_each(|(key, raw)| writer.add(key, raw))?;
            writer.finish()
        });
        let error = written.err().unwrap_or_else(|| panic!("{op:?} failed and nobody noticed"));
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert_eq!(error.is_no_space(), errno == ENOSPC);
        assert!(error.to_string().contains(&file_name(1)), "{error}");
    }
}

#[test]
fn a_failed_read_of_a_table_is_an_error_and_never_absence() {
    let model = model(2_000, 60);
    let (bytes, meta) = write(params(1), &model);
    let disk = MemDisk::new();
    disk.put_file(&file_name(1), bytes);
    let cache = Arc::new(BlockCache::new(0));
    let file = disk.open(&file_name(1)).unwrap();
    let table = Arc::new(Table::open(file, &meta, STORE, cache).unwrap());
    let key = model.keys().nth(700).unwrap();
    // A lookup reads a filter, an index and a data block.
    for passes in 0..3 {
        for mode in [ReadMode::Blocking, ReadMode::NonBlocking] {
            disk.fail(Fault::once(Op::Read, EIO).after(passes));
            let got = table.get(key, xxh3_64(&key[1..]), mode);
            assert!(matches!(got, Err(Error::Io { .. })), "read {passes}: {got:?}");
        }
        disk.fail(Fault::once(Op::Read, EIO).after(passes));
        let items = all(&table, Access::Cached);
        assert!(matches!(items, Err(Error::Io { .. })), "read {passes} of a scan");
    }
    disk.clear_faults();
    disk.truncate(&file_name(1), meta.bytes / 100);
    assert!(matches!(get(&table, key), Err(Error::Corrupt { .. })));
}

/// A table whose first block has changed content and a valid checksum, as if memory had been
/// damaged before the block was written.
fn forge_table(model: &Model, change: impl FnOnce(&mut Vec<u8>)) -> Arc<Table> {
    let (mut bytes, meta) = write(TableParams { compress: false, ..params(1) }, model);
    let sound = open(bytes.clone(), &meta, 0).unwrap();
    let handle = read_index(&sound, 0).unwrap().blocks[0].handle;
    let stored = handle.offset as usize..handle.offset as usize + handle.len as usize;
    let mut content = sound.block(handle, ReadMode::Blocking).ok().unwrap().to_vec();
    change(&mut content);
    let mut sealed = Vec::new();
    block::encode_block(&mut sealed, &content, sound.seed, handle.offset, None);
    bytes[stored].copy_from_slice(&sealed);
    open(bytes, &meta, 1 << 20).unwrap()
}

/// Position of the first key in a block's content.
fn first_key(content: &[u8]) -> usize {
    let number = |at: usize| u32::from_le_bytes(*content[at..].first_chunk().unwrap()) as usize;
    let restarts = number(content.len() - 4);
    number(content.len() - 4 - 8 * restarts)
}

#[test]
fn a_malformed_block_with_a_valid_checksum_is_reported() {
    let model = model(100, 60);
    let shape = |content: &mut Vec<u8>| content[2] = 0xff;
    let no_key = |content: &mut Vec<u8>| {
        let at = first_key(content);
        content[at + 1] = 0;
    };
    // The keys have the form "\0user/000/00000".
    let too_great = |content: &mut Vec<u8>| {
        let at = first_key(content);
        content[at + 3 + 5] += 1;
    };
    let too_small = |content: &mut Vec<u8>| {
        let at = first_key(content);
        content[at + 3 + 5] -= 1;
    };
    let space = |content: &mut Vec<u8>| {
        let at = first_key(content);
        content[at + 3] = 9;
    };
    type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
    let changes: [(&str, Change<'_>); 5] = [
        ("a record of no known shape", &shape),
        ("no key", &no_key),
        ("a key of no known space", &space),
        ("keys that do not ascend", &too_great),
        ("a key before the table's first", &too_small),
    ];
    for (what, change) in changes {
        let table = forge_table(&model, change);
        for access in [Access::Cached, Access::Sequential] {
            let iteration = all(&table, access);
            let Err(Error::Corrupt { offset: 0, .. }) = iteration else {
                panic!("{what}: {iteration:?}")
            };
            let mut iter = TableIter::new(table.clone(), access);
            let iteration = iter.seek(b"\0").and_then(|()| rest(&mut iter));
            let Err(Error::Corrupt { offset: 0, .. }) = iteration else {
                panic!("{what}: {iteration:?}")
            };
            assert!(!iter.valid(), "{what}");
        }
    }
}

proptest! {
    #[test]
    fn random_blocks_are_read_or_reported_without_a_panic(
        mut block in proptest::collection::vec(prop_oneof![0u8..20, any::<u8>()], 0..200),
        restarts in proptest::collection::vec(0u32..120, 0..6),
        key in proptest::collection::vec(0u8..20, 0..6),
    ) {
        for restart in &restarts {
            block.extend_from_slice(&restart.to_le_bytes());
        }
        block.extend_from_slice(&(restarts.len() as u32 / 2).to_le_bytes());
        let _ = find(&block, &key);
        let _ = find_from(&block, &key);
        let mut cursor = Cursor::default();
        if cursor.set_block(block.into()).is_ok() {
            let sought = cursor.seek(&key);
            let mut step = if sought.is_ok() { Ok(()) } else { cursor.seek_to_first() };
            while step.is_ok() && cursor.valid() {
                prop_assert!(cursor.key().len() + cursor.value().len() < 1_000);
                step = cursor.next();
            }
        }
    }
}
