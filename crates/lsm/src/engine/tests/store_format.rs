//! Tests of the store's format: a release opens formats within its range, a raise is durable, and
//! no file is written in a new format before the raise is durable.

use super::*;
use crate::disk::{Fault, Op};
use crate::format_range::FormatRange;

const STORE: &str = "STORE";

fn of(first: u32, last: u32) -> Options {
    Options { formats: FormatRange { first, last }, ..small_options() }
}

/// Opens the store and returns its format; the store is closed again.
fn format_of(disk: &MemDisk, options: &Options) -> Result<u32, Error> {
    let engine = Engine::open(Arc::new(disk.clone()), options.clone())?;
    let format = engine.format();
    engine.close().unwrap();
    Ok(format)
}

fn stored_format(disk: &MemDisk) -> u32 {
    let bytes = disk.file(STORE).unwrap();
    u32::from_le_bytes(bytes[8..12].try_into().unwrap())
}

fn files(disk: &MemDisk) -> BTreeMap<String, Vec<u8>> {
    let names = disk.list().unwrap();
    names.into_iter().map(|name| (name.clone(), disk.file(&name).unwrap())).collect()
}

#[test]
fn a_new_store_has_the_earliest_format_and_keeps_it_until_it_is_raised() {
    let disk = MemDisk::new();
    let mut model = Model::new();
    let engine = open(&disk, &of(1, 1));
    write(&engine, &mut model, b"a", Kind::Value, 1, b"by the earlier release");
    engine.close().unwrap();
    let engine = open(&disk, &of(1, 2));
    write(&engine, &mut model, b"b", Kind::Value, 2, b"by the later release");
    flush_all(&engine);
    engine.close().unwrap();
    assert_eq!(stored_format(&disk), 1, "the later release writes the format of the store");
    let engine = open(&disk, &of(1, 1));
    write(&engine, &mut model, b"c", Kind::Value, 3, b"by the earlier release, back again");
    check(&engine, &model);
    engine.close().unwrap();
    let engine = open(&disk, &of(1, 2));
    assert_eq!(engine.raise_format(2).unwrap(), 2);
    assert_eq!((engine.format(), stored_format(&disk)), (2, 2));
    write(&engine, &mut model, b"d", Kind::Value, 4, b"in format 2");
    check(&engine, &model);
    engine.close().unwrap();
    check(&open(&disk, &of(1, 2)), &model);
    check(&open(&disk, &of(2, 3)), &model);
    assert_eq!(format_of(&MemDisk::new(), &of(2, 3)).unwrap(), 2);
}

#[test]
fn a_refused_open_changes_no_byte_and_says_what_to_do() {
    let disk = MemDisk::new();
    format_of(&disk, &of(1, 2)).unwrap();
    let before = files(&disk);
    let skipped = format_of(&disk, &of(2, 3)).unwrap_err();
    assert!(matches!(skipped, Error::OlderFormat { found: 1, .. }), "{skipped}");
    assert_eq!(
        skipped.to_string(),
        "STORE has format version 1, and this release opens 2 to 3: nothing was changed. A release \
         was skipped: start the release before this one, run `kvorum cluster finalize`, then \
         upgrade again"
    );
    assert_eq!(files(&disk), before);
    let engine = open(&disk, &of(1, 2));
    engine.raise_format(2).unwrap();
    engine.close().unwrap();
    let before = files(&disk);
    let later = format_of(&disk, &of(1, 1)).unwrap_err();
    assert!(matches!(later, Error::NewerFormat { found: 2, supported: 1, .. }), "{later}");
    assert!(later.to_string().contains("nothing was changed"), "{later}");
    assert_eq!(files(&disk), before);
}

#[test]
fn a_raise_is_repeatable_and_refuses_formats_unknown_to_the_release() {
    let disk = MemDisk::new();
    let engine = open(&disk, &of(1, 2));
    let before = files(&disk);
    let unknown = engine.raise_format(3).unwrap_err();
    assert!(matches!(unknown, Error::UnknownFormat { format: 3, .. }), "{unknown}");
    assert_eq!(engine.raise_format(1).unwrap(), 1);
    assert_eq!(files(&disk), before, "a refusal, and a raise to the present format");
    let operations = disk.operations();
    assert_eq!(engine.raise_format(2).unwrap(), 2);
    assert!(disk.operations() > operations);
    let operations = disk.operations();
    for format in [2, 1, 0] {
        assert_eq!(engine.raise_format(format).unwrap(), 2, "a format never decreases");
    }
    assert_eq!(disk.operations(), operations);
}

/// Raises the format on a copy of `disk`, whose power is cut after `steps` calls. Returns the copy,
/// and true if the raise succeeded.
fn raise_until_power_cut(disk: &MemDisk, steps: u64) -> (MemDisk, bool) {
    let disk = disk.deep_clone();
    let engine = open(&disk, &of(1, 2));
    disk.crash_after(steps);
    let raised = engine.raise_format(2);
    match &raised {
        Ok(format) => assert_eq!((*format, engine.format()), (2, 2)),
        Err(_) => assert_eq!(engine.format(), 1, "what is not known to be durable is not written"),
    }
    (disk, raised.is_ok())
}

#[test]
fn a_crash_at_each_step_leaves_the_old_or_the_new_format_and_all_records() {
    let disk = MemDisk::new();
    let mut model = Model::new();
    let engine = open(&disk, &of(1, 1));
    for time in 1..50 {
        write(&engine, &mut model, &[time as u8], Kind::Value, time, b"value");
    }
    engine.close().unwrap();
    let mut found = [0; 2];
    for steps in 0.. {
        let (dead, is_raised) = raise_until_power_cut(&disk, steps);
        let power_cuts = (0..8).map(|seed| dead.crash(seed));
        for after in power_cuts.chain([dead.process_crash()]) {
            let engine = open(&after, &of(1, 2));
            check(&engine, &model);
            let format = engine.format();
            assert_eq!(format, stored_format(&after));
            assert!(format == 2 || !is_raised, "an acknowledged raise is lost");
            found[format as usize - 1] += 1;
            assert_eq!(engine.raise_format(2).unwrap(), 2, "the raise can be repeated");
            check(&engine, &model);
        }
        if is_raised {
            assert!(steps >= 5, "{steps}: create, write, sync, rename, sync of the directory");
            break;
        }
    }
    assert!(found.iter().all(|count| *count > 8), "{found:?}");
}

#[test]
fn an_error_of_a_raise_leaves_the_store_as_it_is_or_fails_it() {
    for (fault, fails) in [
        (Fault::once(Op::Create, 28).suffix("STORE.tmp"), false),
        (Fault::once(Op::Write, 28).suffix("STORE.tmp"), false),
        (Fault::once(Op::Sync, 5).suffix("STORE.tmp"), true),
        (Fault::once(Op::Rename, 5), true),
        (Fault::once(Op::SyncDir, 5), true),
    ] {
        let disk = MemDisk::new();
        let engine = open(&disk, &of(1, 2));
        disk.fail(fault.clone());
        let error = engine.raise_format(2).unwrap_err();
        assert_eq!(disk.pending_faults(), 0, "{fault:?}");
        assert_eq!(engine.check_health().is_err(), fails, "{fault:?}: {error}");
        assert_eq!(engine.format(), 1);
        if fails {
            assert!(engine.raise_format(2).is_err(), "the store is to be reopened");
        } else {
            assert!(error.is_no_space() && stored_format(&disk) == 1, "{error}");
            assert_eq!(engine.raise_format(2).unwrap(), 2);
        }
        drop(engine);
        let engine = open(&disk.process_crash(), &of(1, 2));
        assert_eq!(engine.raise_format(2).unwrap(), 2);
    }
}
