//! Tests that the ledger's checks detect each kind of error.

use super::*;

const LEN: usize = 40;

fn found(items: &[(&str, &[u8])]) -> BTreeMap<String, Vec<u8>> {
    items.iter().map(|(key, value)| ((*key).to_owned(), value.to_vec())).collect()
}

fn put(ledger: &Ledger, key: &str, said: Said) -> Vec<u8> {
    let (ticket, value) = ledger.put(key, LEN);
    ledger.end(ticket, said);
    value
}

fn broken<T>(result: Result<T, Failure>) -> bool {
    matches!(result, Err(Failure::Broken(_)))
}

#[test]
fn a_missing_acknowledged_write_is_an_error() {
    let ledger = Ledger::default();
    let old = put(&ledger, "k", Said::Ok);
    let new = put(&ledger, "k", Said::Ok);
    assert!(broken(ledger.check(&found(&[]), Process::New)));
    assert!(broken(ledger.check(&found(&[("k", &old)]), Process::New)));
    ledger.check(&found(&[("k", &new)]), Process::New).unwrap();
    assert!(broken(ledger.check(&found(&[]), Process::New)), "what was found must stay");
}

#[test]
fn an_unknown_write_may_be_there_or_not_but_not_come_and_go() {
    let ledger = Ledger::default();
    let sure = put(&ledger, "k", Said::Ok);
    let maybe = put(&ledger, "k", Said::Unknown);
    ledger.check_read("k", Some(&sure)).unwrap();
    ledger.check(&found(&[("k", &maybe)]), Process::New).unwrap();
    assert!(broken(ledger.check(&found(&[("k", &sure)]), Process::New)));
}

#[test]
fn an_unknown_write_can_come_late_only_while_its_process_lives() {
    let ledger = Ledger::default();
    let maybe = put(&ledger, "k", Said::Unknown);
    let sure = put(&ledger, "k", Said::Ok);
    ledger.check(&found(&[("k", &maybe)]), Process::Same).unwrap();
    ledger.check(&found(&[("k", &maybe)]), Process::New).unwrap();
    let newer = put(&ledger, "k", Said::Ok);
    assert!(broken(ledger.check_read("k", Some(&maybe))));
    assert!(broken(ledger.check_read("k", Some(&sure))));
    ledger.check_read("k", Some(&newer)).unwrap();
}

#[test]
fn invented_and_resurrected_values_are_errors() {
    let ledger = Ledger::default();
    let value = put(&ledger, "k", Said::Ok);
    let gone = ledger.delete("k");
    ledger.end(gone, Said::Ok);
    assert!(broken(ledger.check(&found(&[("k", &value)]), Process::New)));
    assert!(broken(ledger.check(&found(&[("other", &value)]), Process::New)));
    assert!(broken(ledger.check_read("k", Some(&value[..LEN - 1]))));
    let refused = put(&ledger, "k", Said::Failed);
    assert!(broken(ledger.check(&found(&[("k", &refused)]), Process::New)));
    ledger.check(&found(&[]), Process::New).unwrap();
}

#[test]
fn prefixes_with_holes_or_missing_writes_are_errors() {
    let write = || {
        let ledger = Ledger::default();
        let values = ["a", "b", "c"].map(|key| put(&ledger, key, Said::Ok));
        let cut = ledger.now();
        (ledger, values, cut)
    };
    let long = Duration::from_secs(60);
    let (ledger, [a, b, _], cut) = write();
    let tally = ledger.check_prefix(&found(&[("a", &a), ("b", &b)]), cut, long).unwrap();
    assert_eq!(tally.lost, 1);
    let (ledger, [a, _, c], cut) = write();
    assert!(broken(ledger.check_prefix(&found(&[("a", &a), ("c", &c)]), cut, long)));
    let (ledger, [a, ..], cut) = write();
    assert!(broken(ledger.check_prefix(&found(&[("a", &a)]), cut, Duration::ZERO)));
}

#[test]
fn wrong_answers_are_classified_by_kind() {
    let ledger = Ledger::default();
    let old = put(&ledger, "k", Said::Ok);
    let new = put(&ledger, "k", Said::Ok);
    assert_eq!(ledger.wrong("k", Some(&new)).unwrap(), None);
    assert_eq!(ledger.wrong("k", Some(&old)).unwrap(), Some(Wrong::Old));
    assert_eq!(ledger.wrong("k", None).unwrap(), Some(Wrong::Absent));
    let gone = ledger.delete("k");
    ledger.end(gone, Said::Ok);
    assert_eq!(ledger.wrong("k", Some(&new)).unwrap(), Some(Wrong::Deleted));
    assert_eq!(ledger.wrong("k", None).unwrap(), None);
    assert_eq!(ledger.wrong("never", None).unwrap(), None);
    assert!(broken(ledger.wrong("never", Some(&new))));
    put(&ledger, "maybe", Said::Unknown);
    assert_eq!(ledger.acknowledged_keys(), ["k"]);
}
