//! Who asks for a place in the cluster: kept in memory, for whoever plans a change of the members.

use std::time::{Duration, Instant};

use cluster::Incarnation;
use cluster::layout::{Joiner, VoterId};
use parking_lot::{Mutex, MutexGuard};

use crate::peers::join::Asker;

/// Nodes that may ask at once. More are refused until some have their place, or give up.
const MAX_JOINERS: usize = 64;

/// How long one counts that asks no more. It asks once a second.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Why it is in vain to ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InVain {
    #[error("another node asks to join as {name} too, at {url}: give one of them another name")]
    SameName { name: String, url: String },
    #[error("{MAX_JOINERS} nodes ask to join already: plan to add them first")]
    TooMany,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Joiners(Mutex<Vec<(Asker, Instant)>>);

impl Joiners {
    /// One asks. An error says why that is in vain.
    pub(crate) fn keep(&self, asker: Asker, now: Instant) -> Result<(), InVain> {
        let mut asking = self.lock(now);
        if let Some((known, last)) = asking.iter_mut().find(|(known, _)| known.name == asker.name) {
            if known.incarnation != asker.incarnation {
                let (name, url) = (known.name.clone(), known.url.clone());
                return Err(InVain::SameName { name, url });
            }
            (*known, *last) = (asker, now);
            return Ok(());
        }
        if asking.len() >= MAX_JOINERS {
            return Err(InVain::TooMany);
        }
        asking.push((asker, now));
        asking.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        Ok(())
    }

    /// It has its place.
    pub(crate) fn remove(&self, name: &str) {
        self.lock(Instant::now()).retain(|(asker, _)| asker.name != name);
    }

    /// All who ask, by name.
    pub(crate) fn all(&self) -> Vec<Asker> {
        self.lock(Instant::now()).iter().map(|(asker, _)| asker.clone()).collect()
    }

    /// The one of this name, for a plan.
    pub(crate) fn find(&self, name: &str) -> Option<Joiner> {
        let asking = self.lock(Instant::now());
        let (asker, _) = asking.iter().find(|(asker, _)| asker.name == name)?;
        let number = u64::from_str_radix(&asker.incarnation, 16);
        let disk = number.ok().and_then(Incarnation::of_number);
        Some(Joiner { member: asker.member(), url: asker.url.clone(), disk })
    }

    /// Which voter the one of this name is.
    pub(crate) fn voter_of(&self, name: &str) -> Option<VoterId> {
        let asking = self.lock(Instant::now());
        let (asker, _) = asking.iter().find(|(asker, _)| asker.name == name)?;
        VoterId::of_number(u64::from_str_radix(&asker.voter, 16).ok()?)
    }

    /// Those that have asked lately.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Vec<(Asker, Instant)>> {
        let mut asking = self.0.lock();
        asking.retain(|(_, last)| now.saturating_duration_since(*last) < FORGOTTEN_AFTER);
        asking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(name: &str, incarnation: u64) -> Asker {
        Asker {
            name: name.to_owned(),
            url: format!("http://{name}"),
            zone: String::new(),
            weight: 2,
            incarnation: format!("{incarnation:016x}"),
            voter: format!("{:016x}", incarnation + 1),
            clock_ms: 0,
        }
    }

    #[test]
    fn who_asks_is_known_until_it_asks_no_more() {
        let (joiners, now) = (Joiners::default(), Instant::now());
        joiners.keep(asker("b", 7), now).unwrap();
        joiners.keep(asker("a", 9), now).unwrap();
        assert_eq!(joiners.all(), [asker("a", 9), asker("b", 7)]);
        let found = joiners.find("b").unwrap();
        assert_eq!((found.member.weight, found.url.as_str()), (2, "http://b"));
        assert_eq!((joiners.voter_of("b"), joiners.voter_of("c")), (Some(VoterId(8)), None));
        let why = joiners.keep(asker("b", 8), now).unwrap_err().to_string();
        assert!(why.contains("another node asks to join as b too, at http://b"), "{why}");

        let later = now + FORGOTTEN_AFTER;
        joiners.keep(asker("b", 8), later).unwrap();
        assert_eq!(joiners.all(), [asker("b", 8)], "the first one has given up");
        joiners.remove("b");
        assert_eq!(joiners.all(), []);
    }

    #[test]
    fn no_more_are_kept_than_may_ask() {
        let (joiners, now) = (Joiners::default(), Instant::now());
        let keep = |n: usize| joiners.keep(asker(&format!("n{n}"), 1), now);
        (0..MAX_JOINERS).for_each(|n| keep(n).unwrap());
        assert!(keep(MAX_JOINERS).is_err() && keep(0).is_ok());
    }
}
