//! What was asked of the node and what it said, kept where nothing is being broken; and the judge
//! of what is found afterwards.
//!
//! ```text
//!  attempts on a key:   ├─ a: ok ─┤  ├─ b: ok ─┤
//!                                ├──── c: unknown ─ ─ ─ ─ ─ ─ (process ended)
//!  may be found after:  b or c. Not a: b began after a had ended, so b is newer.
//! ```
//!
//! Oracle A: what is found is an attempt that no *acknowledged* one began after. Oracle F: it is an
//! attempt at all, of this key, byte by byte, and none that was answered "not done". Oracle P: what
//! is lost is the end of what was written, without holes, and no older than the sync interval.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::Failure;
use crate::random::Random;

/// What the node said to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// It acknowledged the write.
    Ok,
    /// Refused: it was not done and never will be.
    Failed,
    /// Nothing, or that it does not know.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    /// The value's tag; `None` = a delete, or that nothing was ever written.
    tag: Option<u64>,
    begun: Duration,
    /// When the answer came; `None` = it did not.
    ended: Option<Duration>,
    said: Said,
}

/// A write that is under way.
#[derive(Debug)]
#[must_use = "say how it ended"]
pub struct Ticket {
    key: String,
    place: usize,
}

/// Whether the process that took the attempts still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// It does: what is unknown may still be done.
    Same,
    /// It ended: what is unknown is as old as that.
    New,
}

/// How an answer to a read is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// An older value than the newest acknowledged one.
    Old,
    /// A value, although a newer delete was acknowledged.
    Deleted,
    /// Nothing, although a value was acknowledged.
    Absent,
}

/// What a check found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Keys that were looked at.
    pub keys: usize,
    /// Keys on which something acknowledged is not there (nor anything newer).
    pub lost: usize,
    /// How long before the cut the oldest of it had been acknowledged.
    pub window: Duration,
}

/// All writes, and what was answered to each.
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

    /// Now, as the ledger counts.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Notes that a value is about to be written; `len` is about how long it shall be.
    pub fn put(&self, key: &str, len: usize) -> (Ticket, Vec<u8>) {
        let tag = self.tags.fetch_add(1, Ordering::Relaxed);
        (self.begin(key, Some(tag)), value_of(key, tag, len))
    }

    /// Notes that a key is about to be deleted.
    pub fn delete(&self, key: &str) -> Ticket {
        self.begin(key, None)
    }

    fn begin(&self, key: &str, tag: Option<u64>) -> Ticket {
        let mut keys = self.lock();
        if !keys.contains_key(key) {
            let absent = Duration::ZERO;
            let never =
                Attempt { tag: None, begun: absent, ended: Some(absent), said: Said::Unknown };
            keys.insert(key.to_owned(), vec![never]);
        }
        let attempts = keys.entry(key.to_owned()).or_default();
        attempts.push(Attempt { tag, begun: self.now(), ended: None, said: Said::Unknown });
        Ticket { key: key.to_owned(), place: attempts.len() - 1 }
    }

    /// Notes what the node said.
    pub fn end(&self, ticket: Ticket, said: Said) {
        let now = self.now();
        if let Some(attempt) =
            self.lock().get_mut(&ticket.key).and_then(|attempts| attempts.get_mut(ticket.place))
        {
            attempt.said = said;
            attempt.ended = (said != Said::Unknown).then_some(now);
        }
    }

    /// Writes acknowledged, refused, unknown since the last check of a new process.
    pub fn counts(&self) -> (usize, usize, usize) {
        let keys = self.lock();
        let of = |said| keys.values().flatten().filter(|a| a.said == said).count();
        let never = keys.values().filter(|a| a[0].said == Said::Unknown).count();
        (of(Said::Ok), of(Said::Failed), of(Said::Unknown) - never)
    }

    /// Acknowledged writes that began after `moment`.
    pub fn acknowledged_after(&self, moment: Duration) -> usize {
        let keys = self.lock();
        keys.values().flatten().filter(|a| a.said == Said::Ok && a.begun > moment).count()
    }

    /// The keys on which anything was tried.
    pub fn keys(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Whether `found` may be what a read of `key` returns, while nothing else writes it.
    pub fn check_read(&self, key: &str, found: Option<&[u8]>) -> Result<(), Failure> {
        match self.wrong(key, found)? {
            None => Ok(()),
            Some(_) => {
                let tag = found.map(|value| tag_of(key, value)).transpose()?;
                let keys = self.lock();
                let attempts = keys.get(key).map_or(&[][..], Vec::as_slice);
                Err(Failure::Broken(lost(key, tag, attempts)))
            }
        }
    }

    /// The same as a finding that can be counted. An error is a value that nobody wrote, or one
    /// whose write was refused.
    pub fn wrong(&self, key: &str, found: Option<&[u8]>) -> Result<Option<Wrong>, Failure> {
        let keys = self.lock();
        let Some(attempts) = keys.get(key) else {
            return match found {
                Some(_) => Err(Failure::Broken(format!("{key} is there, but nobody wrote it"))),
                None => Ok(None),
            };
        };
        let tag = found.map(|value| tag_of(key, value)).transpose()?;
        if candidates(key, attempts, tag)?.into_iter().any(|c| !superseded(c, attempts, None)) {
            return Ok(None);
        }
        let acknowledged = attempts.iter().filter(|attempt| attempt.said == Said::Ok);
        let newest = acknowledged.max_by_key(|attempt| attempt.begun).and_then(|a| a.tag);
        Ok(Some(match (tag, newest) {
            (None, _) => Wrong::Absent,
            (Some(_), None) => Wrong::Deleted,
            (Some(_), Some(_)) => Wrong::Old,
        }))
    }

    /// The keys on which a write was acknowledged.
    pub fn acknowledged_keys(&self) -> Vec<String> {
        let keys = self.lock();
        let was = |attempts: &[Attempt]| attempts.iter().any(|a| a.said == Said::Ok);
        keys.iter().filter(|(_, attempts)| was(attempts)).map(|(key, _)| key.clone()).collect()
    }

    /// Oracles A and F over all keys. With a new process what was found becomes what must stay.
    pub fn check(
        &self,
        found: &BTreeMap<String, Vec<u8>>,
        process: Process,
    ) -> Result<Tally, Failure> {
        let ended = (process == Process::New).then(|| self.now());
        let mut keys = self.lock();
        no_strangers(&keys, found)?;
        for (key, attempts) in keys.iter_mut() {
            let tag = found.get(key).map(|value| tag_of(key, value)).transpose()?;
            let kept = candidates(key, attempts, tag)?;
            if kept.iter().all(|candidate| superseded(candidate, attempts, ended)) {
                return Err(Failure::Broken(lost(key, tag, attempts)));
            }
            if let Some(now) = ended {
                *attempts = vec![Attempt { tag, begun: now, ended, said: Said::Ok }];
            }
        }
        Ok(Tally { keys: keys.len(), ..Tally::default() })
    }

    /// Whether each key that is found has a value that was written to it at some time.
    pub fn check_written(&self, found: &BTreeMap<String, Vec<u8>>) -> Result<(), Failure> {
        let keys = self.lock();
        no_strangers(&keys, found)?;
        for (key, value) in found {
            if let Some(attempts) = keys.get(key) {
                candidates(key, attempts, Some(tag_of(key, value)?))?;
            }
        }
        Ok(())
    }

    /// Oracles P and F after everything that was not synced was lost at `cut`: what is there is a
    /// prefix of what was acknowledged, and what is not is at most `most` older than the cut.
    pub fn check_prefix(
        &self,
        found: &BTreeMap<String, Vec<u8>>,
        cut: Duration,
        most: Duration,
    ) -> Result<Tally, Failure> {
        let ended = Some(self.now());
        let mut keys = self.lock();
        no_strangers(&keys, found)?;
        let mut tally = Tally { keys: keys.len(), ..Tally::default() };
        // When the newest survivor began, and the earliest loss was acknowledged.
        let (mut newest, mut earliest) = ((Duration::ZERO, ""), (Duration::MAX, String::new()));
        for (key, attempts) in keys.iter() {
            let tag = found.get(key).map(|value| tag_of(key, value)).transpose()?;
            let kept = candidates(key, attempts, tag)?;
            // Of what this may be, the oldest is proof of the least, the newest lost the least.
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
            *attempts = vec![Attempt { tag, begun: now, ended: Some(now), said: Said::Ok }];
        }
        Ok(tally)
    }
}

fn no_strangers(
    keys: &BTreeMap<String, Vec<Attempt>>,
    found: &BTreeMap<String, Vec<u8>>,
) -> Result<(), Failure> {
    match found.keys().find(|key| !keys.contains_key(*key)) {
        Some(key) => Err(Failure::Broken(format!("{key} is there, but nobody ever wrote it"))),
        None => Ok(()),
    }
}

/// The attempts that can have left `tag`.
fn candidates<'a>(
    key: &str,
    attempts: &'a [Attempt],
    tag: Option<u64>,
) -> Result<Vec<&'a Attempt>, Failure> {
    let same = attempts.iter().filter(|attempt| attempt.tag == tag);
    let (refused, possible): (Vec<_>, Vec<_>) = same.partition(|a| a.said == Said::Failed);
    match (refused.is_empty(), possible.is_empty()) {
        (_, false) => Ok(possible),
        (false, true) => {
            Err(Failure::Broken(format!("{key}: a write was refused, yet done: {refused:?}")))
        }
        (true, true) => Err(Failure::Broken(lost(key, tag, attempts))),
    }
}

/// Whether an acknowledged attempt is newer than `candidate` for certain.
fn superseded(candidate: &Attempt, attempts: &[Attempt], process_ended: Option<Duration>) -> bool {
    first_lost(candidate, attempts, process_ended).is_some()
}

/// When the first acknowledged attempt that is newer than `candidate` for certain was acknowledged.
fn first_lost(
    candidate: &Attempt,
    attempts: &[Attempt],
    process_ended: Option<Duration>,
) -> Option<Duration> {
    let ended = candidate.ended.or(process_ended)?;
    let newer = attempts.iter().filter(|a| a.said == Said::Ok && a.begun > ended);
    newer.filter_map(|attempt| attempt.ended).min()
}

fn lost(key: &str, tag: Option<u64>, attempts: &[Attempt]) -> String {
    let from = attempts.len().saturating_sub(6);
    format!("{key} holds {tag:?}, but the last attempts on it were {:?}", &attempts[from..])
}

/// The value with a tag: it says whose it is, and every byte follows from that.
fn value_of(key: &str, tag: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{key} {tag} {len} ").into_bytes();
    let mut random = Random::new(tag);
    while value.len() < len {
        value.extend_from_slice(&random.number().to_le_bytes());
    }
    value
}

/// The tag of a value that was found under `key`.
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
