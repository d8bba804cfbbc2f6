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
//! The clock issues no version twice, even if the wall clock steps back across a restart: every
//! issued version is at or below a bound that is already durable, and after a restart the clock
//! begins at that bound. (A node that loses the bound with its disk, and whose wall clock is set
//! back too, may issue a version again.) The caller reads the wall clock and persists the bound:
//! this module reads no clock and writes no file.
//!
//! The clock *merges* the times that other nodes send: from then on, it issues only greater times.
//! It refuses a time that is *ahead*: later than the wall clock by more than `--max-clock-skew`, or
//! later than most other nodes accept.
//!
//! Source: S. Kulkarni et al., *Logical Physical Clocks* (OPODIS 2014).

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

use record::{COUNTER_BITS, Version};
use xxhash_rust::xxh3::xxh3_64;

use crate::node_id::NodeId;

const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;

/// The number of low bits of a ballot's counter that number the ballots following it. Above them
/// are the low bits of the coordinator's id. While keys move, replicas from before and after the
/// move can give promises to two coordinators, which must not issue the same ballot in one
/// microsecond. Two nodes whose ids are equal modulo 64 still may.
const FOLLOWING_BALLOT_BITS: u32 = 6;

const FOLLOWING_BALLOT_MASK: u64 = (1 << FOLLOWING_BALLOT_BITS) - 1;

/// The least distance from the clock to its bound, in microseconds: twice the default
/// `--max-clock-skew`. At least half of the distance is always left, so the clock can merge at once
/// a version that is ahead by the allowed skew. A smaller distance would shorten the wait after a
/// kill: the clock then starts at the bound, and waits until other nodes accept the bound's time.
const LEAST_AHEAD_MICROS: u64 = 1_000_000;

/// The greatest distance to the bound, for slow disks: writes stop if the next bound is not durable
/// in time.
const MOST_AHEAD_MICROS: u64 = 2_000_000;

/// The distance to the bound, as a multiple of the longest recent time to persist a bound. Half of
/// the distance is left when the clock requests the next bound, so even a persist that takes twice
/// as long is in time.
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
    #[error(
        "the disk is too slow to persist the clock's bound; this node writes again once it is \
         durable"
    )]
    BoundReached,
    /// The wall clock is wrong: most other nodes would refuse its versions, as too far ahead.
    #[error(
        "this node's clock is ahead of most other nodes' clocks by more than --max-clock-skew: \
         correct it, or send the write to another node"
    )]
    Ahead,
    /// The wall clock is not ahead, but a version that was issued or merged is ahead.
    #[error(
        "this node has timestamps that most other nodes refuse for another {seconds} s, although \
         its clock is not ahead now: its clock, or another one that it followed, was. Send the \
         write to another node, or wait: in {seconds} s this node takes writes again, and what it \
         stored with those timestamps wins over what was written to the same keys meanwhile. If \
         only this node's clock was ahead, stop it, run `kvorum repair-clock` on its directory and \
         start it: that removes its records of those timestamps. Do not do that on several nodes \
         whose clocks were ahead, or what they acknowledged together is lost"
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
    /// The greatest time of another node that the clock has merged since the start; 0 = none.
    greatest_received: AtomicU64,
    bound: AtomicU64,
    /// The longest recent time to persist a bound, in microseconds.
    slowest: AtomicU64,
    /// The greatest recent lead of other nodes' clocks over the wall clock, in microseconds.
    lead: AtomicU64,
    /// The latest time that most other nodes accept, in microseconds since 1970, at the zero of the
    /// monotonic clock ([`Clock::note_comparison`]).
    limit_at_zero: AtomicI64,
    /// The time that more than half of the other nodes' clocks have reached, in microseconds since
    /// 1970, at the zero of the monotonic clock ([`Clock::note_reached`]).
    reached_at_zero: AtomicI64,
    /// The number of other nodes whose clocks the limit was computed from.
    compared_with: AtomicUsize,
    origin: u32,
    /// The time of the bound at the start, in microseconds since 1970; without a bound, the wall
    /// clock's time at the start. `at_start` is the later of the two times.
    before_start: u64,
    at_start: u64,
}

/// The least number of other nodes' clocks that together prove this node's clock wrong: a single
/// other clock may itself be wrong.
const LEAST_COMPARED: usize = 2;

/// The limit if this clock was compared with no other.
const NO_LIMIT: i64 = i64::MAX;

/// The time that others have reached if this clock was compared with no other.
const NOTHING_REACHED: i64 = i64::MIN;

impl Clock {
    /// Starts a clock whose first version is above all versions that an earlier clock may have
    /// issued. `persisted` is the bound of that earlier clock; 0 = no earlier clock. The clock
    /// issues nothing until [`Clock::mark_durable`] is called with a greater bound.
    pub fn start(origin: u32, wall_micros: u64, persisted: u64) -> Self {
        let last = persisted.max(wall_micros << COUNTER_BITS);
        let [last, bound, slowest, lead, greatest_received] =
            [last, persisted, 0, 0, 0].map(AtomicU64::new);
        let [limit_at_zero, reached_at_zero] = [NO_LIMIT, NOTHING_REACHED].map(AtomicI64::new);
        let before_start = if persisted == 0 { wall_micros } else { Self::micros(persisted) };
        Self {
            last,
            greatest_received,
            bound,
            slowest,
            lead,
            limit_at_zero,
            reached_at_zero,
            compared_with: AtomicUsize::new(0),
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
    /// The clock issues nothing later than the limit: a later version would hide writes of correct
    /// clocks until its time comes. The clock never steps back, so without the limit it would stay
    /// ahead after a wrong wall clock is corrected.
    pub fn note_comparison(&self, limit_at_zero: Option<i64>, others: usize) {
        self.limit_at_zero.store(limit_at_zero.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        self.compared_with.store(others, Ordering::Relaxed);
    }

    /// Notes the time, in microseconds since 1970, that the clocks of more than half of the other
    /// nodes have reached at least when the monotonic clock is at zero. `None` = there is no clock
    /// to compare with. If this clock is behind, it adds times to live to the reached time.
    pub fn note_reached(&self, reached_at_zero: Option<i64>) {
        self.reached_at_zero.store(reached_at_zero.unwrap_or(NOTHING_REACHED), Ordering::Relaxed);
    }

    /// Returns the time that more than half of the other nodes' clocks have reached, in
    /// microseconds since 1970; 0 = this clock was compared with no other.
    fn time_reached_by_most(&self, now: Now) -> u64 {
        now.mono.saturating_add_signed(self.reached_at_zero.load(Ordering::Relaxed))
    }

    /// Returns the greatest time of a version that most other nodes accept now.
    fn majority_limit(&self, now: Now) -> u64 {
        match self.limit_at_zero.load(Ordering::Relaxed) {
            NO_LIMIT => u64::MAX,
            at_zero => Self::limit(now.mono.saturating_add_signed(at_zero), 0),
        }
    }

    /// Returns the wall clock's time, or the latest time that most other nodes accept if that is
    /// less, in microseconds since 1970; `None` = this clock was compared with no other.
    pub fn agreed_time(&self, now: Now) -> Option<u64> {
        let is_compared = self.compared_with.load(Ordering::Relaxed) > 0;
        is_compared.then(|| now.wall.min(Self::micros(self.majority_limit(now))))
    }

    /// Returns the time that a node alone can be sure of, `up_micros` after its start, in
    /// microseconds since 1970: the wall clock's time, but at most `up_micros` after the latest
    /// time known from before the start. A wall clock that is ahead at the start, or is set ahead
    /// later, therefore makes no record look older than it is. Time in which the node was down does
    /// not count.
    pub fn certain_time(&self, up_micros: u64, wall_micros: u64) -> u64 {
        wall_micros.min(self.before_start.saturating_add(up_micros))
    }

    /// Returns the latest time that this node knows, `up_micros` after its start, in microseconds
    /// since 1970. Setting the wall clock back does not lower that time.
    pub fn latest(&self, up_micros: u64, now: Now, max_skew_micros: u64) -> u64 {
        let since_start = self.at_start.saturating_add(up_micros);
        let are_few = self.compared_with.load(Ordering::Relaxed) < LEAST_COMPARED;
        let most = if are_few { 0 } else { Self::micros(self.majority_limit(now)) };
        let others = most.saturating_sub(max_skew_micros);
        now.wall.max(since_start).max(Self::micros(self.last())).max(others)
    }

    /// Returns `micros` (since 1970), or the latest time that most other nodes accept if that is
    /// less.
    pub fn cap_to_accepted(&self, micros: u64, now: Now) -> u64 {
        micros.min(Self::micros(self.majority_limit(now)))
    }

    /// Returns the time by which conditional writes judge whether a value has expired, in
    /// microseconds since 1970: the wall clock's time, or the time of most other nodes' clocks if
    /// that is earlier. A single clock that is ahead, by any amount, therefore expires no value
    /// early. A correct clock among clocks that are behind judges as late as these.
    ///
    /// The time steps back when those clocks step back, so the caller stores the time before it
    /// relies on a decision.
    pub(crate) fn expiry_check_time(&self, now: Now, max_skew_micros: u64) -> u64 {
        now.wall.min(Self::micros(self.majority_limit(now)).saturating_sub(max_skew_micros))
    }

    /// Returns the time to which a time to live is added, in microseconds since 1970: the wall
    /// clock's time; if later, the greatest time that another node sent, or the time that more than
    /// half of the other nodes' clocks have reached; but at most the time that most other nodes
    /// accept. Another node's clock may judge the expiry, and no value may expire early.
    ///
    /// The times that this clock issued count too, as far as most other nodes accept them, because
    /// a wall clock that was set back may be the wrong one. Without another clock to compare with,
    /// those times prove nothing: a clock that was ahead once would lengthen every later time to
    /// live. In that case, the same wall clock also judges the expiry.
    pub fn ttl_base_time(&self, now: Now) -> u64 {
        let is_compared = self.compared_with.load(Ordering::Relaxed) > 0;
        let issued = if is_compared { self.last() } else { 0 };
        let greatest_received = self.greatest_received.load(Ordering::Relaxed);
        let wall = now.wall.max(self.time_reached_by_most(now));
        let base = issued.max(greatest_received).max(Self::time_of(wall));
        Self::micros(base.min(self.majority_limit(now)))
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
        // `Relaxed`: no other memory depends on the bound, and a stale bound only refuses a
        // version.
        let bound = self.bound.load(Ordering::Relaxed);
        let limit = self.majority_limit(now);
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
    /// was issued or merged is ahead of their clocks and the wall clock is not; otherwise `None`.
    pub fn micros_until_accepted(&self, now: Now) -> Option<u64> {
        let (limit, next) = (self.majority_limit(now), self.last() + 1);
        let was_ahead = Self::time_of(now.wall) <= limit && next > limit;
        was_ahead.then(|| (Self::micros(next) - Self::micros(limit)).max(1))
    }

    /// Issues a ballot under which the node `own` asks for promises. The ballot is greater than all
    /// versions and ballots before it. The clock leaves unused the ballots that follow, because the
    /// same promises cover them.
    pub(crate) fn issue_ballot(&self, now: Now, own: NodeId) -> Result<u64, NotIssued> {
        let wall = Self::time_of(now.wall);
        let drawn = u64::from(own.0) << FOLLOWING_BALLOT_BITS & COUNTER_MASK;
        let ballot = self.advance(now, |last| wall.max((last | COUNTER_MASK) + 1) | drawn)?;
        assert!(!is_following_ballot(ballot), "there is room for those that follow it");
        Ok(ballot)
    }

    /// Merges another node's time: versions issued from now on are greater than `time`. Returns
    /// `false`, and merges nothing, if `time` is ahead ([`Clock::is_ahead`]): a single broken clock
    /// must not set the clocks of the whole cluster ahead, and a node with a wrong clock must not
    /// follow other nodes whose clocks are equally wrong.
    pub fn merge(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        if self.is_ahead(time, now, max_skew_micros) {
            return false;
        }
        // Most calls pass an earlier time, and a load is cheaper than a write.
        if self.last() < time {
            self.last.fetch_max(time, Ordering::Relaxed);
            let lead = (time >> COUNTER_BITS).saturating_sub(now.wall);
            if self.lead.load(Ordering::Relaxed) < lead {
                self.lead.fetch_max(lead, Ordering::Relaxed);
            }
        }
        true
    }

    /// Merges the time that another node sent, as [`Clock::merge`] does, and remembers it for
    /// [`Clock::ttl_base_time`].
    pub fn merge_received(&self, time: u64, now: Now, max_skew_micros: u64) -> bool {
        let is_taken_in = self.merge(time, now, max_skew_micros);
        if is_taken_in && self.greatest_received.load(Ordering::Relaxed) < time {
            self.greatest_received.fetch_max(time, Ordering::Relaxed);
        }
        is_taken_in
    }

    /// Merges the ballot of a conditional write. Returns true if the ballot may be promised: it is
    /// not above the durable bound, at which the clock starts after a restart.
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
        time > self.greatest_accepted_time(now, max_skew_micros)
    }

    /// Returns the greatest time of a version that is not ahead. Times that most other nodes refuse
    /// are ahead too: otherwise a node with a wrong clock would accept, store and count the records
    /// of nodes whose clocks are equally wrong. A single other clock may itself be the wrong one,
    /// so a comparison with only one other node refuses nothing.
    pub fn greatest_accepted_time(&self, now: Now, max_skew_micros: u64) -> u64 {
        if max_skew_micros == u64::MAX {
            return u64::MAX;
        }
        let own = Self::limit(now.wall, max_skew_micros);
        let are_few = self.compared_with.load(Ordering::Relaxed) < LEAST_COMPARED;
        if are_few { own } else { own.min(self.majority_limit(now)) }
    }

    /// Returns the greatest time of a version that is no more than `max_skew_micros` after
    /// `wall_micros`.
    pub fn limit(wall_micros: u64, max_skew_micros: u64) -> u64 {
        let micros = wall_micros.saturating_add(max_skew_micros).min(u64::MAX >> COUNTER_BITS);
        micros << COUNTER_BITS | COUNTER_MASK
    }

    /// Returns the least version time of the microsecond `micros` since 1970.
    pub fn time_of(micros: u64) -> u64 {
        micros << COUNTER_BITS
    }

    /// Returns a version's time in microseconds since 1970.
    pub fn micros(time: u64) -> u64 {
        time >> COUNTER_BITS
    }

    /// Returns the greatest time that was issued or merged.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Returns the time that other nodes merge: the greatest time that this clock issued or merged,
    /// or the wall clock's time if that is later, as far as most other nodes accept it.
    pub fn now(&self, now: Now) -> u64 {
        self.last().max(Self::time_of(now.wall).min(self.majority_limit(now)))
    }

    /// Returns the next bound to persist; `None` = at least half of the distance to the present
    /// bound is left.
    pub fn bound_to_persist(&self, now: Now) -> Option<u64> {
        // The next version may have to follow a version of the clock that is furthest ahead, but
        // never a time that most other nodes refuse.
        let ahead = Self::time_of(now.wall + self.lead.load(Ordering::Relaxed));
        let now = self.last().max(ahead.min(self.majority_limit(now)));
        let bound = self.bound.load(Ordering::Relaxed);
        let slowest = self.slowest.load(Ordering::Relaxed).saturating_mul(AHEAD_OF_SLOWEST);
        let ahead = slowest.clamp(LEAST_AHEAD_MICROS, MOST_AHEAD_MICROS);
        let near = bound < now + ((ahead / 2) << COUNTER_BITS);
        near.then_some(now + (ahead << COUNTER_BITS))
    }

    /// Notes that `bound` became durable, `took_micros` microseconds after it was requested. The
    /// clock may now issue versions up to `bound`.
    pub fn mark_durable(&self, bound: u64, took_micros: u64) {
        self.bound.fetch_max(bound, Ordering::Relaxed);
        // The longest time decays within minutes. Load and store suffice: there is one caller at a
        // time.
        let took = took_micros.min(MOST_AHEAD_MICROS / AHEAD_OF_SLOWEST);
        let slowest = self.slowest.load(Ordering::Relaxed);
        self.slowest.store(took.max(slowest - slowest.div_ceil(256)), Ordering::Relaxed);
        // The lead decays, as nothing else lowers it.
        let lead = self.lead.load(Ordering::Relaxed);
        self.lead.fetch_sub(lead.div_ceil(256), Ordering::Relaxed);
    }

    /// Stops the clock: it issues nothing from now on. Returns the greatest issued time. If that is
    /// persisted as the bound, the next start need not begin ahead of its wall clock.
    pub fn stop(&self) -> u64 {
        self.bound.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.last()
    }
}

/// Returns the next ballot that the same promises cover; `None` = the coordinator must ask for new
/// promises.
pub(crate) fn next_ballot(ballot: u64) -> Option<u64> {
    (ballot & FOLLOWING_BALLOT_MASK < FOLLOWING_BALLOT_MASK).then_some(ballot + 1)
}

/// Returns the last ballot that the promises of this ballot cover.
pub(crate) fn last_following_ballot(ballot: u64) -> u64 {
    ballot | FOLLOWING_BALLOT_MASK
}

/// True if the promises of an earlier ballot cover this one, so that its round needs no new
/// promises.
pub(crate) fn is_following_ballot(ballot: u64) -> bool {
    ballot & FOLLOWING_BALLOT_MASK > 0
}

#[cfg(test)]
mod tests;
