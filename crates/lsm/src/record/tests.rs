//! Records encoded and read back, damaged, and compared.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::*;

const OPERATIONS: [Operation; 3] = [
    Operation { id: 1, result: None },
    Operation { id: u64::MAX, result: Some(-2) },
    Operation { id: 3, result: Some(i64::MAX) },
];

const STEPS: Steps<'_> = Steps { ballot: 21, step: 17, operations: &OPERATIONS };

fn version(time: u64, origin: u32) -> Version {
    Version { time, origin }
}

#[test]
fn every_part_comes_back() {
    let fields = Fields {
        kind: Kind::Value,
        version: version(7, 9),
        steps: None,
        copies: 3,
        expiry_ms: 11,
        extension: b"ext",
    };
    let record = Record::new(b"k", &fields, b"value");
    let view = RecordRef::parse(record.view().raw()).unwrap();
    assert_eq!(view.kind(), Kind::Value);
    assert_eq!(view.version(), version(7, 9));
    assert_eq!((view.copies(), view.expiry_ms()), (3, 11));
    assert_eq!(view.value(), b"value");
    assert_eq!(record.value(), b"value"[..]);
    view.verify(b"k").unwrap();
    assert!(view.verify(b"another key").is_err());
}

#[test]
fn a_flipped_bit_anywhere_but_in_the_node_local_bytes_is_seen() {
    for steps in [None, Some(STEPS)] {
        let fields = Fields { steps, ..Fields::new(Kind::Value, version(7, 9)) };
        let record = Record::new(b"k", &fields, b"value");
        for bit in 16..record.view().raw().len() * 8 {
            let mut raw = record.view().raw().to_vec();
            raw[bit / 8] ^= 1 << (bit % 8);
            let seen = RecordRef::parse(&raw).and_then(|r| r.verify(b"k"));
            assert!(seen.is_err(), "bit {bit} went unnoticed");
        }
    }
}

/// The bytes that every release writes for a plain record.
#[test]
fn without_steps_a_record_is_of_format_1() {
    let record = Record::new(b"k", &Fields::new(Kind::Value, version(7, 9)), b"value");
    let head = [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0];
    let (found, check) = record.view().raw().split_at(21);
    assert_eq!(found, [&head[..], b"value"].concat());
    assert_eq!(check, xxh3_64_with_seed(&found[2..], xxh3_64(b"k")).to_le_bytes());
    assert_eq!((record.view().ballot(), record.view().when()), (0, 7));
    assert!(record.view().steps().is_none());
}

#[test]
fn steps_lie_between_origin_and_expiry() {
    let fields =
        Fields { steps: Some(STEPS), expiry_ms: 5, ..Fields::new(Kind::Value, version(7, 9)) };
    let record = Record::new(b"k", &fields, b"value");
    let raw = record.view().raw();
    assert_eq!(raw[2], 0b1_0100);
    let mut expected = vec![21, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 3, 0b110];
    for number in [1, u64::MAX, 3, -2_i64 as u64, i64::MAX as u64, 5] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    assert_eq!(raw[16..16 + expected.len()], expected);
    assert_eq!(raw[16 + expected.len()..raw.len() - 8], *b"value");
}

#[test]
fn steps_that_can_not_be_are_refused() {
    let with = |at: usize, bytes: &[u8]| {
        let fields = Fields { steps: Some(STEPS), ..Fields::new(Kind::Value, version(7, 9)) };
        let mut raw = Record::new(b"k", &fields, &[1; 200]).view().raw().to_vec();
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        RecordRef::parse(&raw).map(|record| record.value().len())
    };
    assert_eq!(with(28, &[3, 0b110]), Ok(200));
    assert_eq!(with(28, &[8, 0xff]), Ok(200 - 5 * 8 - 6 * 8), "the most that there may be");
    assert!(with(28, &[9, 0]).is_err(), "more operations than there may be");
    assert!(with(28, &[2, 0b110]).is_err(), "a result of no operation");
    assert!(with(28, &[0, 1]).is_err());
    assert!(with(16, &[0; 8]).is_err(), "no ballot");
    let record = Record::new(b"k", &Fields::new(Kind::Value, version(7, 9)), &[1; 13]);
    let mut raw = record.view().raw().to_vec();
    raw[2] |= SHAPE_STEPS;
    assert!(RecordRef::parse(&raw).is_err(), "shorter than steps without an operation");
}

#[test]
fn another_version_or_ballot_changes_nothing_else() {
    let fields = Fields {
        steps: Some(STEPS),
        copies: 3,
        expiry_ms: 11,
        extension: b"ext",
        ..Fields::new(Kind::Value, version(7, 9))
    };
    let record = Record::new(b"k", &fields, b"value");
    let steps = Some(Steps { ballot: 30, ..STEPS });
    let expected = Record::new(b"k", &Fields { steps, ..fields.clone() }, b"value");
    assert_eq!(record.with_ballot(b"k", 30), expected);
    let expected = Record::new(b"k", &Fields { version: version(8, 1), ..fields }, b"value");
    assert_eq!(record.with_version(b"k", version(8, 1)), expected);
}

#[test]
#[should_panic(expected = "has no ballot")]
fn a_plain_record_gets_no_ballot() {
    Record::new(b"k", &Fields::new(Kind::Value, version(7, 9)), b"").with_ballot(b"k", 3);
}

/// A record that was never chosen must not hide a later one that was, however far it is ahead.
#[test]
fn within_a_version_the_ballot_comes_before_everything_else() {
    let with = |time, ballot, step, kind| {
        let steps = Steps { ballot, step, operations: &OPERATIONS };
        let steps = (ballot > 0).then_some(steps);
        Record::new(b"k", &Fields { steps, ..Fields::new(kind, version(time, 1)) }, b"")
    };
    let ascending = [
        with(5, 0, 0, Kind::Value),
        with(5, 0, 0, Kind::Tombstone),
        with(5, 90, 7, Kind::Tombstone),
        with(5, 91, 1, Kind::Value),
        with(5, 91, 1, Kind::Tombstone),
        with(6, 0, 0, Kind::Value),
        with(6, 4, 1, Kind::Value),
    ];
    for (i, one) in ascending.iter().enumerate() {
        for (k, other) in ascending.iter().enumerate() {
            assert_eq!(one.view().order(&other.view()), i.cmp(&k), "{one:?} {other:?}");
        }
    }
    assert_eq!(ascending.map(|record| record.view().when()), [5, 5, 90, 91, 91, 6, 4]);
}

#[test]
fn version_then_tombstone_then_check_decide() {
    let value =
        |time, bytes: &[u8]| Record::new(b"k", &Fields::new(Kind::Value, version(time, 1)), bytes);
    let tombstone = Record::new(b"k", &Fields::new(Kind::Tombstone, version(5, 1)), b"");
    assert_eq!(value(6, b"a").view().order(&tombstone.view()), Ordering::Greater);
    assert_eq!(tombstone.view().order(&value(5, b"a").view()), Ordering::Greater);
    assert_eq!(value(5, b"a").view().order(&value(5, b"a").view()), Ordering::Equal);
    let (a, b) = (value(5, b"a"), value(5, b"b"));
    assert_eq!(a.view().order(&b.view()), b.view().order(&a.view()).reverse());
    assert_ne!(a.view().order(&b.view()), Ordering::Equal);
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation =
        (any::<u64>(), any::<Option<i64>>()).prop_map(|(id, result)| Operation { id, result });
    vec(operation, 0..=MAX_OPERATIONS)
}

proptest! {
    #[test]
    fn any_parts_come_back(
        (kind, copies) in (0usize..3, any::<u8>()),
        (time, origin) in any::<(u64, u32)>(),
        steps in weighted(0.7, (1..=u64::MAX, any::<u32>(), operations())),
        expiry_ms in prop_oneof![Just(0), any::<u64>()],
        extension in vec(any::<u8>(), 0..20),
        value in vec(any::<u8>(), 0..40),
    ) {
        let kind = [Kind::Value, Kind::Tombstone, Kind::Superseded][kind];
        let version = Version { time, origin };
        let made = steps.as_ref().map(|(ballot, step, operations)| Steps {
            ballot: *ballot,
            step: *step,
            operations,
        });
        let extension = &extension[..];
        let fields = Fields { kind, version, steps: made, copies, expiry_ms, extension };
        let record = Record::new(b"key", &fields, &value);
        prop_assert_eq!(record.bytes().len(), encoded_len(&fields, value.len()));
        let view = RecordRef::parse(record.view().raw()).unwrap();
        prop_assert!(view.verify(b"key").is_ok() && view.verify(b"kez").is_err());
        prop_assert_eq!((view.kind(), view.version(), view.copies()), (kind, version, copies));
        prop_assert_eq!((view.expiry_ms(), view.extension()), (expiry_ms, extension));
        prop_assert_eq!(view.value(), &value);
        let ballot = steps.as_ref().map_or(0, |(ballot, ..)| *ballot);
        let when = if ballot > 0 { ballot } else { time };
        prop_assert_eq!((view.ballot(), view.when()), (ballot, when));
        let found = view.steps().map(|steps| {
            (steps.ballot(), steps.step(), steps.operations().collect::<Vec<_>>())
        });
        prop_assert_eq!(found, steps);
    }

    /// What comes from a peer may be anything. What is taken for a record can be looked at.
    #[test]
    fn any_bytes_are_a_record_or_refused(
        mut raw in vec(any::<u8>(), 0..180),
        shape in 0u8..0b10_0000,
        (count, results) in (0u8..10, any::<u8>()),
    ) {
        if raw.len() > 30 {
            raw[2] = shape;
            (raw[28], raw[29]) = (count, results);
        }
        let Ok(record) = RecordRef::parse(&raw) else { return Ok(()) };
        let steps = record.steps();
        let operations = steps.map_or(0, |steps| steps.operations().count());
        prop_assert!(operations <= MAX_OPERATIONS && (record.ballot() == 0) == steps.is_none());
        let _ = (record.expiry_ms(), record.extension(), record.verify(b"k"));
        prop_assert!(record.value().len() + MIN_RECORD_LEN <= raw.len());
    }
}
