//! A node's hybrid logical clock, which gives every write its version.
//!
//! ```text
//!  63                                                  12 11          0
//!  ├─────────────── microseconds since 1970 ────────────┼── counter ──┤
//!
//!      wall clock        last issued             persisted bound
//!  ────────┼──────────────────┼────────────────────────┼──────────▶ time
//!          └ may step back    └ only grows             └ never passed
//! ```
//!
//! No version is issued twice, not even over a restart with a clock that stepped back: versions
//! stay at or below a bound that was made durable before, and a start begins at that bound. (A node
//! that loses the bound with its disk, and whose wall clock is set back too, may issue a version
//! again.) Reading the wall clock and persisting are the caller's: there is no clock and no file in
//! here.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

use record::{COUNTER_BITS, Version};
use xxhash_rust::xxh3::xxh3_64;

use crate::node_id::NodeId;

const COUNTER: u64 = (1 << COUNTER_BITS) - 1;

/// Of a ballot's counter so many bits count those that follow it; above them are the lower bits of
/// the coordinator's id. While keys move two coordinators can be promised one ballot, by replicas
/// of before and of after: they must not draw the same in one microsecond. Nodes whose ids are
/// equal modulo 64 still may.
const FOLLOWING_BITS: u32 = 6;

const FOLLOWING: u64 = (1 << FOLLOWING_BITS) - 1;

/// How far ahead of the clock the bound is persisted, in microseconds: twice the default
/// `--max-clock-skew`. Half of it is left at least, so that a record of a clock as far ahead as
/// that is followed at once, even if it is the first that is seen of it. Nearer would be better
/// for a start after a kill, which begins at the bound and waits until others take such a clock.
const LEAST_AHEAD_MICROS: u64 = 1_000_000;

/// The same where persisting takes long: writes stop if the next bound is not there in time.
const MOST_AHEAD_MICROS: u64 = 2_000_000;

/// How far ahead it is, in multiples of the longest time that persisting took lately. Half of it is
/// left when the next bound is wanted, so one that takes twice as long is still in time.
const AHEAD_OF_SLOWEST: u64 = 4;

/// The time, by the embedder's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Microseconds since some moment; never steps back.
    pub mono: u64,
    /// Microseconds since 1970, as far as this machine knows.
    pub wall: u64,
}

/// Why a clock issues nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotIssued {
    /// The persisted bound does not allow another version yet: persisting it lags or fails.
    #[error("the clock reached its persisted bound; timestamps resume when a new bound is durable")]
    BoundReached,
    /// The wall clock is wrong: most of the other nodes would refuse it as too far ahead of theirs.
    #[error(
        "this node's clock is ahead of most other nodes' clocks by more than --max-clock-skew: \
         correct it, or send the write to another node"
    )]
    Ahead,
    /// The wall clock is not ahead, but what was issued or taken in is.
    #[error(
        "this node has timestamps ahead of most other nodes' clocks by more than \
         --max-clock-skew, although its clock is not ahead now: its clock, or another one that it \
         followed, was. Stop it, run `kvorum repair-clock` on its directory and start it, or send \
         the write to another node"
    )]
    WasAhead,
}

/// The part of a version that tells nodes apart: a hash of the node's name.
pub fn origin_of(name: &str) -> u32 {
    xxh3_64(name.as_bytes()) as u32
}

/// The one clock of a node, shared by its event loops.
#[derive(Debug)]
pub struct Clock {
    last: AtomicU64,
    bound: AtomicU64,
    /// Microseconds that persisting a bound took at most, of late.
    slowest: AtomicU64,
    /// Microseconds that other nodes' clocks were ahead of the wall clock at most, of late.
    lead: AtomicU64,
    /// What other nodes accept at most, in microseconds: see [`Clock::compared`].
    limit_at_zero: AtomicI64,
    /// How many nodes' clocks that comes from.
    compared_with: AtomicUsize,
    origin: u32,
}

/// So many other nodes' clocks show that this node's is wrong, and not theirs.
const LEAST_COMPARED: usize = 2;

/// Nobody's clock was compared with this one.
const NO_LIMIT: i64 = i64::MAX;

impl Clock {
    /// A clock that begins after everything that one bounded by `persisted` (0: there was none) may
    /// have issued. It issues nothing before [`Clock::persisted`] is called with a further bound.
    pub fn start(origin: u32, wall_micros: u64, persisted: u64) -> Self {
        let last = persisted.max(wall_micros << COUNTER_BITS);
        let [last, bound, slowest, lead] = [last, persisted, 0, 0].map(AtomicU64::new);
        let (limit_at_zero, compared_with) = (AtomicI64::new(NO_LIMIT), AtomicUsize::new(0));
        Self { last, bound, slowest, lead, limit_at_zero, compared_with, origin }
    }

    /// The clock was compared with other nodes' clocks: most of them refuse versions of later than
    /// so many microseconds since 1970 when the counting clock is at zero, and later as that goes
    /// on. `None` = there is nobody to compare it with. `others`: how many it was compared with.
    ///
    /// Nothing later is issued: it would hide what is written with right clocks until its time
    /// comes. And this clock, which never goes back, is as good as before once the wall clock is.
    pub fn compared(&self, limit_at_zero: Option<i64>, others: usize) {
        self.limit_at_zero.store(limit_at_zero.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        self.compared_with.store(others, Ordering::Relaxed);
    }

    /// The greatest time that most other nodes take now.
    fn limit_of_most(&self, now: Now) -> u64 {
        match self.limit_at_zero.load(Ordering::Relaxed) {
            NO_LIMIT => u64::MAX,
            at_zero => Self::limit(now.mono.saturating_add_signed(at_zero), 0),
        }
    }

    /// What most other nodes' clocks show, and this one does not show less, in microseconds since
    /// 1970; `None` = it was compared with nobody's.
    pub fn agreed(&self, now: Now) -> Option<u64> {
        let is_compared = self.compared_with.load(Ordering::Relaxed) > 0;
        is_compared.then(|| now.wall.min(Self::micros(self.limit_of_most(now))))
    }

    /// The time by which conditional writes judge whether a value has expired, in microseconds
    /// since 1970: the wall clock's, or what most other nodes' clocks show if that is less. One
    /// clock that is ahead therefore ends no value early. A correct clock among others that are
    /// behind judges `max_skew_micros` late at most.
    ///
    /// The time goes back when those clocks do: nothing may rely on it before it is stored.
    pub(crate) fn time_of_expiries(&self, now: Now, max_skew_micros: u64) -> u64 {
        let most = Self::micros(self.limit_of_most(now));
        let others = most.saturating_sub(max_skew_micros);
        let least = now.wall.saturating_sub(max_skew_micros);
        now.wall.min(others.max(least)).min(most)
    }

    /// The origin of the versions that this clock issues: a hash of the node's name.
    pub fn origin(&self) -> u32 {
        self.origin
    }

    /// A version greater than all before it.
    pub fn issue(&self, now: Now) -> Result<Version, NotIssued> {
        let wall = Self::time_of(now.wall);
        let time = self.advance(now, |last| wall.max(last + 1))?;
        Ok(Version { time, origin: self.origin })
    }

    /// Goes on to the time that comes after the last one by `after`.
    fn advance(&self, now: Now, after: impl Fn(u64) -> u64) -> Result<u64, NotIssued> {
        // Publishing the bound orders nothing else: a stale read only refuses.
        let bound = self.bound.load(Ordering::Relaxed);
        let limit = self.limit_of_most(now);
        let next = |last: u64| Some(after(last)).filter(|next| *next <= bound.min(limit));
        match self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(last) => {
                let time = after(last);
                assert!(last < time && time <= bound, "times rise, and none is beyond the bound");
                Ok(time)
            }
            Err(_) if Self::time_of(now.wall) > limit => Err(NotIssued::Ahead),
            Err(last) if after(last) > limit => Err(NotIssued::WasAhead),
            Err(_) => Err(NotIssued::BoundReached),
        }
    }

    /// A ballot of the node `own` to ask for promises under, greater than all versions and ballots
    /// before it. Room is left for the ballots that follow it, each of them as good as promised
    /// with it.
    pub(crate) fn issue_ballot(&self, now: Now, own: NodeId) -> Result<u64, NotIssued> {
        let wall = Self::time_of(now.wall);
        let drawn = u64::from(own.0) << FOLLOWING_BITS & COUNTER;
        let ballot = self.advance(now, |last| wall.max((last | COUNTER) + 1) | drawn)?;
        assert!(!follows_another(ballot), "there is room for those that follow it");
        Ok(ballot)
    }

    /// Takes in another node's clock: versions issued from now on are greater than `time`. One that
    /// is ahead, see [`Clock::is_ahead`], is not taken in, and `false` is returned: a single broken
    /// clock must not carry the whole cluster away, nor one whose own clock is wrong follow others
    /// that are as wrong.
    pub fn merge(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        if self.is_ahead(time, now, max_skew_micros) {
            return false;
        }
        // Most of the time there is nothing to be taken in, and a load is cheaper than a write.
        if self.last() < time {
            self.last.fetch_max(time, Ordering::Relaxed);
            let lead = (time >> COUNTER_BITS).saturating_sub(now.wall);
            if self.lead.load(Ordering::Relaxed) < lead {
                self.lead.fetch_max(lead, Ordering::Relaxed);
            }
        }
        true
    }

    /// Takes in the ballot of a conditional write, if it may be promised: a start after this
    /// process begins above it.
    pub(crate) fn admit(&self, ballot: u64, now: Now, max_skew_micros: u64) -> bool {
        if !self.merge(ballot, now, max_skew_micros) {
            return false;
        }
        // Either this sees that the clock was stopped, or what stopped it sees the ballot.
        fence(Ordering::SeqCst);
        ballot <= self.bound.load(Ordering::Relaxed)
    }

    /// Whether a version's `time` is more than `max_skew_micros` after the wall clock, or later
    /// than most other nodes take; with `u64::MAX` none is.
    pub fn is_ahead(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        time > self.takes_up_to(now, max_skew_micros)
    }

    /// The greatest time of a version that is not ahead. What most other nodes refuse is ahead too:
    /// else a node whose clock is wrong would take the records of others that are as wrong, bring
    /// them to its own store, and count them. A single other node's clock may itself be the wrong
    /// one: nothing is refused for its sake that is here.
    pub fn takes_up_to(&self, now: Now, max_skew_micros: u64) -> u64 {
        if max_skew_micros == u64::MAX {
            return u64::MAX;
        }
        let own = Self::limit(now.wall, max_skew_micros);
        let are_few = self.compared_with.load(Ordering::Relaxed) < LEAST_COMPARED;
        if are_few { own } else { own.min(self.limit_of_most(now)) }
    }

    /// The greatest time of a version that is no more than `max_skew_micros` after `wall_micros`.
    pub fn limit(wall_micros: u64, max_skew_micros: u64) -> u64 {
        let micros = wall_micros.saturating_add(max_skew_micros).min(u64::MAX >> COUNTER_BITS);
        micros << COUNTER_BITS | COUNTER
    }

    /// The least time of a version of these microseconds since 1970.
    pub fn time_of(micros: u64) -> u64 {
        micros << COUNTER_BITS
    }

    /// A version's time in microseconds since 1970.
    pub fn micros(time: u64) -> u64 {
        time >> COUNTER_BITS
    }

    /// The greatest time that was issued or taken in.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// The clock as other nodes may take it in: the greatest time that was issued or taken in, and
    /// not less than the wall clock, as far as most other nodes take that.
    pub fn now(&self, now: Now) -> u64 {
        self.last().max(Self::time_of(now.wall).min(self.limit_of_most(now)))
    }

    /// The bound to persist next, if the present one is less than half as far away as it is set.
    pub fn bound_wanted(&self, now: Now) -> Option<u64> {
        // The next version may have to follow one of the clock that is furthest ahead; of a wall
        // clock further ahead than others take there is none.
        let ahead = Self::time_of(now.wall + self.lead.load(Ordering::Relaxed));
        let now = self.last().max(ahead.min(self.limit_of_most(now)));
        let bound = self.bound.load(Ordering::Relaxed);
        let slowest = self.slowest.load(Ordering::Relaxed).saturating_mul(AHEAD_OF_SLOWEST);
        let ahead = slowest.clamp(LEAST_AHEAD_MICROS, MOST_AHEAD_MICROS);
        let near = bound < now + ((ahead / 2) << COUNTER_BITS);
        near.then_some(now + (ahead << COUNTER_BITS))
    }

    /// `bound` is durable, `took_micros` after it was wanted: versions up to it may be issued.
    pub fn persisted(&self, bound: u64, took_micros: u64) {
        self.bound.fetch_max(bound, Ordering::Relaxed);
        // A slow one is forgotten within minutes. One caller at a time.
        let took = took_micros.min(MOST_AHEAD_MICROS / AHEAD_OF_SLOWEST);
        let slowest = self.slowest.load(Ordering::Relaxed);
        self.slowest.store(took.max(slowest - slowest.div_ceil(256)), Ordering::Relaxed);
        // Nothing else lowers it.
        let lead = self.lead.load(Ordering::Relaxed);
        self.lead.fetch_sub(lead.div_ceil(256), Ordering::Relaxed);
    }

    /// Issues nothing from now on; returns the bound that suffices for what was issued, to be
    /// persisted so that the next start need not begin ahead of its wall clock.
    pub fn stop(&self) -> u64 {
        self.bound.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.last()
    }
}

/// The ballot under which a coordinator may go on that was promised this one, or went on under it.
pub(crate) fn next_ballot(ballot: u64) -> Option<u64> {
    (ballot & FOLLOWING < FOLLOWING).then_some(ballot + 1)
}

/// The last of the ballots under which a coordinator may go on that was promised this one.
pub(crate) fn last_following(ballot: u64) -> u64 {
    ballot | FOLLOWING
}

/// Whether it is such a ballot: not one that promises are asked for under.
pub(crate) fn follows_another(ballot: u64) -> bool {
    ballot & FOLLOWING > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: u64 = 1_700_000_000_000_000;

    fn at(wall: u64) -> Now {
        Now { mono: 0, wall }
    }

    fn running(wall: u64, persisted: u64) -> Clock {
        let clock = Clock::start(7, wall, persisted);
        let bound = clock.bound_wanted(at(wall)).expect("a new clock wants a bound");
        clock.persisted(bound, 0);
        clock
    }

    #[test]
    fn issues_nothing_without_a_durable_bound() {
        let clock = Clock::start(7, WALL, 0);
        assert_eq!(clock.issue(at(WALL)), Err(NotIssued::BoundReached));
        assert_eq!(clock.issue(at(WALL + 1)), Err(NotIssued::BoundReached));
    }

    /// What it is not to issue it does not go on to either.
    #[test]
    fn a_wall_clock_ahead_of_most_others_issues_nothing_and_is_forgotten_once_it_is_right() {
        let clock = running(WALL, 0);
        // 250 ms ahead of what this wall clock shows when the counting clock is at 7 s.
        let limit = WALL as i64 - 7_000_000 + 250_000;
        let time = |mono, wall| Now { mono, wall };
        let bound = |clock: &Clock, now| {
            if let Some(bound) = clock.bound_wanted(now) {
                clock.persisted(bound, 0);
            }
        };
        clock.compared(Some(limit), 2);
        assert!(clock.issue(time(7_000_000, WALL + 250_000)).is_ok());
        let near = time(7_000_000, WALL + 260_000);
        assert_eq!(clock.issue(near), Err(NotIssued::Ahead), "though its bound would allow it");
        let wrong = time(7_000_000, WALL + 300_000_000);
        bound(&clock, wrong);
        assert_eq!(clock.issue(wrong), Err(NotIssued::Ahead));
        assert_eq!(clock.issue_ballot(wrong, NodeId(0)), Err(NotIssued::Ahead));
        let later = time(8_000_000, WALL + 1_000_000);
        bound(&clock, later);
        let issued = clock.issue(later).unwrap();
        assert_eq!(issued.time, (WALL + 1_000_000) << 12, "it did not go on");
        // Nor did the bound, at which a start would begin.
        assert!(clock.stop() == issued.time && clock.bound_wanted(later).is_some());
        let clock = running(WALL, 0);
        clock.compared(Some(limit), 2);
        let wanted = clock.bound_wanted(time(7_600_000, WALL + 300_000_000)).unwrap();
        assert!(wanted < (WALL + 2_000_000) << 12, "{}", wanted >> 12);
        // Nobody is left: it is a clock as good as any.
        clock.compared(None, 0);
        bound(&clock, wrong);
        assert_eq!(clock.issue(wrong).unwrap().time, (WALL + 300_000_000) << 12);
    }

    #[test]
    fn values_expire_by_the_wall_clock_unless_most_others_show_less() {
        let skew = 500_000;
        let clock = running(WALL, (WALL + 900_000) << 12);
        let time = |shows: u64| clock.time_of_expiries(at(shows), skew);
        assert_eq!(time(WALL), WALL, "it begins at its bound, and that ends nothing");
        let others = |shows: u64| clock.compared(Some((shows + skew) as i64), 2);
        for (own, most, expected) in [
            (WALL, WALL + 400_000, WALL),
            (WALL + 400_000, WALL, WALL),
            (WALL + 400_000, WALL - 100_000, WALL - 100_000),
            (WALL + 400_000, WALL - 3_600_000_000, WALL - 3_600_000_000 + skew),
            (WALL + 700_000, WALL, WALL + 200_000),
            (WALL + 3_600_000_000, WALL, WALL + skew),
        ] {
            others(most);
            assert_eq!(time(own), expected, "{own} {most}");
        }
        clock.compared(None, 0);
        assert_eq!(time(WALL + 700_000), WALL + 700_000, "nobody is left");
    }

    /// Nor does it take what others say that are as wrong.
    #[test]
    fn what_most_others_refuse_is_ahead_for_a_wrong_clock_too() {
        let skew = 500_000;
        let clock = running(WALL, 0);
        let wrong = at(WALL + 3_600_000_000);
        let most = WALL as i64 + skew as i64;
        let late = (WALL + 3_600_000_000) << 12;
        clock.compared(Some(most), 2);
        assert!(clock.is_ahead(late, wrong, skew) && !clock.is_ahead(WALL << 12, wrong, skew));
        assert!(!clock.merge(late, wrong, skew) && !clock.admit(late, wrong, skew));
        assert!(clock.last() <= WALL << 12 && clock.now(wrong) <= Clock::limit(WALL, skew));
        assert!(!clock.is_ahead(late, wrong, u64::MAX), "what is its own was looked at before");
        // One that is merely fast does not follow a faster one, which nobody else takes.
        let fast = at(WALL + 300_000);
        assert!(!clock.merge((WALL + 700_000) << 12, fast, skew) && clock.issue(fast).is_ok());
        // Of two clocks either may be wrong.
        clock.compared(Some(most), 1);
        assert!(!clock.is_ahead(late, wrong, skew));
        assert_eq!(clock.issue(wrong), Err(NotIssued::Ahead));
    }

    /// Else somebody sets a clock that is right or behind.
    #[test]
    fn a_clock_that_was_ahead_is_not_said_to_be() {
        let ahead = (WALL + 300_000_000) << 12;
        let clock = Clock::start(7, WALL, ahead);
        clock.persisted(ahead + (1_000_000 << 12), 0);
        clock.compared(Some(WALL as i64 + 500_000), 2);
        for wall in [WALL, WALL - 60_000_000, WALL + 500_000] {
            assert_eq!(clock.issue(at(wall)), Err(NotIssued::WasAhead), "{wall}");
            assert_eq!(clock.issue_ballot(at(wall), NodeId(0)), Err(NotIssued::WasAhead));
        }
        assert_eq!(clock.issue(at(WALL + 500_001)), Err(NotIssued::Ahead));
        assert!(NotIssued::WasAhead.to_string().contains("its clock is not ahead now"));
    }

    #[test]
    fn a_ballot_leaves_room_for_those_that_follow_it() {
        let clock = running(WALL, 0);
        let issue = |wall| clock.issue_ballot(at(wall), NodeId(0));
        let first = clock.issue(at(WALL)).unwrap().time;
        let ballot = issue(WALL).unwrap();
        assert_eq!(ballot, (WALL + 1) << COUNTER_BITS, "above what was issued");
        assert_eq!(issue(WALL), Ok((WALL + 2) << COUNTER_BITS));
        assert!(clock.issue(at(WALL)).unwrap().time > ballot && ballot > first);
        assert_eq!(issue(WALL + 9), Ok((WALL + 9) << COUNTER_BITS));
        let last = std::iter::successors(Some(ballot), |ballot| next_ballot(*ballot)).last();
        assert_eq!(last, Some(ballot + 63));
        assert!(!follows_another(ballot) && follows_another(ballot + 1));
        clock.stop();
        assert_eq!(issue(WALL + 10), Err(NotIssued::BoundReached));
    }

    #[test]
    fn two_nodes_draw_no_ballot_that_is_the_others() {
        let ballots = |own| {
            let ballot = running(WALL, 0).issue_ballot(at(WALL + 5), NodeId(own)).unwrap();
            assert!(!follows_another(ballot));
            std::iter::successors(Some(ballot), |ballot| next_ballot(*ballot))
        };
        let mut all: Vec<u64> = (100..164).flat_map(ballots).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(all.len(), 64 * 64);
        assert!(all.iter().all(|ballot| Clock::micros(*ballot) == WALL + 5));
        let clock = running(WALL, 0);
        let ballot = clock.issue_ballot(at(WALL + 5), NodeId(63)).unwrap();
        assert!(clock.issue(at(WALL + 5)).unwrap().time > ballot);
    }

    #[test]
    fn follows_the_wall_clock_and_counts_within_a_microsecond() {
        let clock = running(WALL, 0);
        let first = clock.issue(at(WALL + 5)).unwrap();
        assert_eq!(first, Version { time: (WALL + 5) << 12, origin: 7 });
        assert_eq!(clock.issue(at(WALL + 5)).unwrap().time, first.time + 1);
        assert_eq!(clock.issue(at(WALL + 6)).unwrap().time, (WALL + 6) << 12);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_take_versions_along() {
        let clock = running(WALL, 0);
        let mut last = clock.issue(at(WALL + 100)).unwrap();
        for step in 0..10_000 {
            let next = clock.issue(at(WALL - step)).unwrap();
            assert!(next > last);
            last = next;
        }
    }

    #[test]
    fn never_passes_the_bound_and_goes_on_after_the_next() {
        let clock = running(WALL, 0);
        let late = WALL + 1_000_001;
        assert!(clock.issue(at(WALL + 1_000_000)).is_ok());
        assert_eq!(clock.issue(at(late)), Err(NotIssued::BoundReached));
        let bound = clock.bound_wanted(at(late)).unwrap();
        clock.persisted(bound, 0);
        assert_eq!(clock.issue(at(late)).unwrap().time, late << 12);
        assert_eq!(clock.bound_wanted(at(late)), None, "a fresh bound is far enough");
        assert!(clock.bound_wanted(at(late + 500_001)).is_some());
    }

    /// A bound every time that it is looked and one is wanted, each durable `took` microseconds
    /// later; how many versions were refused in ten seconds, of one a millisecond, from then on.
    fn refused(from: u64, took: impl Fn(u64) -> u64) -> u64 {
        let clock = running(WALL, 0);
        let (mut refused, mut under_way) = (0, None);
        for now in (0..10_000_000).step_by(1_000) {
            let wall = WALL + now;
            if let Some((bound, asked, done)) = under_way.take_if(|(_, _, done)| now >= *done) {
                clock.persisted(bound, done - asked);
            }
            // Looked at every 30 ms.
            if under_way.is_none() && now % 30_000 == 0 {
                under_way = clock.bound_wanted(at(wall)).map(|bound| (bound, now, now + took(now)));
            }
            refused += u64::from(clock.issue(at(wall)).is_err() && now >= from);
        }
        refused
    }

    #[test]
    fn the_next_bound_is_there_in_time_on_slow_disks_too() {
        for took in [0, 1_000, 20_000, 90_000, 400_000] {
            assert_eq!(refused(0, |_| took), 0, "{took} us");
        }
        // One that gets slow by and by, up to what was always borne.
        assert_eq!(refused(0, |now| now / 20), 0);
        // One that gets slow at once costs some writes the first time, and none from then on.
        let stalls = |now: u64| if now < 5_000_000 { 1_000 } else { 700_000 };
        assert!((1..1_000).contains(&refused(0, stalls)));
        assert_eq!(refused(8_000_000, stalls), 0);
        // Nor does one that stalls now and then.
        let stalls = |now: u64| if now % 2_000_000 < 300_000 { 700_000 } else { 1_000 };
        assert_eq!(refused(3_000_000, stalls), 0);
    }

    #[test]
    fn a_disk_that_was_slow_once_does_not_keep_the_bound_far_ahead() {
        let clock = running(WALL, 0);
        let ahead = |clock: &Clock, wall: u64| {
            clock.bound_wanted(at(wall)).map(|bound| (bound >> 12) - wall)
        };
        clock.persisted(0, 400_000);
        assert_eq!(ahead(&clock, WALL + 500_000), Some(1_600_000));
        clock.persisted(0, 3_000_000);
        assert_eq!(ahead(&clock, WALL + 500_000), Some(2_000_000));
        for _ in 0..600 {
            clock.persisted(0, 1_000);
        }
        assert_eq!(ahead(&clock, WALL + 1_000_000), Some(1_000_000));
    }

    #[test]
    fn the_bound_leaves_room_to_follow_a_clock_that_is_ahead() {
        let clock = running(WALL, 0);
        let lead = 450_000;
        let mut wall = WALL;
        for _ in 0..20 {
            // Heard of seldom, its versions must be followed whenever one is met.
            assert!(clock.merge((wall + lead) << 12, at(wall), 500_000));
            assert!(clock.issue(at(wall)).is_ok());
            for _ in 0..15 {
                if let Some(bound) = clock.bound_wanted(at(wall)) {
                    clock.persisted(bound, 1_000);
                }
                wall += 30_000;
            }
        }
        let bound = clock.bound_wanted(at(wall + 1_000_000)).unwrap() >> 12;
        assert!(bound <= wall + 1_000_000 + lead + 1_000_000);
    }

    #[test]
    fn a_restart_begins_above_whatever_was_issued_before() {
        let before = running(WALL, 0);
        let bound = before.bound_wanted(at(WALL)).unwrap_or((WALL + 1_000_000) << 12);
        let mut last = before.issue(at(WALL)).unwrap();
        while let Ok(version) = before.issue(at(last.time >> 12)) {
            last = version;
            if last.time & 0xfff == 0xfff && last.time >> 12 > WALL + 10 {
                break;
            }
        }
        let stepped_back = WALL - 3_600_000_000;
        let after = running(stepped_back, bound);
        assert!(after.issue(at(stepped_back)).unwrap() > last);
    }

    #[test]
    fn a_clean_stop_leaves_a_bound_just_above_the_last_version() {
        let clock = running(WALL, 0);
        let last = clock.issue(at(WALL)).unwrap();
        assert_eq!(clock.stop(), last.time);
        assert_eq!(clock.issue(at(WALL + 1)), Err(NotIssued::BoundReached));
    }

    #[test]
    fn another_clock_is_taken_in_unless_it_is_too_far_ahead() {
        let clock = running(WALL, 0);
        let ahead = (WALL + 400_000) << 12 | 7;
        assert!(clock.merge(ahead, at(WALL), 500_000));
        assert!(
            clock.issue(at(WALL)).unwrap().time > ahead,
            "what is seen is behind what is issued"
        );
        assert!(clock.merge(5, at(WALL), 500_000), "the past changes nothing");
        assert!(!clock.merge((WALL + 500_001) << 12, at(WALL), 500_000));
        assert!(clock.now(at(WALL)) < (WALL + 500_000) << 12);
        assert_eq!(clock.now(at(WALL + 1_000_000)), (WALL + 1_000_000) << 12);
    }

    #[test]
    fn threads_never_share_a_version() {
        let clock = running(WALL, 0);
        let each = 20_000;
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| -> Vec<u64> {
                        let mine: Vec<u64> = (0..each)
                            .map(|i| clock.issue(at(WALL + i / 100)).unwrap().time)
                            .collect();
                        assert!(mine.is_sorted(), "one thread's versions only grow");
                        mine
                    })
                })
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4 * each as usize);
    }

    #[test]
    fn origins_are_stable() {
        assert_eq!(origin_of("http://127.0.0.1:8080"), origin_of("http://127.0.0.1:8080"));
        assert_ne!(origin_of("a"), origin_of("b"));
    }
}
