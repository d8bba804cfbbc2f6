//! Tests of records: encoding, decoding, detection of damage, and order.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use std::cmp::Ordering;

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::*;
use crate::layout::SHAPE_STEPS;
use crate::op_history::digests;

const OPERATIONS: [Operation; 3] = [
    Operation { id: 1, result: None, digest: 0 },
    Operation { id: u64::MAX, result: Some(-2), digest: 0 },
    Operation { id: 3, result: Some(i64::MAX), digest: 0 },
];

/// The fields of a conditional write.
fn step_fields(kind: Kind) -> Fields<'static> {
    let (ballot, step, operations) = (21, 17, &OPERATIONS);
    Fields { ballot, step, operations, ..Fields::new(kind, version(7, 9)) }
}

fn version(time: u64, origin: u32) -> Version {
    Version { time, origin }
}

#[test]
fn every_field_is_decoded_unchanged() {
    let plain = Fields::new(Kind::Value, version(7, 9));
    let fields = Fields { copies: 3, expiry_ms: 11, extension: b"ext", ..plain };
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
fn a_flipped_bit_outside_the_node_local_bytes_is_detected() {
    for fields in [Fields::new(Kind::Value, version(7, 9)), step_fields(Kind::Value)] {
        let record = Record::new(b"k", &fields, b"value");
        for bit in 16..record.view().raw().len() * 8 {
            let mut raw = record.view().raw().to_vec();
            raw[bit / 8] ^= 1 << (bit % 8);
            let seen = RecordRef::parse(&raw).and_then(|r| r.verify(b"k"));
            assert!(seen.is_err(), "bit {bit} went unnoticed");
        }
    }
}

/// Every release writes these bytes for a plain record.
#[test]
fn without_steps_a_record_is_of_format_1() {
    let record = Record::new(b"k", &Fields::new(Kind::Value, version(7, 9)), b"value");
    let head = [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0];
    let (found, check) = record.view().raw().split_at(21);
    assert_eq!(found, [&head[..], b"value"].concat());
    assert_eq!(check, xxh3_64_with_seed(&found[2..], xxh3_64(b"k")).to_le_bytes());
    assert_eq!((record.view().ballot(), record.view().write_time()), (0, 7));
    assert_eq!((record.op_history(), record.view().last_step()), (OpHistory::default(), None));
}

#[test]
fn steps_lie_between_origin_and_expiry() {
    let fields = Fields { expiry_ms: 5, ..step_fields(Kind::Value) };
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
fn impossible_steps_are_refused() {
    let with = |at: usize, bytes: &[u8]| {
        let mut raw = Record::new(b"k", &step_fields(Kind::Value), &[1; 200]).view().raw().to_vec();
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
fn changing_version_or_ballot_changes_nothing_else() {
    let (copies, expiry_ms, extension) = (3, 11, &b"ext"[..]);
    let fields = Fields { copies, expiry_ms, extension, ..step_fields(Kind::Value) };
    let record = Record::new(b"k", &fields, b"value");
    let version = version(8, 1);
    let expected = Fields { version, ballot: 30, ..fields.clone() };
    let expected = Record::new(b"k", &expected, b"value");
    assert_eq!(record.with_ballot(b"k", version, 30), expected);
    assert_eq!(expected.with_ballot(b"k", fields.version, 21), record);
    let plain = Fields { ballot: 0, operations: &[], ..fields };
    let expected = Record::new(b"k", &Fields { version, ..plain.clone() }, b"value");
    assert_eq!(Record::new(b"k", &plain, b"value").with_version(b"k", version), expected);
}

/// A plain record with a new ballot has no operations yet, and the default number of copies.
#[test]
fn a_plain_record_may_be_a_base_version() {
    let plain = Fields { copies: 3, expiry_ms: 11, ..Fields::new(Kind::Value, version(7, 9)) };
    let record = Record::new(b"k", &plain, b"value").with_ballot(b"k", version(8, 1), 30);
    let expected = Fields { version: version(8, 1), ballot: 30, copies: 0, ..plain };
    assert_eq!(record, Record::new(b"k", &expected, b"value"));
    assert_eq!((record.op_history(), record.view().last_step()), (OpHistory::default(), None));
}

#[test]
#[should_panic(expected = "keeps its base version")]
fn a_record_of_a_conditional_write_keeps_its_version() {
    let record = Record::new(b"k", &step_fields(Kind::Value), b"");
    let _ = record.with_version(b"k", version(8, 1));
}

#[test]
fn the_bytes_of_digests_are_pinned() {
    let digest = 0x0102_0304_0506_0708;
    let operation = |id, digest| Operation { id, result: None, digest };
    let operations = &[operation(1, 0), operation(3, digest)];
    let (ballot, step, copies, expiry_ms) = (9, 7, 2, 77);
    let plain = Fields::new(Kind::Value, version(5, 3));
    let fields = Fields { ballot, step, operations, copies, expiry_ms, ..plain };
    let record = Record::new(b"k", &fields, b"value");
    let mut bytes = vec![0, 0, 0b1_1100, 2];
    let number = |number: u64| number.to_le_bytes();
    bytes.extend([&number(5)[..], &[3, 0, 0, 0], &number(9), &[7, 0, 0, 0, 2, 0]].concat());
    bytes.extend([number(1), number(3), number(77)].concat());
    bytes.extend(b"\x0a\x00\x01\x02\x08\x07\x06\x05\x04\x03\x02\x01value");
    let (content, check) = record.raw().split_at(record.byte_len() - 8);
    assert_eq!((content, check), (&bytes[..], &record.rank().check.to_le_bytes()[..]));
    assert_eq!(record.op_history(), OpHistory { step, operations: operations.to_vec() });
    for other in [&b""[..], b"x", &[1], &[1, 1], &[1, 4, 0, 0, 0, 0, 0, 0, 0, 0], &[2; 10]] {
        assert_eq!(digests(other, 2), [0; MAX_OPERATIONS], "{other:?}");
    }
}

#[test]
fn a_value_lives_until_it_expires() {
    let live = |kind, expiry_ms, wall_ms: u64| {
        let fields = Fields { expiry_ms, ..Fields::new(kind, version(7, 9)) };
        Record::new(b"k", &fields, b"").view().is_live(|| wall_ms * 1000)
    };
    assert!(live(Kind::Value, 0, 9) && live(Kind::Value, 10, 9));
    assert!(!live(Kind::Value, 9, 9) && !live(Kind::Tombstone, 0, 9));
}

#[test]
fn bytes_that_are_no_record_are_refused() {
    assert!(Record::parse(Bytes::from_static(b"no record")).is_err());
    let record = Record::tombstone(b"k", version(7, 9));
    assert_eq!(Record::parse(record.bytes()), Ok(record.clone()));
    assert!(record.is_intact(b"k") && !record.is_intact(b"another key"));
}

/// A record that no majority stored, even a tombstone with a higher step, must not hide a record of
/// a higher ballot that a majority stored.
#[test]
fn within_a_version_the_ballot_comes_before_everything_else() {
    let with = |time, ballot, step, kind| {
        let operations = if ballot > 0 { &OPERATIONS[..] } else { &[] };
        let plain = Fields::new(kind, version(time, 1));
        Record::new(b"k", &Fields { ballot, step, operations, ..plain }, b"")
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
            assert_eq!(one.rank().cmp(&other.rank()), i.cmp(&k), "{one:?} {other:?}");
        }
    }
    assert_eq!(ascending.map(|record| record.view().write_time()), [5, 5, 90, 91, 91, 6, 4]);
}

#[test]
fn records_are_ordered_by_version_then_tombstone_then_checksum() {
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

#[test]
fn a_record_with_more_operations_than_steps_is_tolerated() {
    let operation = |id| Operation { id, result: None, digest: 0 };
    let history = OpHistory { step: 1, operations: (0..3).map(operation).collect() };
    let step_of =
        |id| history.with_step_numbers().find(|(_, it)| it.id == id).map(|(step, _)| step);
    assert_eq!([step_of(2), step_of(0), step_of(9)], [Some(1), Some(u32::MAX), None]);
    assert!(history.can_tell_outcome(9, 1));
}

#[test]
fn steps_wrap_around_after_four_billion() {
    let operation = |id| Operation { id, result: None, digest: 0 };
    let history = OpHistory { step: u32::MAX, operations: (0..8).map(operation).collect() };
    let history = history.with_operation(operation(8)).with_operation(operation(9));
    assert_eq!((history.step, history.operations.len()), (1, 8));
    let step_of =
        |id| history.with_step_numbers().find(|(_, it)| it.id == id).map(|(step, _)| step);
    assert_eq!([step_of(9), step_of(8), step_of(7)], [Some(1), Some(0), Some(u32::MAX)]);
    assert!(history.can_tell_outcome(99, 1) && history.can_tell_outcome(99, u32::MAX - 5));
    assert!(
        !history.can_tell_outcome(99, u32::MAX - 6) && history.can_tell_outcome(2, u32::MAX - 6)
    );
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let digest = prop_oneof![Just(0), any::<u64>()];
    let operation = (any::<u64>(), any::<Option<i64>>(), digest)
        .prop_map(|(id, result, digest)| Operation { id, result, digest });
    vec(operation, 0..=MAX_OPERATIONS)
}

proptest! {
    #[test]
    fn any_encoded_record_is_decoded_unchanged(
        (kind, copies) in (0usize..3, any::<u8>()),
        (time, origin) in any::<(u64, u32)>(),
        steps in weighted(0.7, (1..=u64::MAX, any::<u32>(), operations())),
        expiry_ms in prop_oneof![Just(0), any::<u64>()],
        // The first byte 1 is reserved for extensions with digests.
        extension in vec(2..=u8::MAX, 0..20),
        value in vec(any::<u8>(), 0..40),
    ) {
        let kind = [Kind::Value, Kind::Tombstone, Kind::Superseded][kind];
        let version = Version { time, origin };
        let (ballot, step, operations) = steps.unwrap_or_default();
        let has_digests = operations.iter().any(|operation| operation.digest != 0);
        let extension = if has_digests { &[] } else { &extension[..] };
        let operations = &operations[..];
        let fields =
            Fields { kind, version, ballot, step, operations, copies, expiry_ms, extension };
        let record = Record::new(b"key", &fields, &value);
        prop_assert_eq!(record.bytes().len(), encoded_len(&fields, value.len()));
        let view = RecordRef::parse(record.raw()).unwrap();
        prop_assert!(view.verify(b"key").is_ok() && view.verify(b"kez").is_err());
        prop_assert_eq!((view.kind(), view.version(), view.copies()), (kind, version, copies));
        prop_assert_eq!(view.expiry_ms(), expiry_ms);
        prop_assert!(has_digests || view.extension() == extension);
        prop_assert_eq!(view.value(), &value);
        let when = if ballot > 0 { ballot } else { time };
        let times = (view.ballot(), view.write_time(), view.rank().write_time());
        prop_assert_eq!(times, (ballot, when, when));
        prop_assert_eq!(view.op_history(), OpHistory { step, operations: operations.to_vec() });
        let last = operations.last().map(|last| (step, last.id));
        prop_assert_eq!(view.last_step(), last);
    }

    /// A peer may send any bytes. Accessors must not panic on bytes that parse as a record.
    #[test]
    fn any_bytes_parse_or_are_refused(
        mut raw in vec(any::<u8>(), 0..180),
        shape in 0u8..0b10_0000,
        (count, results) in (0u8..10, any::<u8>()),
    ) {
        if raw.len() > 30 {
            raw[2] = shape;
            (raw[28], raw[29]) = (count, results);
        }
        let Ok(record) = RecordRef::parse(&raw) else { return Ok(()) };
        let history = record.op_history();
        prop_assert!(history.operations.len() <= MAX_OPERATIONS);
        prop_assert!(record.ballot() != 0 || history == OpHistory::default());
        let _ = (record.expiry_ms(), record.extension(), record.verify(b"k"), record.last_step());
        prop_assert!(record.value().len() + MIN_RECORD_LEN <= raw.len());
    }
}
