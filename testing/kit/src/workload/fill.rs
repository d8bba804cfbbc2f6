//! Writes many keys once, as fast as the nodes accept them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::client::{Client, target};
use crate::oracle::ledger::{Ledger, WriteOutcome};
use crate::workload::writers::outcome_of;

/// Number of clients, each with one request in flight.
const CLIENTS: u64 = 32;

/// Time after which the fill fails if one write is still refused.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before a refused write is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Parameters of the writes.
#[derive(Debug, Clone, Copy)]
pub struct FillParams {
    /// Number of keys.
    pub keys: u64,
    /// Length of each value in bytes.
    pub value_len: usize,
    /// Prefix of the keys.
    pub prefix: char,
    /// Quorum of the writes, as `&ack=2&from=3`, or empty.
    pub votes: &'static str,
}

/// Writes all keys, each until its write is acknowledged. Returns the duration.
pub fn fill(
    addresses: &[SocketAddr],
    ledger: &Arc<Ledger>,
    what: FillParams,
) -> Result<Duration, Failure> {
    fill_some(addresses, ledger, what, |_| true)
}

/// Writes the keys whose numbers satisfy `is_meant`, each until its write is acknowledged. Returns
/// the duration.
pub fn fill_some(
    addresses: &[SocketAddr],
    ledger: &Arc<Ledger>,
    what: FillParams,
    is_meant: fn(u64) -> bool,
) -> Result<Duration, Failure> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let address = addresses[number as usize % addresses.len()];
                scope.spawn(move || fill_share(address, ledger, what, (number, is_meant)))
            })
            .collect();
        clients.into_iter().try_for_each(|client| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(begun.elapsed())
}

fn fill_share(
    address: SocketAddr,
    ledger: &Ledger,
    what: FillParams,
    (number, is_meant): (u64, fn(u64) -> bool),
) -> Result<(), Failure> {
    let mut client = Client::connect(address)?;
    let numbers = (number..what.keys).step_by(CLIENTS as usize);
    for key in numbers.filter(|number| is_meant(*number)) {
        let key = format!("{}{key:07}", what.prefix);
        let begun = Instant::now();
        loop {
            let (ticket, value) = ledger.put(&key, what.value_len);
            let answer = client.request("PUT", &(target(&key) + what.votes), &value);
            let said = outcome_of(&answer);
            ledger.end(ticket, said);
            if said == WriteOutcome::Ok {
                break;
            }
            if begun.elapsed() > TIMEOUT {
                return Err(Failure::Broken(format!("{key} can't be written: {answer:?}")));
            }
            if !answer.is_ok_and(|answer| !answer.closes) {
                client = Client::connect(address)?;
            }
            thread::sleep(RETRY_PAUSE);
        }
    }
    Ok(())
}
