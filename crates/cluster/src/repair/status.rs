//! Rounds of repair as a node's threads see them: what is asked for, what is under way, and what
//! came of the last one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Now;
use crate::message::NodeId;
use crate::repair::compare::Damage;

/// Damaged ranges that a report names; more are only counted.
const MAX_NAMED: usize = 16;

/// For so long after the last step of a round it counts as under way, in microseconds.
const ACTIVE_MICROS: u64 = 2_000_000;

/// For so long, in microseconds, a round that waits for one of an earlier node seals nothing: until
/// what it has sealed counts as free.
pub(crate) const BACK_OFF_MICROS: u64 = 3_000_000;

/// For so long, in microseconds, a node begins no round by itself after another one has tried to.
const YIELD_MICROS: u64 = 6_000_000;

// Whoever lets go is free before it tries again, and then nobody has begun another round.
const _: () = assert!(ACTIVE_MICROS < BACK_OFF_MICROS && BACK_OFF_MICROS < YIELD_MICROS);

/// When rounds are driven, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundConfig {
    /// Microseconds from one round to the next; 0 = a node drives none by itself.
    pub interval_micros: u64,
    /// Microseconds from one round to the next that compares everything.
    pub full_interval_micros: u64,
    /// Percent of the time that a round which nobody asked for may be at work, 1 to 100.
    pub share: u64,
    /// Records that are younger are not compared, in microseconds: they may be on their way.
    pub settled_micros: u64,
}

impl RoundConfig {
    /// A node drives no round by itself; those that are asked for compare all that is not newer
    /// than this node's clock.
    pub const NONE: Self =
        Self { interval_micros: 0, full_interval_micros: 0, share: 100, settled_micros: 0 };
}

/// What is known of a node's rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    /// When a node last compared itself with this one, by the monotonic clock.
    asked: AtomicU64,
    /// When one last did something here.
    worked: AtomicU64,
    /// Until when none begins by itself: another node's waits for its turn.
    yields_until: AtomicU64,
    state: Mutex<RoundsState>,
}

#[derive(Debug, Default)]
struct RoundsState {
    wanted: Option<Wanted>,
    begun: u64,
    status: RoundStatus,
}

/// A round that somebody asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) full: bool,
    /// It begins once it compares all that has a version of up to this time.
    pub(crate) up_to: u64,
}

/// The rounds of a node that it drives itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundStatus {
    /// The number of the one that will begin next because somebody asked for it.
    pub waiting: Option<u64>,
    /// The one under way.
    pub current: Option<RoundReport>,
    /// The last one that ended.
    pub last: Option<RoundReport>,
    /// When the last full one ended in which all nodes took part, in microseconds since 1970.
    pub last_full: Option<u64>,
    /// Rounds that ended, since the node's start.
    pub ended: u64,
    /// Keys that were brought to replicas which lacked them, since the node's start.
    pub repaired: u64,
    /// Damaged ranges of keys that were healed, since the node's start.
    pub healed: u64,
}

/// What a round has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Counted from 1 since the node's start.
    pub number: u64,
    /// Whether everything is compared, not only what was written since the last round.
    pub full: bool,
    /// Whether somebody asked for it: then it goes as fast as it can.
    pub asked_for: bool,
    /// Records are compared that were written after this time of a version …
    pub since: u64,
    /// … up to this one.
    pub until: u64,
    /// When it began, in microseconds since 1970.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// Records of this node that were compared.
    pub records: u64,
    /// Bytes that all nodes read for it.
    pub bytes_read: u64,
    /// Keys that differed.
    pub differing: u64,
    /// Of these, those that are equal by now.
    pub repaired: u64,
    /// Those that could not be made equal.
    pub failed: u64,
    /// Damaged ranges of keys that were found.
    pub damaged: u64,
    /// Of these, those that are healed by now.
    pub healed: u64,
    /// The first of those that are not, each with the node that has it, and why not.
    pub unhealed: Vec<(NodeId, Damage, Unhealed)>,
    /// Nodes that took no part, or not to the end.
    pub absent: Vec<NodeId>,
    /// Why it ended before its end, if it did.
    pub stopped: Option<&'static str>,
    /// Whether it is proven that all nodes hold the same up to its end, so that what was deleted
    /// up to there may be purged …
    pub proven: bool,
    /// … and if not, though they do, why.
    pub unproven: Option<&'static str>,
}

/// Why a damaged range is not healed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhealed {
    /// Not all other nodes have reported what they hold: one of them may be the only one that has
    /// it.
    Absent,
    /// Another node has damaged keys among them, too.
    Both,
    /// Not all that other nodes hold could be written, or the store could not give up the damage.
    Failed,
    /// All that other nodes hold is written, and the damage is given up. But the node held keys of
    /// which it was the only replica, and any that were among them are gone.
    Sole,
}

impl fmt::Display for Unhealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => {
                "not all other nodes took part, and one of them may hold the only other copy: \
                 start them, then run kvorum repair --full"
            }
            Self::Both => {
                "another node can't read some of these keys either: what both have lost must come \
                 from a backup or from clients"
            }
            Self::Failed => {
                "the records could not be written, or the damage reaches beyond these keys: see \
                 the node's log and run kvorum repair --full again; if it repeats, start the node \
                 with an empty directory"
            }
            Self::Sole => {
                "what other nodes hold was written anew; keys among these that were written with \
                 from=1 to this node are gone: write them again from a backup or from clients"
            }
        })
    }
}

impl RoundReport {
    /// A damaged range is not healed.
    pub(crate) fn stays(&mut self, node: NodeId, damage: Damage, why: Unhealed) {
        if self.unhealed.len() < MAX_NAMED {
            self.unhealed.push((node, damage, why));
        }
    }

    /// Whether all replicas hold the same of what was compared.
    pub fn is_equal(&self) -> bool {
        let healed = self.healed == self.damaged && self.failed == 0;
        healed && self.absent.is_empty() && self.stopped.is_none()
    }
}

impl Rounds {
    /// Asks for a round as fast as it can go that compares what has a version of a time up to
    /// `up_to`, which is not after now. Returns its number: it is the next one that begins.
    pub fn ask(&self, full: bool, up_to: u64) -> u64 {
        let mut state = self.state();
        let Wanted { full: or_full, up_to: or_up_to } = state.wanted.unwrap_or_default();
        state.wanted = Some(Wanted { full: full || or_full, up_to: up_to.max(or_up_to) });
        let number = state.begun + 1;
        state.status.waiting = Some(number);
        number
    }

    /// What is under way, and what came of the last one.
    pub fn status(&self) -> RoundStatus {
        self.state().status.clone()
    }

    /// Whether somebody asked for one.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        self.state().wanted
    }

    /// A node compares itself with this one, or this one with others.
    pub(crate) fn asked(&self, now: Now) {
        self.asked.store(now.mono.max(1), Ordering::Relaxed);
    }

    /// A round does something here.
    pub(crate) fn works(&self, now: Now) {
        self.asked(now);
        self.worked.store(now.mono.max(1), Ordering::Relaxed);
    }

    /// Another node's round waits for its turn.
    pub(crate) fn yields(&self, now: Now) {
        self.yields_until.store(now.mono + YIELD_MICROS, Ordering::Relaxed);
    }

    /// Whether one does.
    pub(crate) fn is_yielding(&self, now: Now) -> bool {
        now.mono < self.yields_until.load(Ordering::Relaxed)
    }

    /// Whether a round was at work here a moment ago.
    pub(crate) fn is_active(&self, now: Now) -> bool {
        let worked = self.worked.load(Ordering::Relaxed);
        worked > 0 && now.mono < worked.saturating_add(ACTIVE_MICROS)
    }

    /// When a round was last begun, or tried to; 0 = never.
    pub(crate) fn last_asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// One begins; returns its number.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.state();
        state.wanted = None;
        state.status.waiting = None;
        state.begun += 1;
        state.begun
    }

    pub(crate) fn publish(&self, report: &RoundReport) {
        let status = &mut self.state().status;
        let (repaired, healed) = status.current.as_ref().map_or((0, 0), |c| (c.repaired, c.healed));
        status.repaired += report.repaired - repaired;
        status.healed += report.healed - healed;
        status.current = Some(report.clone());
        if report.ended.is_some() {
            status.last = status.current.take();
            status.ended += 1;
            if report.full && report.absent.is_empty() && report.stopped.is_none() {
                status.last_full = report.ended;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, RoundsState> {
        self.state.lock()
    }
}
