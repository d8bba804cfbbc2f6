//! Row 8 of `docs/results/reliability.md`: whole files are missing, truncated, exchanged, or
//! replaced by older copies. The open fails, or all answers are correct.

use lsm::disk::{Fault, Op};
use lsm::{Disk, Error, MemDisk, Options, SyncMode};

use super::model::{History, Model, Random, batch, effort, open, small, wait_for};

/// Copies of a store's disk, with the expected content, at many moments.
fn moments(options: &Options) -> Vec<(MemDisk, Model)> {
    let disk = MemDisk::new();
    let mut moments = Vec::new();
    let mut model = Model::default();
    let (mut history, mut random) = (History::default(), Random::new(21));
    for life in 0..3 {
        let db = open(&disk, options).unwrap();
        for round in 0..90 {
            let writes = history.next(&mut random).to_vec();
            db.write_batch(batch(&writes)).unwrap();
            model.apply(&writes);
            if round % 30 == 20 {
                db.flush().unwrap();
            }
            if round == 70 && life < 2 {
                db.compact().unwrap();
            }
            if round % 10 == 5 {
                moments.push((disk.deep_clone(), model.clone()));
            }
        }
        wait_for("idle", || db.is_idle());
        db.close().unwrap();
        moments.push((disk.deep_clone(), model.clone()));
    }
    moments
}

fn names(disk: &MemDisk, ending: &str) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    names
}

fn expect_refusal(disk: &MemDisk, options: &Options, what: &str) -> Error {
    match open(disk, options) {
        Ok(_) => panic!("{what} was not noticed"),
        Err(error) => error,
    }
}

/// Opens the store repeatedly, as a supervisor does. Returns true if every attempt fails, false if
/// the first attempt succeeds and every answer is correct; panics otherwise.
fn is_refused_at_every_open(disk: &MemDisk, options: &Options, model: &Model, what: &str) -> bool {
    if open(disk, options).is_ok_and(|db| Model::of(&db).is_ok_and(|found| model.same(&found))) {
        return false;
    }
    for attempt in 0..60 {
        let opened = open(disk, options);
        assert!(opened.is_err(), "{what}: refused at first, opened at attempt {attempt}");
    }
    true
}

#[test]
fn a_missing_cut_or_exchanged_table_is_detected_at_open() {
    let options = small(SyncMode::Always, 1);
    let moments = moments(&options);
    let (disk, _) = moments.last().unwrap();
    let tables = names(disk, ".sst");
    assert!(tables.len() >= 2, "{tables:?}");
    let mut tried = 0;
    for table in &tables {
        let gone = disk.deep_clone();
        gone.delete(table);
        let error = expect_refusal(&gone, &options, "a missing table");
        assert!(error.to_string().contains(table.as_str()), "{error}");
        let whole = disk.file(table).unwrap();
        for kept in [0, 1, whole.len() / 2, whole.len() - 1] {
            let cut = disk.deep_clone();
            cut.truncate(table, kept as u64);
            expect_refusal(&cut, &options, "a table that was cut");
        }
        let longer = disk.deep_clone();
        longer.put_file(table, [&whole[..], &[0]].concat());
        expect_refusal(&longer, &options, "a table with a byte more");
        for other in tables.iter().filter(|other| *other != table) {
            let swapped = disk.deep_clone();
            swapped.put_file(table, disk.file(other).unwrap());
            expect_refusal(&swapped, &options, "a table with another's content");
            tried += 1;
        }
        // The table of the same name from a store with a different history.
        let other = MemDisk::new();
        let db = open(&other, &options).unwrap();
        for _ in 0..60 {
            let writes = History::default().next(&mut Random::new(3)).to_vec();
            db.write_batch(batch(&writes)).unwrap();
            db.flush().unwrap();
        }
        drop(db);
        for foreign in names(&other, ".sst") {
            let swapped = disk.deep_clone();
            swapped.put_file(table, other.file(&foreign).unwrap());
            expect_refusal(&swapped, &options, "a table of another life");
            tried += 1;
        }
        tried += 6;
    }
    println!("row 8, tables: {tried} tried, all noticed at open");
}

/// With an older manifest the store either recovers everything from the log or refuses to open. A
/// refusal is repeated and destroys nothing, so that the right file can be restored.
#[test]
fn an_older_manifest_is_refused_or_loses_nothing() {
    let options = small(SyncMode::Always, 1);
    let moments = moments(&options);
    let (disk, model) = moments.last().unwrap();
    let (mut noticed, mut harmless) = (0, 0);
    for (at, (older, _)) in moments.iter().enumerate() {
        let manifest = older.file("MANIFEST").unwrap();
        if Some(&manifest) == disk.file("MANIFEST").as_ref() {
            continue;
        }
        let stale = disk.deep_clone();
        stale.put_file("MANIFEST", manifest);
        if is_refused_at_every_open(&stale, &options, model, &format!("manifest {at}")) {
            noticed += 1;
            stale.put_file("MANIFEST", disk.file("MANIFEST").unwrap());
            let db = open(&stale, &options).unwrap_or_else(|error| {
                panic!("manifest {at}: the refused open destroyed something: {error}")
            });
            model.check(&db);
        } else {
            harmless += 1;
        }
    }
    assert!(noticed > 0);
    println!("row 8, manifests: {noticed} refused, {harmless} led to everything, 0 wrong");
}

#[test]
fn a_missing_manifest_or_store_file_is_refused() {
    let options = small(SyncMode::Always, 0);
    let moments = moments(&options);
    let (disk, _) = moments.last().unwrap();
    for name in ["MANIFEST", "STORE"] {
        let gone = disk.deep_clone();
        gone.delete(name);
        expect_refusal(&gone, &options, name);
        for len in [0, 1, 20] {
            let cut = disk.deep_clone();
            cut.truncate(name, len);
            expect_refusal(&cut, &options, name);
        }
    }
    let other = MemDisk::new();
    drop(open(&other, &Options { new_store_id: 78, ..options.clone() }).unwrap());
    let foreign = disk.deep_clone();
    foreign.put_file("MANIFEST", other.file("MANIFEST").unwrap());
    expect_refusal(&foreign, &options, "another store's manifest");
}

/// All written data is in log segments, because the disk has no space for tables.
#[test]
fn a_missing_or_exchanged_segment_is_detected() {
    let options = Options { memtable_bytes: 1 << 20, ..small(SyncMode::Always, 0) };
    let disk = MemDisk::new();
    let (mut history, mut random) = (History::default(), Random::new(22));
    // Without space for tables, a clean stop leaves the whole log.
    disk.fail(Fault::forever(Op::Create, 28).suffix(".sst"));
    for _ in 0..2 {
        let db = open(&disk, &options).unwrap();
        for _ in 0..180 * effort().min(2) {
            db.write_batch(batch(history.next(&mut random))).unwrap();
        }
        db.close().unwrap();
    }
    disk.clear_faults();
    // The prepared segment has no header and contains no groups, so it is left out.
    let mut segments = names(&disk, ".wal");
    segments.retain(|name| disk.file(name).is_some_and(|bytes| bytes.iter().any(|b| *b != 0)));
    assert!(segments.len() >= 4, "{segments:?}");
    let (last, others) = segments.split_last().unwrap();
    for segment in others {
        let gone = disk.deep_clone();
        gone.delete(segment);
        expect_refusal(&gone, &options, "a missing segment");
        let cut = disk.deep_clone();
        cut.truncate(segment, 1000);
        expect_refusal(&cut, &options, "a segment that was cut");
    }
    for (a, b) in [(0, 1), (1, 2), (0, segments.len() - 1)] {
        let swapped = disk.deep_clone();
        swapped.put_file(&segments[a], disk.file(&segments[b]).unwrap());
        swapped.put_file(&segments[b], disk.file(&segments[a]).unwrap());
        expect_refusal(&swapped, &options, "two segments that were exchanged");
    }
    let gone = disk.deep_clone();
    for segment in &segments {
        gone.delete(segment);
    }
    expect_refusal(&gone, &options, "a missing log");
    let gone = disk.deep_clone();
    gone.delete(last);
    expect_refusal(&gone, &options, "a missing last segment");
}
