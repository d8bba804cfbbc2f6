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
//! The clock issues no version twice, not even over a restart with a wall clock that stepped back:
//! versions stay at or below a bound that was made durable before, and a start begins at that
//! bound. (A node that loses the bound with its disk, and whose wall clock is set back too, may
//! issue a version again.) The caller reads the wall clock and persists the bound: this module has
//! neither clock nor file.
//!
//! The clock *takes in* the times that other nodes send: from then on, it issues only greater ones.
//! It refuses a time that is *ahead*: later than the wall clock by more than `--max-clock-skew`, or
//! later than most other nodes accept.
//!
//! Source: S. Kulkarni et al., *Logical Physical Clocks* (OPODIS 2014).

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

use record::{COUNTER_BITS, Version};
use xxhash_rust::xxh3::xxh3_64;

use crate::node_id::NodeId;

const COUNTER: u64 = (1 << COUNTER_BITS) - 1;

/// The number of low bits of a ballot's counter that count the ballots following it. Above these
/// bits are the low bits of the coordinator's id: while keys move, replicas from before and after
/// the move can promise the same ballot to two coordinators, which must not issue the same ballot
/// in one microsecond. Nodes whose ids are equal modulo 64 still may.
const FOLLOWING_BITS: u32 = 6;

const FOLLOWING: u64 = (1 << FOLLOWING_BITS) - 1;

/// The least distance from the clock to its bound, in microseconds: twice the default
/// `--max-clock-skew`. At least half of the distance is always left, so that the clock at once
/// follows a version as far ahead as the allowed skew, even the first such version. A smaller
/// distance would be better for a start after a kill: that start begins at the bound, and waits
/// until other nodes accept such a time.
const LEAST_AHEAD_MICROS: u64 = 1_000_000;

/// The greatest distance to the bound, used where persisting takes long: writes stop if the next
/// bound is not durable in time.
const MOST_AHEAD_MICROS: u64 = 2_000_000;

/// The distance to the bound, in multiples of the longest time that persisting took lately. Half of
/// the distance is left when the next bound is wanted, so a persist twice as slow is still in time.
const AHEAD_OF_SLOWEST: u64 = 4;

/// The current time, by the embedder's two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Microseconds since an arbitrary moment; never steps back.
    pub mono: u64,
    /// Microseconds since 1970, by this machine's clock.
    pub wall: u64,
}

/// The reason why a clock issues no version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotIssued {
    /// The persisted bound allows no further version yet: persisting lags or fails.
    #[error("the clock reached its persisted bound; timestamps resume when a new bound is durable")]
    BoundReached,
    /// The wall clock is wrong: most other nodes would refuse its versions as too far ahead of
    /// theirs.
    #[error(
        "this node's clock is ahead of most other nodes' clocks by more than --max-clock-skew: \
         correct it, or send the write to another node"
    )]
    Ahead,
    /// The wall clock is not ahead, but a version that was issued or taken in is ahead.
    #[error(
        "this node has timestamps that most other nodes refuse for another {seconds} s, although \
         its clock is not ahead now: its clock, or another one that it followed, was. Send the \
         write to another node, or wait: in {seconds} s this node takes writes again, and no \
         record is lost. To wait less, if only this node's clock was ahead, stop it, run `kvorum \
         repair-clock` on its directory and start it. That removes its records of those \
         timestamps: do not do that on several nodes whose clocks were ahead, or what they \
         acknowledged together is lost"
    )]
    WasAhead {
        /// The time until most other nodes accept the next version, in seconds.
        seconds: u64,
    },
}

/// Returns the origin of a node's versions, which distinguishes nodes: a hash of the node's name.
pub fn origin_of(name: &str) -> u32 {
    xxh3_64(name.as_bytes()) as u32
}

/// The clock of a node, shared by its event loops.
#[derive(Debug)]
pub struct Clock {
    last: AtomicU64,
    /// The greatest time that another node has sent since the start, and that was not ahead; 0 =
    /// none.
    heard: AtomicU64,
    bound: AtomicU64,
    /// The longest recent time to persist a bound, in microseconds.
    slowest: AtomicU64,
    /// The greatest recent lead of other nodes' clocks over the wall clock, in microseconds.
    lead: AtomicU64,
    /// The latest time that most other nodes accept, in microseconds since 1970, at the zero of the
    /// monotonic clock ([`Clock::compared`]).
    limit_at_zero: AtomicI64,
    /// The number of other nodes whose clocks the limit was computed from.
    compared_with: AtomicUsize,
    origin: u32,
    /// The latest time known from before the start, in microseconds since 1970; without one, the
    /// wall clock's time at the start. `at_start` is the later of both.
    before_start: u64,
    at_start: u64,
}

/// The least number of other nodes' clocks that together show that this node's clock is wrong, and
/// not theirs.
const LEAST_COMPARED: usize = 2;

/// The limit if this clock was compared with no other.
const NO_LIMIT: i64 = i64::MAX;

impl Clock {
    /// Starts a clock whose first version is above all versions that an earlier clock may have
    /// issued. `persisted` is the bound of that clock (0 = there was none). The clock issues
    /// nothing until [`Clock::mark_durable`] is called with a greater bound.
    pub fn start(origin: u32, wall_micros: u64, persisted: u64) -> Self {
        let last = persisted.max(wall_micros << COUNTER_BITS);
        let [last, bound, slowest, lead, heard] = [last, persisted, 0, 0, 0].map(AtomicU64::new);
        let (limit_at_zero, compared_with) = (AtomicI64::new(NO_LIMIT), AtomicUsize::new(0));
        let before_start = if persisted == 0 { wall_micros } else { Self::micros(persisted) };
        Self {
            last,
            heard,
            bound,
            slowest,
            lead,
            limit_at_zero,
            compared_with,
            origin,
            before_start,
            at_start: Self::micros(persisted).max(wall_micros),
        }
    }

    /// Notes a comparison with the clocks of `others` other nodes. `limit_at_zero` is the latest
    /// time, in microseconds since 1970, that most of these nodes accept when the monotonic clock
    /// is at zero; the limit advances with the monotonic clock. `None` = there is no clock to
    /// compare with.
    ///
    /// The clock issues nothing later than the limit: such a version would hide writes of correct
    /// clocks until its time comes. The limit also keeps this clock, which never steps back, usable
    /// as soon as a wrong wall clock is corrected.
    pub fn compared(&self, limit_at_zero: Option<i64>, others: usize) {
        self.limit_at_zero.store(limit_at_zero.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        self.compared_with.store(others, Ordering::Relaxed);
    }

    /// Returns the greatest time of a version that most other nodes accept now.
    fn limit_of_most(&self, now: Now) -> u64 {
        match self.limit_at_zero.load(Ordering::Relaxed) {
            NO_LIMIT => u64::MAX,
            at_zero => Self::limit(now.mono.saturating_add_signed(at_zero), 0),
        }
    }

    /// Returns the wall clock's time, or the latest time that most other nodes accept if that is
    /// less, in microseconds since 1970; `None` = this clock was compared with no other.
    pub fn agreed(&self, now: Now) -> Option<u64> {
        let is_compared = self.compared_with.load(Ordering::Relaxed) > 0;
        is_compared.then(|| now.wall.min(Self::micros(self.limit_of_most(now))))
    }

    /// Returns the time that a node alone can be sure of, `up_micros` after its start, in
    /// microseconds since 1970: the wall clock's time, but at most `up_micros` after the latest
    /// time known from before the start. A wall clock that is ahead at the start, or is set ahead
    /// later, therefore makes no record look older than it is. Time in which the node was down does
    /// not count.
    pub fn certain(&self, up_micros: u64, wall_micros: u64) -> u64 {
        wall_micros.min(self.before_start.saturating_add(up_micros))
    }

    /// Returns the latest time that this node knows, `up_micros` after its start, in microseconds
    /// since 1970. Setting the wall clock back does not lower that time.
    pub fn latest(&self, up_micros: u64, now: Now, max_skew_micros: u64) -> u64 {
        let since_start = self.at_start.saturating_add(up_micros);
        let are_few = self.compared_with.load(Ordering::Relaxed) < LEAST_COMPARED;
        let most = if are_few { 0 } else { Self::micros(self.limit_of_most(now)) };
        let others = most.saturating_sub(max_skew_micros);
        now.wall.max(since_start).max(Self::micros(self.last())).max(others)
    }

    /// Returns `micros` (since 1970), or the latest time that most other nodes accept if that is
    /// less.
    pub fn accepted(&self, micros: u64, now: Now) -> u64 {
        micros.min(Self::micros(self.limit_of_most(now)))
    }

    /// Returns the time by which conditional writes judge whether a value has expired, in
    /// microseconds since 1970: the wall clock's, or that of most other nodes' clocks if it is
    /// less. A single clock that is ahead therefore expires no value early. A correct clock among
    /// others that are behind judges at most `max_skew_micros` late.
    ///
    /// The time steps back when those clocks do, so no decision may rely on it before the time is
    /// stored.
    pub(crate) fn time_of_expiries(&self, now: Now, max_skew_micros: u64) -> u64 {
        let most = Self::micros(self.limit_of_most(now));
        let others = most.saturating_sub(max_skew_micros);
        let least = now.wall.saturating_sub(max_skew_micros);
        now.wall.min(others.max(least)).min(most)
    }

    /// Returns the time to which a time to live is added, in microseconds since 1970: the wall
    /// clock's time, or the greatest time that another node sent if that is later, but at most the
    /// time that most other nodes accept. Another node's clock may judge the expiry, and no value
    /// may expire early.
    ///
    /// The times that this clock issued count too, as far as most other nodes accept them, because
    /// a wall clock that was set back may be the wrong one. Without another clock to compare with,
    /// those times prove nothing: a clock that was ahead once would lengthen every later time to
    /// live. The wall clock to which the time to live is added then also judges the expiry.
    pub fn base_of_expiries(&self, now: Now) -> u64 {
        let is_compared = self.compared_with.load(Ordering::Relaxed) > 0;
        let issued = if is_compared { self.last() } else { 0 };
        let heard = self.heard.load(Ordering::Relaxed);
        let base = issued.max(heard).max(Self::time_of(now.wall));
        Self::micros(base.min(self.limit_of_most(now)))
    }

    /// Returns the origin of the versions that this clock issues: a hash of the node's name.
    pub fn origin(&self) -> u32 {
        self.origin
    }

    /// Issues a version greater than all before it.
    pub fn issue(&self, now: Now) -> Result<Version, NotIssued> {
        let wall = Self::time_of(now.wall);
        let time = self.advance(now, |last| wall.max(last + 1))?;
        Ok(Version { time, origin: self.origin })
    }

    /// Advances the clock from its last time `t` to `after(t)`, and returns the new time.
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
            Err(last) if after(last) > limit => {
                let micros = Self::micros(after(last)) - Self::micros(limit);
                Err(NotIssued::WasAhead { seconds: micros.div_ceil(1_000_000).max(1) })
            }
            Err(_) => Err(NotIssued::BoundReached),
        }
    }

    /// Returns the microseconds until most other nodes accept the next version, if a version that
    /// was issued or taken in is ahead of their clocks and the wall clock is not; otherwise `None`.
    pub fn refused_for(&self, now: Now) -> Option<u64> {
        let (limit, next) = (self.limit_of_most(now), self.last() + 1);
        let was_ahead = Self::time_of(now.wall) <= limit && next > limit;
        was_ahead.then(|| (Self::micros(next) - Self::micros(limit)).max(1))
    }

    /// Issues a ballot under which the node `own` asks for promises. The ballot is greater than all
    /// versions and ballots before it. The ballots that follow it, which its promises cover, stay
    /// unused.
    pub(crate) fn issue_ballot(&self, now: Now, own: NodeId) -> Result<u64, NotIssued> {
        let wall = Self::time_of(now.wall);
        let drawn = u64::from(own.0) << FOLLOWING_BITS & COUNTER;
        let ballot = self.advance(now, |last| wall.max((last | COUNTER) + 1) | drawn)?;
        assert!(!follows_another(ballot), "there is room for those that follow it");
        Ok(ballot)
    }

    /// Takes in another node's clock: versions issued from now on are greater than `time`. Returns
    /// `false`, and takes in nothing, if `time` is ahead ([`Clock::is_ahead`]): a single broken
    /// clock must not set the clocks of the whole cluster ahead, and a node with a wrong clock must
    /// not follow other nodes whose clocks are equally wrong.
    pub fn merge(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        if self.is_ahead(time, now, max_skew_micros) {
            return false;
        }
        // Most calls have nothing to take in, and a load is cheaper than a write.
        if self.last() < time {
            self.last.fetch_max(time, Ordering::Relaxed);
            let lead = (time >> COUNTER_BITS).saturating_sub(now.wall);
            if self.lead.load(Ordering::Relaxed) < lead {
                self.lead.fetch_max(lead, Ordering::Relaxed);
            }
        }
        true
    }

    /// Takes in the time that another node sent, as [`Clock::merge`] does, and remembers it for
    /// [`Clock::base_of_expiries`].
    pub fn hear(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        let is_taken_in = self.merge(time, now, max_skew_micros);
        if is_taken_in && self.heard.load(Ordering::Relaxed) < time {
            self.heard.fetch_max(time, Ordering::Relaxed);
        }
        is_taken_in
    }

    /// Takes in the ballot of a conditional write. Returns true if the ballot may be promised,
    /// because the next start begins above it.
    pub(crate) fn merge_ballot(&self, ballot: u64, now: Now, max_skew_micros: u64) -> bool {
        if !self.merge(ballot, now, max_skew_micros) {
            return false;
        }
        // Either this load sees that the clock was stopped, or `stop` sees the ballot.
        fence(Ordering::SeqCst);
        ballot <= self.bound.load(Ordering::Relaxed)
    }

    /// True if a version's `time` is more than `max_skew_micros` after the wall clock, or later
    /// than most other nodes accept. With a skew of `u64::MAX`, no time is ahead.
    pub fn is_ahead(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        time > self.takes_up_to(now, max_skew_micros)
    }

    /// Returns the greatest time of a version that is not ahead. Times that most other nodes refuse
    /// are ahead too: otherwise a node with a wrong clock would accept, store and count the records
    /// of nodes whose clocks are equally wrong. A single other clock may itself be the wrong one,
    /// so a comparison with only one other node refuses nothing.
    pub fn takes_up_to(&self, now: Now, max_skew_micros: u64) -> u64 {
        if max_skew_micros == u64::MAX {
            return u64::MAX;
        }
        let own = Self::limit(now.wall, max_skew_micros);
        let are_few = self.compared_with.load(Ordering::Relaxed) < LEAST_COMPARED;
        if are_few { own } else { own.min(self.limit_of_most(now)) }
    }

    /// Returns the greatest time of a version that is no more than `max_skew_micros` after
    /// `wall_micros`.
    pub fn limit(wall_micros: u64, max_skew_micros: u64) -> u64 {
        let micros = wall_micros.saturating_add(max_skew_micros).min(u64::MAX >> COUNTER_BITS);
        micros << COUNTER_BITS | COUNTER
    }

    /// Returns the least time of a version of these microseconds since 1970.
    pub fn time_of(micros: u64) -> u64 {
        micros << COUNTER_BITS
    }

    /// Returns a version's time in microseconds since 1970.
    pub fn micros(time: u64) -> u64 {
        time >> COUNTER_BITS
    }

    /// Returns the greatest time that was issued or taken in.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Returns the clock's time for other nodes to take in: the greatest time that was issued or
    /// taken in, and at least the wall clock's, as far as most other nodes accept that.
    pub fn now(&self, now: Now) -> u64 {
        self.last().max(Self::time_of(now.wall).min(self.limit_of_most(now)))
    }

    /// Returns the bound to persist next, if less than half of the distance to the present bound is
    /// left.
    pub fn bound_wanted(&self, now: Now) -> Option<u64> {
        // The next version may have to follow a version of the clock that is furthest ahead, but
        // never a wall clock further ahead than most others accept.
        let ahead = Self::time_of(now.wall + self.lead.load(Ordering::Relaxed));
        let now = self.last().max(ahead.min(self.limit_of_most(now)));
        let bound = self.bound.load(Ordering::Relaxed);
        let slowest = self.slowest.load(Ordering::Relaxed).saturating_mul(AHEAD_OF_SLOWEST);
        let ahead = slowest.clamp(LEAST_AHEAD_MICROS, MOST_AHEAD_MICROS);
        let near = bound < now + ((ahead / 2) << COUNTER_BITS);
        near.then_some(now + (ahead << COUNTER_BITS))
    }

    /// Notes that `bound` is durable, `took_micros` after it was wanted: versions up to it may be
    /// issued.
    pub fn mark_durable(&self, bound: u64, took_micros: u64) {
        self.bound.fetch_max(bound, Ordering::Relaxed);
        // A slow persist is forgotten within minutes. Load and store suffice: there is one caller
        // at a time.
        let took = took_micros.min(MOST_AHEAD_MICROS / AHEAD_OF_SLOWEST);
        let slowest = self.slowest.load(Ordering::Relaxed);
        self.slowest.store(took.max(slowest - slowest.div_ceil(256)), Ordering::Relaxed);
        // The lead decays, as nothing else lowers it.
        let lead = self.lead.load(Ordering::Relaxed);
        self.lead.fetch_sub(lead.div_ceil(256), Ordering::Relaxed);
    }

    /// Stops the clock: it issues nothing from now on. Returns the bound that covers everything
    /// issued, to be persisted so that the next start need not begin ahead of its wall clock.
    pub fn stop(&self) -> u64 {
        self.bound.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.last()
    }
}

/// Returns the next ballot of a coordinator that was promised this one, or continued under it, and
/// needs no new promises; `None` = the coordinator must ask for promises again.
pub(crate) fn next_ballot(ballot: u64) -> Option<u64> {
    (ballot & FOLLOWING < FOLLOWING).then_some(ballot + 1)
}

/// Returns the last of the ballots under which a coordinator that was promised this one may
/// continue.
pub(crate) fn last_following(ballot: u64) -> u64 {
    ballot | FOLLOWING
}

/// True if the ballot follows a promised one, so that no promises are asked for under it.
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
        clock.mark_durable(bound, 0);
        clock
    }

    #[test]
    fn the_latest_time_never_goes_back_with_the_wall_clock_and_follows_most_others() {
        let (behind, others) = (at(WALL - 900), WALL + 900);
        let clock = Clock::start(7, behind.wall, Clock::time_of(WALL));
        assert_eq!(clock.latest(9, behind, 0), WALL + 9, "known from before the start");
        assert_eq!(running(WALL, 0).latest(7, behind, 0), WALL + 7, "set back after the start");
        clock.compared(Some((others + 5) as i64), 1);
        assert_eq!(clock.latest(0, at(WALL), 5), WALL, "one other may be wrong");
        clock.compared(Some((others + 5) as i64), 2);
        let accepted = clock.accepted(others + 6, behind);
        assert_eq!((clock.latest(0, behind, 5), accepted), (others, others + 5));
        assert!(clock.merge(Clock::time_of(WALL + 2), at(WALL), u64::MAX));
        assert_eq!(clock.latest(0, behind, 905), WALL + 2, "or what was taken in");
    }

    #[test]
    fn issues_nothing_without_a_durable_bound() {
        let clock = Clock::start(7, WALL, 0);
        assert_eq!(clock.issue(at(WALL)), Err(NotIssued::BoundReached));
        assert_eq!(clock.issue(at(WALL + 1)), Err(NotIssued::BoundReached));
    }

    /// A refused time moves neither the clock nor its bound.
    #[test]
    fn a_wall_clock_ahead_of_most_others_issues_nothing_and_is_forgotten_once_it_is_right() {
        let clock = running(WALL, 0);
        // 250 ms ahead of this wall clock's time when the monotonic clock is at 7 s.
        let limit = WALL as i64 - 7_000_000 + 250_000;
        let time = |mono, wall| Now { mono, wall };
        let bound = |clock: &Clock, now| {
            if let Some(bound) = clock.bound_wanted(now) {
                clock.mark_durable(bound, 0);
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
        // The bound did not advance either; a start would begin there.
        assert!(clock.stop() == issued.time && clock.bound_wanted(later).is_some());
        let clock = running(WALL, 0);
        clock.compared(Some(limit), 2);
        let wanted = clock.bound_wanted(time(7_600_000, WALL + 300_000_000)).unwrap();
        assert!(wanted < (WALL + 2_000_000) << 12, "{}", wanted >> 12);
        // No other clock is left to compare with: this clock is as good as any.
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

    /// A wrong clock does not take in the times of other clocks that are equally wrong.
    #[test]
    fn what_most_others_refuse_is_ahead_for_a_wrong_clock_too() {
        let skew = 500_000;
        let clock = running(WALL, 0);
        let wrong = at(WALL + 3_600_000_000);
        let most = WALL as i64 + skew as i64;
        let late = (WALL + 3_600_000_000) << 12;
        clock.compared(Some(most), 2);
        assert!(clock.is_ahead(late, wrong, skew) && !clock.is_ahead(WALL << 12, wrong, skew));
        assert!(!clock.merge(late, wrong, skew) && !clock.merge_ballot(late, wrong, skew));
        assert!(clock.last() <= WALL << 12 && clock.now(wrong) <= Clock::limit(WALL, skew));
        assert!(!clock.is_ahead(late, wrong, u64::MAX), "what is its own was looked at before");
        // A clock that is merely fast does not follow a faster one, which no other node accepts.
        let fast = at(WALL + 300_000);
        assert!(!clock.merge((WALL + 700_000) << 12, fast, skew) && clock.issue(fast).is_ok());
        // With two clocks, either may be wrong.
        clock.compared(Some(most), 1);
        assert!(!clock.is_ahead(late, wrong, skew));
        assert_eq!(clock.issue(wrong), Err(NotIssued::Ahead));
    }

    /// A wrong report would make an operator correct a clock that is right or behind.
    #[test]
    fn a_clock_that_was_ahead_is_not_said_to_be() {
        let ahead = (WALL + 300_000_000) << 12;
        let clock = Clock::start(7, WALL, ahead);
        clock.mark_durable(ahead + (1_000_000 << 12), 0);
        clock.compared(Some(WALL as i64 + 500_000), 2);
        let was_ahead = NotIssued::WasAhead { seconds: 300 };
        for wall in [WALL, WALL - 60_000_000, WALL + 500_000] {
            assert_eq!(clock.issue(at(wall)), Err(was_ahead), "{wall}");
            assert_eq!(clock.issue_ballot(at(wall), NodeId(0)), Err(was_ahead));
            assert_eq!(clock.refused_for(at(wall)), Some(299_500_000));
        }
        assert_eq!(clock.issue(at(WALL + 500_001)), Err(NotIssued::Ahead));
        assert_eq!(clock.refused_for(at(WALL + 500_001)), None, "this clock is ahead itself");
        assert!(was_ahead.to_string().contains("its clock is not ahead now"));
        let later = Now { mono: 299_500_001, wall: WALL };
        assert_eq!(clock.refused_for(later), None);
        assert!(clock.issue(later).is_ok(), "the wait is over when it was said to be");
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
        clock.mark_durable(bound, 0);
        assert_eq!(clock.issue(at(late)).unwrap().time, late << 12);
        assert_eq!(clock.bound_wanted(at(late)), None, "a fresh bound is far enough");
        assert!(clock.bound_wanted(at(late + 500_001)).is_some());
    }

    /// Counts the versions that are refused from the time `from` on, in a run of ten seconds that
    /// asks for one version each millisecond. A wanted bound becomes durable `took` microseconds
    /// after the check that finds it wanted.
    fn refused(from: u64, took: impl Fn(u64) -> u64) -> u64 {
        let clock = running(WALL, 0);
        let (mut refused, mut under_way) = (0, None);
        for now in (0..10_000_000).step_by(1_000) {
            let wall = WALL + now;
            if let Some((bound, asked, done)) = under_way.take_if(|(_, _, done)| now >= *done) {
                clock.mark_durable(bound, done - asked);
            }
            // The bound is checked every 30 ms.
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
        // A disk that slows down gradually causes no refusals, up to the tolerated limit.
        assert_eq!(refused(0, |now| now / 20), 0);
        // A disk that slows down suddenly causes some refusals the first time, and none from then
        // on.
        let stalls = |now: u64| if now < 5_000_000 { 1_000 } else { 700_000 };
        assert!((1..1_000).contains(&refused(0, stalls)));
        assert_eq!(refused(8_000_000, stalls), 0);
        // A disk that stalls now and then causes no refusals either, once one stall was seen.
        let stalls = |now: u64| if now % 2_000_000 < 300_000 { 700_000 } else { 1_000 };
        assert_eq!(refused(3_000_000, stalls), 0);
    }

    #[test]
    fn a_disk_that_was_slow_once_does_not_keep_the_bound_far_ahead() {
        let clock = running(WALL, 0);
        let ahead = |clock: &Clock, wall: u64| {
            clock.bound_wanted(at(wall)).map(|bound| (bound >> 12) - wall)
        };
        clock.mark_durable(0, 400_000);
        assert_eq!(ahead(&clock, WALL + 500_000), Some(1_600_000));
        clock.mark_durable(0, 3_000_000);
        assert_eq!(ahead(&clock, WALL + 500_000), Some(2_000_000));
        for _ in 0..600 {
            clock.mark_durable(0, 1_000);
        }
        assert_eq!(ahead(&clock, WALL + 1_000_000), Some(1_000_000));
    }

    #[test]
    fn the_bound_leaves_room_to_follow_a_clock_that_is_ahead() {
        let clock = running(WALL, 0);
        let lead = 450_000;
        let mut wall = WALL;
        for _ in 0..20 {
            // Versions from a clock that is ahead are rare, and each must be followed when it
            // comes.
            assert!(clock.merge((wall + lead) << 12, at(wall), 500_000));
            assert!(clock.issue(at(wall)).is_ok());
            for _ in 0..15 {
                if let Some(bound) = clock.bound_wanted(at(wall)) {
                    clock.mark_durable(bound, 1_000);
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
    fn a_time_to_live_is_added_to_the_wall_clock_or_to_what_other_nodes_sent() {
        let (skew, year) = (500_000, 31_536_000_000_000);
        let clock = running(WALL, (WALL + year) << 12);
        assert!(clock.issue(at(WALL)).unwrap().time > (WALL + year) << 12);
        assert_eq!(clock.base_of_expiries(at(WALL)), WALL, "no other node has sent a time");
        assert!(
            clock.merge(clock.last(), at(WALL), u64::MAX),
            "a ballot of its own is none either"
        );
        assert_eq!(clock.base_of_expiries(at(WALL + 9)), WALL + 9);
        assert!(!clock.hear((WALL + year) << 12, at(WALL), skew), "nor is one that is refused");
        assert_eq!(clock.base_of_expiries(at(WALL)), WALL);
        assert!(clock.hear((WALL + 400_000) << 12, at(WALL), skew));
        assert_eq!(clock.base_of_expiries(at(WALL)), WALL + 400_000, "that clock may judge");
        assert_eq!(clock.base_of_expiries(at(WALL + 400_001)), WALL + 400_001);
        // With other clocks to compare with, times that this node has issued count as far as most
        // of those clocks accept them.
        clock.compared(Some((WALL + skew) as i64), 2);
        assert_eq!(clock.base_of_expiries(at(WALL)), WALL + skew);
        let set_back = running(WALL, 0);
        set_back.issue(at(WALL)).unwrap();
        set_back.compared(Some((WALL + skew) as i64), 2);
        assert_eq!(set_back.base_of_expiries(at(WALL - year)), WALL, "no value expires early");
    }

    #[test]
    fn a_node_alone_is_sure_of_no_more_time_than_has_passed() {
        let hour = 3_600_000_000;
        let ahead = Clock::start(7, WALL + 25 * hour, WALL << COUNTER_BITS);
        assert_eq!(ahead.certain(0, WALL + 25 * hour), WALL);
        assert_eq!(ahead.certain(hour, WALL + 26 * hour), WALL + hour);
        assert_eq!(ahead.certain(hour, WALL + 9), WALL + 9, "the clock was set right");
        assert_eq!(Clock::start(7, WALL, 0).certain(5, WALL + 5), WALL + 5, "it is new");
    }

    #[test]
    fn origins_are_stable() {
        assert_eq!(origin_of("http://127.0.0.1:8080"), origin_of("http://127.0.0.1:8080"));
        assert_ne!(origin_of("a"), origin_of("b"));
    }
}
