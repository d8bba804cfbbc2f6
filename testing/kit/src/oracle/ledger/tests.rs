//! Tests that the ledger's checks detect each kind of error.

use super::*;

const LEN: usize = 40;

fn scan_result(items: &[(&str, &[u8])]) -> BTreeMap<String, Vec<u8>> {
    items.iter().map(|(key, value)| ((*key).to_owned(), value.to_vec())).collect()
}

fn put(ledger: &Ledger, key: &str, said: WriteOutcome) -> Vec<u8> {
    let (ticket, value) = ledger.put(key, LEN);
    ledger.end(ticket, said);
    value
}

fn is_broken<T>(result: Result<T, Failure>) -> bool {
    matches!(result, Err(Failure::Broken(_)))
}

#[test]
fn a_missing_acknowledged_write_is_an_error() {
    let ledger = Ledger::default();
    let old = put(&ledger, "k", WriteOutcome::Ok);
    let new = put(&ledger, "k", WriteOutcome::Ok);
    assert!(is_broken(ledger.check(&scan_result(&[]), ProcessState::New)));
    assert!(is_broken(ledger.check(&scan_result(&[("k", &old)]), ProcessState::New)));
    ledger.check(&scan_result(&[("k", &new)]), ProcessState::New).unwrap();
    assert!(
        is_broken(ledger.check(&scan_result(&[]), ProcessState::New)),
        "what was found must stay"
    );
}

#[test]
fn an_unknown_write_may_be_there_or_not_but_not_come_and_go() {
    let ledger = Ledger::default();
    let sure = put(&ledger, "k", WriteOutcome::Ok);
    let maybe = put(&ledger, "k", WriteOutcome::Unknown);
    ledger.check_read("k", Some(&sure)).unwrap();
    ledger.check(&scan_result(&[("k", &maybe)]), ProcessState::New).unwrap();
    assert!(is_broken(ledger.check(&scan_result(&[("k", &sure)]), ProcessState::New)));
}

#[test]
fn an_unknown_write_can_come_late_only_while_its_process_lives() {
    let ledger = Ledger::default();
    let maybe = put(&ledger, "k", WriteOutcome::Unknown);
    let sure = put(&ledger, "k", WriteOutcome::Ok);
    ledger.check(&scan_result(&[("k", &maybe)]), ProcessState::Same).unwrap();
    ledger.check(&scan_result(&[("k", &maybe)]), ProcessState::New).unwrap();
    let newer = put(&ledger, "k", WriteOutcome::Ok);
    assert!(is_broken(ledger.check_read("k", Some(&maybe))));
    assert!(is_broken(ledger.check_read("k", Some(&sure))));
    ledger.check_read("k", Some(&newer)).unwrap();
}

#[test]
fn invented_and_resurrected_values_are_errors() {
    let ledger = Ledger::default();
    let value = put(&ledger, "k", WriteOutcome::Ok);
    let gone = ledger.delete("k");
    ledger.end(gone, WriteOutcome::Ok);
    assert!(is_broken(ledger.check(&scan_result(&[("k", &value)]), ProcessState::New)));
    assert!(is_broken(ledger.check(&scan_result(&[("other", &value)]), ProcessState::New)));
    assert!(is_broken(ledger.check_read("k", Some(&value[..LEN - 1]))));
    let refused = put(&ledger, "k", WriteOutcome::Failed);
    assert!(is_broken(ledger.check(&scan_result(&[("k", &refused)]), ProcessState::New)));
    ledger.check(&scan_result(&[]), ProcessState::New).unwrap();
}

#[test]
fn prefixes_with_holes_or_missing_writes_are_errors() {
    let write = || {
        let ledger = Ledger::default();
        let values = ["a", "b", "c"].map(|key| put(&ledger, key, WriteOutcome::Ok));
        let cut = ledger.now();
        (ledger, values, cut)
    };
    let long = Duration::from_secs(60);
    let (ledger, [a, b, _], cut) = write();
    let tally = ledger.check_prefix(&scan_result(&[("a", &a), ("b", &b)]), cut, long).unwrap();
    assert_eq!(tally.lost, 1);
    let (ledger, [a, _, c], cut) = write();
    assert!(is_broken(ledger.check_prefix(&scan_result(&[("a", &a), ("c", &c)]), cut, long)));
    let (ledger, [a, ..], cut) = write();
    assert!(is_broken(ledger.check_prefix(&scan_result(&[("a", &a)]), cut, Duration::ZERO)));
}

#[test]
fn wrong_answers_are_classified_by_kind() {
    let ledger = Ledger::default();
    let old = put(&ledger, "k", WriteOutcome::Ok);
    let new = put(&ledger, "k", WriteOutcome::Ok);
    assert_eq!(ledger.wrong("k", Some(&new)).unwrap(), None);
    assert_eq!(ledger.wrong("k", Some(&old)).unwrap(), Some(WrongAnswer::Old));
    assert_eq!(ledger.wrong("k", None).unwrap(), Some(WrongAnswer::Absent));
    let gone = ledger.delete("k");
    ledger.end(gone, WriteOutcome::Ok);
    assert_eq!(ledger.wrong("k", Some(&new)).unwrap(), Some(WrongAnswer::Deleted));
    assert_eq!(ledger.wrong("k", None).unwrap(), None);
    assert_eq!(ledger.wrong("never", None).unwrap(), None);
    assert!(is_broken(ledger.wrong("never", Some(&new))));
    put(&ledger, "maybe", WriteOutcome::Unknown);
    assert_eq!(ledger.acknowledged_keys(), ["k"]);
}
