//! Comparison of all values of a node, read by range and by key, with the ledger.

use std::collections::BTreeMap;

use crate::node::Node;
use crate::oracle::ledger::{Ledger, ProcessState, Tally};
use crate::{Failure, client};

/// Reads a range over all keys, whose order it checks. Returns the values by key.
pub fn read_all(node: &Node) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let (found, disorder) = client::read_patiently(node.address, |client| {
        let (mut found, mut last, mut disorder) = (BTreeMap::new(), Vec::new(), None);
        client.scan("%01", |key, value| {
            if key <= last.as_slice() {
                disorder = Some(String::from_utf8_lossy(key).into_owned());
            }
            last = key.to_vec();
            found.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
            Ok(())
        })?;
        Ok((found, disorder))
    })?;
    match disorder {
        Some(key) => Err(Failure::Broken(format!("{key} comes out of order in a range"))),
        None => Ok(found),
    }
}

/// Reads all keys by range and by key. Both results must be equal, lack no acknowledged write, and
/// contain no invented value.
pub fn check(node: &Node, ledger: &Ledger, process: ProcessState) -> Result<Tally, Failure> {
    let found = read_all(node)?;
    check_gets(node, ledger, &found)?;
    ledger.check(&found, process)
}

/// Checks that a `GET` of every key in the ledger returns the same value as the range.
pub fn check_gets(
    node: &Node,
    ledger: &Ledger,
    found: &BTreeMap<String, Vec<u8>>,
) -> Result<(), Failure> {
    let mut client = node.client()?;
    for key in ledger.keys() {
        let answer = client.get_patiently(&key)?;
        let same = match (answer.status, found.get(&key)) {
            (200, Some(value)) => *value == answer.body,
            (404, None) => true,
            _ => false,
        };
        if !same {
            let (status, there) = (answer.status, found.contains_key(&key));
            return Err(Failure::Broken(format!(
                "GET {key} answers {status}; that a range finds it is {there}"
            )));
        }
    }
    Ok(())
}
