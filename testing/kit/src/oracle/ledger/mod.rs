//! Record of the clients' writes and their outcomes, kept in a process without faults; and checks
//! of later reads against the record.
//!
//! ```text
//!  attempts on a key:   ├─ a: ok ─┤  ├─ b: ok ─┤
//!                                ├──── c: unknown ─ ─ ─ ─ ─ ─ (process ended)
//!  may be found after:  b or c. Not a: b began after a had ended, so b is newer.
//! ```
//!
//! Oracle A: a found value comes from an attempt that may be the newest: no acknowledged attempt
//! began after its end. Oracle F: a found value equals, byte by byte, the value of an attempt on
//! the same key that was not refused. Oracle P: the lost writes are the newest ones, without holes,
//! and no older than the sync interval.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::Failure;
use crate::random::Random;

/// The outcome of a write, as the node's answer reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The node acknowledged the write.
    Ok,
    /// The node refused the write, which has no effect and never will.
    Failed,
    /// The answer is missing, or says that the outcome is unknown.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    /// The value's tag. `None` for a delete, and for the initial absence of the key.
    tag: Option<u64>,
    begun: Duration,
    /// Time of the answer. `None` if the answer is missing, or the outcome is unknown.
    ended: Option<Duration>,
    said: WriteOutcome,
}

/// A write in progress.
#[derive(Debug)]
#[must_use = "say how it ended"]
pub struct Ticket {
    key: String,
    place: usize,
}

/// State of the node's process at the time of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// The process that received the writes still runs, so a write with an unknown outcome may
    /// still take effect.
    Same,
    /// The process has exited. A write with an unknown outcome cannot take effect any more.
    New,
}

/// The kinds of wrong answers to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongAnswer {
    /// A value older than the newest acknowledged value.
    Old,
    /// A value, although a newer delete was acknowledged.
    Deleted,
    /// No value, although a write was acknowledged.
    Absent,
}

/// Results of a check.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Number of keys checked.
    pub keys: usize,
    /// Number of keys that have lost their newest acknowledged writes.
    pub lost: usize,
    /// Time from the acknowledgment of the oldest lost write to the power cut.
    pub window: Duration,
}

/// All writes and their outcomes.
#[derive(Debug)]
pub struct Ledger {
    begun: Instant,
    tags: AtomicU64,
    keys: Mutex<BTreeMap<String, Vec<Attempt>>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { begun: Instant::now(), tags: AtomicU64::new(1), keys: Mutex::default() }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Attempt>>> {
        self.keys.lock()
    }

    /// Returns the current time on the ledger's clock.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Records the start of a write. Returns the value to write: at least `len` bytes, a few more
    /// than `len` at most.
    pub fn put(&self, key: &str, len: usize) -> (Ticket, Vec<u8>) {
        let tag = self.tags.fetch_add(1, Ordering::Relaxed);
        (self.begin(key, Some(tag)), value_of(key, tag, len))
    }

    /// Records the start of a delete.
    pub fn delete(&self, key: &str) -> Ticket {
        self.begin(key, None)
    }

    fn begin(&self, key: &str, tag: Option<u64>) -> Ticket {
        let mut keys = self.lock();
        if !keys.contains_key(key) {
            let absent = Duration::ZERO;
            let never = Attempt {
                tag: None,
                begun: absent,
                ended: Some(absent),
                said: WriteOutcome::Unknown,
            };
            keys.insert(key.to_owned(), vec![never]);
        }
        let attempts = keys.entry(key.to_owned()).or_default();
        attempts.push(Attempt { tag, begun: self.now(), ended: None, said: WriteOutcome::Unknown });
        Ticket { key: key.to_owned(), place: attempts.len() - 1 }
    }

    /// Records the outcome of a write, as the node's answer reports it.
    pub fn end(&self, ticket: Ticket, said: WriteOutcome) {
        let now = self.now();
        if let Some(attempt) =
            self.lock().get_mut(&ticket.key).and_then(|attempts| attempts.get_mut(ticket.place))
        {
            attempt.said = said;
            attempt.ended = (said != WriteOutcome::Unknown).then_some(now);
        }
    }

    /// Returns the numbers of acknowledged, refused and unknown writes since the last check with
    /// [`ProcessState::New`]. Such a check replaces the attempts on each key by one acknowledged
    /// attempt.
    pub fn counts(&self) -> (usize, usize, usize) {
        let keys = self.lock();
        let of = |said| keys.values().flatten().filter(|a| a.said == said).count();
        let never = keys.values().filter(|a| a[0].said == WriteOutcome::Unknown).count();
        (of(WriteOutcome::Ok), of(WriteOutcome::Failed), of(WriteOutcome::Unknown) - never)
    }

    /// Returns the number of acknowledged writes that began after `moment`.
    pub fn count_acknowledged_after(&self, moment: Duration) -> usize {
        let keys = self.lock();
        keys.values().flatten().filter(|a| a.said == WriteOutcome::Ok && a.begun > moment).count()
    }

    /// Returns the keys that had any attempt.
    pub fn keys(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Checks that a read of `key` may return `found`. No write of the key may be in progress.
    pub fn check_read(&self, key: &str, found: Option<&[u8]>) -> Result<(), Failure> {
        match self.wrong(key, found)? {
            None => Ok(()),
            Some(_) => {
                let tag = found.map(|value| tag_of(key, value)).transpose()?;
                let keys = self.lock();
                let attempts = keys.get(key).map_or(&[][..], Vec::as_slice);
                Err(Failure::Broken(describe_loss(key, tag, attempts)))
            }
        }
    }

    /// Returns the kind of a wrong answer, or `None` if the answer is right. A value that no client
    /// wrote, or whose write was refused, is an error.
    pub fn wrong(&self, key: &str, found: Option<&[u8]>) -> Result<Option<WrongAnswer>, Failure> {
        let keys = self.lock();
        let Some(attempts) = keys.get(key) else {
            return match found {
                Some(_) => Err(Failure::Broken(format!("{key} is there, but nobody wrote it"))),
                None => Ok(None),
            };
        };
        let tag = found.map(|value| tag_of(key, value)).transpose()?;
        if candidates(key, attempts, tag)?.into_iter().any(|c| !is_superseded(c, attempts, None)) {
            return Ok(None);
        }
        let acknowledged = attempts.iter().filter(|attempt| attempt.said == WriteOutcome::Ok);
        let newest = acknowledged.max_by_key(|attempt| attempt.begun).and_then(|a| a.tag);
        Ok(Some(match (tag, newest) {
            (None, _) => WrongAnswer::Absent,
            (Some(_), None) => WrongAnswer::Deleted,
            (Some(_), Some(_)) => WrongAnswer::Old,
        }))
    }

    /// Returns the keys with an acknowledged write.
    pub fn acknowledged_keys(&self) -> Vec<String> {
        let keys = self.lock();
        let was = |attempts: &[Attempt]| attempts.iter().any(|a| a.said == WriteOutcome::Ok);
        keys.iter().filter(|(_, attempts)| was(attempts)).map(|(key, _)| key.clone()).collect()
    }

    /// Checks that no acknowledged write is lost, and that no value is invented. After a check with
    /// [`ProcessState::New`], the found values count as acknowledged.
    pub fn check(
        &self,
        found: &BTreeMap<String, Vec<u8>>,
        process: ProcessState,
    ) -> Result<Tally, Failure> {
        let ended = (process == ProcessState::New).then(|| self.now());
        let mut keys = self.lock();
        check_none_invented(&keys, found)?;
        for (key, attempts) in keys.iter_mut() {
            let tag = found.get(key).map(|value| tag_of(key, value)).transpose()?;
            let kept = candidates(key, attempts, tag)?;
            if kept.iter().all(|candidate| is_superseded(candidate, attempts, ended)) {
                return Err(Failure::Broken(describe_loss(key, tag, attempts)));
            }
            if let Some(now) = ended {
                *attempts = vec![Attempt { tag, begun: now, ended, said: WriteOutcome::Ok }];
            }
        }
        Ok(Tally { keys: keys.len(), ..Tally::default() })
    }

    /// Checks that each found value was once written to its key.
    pub fn check_written(&self, found: &BTreeMap<String, Vec<u8>>) -> Result<(), Failure> {
        let keys = self.lock();
        check_none_invented(&keys, found)?;
        for (key, value) in found {
            if let Some(attempts) = keys.get(key) {
                candidates(key, attempts, Some(tag_of(key, value)?))?;
            }
        }
        Ok(())
    }

    /// Checks a store that lost all unsynced writes at `cut`. No value may be invented, the
    /// surviving writes must be a prefix of the acknowledged writes, and all lost writes must have
    /// been acknowledged at most `most` before the cut.
    pub fn check_prefix(
        &self,
        found: &BTreeMap<String, Vec<u8>>,
        cut: Duration,
        most: Duration,
    ) -> Result<Tally, Failure> {
        let ended = Some(self.now());
        let mut keys = self.lock();
        check_none_invented(&keys, found)?;
        let mut tally = Tally { keys: keys.len(), ..Tally::default() };
        // Start of the newest surviving write, and acknowledgment of the earliest lost one.
        let (mut newest, mut earliest) = ((Duration::ZERO, ""), (Duration::MAX, String::new()));
        for (key, attempts) in keys.iter() {
            let tag = found.get(key).map(|value| tag_of(key, value)).transpose()?;
            let kept = candidates(key, attempts, tag)?;
            // Several attempts may have left the value. The oldest of these attempts proves the
            // least about the surviving writes, and the newest proves the least about the lost
            // writes.
            let begun = kept.iter().map(|candidate| candidate.begun).min().unwrap_or_default();
            if begun > newest.0 {
                newest = (begun, key);
            }
            let losses: Option<Vec<_>> =
                kept.iter().map(|candidate| first_lost(candidate, attempts, ended)).collect();
            if let Some(lost) = losses.and_then(|losses| losses.into_iter().max()) {
                tally.lost += 1;
                earliest = earliest.min((lost, key.clone()));
            }
        }
        if earliest.0 < newest.0 {
            return Err(Failure::Broken(format!(
                "a hole: what {} was acknowledged at {:?} is lost, but {} begun at {:?} is there",
                earliest.1, earliest.0, newest.1, newest.0
            )));
        }
        tally.window = cut.saturating_sub(earliest.0);
        if tally.window > most {
            return Err(Failure::Broken(format!(
                "{} lost what had been acknowledged {:?} before the cut",
                earliest.1, tally.window
            )));
        }
        let now = self.now();
        for (key, attempts) in keys.iter_mut() {
            let tag = found.get(key).map(|value| tag_of(key, value)).transpose()?;
            *attempts = vec![Attempt { tag, begun: now, ended: Some(now), said: WriteOutcome::Ok }];
        }
        Ok(tally)
    }
}

fn check_none_invented(
    keys: &BTreeMap<String, Vec<Attempt>>,
    found: &BTreeMap<String, Vec<u8>>,
) -> Result<(), Failure> {
    match found.keys().find(|key| !keys.contains_key(*key)) {
        Some(key) => Err(Failure::Broken(format!("{key} is there, but nobody ever wrote it"))),
        None => Ok(()),
    }
}

/// Returns the attempts that may have left `tag`. If no attempt or only refused attempts could have
/// left it, returns an error.
fn candidates<'a>(
    key: &str,
    attempts: &'a [Attempt],
    tag: Option<u64>,
) -> Result<Vec<&'a Attempt>, Failure> {
    let same = attempts.iter().filter(|attempt| attempt.tag == tag);
    let (refused, possible): (Vec<_>, Vec<_>) = same.partition(|a| a.said == WriteOutcome::Failed);
    match (refused.is_empty(), possible.is_empty()) {
        (_, false) => Ok(possible),
        (false, true) => {
            Err(Failure::Broken(format!("{key}: a write was refused, yet done: {refused:?}")))
        }
        (true, true) => Err(Failure::Broken(describe_loss(key, tag, attempts))),
    }
}

/// Returns true if an acknowledged attempt is certainly newer than `candidate`.
fn is_superseded(
    candidate: &Attempt,
    attempts: &[Attempt],
    process_ended: Option<Duration>,
) -> bool {
    first_lost(candidate, attempts, process_ended).is_some()
}

/// Returns the time of the first acknowledgment of an attempt that is certainly newer than
/// `candidate`, or `None` without such an attempt.
fn first_lost(
    candidate: &Attempt,
    attempts: &[Attempt],
    process_ended: Option<Duration>,
) -> Option<Duration> {
    let ended = candidate.ended.or(process_ended)?;
    let newer = attempts.iter().filter(|a| a.said == WriteOutcome::Ok && a.begun > ended);
    newer.filter_map(|attempt| attempt.ended).min()
}

fn describe_loss(key: &str, tag: Option<u64>, attempts: &[Attempt]) -> String {
    let from = attempts.len().saturating_sub(6);
    format!("{key} holds {tag:?}, but the last attempts on it were {:?}", &attempts[from..])
}

/// Returns the value of a tag. The value begins with its key and tag; the tag seeds its random
/// bytes.
fn value_of(key: &str, tag: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{key} {tag} {len} ").into_bytes();
    let mut random = Random::new(tag);
    while value.len() < len {
        value.extend_from_slice(&random.number().to_le_bytes());
    }
    value
}

/// Parses the tag of a value found under `key`. A value that [`value_of`] could not have returned
/// is an error.
fn tag_of(key: &str, value: &[u8]) -> Result<u64, Failure> {
    let head = String::from_utf8_lossy(&value[..value.len().min(256)]);
    let mut words = head.split(' ');
    let parsed = (words.next(), words.next().map(str::parse), words.next().map(str::parse));
    if let (Some(of), Some(Ok(tag)), Some(Ok(len))) = parsed
        && of == key
        && value_of(key, tag, len) == value
    {
        return Ok(tag);
    }
    let head: String = head.chars().take(60).collect();
    Err(Failure::Broken(format!("{key} holds {} bytes nobody wrote: {head:?}", value.len())))
}

#[cfg(test)]
mod tests;
