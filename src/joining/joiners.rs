//! The nodes that ask to join the cluster. A list in memory has them for the operator who plans a
//! change of the members.
//!
//! Each member has its own list. If two nodes ask under one name, their requests may reach
//! different members in different orders. All members must list the same node, the node that began
//! to ask first.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use protocol::Incarnation;
use protocol::layout::{Joiner, VoterId};

use crate::joining::message::JoinRequest;

/// Maximum number of listed nodes. Further nodes are refused until some of these have joined or
/// have stopped asking.
const MAX_JOINERS: usize = 64;

/// Time from a joining node's last request until it is removed from the list. A joining node asks
/// once a second.
pub(crate) const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Difference of two nodes' start times below which the nodes' own clocks decide which node began
/// first. A member computes a start time on the member's clock, from the time for which the node
/// has asked; message delays vary it. Below this difference, the start times by the nodes' own
/// clocks decide, which are the same for all members. Above it, a wrong clock has no influence.
const SAME_START_TOLERANCE: Duration = Duration::from_secs(1);

/// The reason why a request to join cannot succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JoinRejected {
    #[error(
        "another node asks to join as {name} too, at {url}, and asked first: give this one another \
         --name, or stop that one"
    )]
    SameName { name: String, url: String },
    #[error("{MAX_JOINERS} nodes ask to join already: plan to add them first")]
    TooMany,
}

/// The outcome of a request to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinOutcome {
    /// The node is a new entry of the list.
    New,
    /// The node was in the list already.
    Known,
    /// The list has a node of this name and URL with another directory. The node that asks may be
    /// the same node with a replaced disk, and is listed after the earlier entry is forgotten.
    NotYet,
}

/// A node that asks to join.
#[derive(Debug)]
struct WaitingNode {
    asker: JoinRequest,
    /// Time at which the node began to ask, on this member's clock: now, less the time for which
    /// the node says that it has asked.
    since: Instant,
    /// Time of the node's last request.
    last: Instant,
}

impl WaitingNode {
    fn new(asker: JoinRequest, now: Instant) -> Self {
        let asking = Duration::from_millis(asker.clock_ms.saturating_sub(asker.began_ms));
        Self { asker, since: now.checked_sub(asking).unwrap_or(now), last: now }
    }

    /// Returns the key that orders nodes which began to ask at about the same time: the start time
    /// by the node's own clock, then the incarnation. The order is the same on all members.
    fn by_clock(&self) -> (u64, &str) {
        (self.asker.began_ms, &self.asker.incarnation)
    }

    /// True if this node began to ask before `other`, a node with the same name.
    fn is_before(&self, other: &Self) -> bool {
        let (earlier, later) = (self.since.min(other.since), self.since.max(other.since));
        match later.saturating_duration_since(earlier) < SAME_START_TOLERANCE {
            true => self.by_clock() < other.by_clock(),
            false => self.since < other.since,
        }
    }
}

/// The list of joining nodes, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct Joiners(Mutex<Vec<WaitingNode>>);

impl Joiners {
    /// Adds or renews the entry of the node that asks, or refuses the request.
    pub(crate) fn keep(
        &self,
        asker: JoinRequest,
        now: Instant,
    ) -> Result<JoinOutcome, JoinRejected> {
        let new = WaitingNode::new(asker, now);
        let mut asking = self.lock(now);
        if let Some(known) = asking.iter_mut().find(|one| one.asker.name == new.asker.name) {
            if known.asker.incarnation == new.asker.incarnation {
                *known = WaitingNode { since: new.since.min(known.since), ..new };
                return Ok(JoinOutcome::Known);
            }
            if known.asker.url == new.asker.url {
                return Ok(JoinOutcome::NotYet);
            }
            if new.is_before(known) {
                *known = new;
                return Ok(JoinOutcome::New);
            }
            let (name, url) = (known.asker.name.clone(), known.asker.url.clone());
            return Err(JoinRejected::SameName { name, url });
        }
        if asking.len() >= MAX_JOINERS {
            return Err(JoinRejected::TooMany);
        }
        asking.push(new);
        asking.sort_by(|one, other| one.asker.name.cmp(&other.asker.name));
        Ok(JoinOutcome::New)
    }

    /// Removes a node that has joined.
    pub(crate) fn remove(&self, name: &str) {
        self.lock(Instant::now()).retain(|one| one.asker.name != name);
    }

    /// Returns the requests of all listed nodes, by name.
    pub(crate) fn all(&self) -> Vec<JoinRequest> {
        self.lock(Instant::now()).iter().map(|one| one.asker.clone()).collect()
    }

    /// Returns the listed node `name` in the form that a plan requires; `None` if it is not listed.
    pub(crate) fn find(&self, name: &str) -> Option<Joiner> {
        let asking = self.lock(Instant::now());
        let WaitingNode { asker, .. } = asking.iter().find(|one| one.asker.name == name)?;
        let number = u64::from_str_radix(&asker.incarnation, 16);
        let disk = number.ok().and_then(Incarnation::of_number);
        Some(Joiner { member: asker.member(), url: asker.url.clone(), disk })
    }

    /// Returns the voter id of the listed node `name`; `None` if it is not listed.
    pub(crate) fn voter_of(&self, name: &str) -> Option<VoterId> {
        let asking = self.lock(Instant::now());
        let WaitingNode { asker, .. } = asking.iter().find(|one| one.asker.name == name)?;
        VoterId::of_number(u64::from_str_radix(&asker.voter, 16).ok()?)
    }

    /// Removes the nodes whose last request is `FORGOTTEN_AFTER` ago, then returns the locked list.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Vec<WaitingNode>> {
        let mut asking = self.0.lock();
        asking.retain(|one| now.saturating_duration_since(one.last) < FORGOTTEN_AFTER);
        asking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(name: &str, incarnation: u64) -> JoinRequest {
        JoinRequest {
            name: name.to_owned(),
            url: format!("http://{name}"),
            zone: String::new(),
            weight: 2,
            incarnation: format!("{incarnation:016x}"),
            voter: format!("{:016x}", incarnation + 1),
            clock_ms: 0,
            began_ms: 0,
        }
    }

    #[test]
    fn a_joining_node_is_listed_until_it_stops_asking() {
        let (joiners, now) = (Joiners::default(), Instant::now());
        joiners.keep(asker("b", 7), now).unwrap();
        joiners.keep(asker("a", 9), now).unwrap();
        assert_eq!(joiners.all(), [asker("a", 9), asker("b", 7)]);
        let found = joiners.find("b").unwrap();
        assert_eq!((found.member.weight, found.url.as_str()), (2, "http://b"));
        assert_eq!((joiners.voter_of("b"), joiners.voter_of("c")), (Some(VoterId(8)), None));
        let elsewhere = || JoinRequest { url: "http://c".to_owned(), ..asker("b", 8) };
        let why = joiners.keep(elsewhere(), now).unwrap_err().to_string();
        assert!(why.contains("another node asks to join as b too, at http://b"), "{why}");

        let later = now + FORGOTTEN_AFTER;
        joiners.keep(asker("b", 8), later).unwrap();
        assert_eq!(joiners.all(), [asker("b", 8)], "the first one has given up");
        joiners.remove("b");
        assert_eq!(joiners.all(), []);
    }

    #[test]
    fn of_two_joining_nodes_with_one_name_the_earlier_node_is_listed() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        // Each node reports its start by its own clock. One clock is ten minutes behind the other.
        let first = |asking_s: u64| {
            let (began_ms, clock_ms) = (600_000, 600_000 + asking_s * 1000);
            JoinRequest { began_ms, clock_ms, ..asker("d", 9) }
        };
        let later = |asking_s: u64| {
            let (url, clock_ms) = ("http://elsewhere".to_owned(), 1 + asking_s * 1000);
            JoinRequest { url, began_ms: 1, clock_ms, ..asker("d", 7) }
        };
        // The first node has asked since 0 s, the other node since 5 s. The request of the other
        // node arrives here first.
        let joiners = Joiners::default();
        assert_eq!(joiners.keep(later(0), at(5)), Ok(JoinOutcome::New));
        assert_eq!(joiners.keep(first(6), at(6)), Ok(JoinOutcome::New));
        let why = joiners.keep(later(2), at(7)).unwrap_err().to_string();
        assert!(why.contains("at http://d, and asked first"), "{why}");
        assert_eq!(joiners.keep(first(8), at(8)), Ok(JoinOutcome::Known));
        // If two nodes began at about the same time, all members choose the same node.
        for [one, other] in [[first as fn(u64) -> JoinRequest, later], [later, first]] {
            let joiners = Joiners::default();
            joiners.keep(one(1), at(1)).unwrap();
            let _ = joiners.keep(other(1), at(1));
            assert_eq!(joiners.all()[0].incarnation, later(0).incarnation);
        }
    }

    #[test]
    fn a_joining_node_with_another_disk_waits_until_the_first_one_is_forgotten() {
        let (joiners, now) = (Joiners::default(), Instant::now());
        joiners.keep(asker("d", 9), now).unwrap();
        assert_eq!(joiners.keep(asker("d", 7), now), Ok(JoinOutcome::NotYet));
        assert_eq!(joiners.all(), [asker("d", 9)]);
        assert_eq!(joiners.keep(asker("d", 7), now + FORGOTTEN_AFTER), Ok(JoinOutcome::New));
    }

    #[test]
    fn the_number_of_joining_nodes_is_bounded() {
        let (joiners, now) = (Joiners::default(), Instant::now());
        let keep = |n: usize| joiners.keep(asker(&format!("n{n}"), 1), now);
        assert!((0..MAX_JOINERS).all(|n| keep(n) == Ok(JoinOutcome::New)));
        assert!(keep(MAX_JOINERS).is_err() && keep(0).is_ok());
    }
}
