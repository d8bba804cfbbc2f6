//! Repair rounds as a node's threads see them: requested rounds, the round under way, and the
//! result of the last round; and the settings of rounds ([`RoundConfig`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Now;
use crate::event::FailureKind;
use crate::message::{NodeId, Reply};
use crate::repair::compare_messages::Damage;

/// Maximum number of damaged ranges that a report names; further ranges are only counted.
const MAX_NAMED: usize = 16;

/// Time for which a round counts as under way after its last step, in microseconds.
const ACTIVE_MICROS: u64 = 2_000_000;

/// Back-off time, in microseconds, of a round that yields to the round of a node with a lesser id:
/// longer than `ACTIVE_MICROS`, so that the fences of the yielding round count as free before that
/// round raises any again.
pub(crate) const BACK_OFF_MICROS: u64 = 3_000_000;

/// Time in microseconds for which a node starts no automatic round after another node's attempt to
/// start one.
const YIELD_MICROS: u64 = 6_000_000;

// A driver that backs off frees its fences before it tries again, and until then no node has
// started another round.
const _: () = assert!(ACTIVE_MICROS < BACK_OFF_MICROS && BACK_OFF_MICROS < YIELD_MICROS);

/// The schedule and speed of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundConfig {
    /// Microseconds between automatic rounds; 0 = the node starts none.
    pub interval_micros: u64,
    /// Microseconds between full rounds, which compare all records.
    pub full_interval_micros: u64,
    /// Percentage of the time that an automatic round may use, 1 to 100.
    pub share: u64,
    /// Minimum age of the compared records, in microseconds: younger records may still be in
    /// flight.
    pub settled_micros: u64,
}

impl RoundConfig {
    /// The configuration of a node without automatic rounds. Requested rounds compare all records
    /// up to the time of the node's clock.
    pub const NONE: Self =
        Self { interval_micros: 0, full_interval_micros: 0, share: 100, settled_micros: 0 };
}

/// The state of a node's rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Time when this node last took part in a round, as the driver or not, in microseconds of the
    /// monotonic clock; 0 = never.
    asked: AtomicU64,
    /// Time when a round last did work on this node, in microseconds of the monotonic clock; 0 =
    /// never.
    worked: AtomicU64,
    /// Time until which the node starts no automatic round, because another node's round waits for
    /// its turn; in microseconds of the monotonic clock.
    yields_until: AtomicU64,
    state: Mutex<RoundsState>,
}

#[derive(Debug, Default)]
struct RoundsState {
    wanted: Option<RequestedRound>,
    begun: u64,
    status: RoundStatus,
}

/// A requested round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RequestedRound {
    pub(crate) full: bool,
    /// The round starts once it covers every version up to this time.
    pub(crate) up_to: u64,
}

/// The rounds that a node drives itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundStatus {
    /// The number of the requested round that will begin next; `None` = no round is requested.
    pub waiting: Option<u64>,
    /// The round under way.
    pub current: Option<RoundReport>,
    /// The last round that ended.
    pub last: Option<RoundReport>,
    /// Time when the last full round with all nodes taking part ended, in microseconds since 1970.
    pub last_full: Option<u64>,
    /// Number of rounds ended since the node's start.
    pub ended: u64,
    /// Number of keys brought to replicas that lacked them, since the node's start.
    pub repaired: u64,
    /// Number of damaged key ranges healed since the node's start.
    pub healed: u64,
}

/// The progress or result of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// The number of the round, counted from 1 since the node's start.
    pub number: u64,
    /// True if all records are compared, not only those written since the last round.
    pub full: bool,
    /// True if the round was requested: then it runs at full speed.
    pub is_requested: bool,
    /// Lower bound of the compared records' version times, exclusive.
    pub since: u64,
    /// Upper bound of the compared records' version times, inclusive.
    pub until: u64,
    /// Time when the round began, in microseconds since 1970.
    pub began: u64,
    /// Time when the round ended, in microseconds since 1970; `None` = the round is under way.
    pub ended: Option<u64>,
    /// Number of this node's records that were compared.
    pub records: u64,
    /// Number of bytes that all nodes read for the round.
    pub bytes_read: u64,
    /// Number of keys that differed.
    pub differing: u64,
    /// Number of these keys that are equal by now.
    pub repaired: u64,
    /// Number of these keys that could not be made equal.
    pub failed: u64,
    /// The nodes that did not do their part for these keys, each with the reason and the number of
    /// keys.
    pub unrepaired: BTreeMap<(NodeId, Unrepaired), u64>,
    /// Number of damaged key ranges found.
    pub damaged: u64,
    /// Number of these ranges that are healed by now.
    pub healed: u64,
    /// The first unhealed ranges, each with the node that has the damage and the reason.
    pub unhealed: Vec<(NodeId, Damage, Unhealed)>,
    /// Nodes that took no part, or left before the end.
    pub absent: Vec<NodeId>,
    /// The reason why the round ended early; `None` = the round ran to its end.
    pub stopped: Option<&'static str>,
    /// True if the round has proven that all nodes hold the same records up to `until`, so that
    /// records deleted up to then may be purged.
    pub proven: bool,
    /// The reason why a round that found all nodes equal is no proof; `None` = there is no such
    /// reason.
    pub unproven: Option<&'static str>,
}

/// The reason why a damaged range is not healed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhealed {
    /// Not all other nodes have reported their records: a missing node may be the only holder.
    Absent,
    /// Another node has damage in the same range.
    Both,
    /// Some records of other nodes could not be written, or the store could not discard the damage.
    Failed,
    /// All records of other nodes are written and the damage is discarded. But the node held keys
    /// of which it was the only replica, and any of those in the range are lost.
    Sole,
}

/// The reason why a node did not do its part in making a key equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unrepaired {
    /// The node holds the newest record, and did not report it.
    Unread,
    /// The node's disk is full.
    NoSpace,
    /// The node refused the record because it is overloaded, or a later write is under way.
    Busy,
    /// The node did not answer.
    Silent,
    /// The node's store failed.
    Failed,
}

impl Unrepaired {
    /// Returns the reason why the node did not store the record that a round brought.
    pub(crate) fn of(result: &Result<Reply, FailureKind>) -> Self {
        match result {
            Ok(Reply::NoSpace) | Err(FailureKind::NoSpace) => Self::NoSpace,
            Ok(Reply::Failed) | Err(FailureKind::Failed) => Self::Failed,
            Ok(_) | Err(FailureKind::Busy) => Self::Busy,
            Err(FailureKind::TooFew | FailureKind::Fenced) => Self::Silent,
        }
    }
}

impl fmt::Display for Unrepaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unread => {
                "it did not report the newest record, mostly because these keys are being written: \
                 run the round again"
            }
            Self::NoSpace => "its disk is full: free space, then run the round again",
            Self::Busy => {
                "it is overloaded, or these keys are being written: run the round again later"
            }
            Self::Silent => {
                "it did not answer: see kvorum status, and run the round again once the node is up"
            }
            Self::Failed => "its store failed: see the node's log",
        })
    }
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
    /// Notes a damaged range that is not healed.
    pub(crate) fn note_unhealed(&mut self, node: NodeId, damage: Damage, why: Unhealed) {
        if self.unhealed.len() < MAX_NAMED {
            self.unhealed.push((node, damage, why));
        }
    }

    /// True if the round made all replicas equal in the records that it compared.
    pub fn is_equal(&self) -> bool {
        let healed = self.healed == self.damaged && self.failed == 0;
        healed && self.absent.is_empty() && self.stopped.is_none()
    }
}

impl Rounds {
    /// Requests a round at full speed that compares all records up to the version time `up_to`,
    /// which must not be later than now. Returns the round's number: that of the next round to
    /// begin.
    pub fn request_round(&self, full: bool, up_to: u64) -> u64 {
        let mut state = self.state();
        let RequestedRound { full: or_full, up_to: or_up_to } = state.wanted.unwrap_or_default();
        state.wanted = Some(RequestedRound { full: full || or_full, up_to: up_to.max(or_up_to) });
        let number = state.begun + 1;
        state.status.waiting = Some(number);
        number
    }

    /// Returns the state of this node's own rounds.
    pub fn status(&self) -> RoundStatus {
        self.state().status.clone()
    }

    /// Returns the requested round, if there is one.
    pub(crate) fn requested_round(&self) -> Option<RequestedRound> {
        self.state().wanted
    }

    /// Notes that this node takes part in a round, as the driver or not.
    pub(crate) fn note_round_activity(&self, now: Now) {
        self.asked.store(now.mono.max(1), Ordering::Relaxed);
    }

    /// Notes that a round does work on this node.
    pub(crate) fn note_work(&self, now: Now) {
        self.note_round_activity(now);
        self.worked.store(now.mono.max(1), Ordering::Relaxed);
    }

    /// Notes that another node's round waits for its turn.
    pub(crate) fn note_yield(&self, now: Now) {
        self.yields_until.store(now.mono + YIELD_MICROS, Ordering::Relaxed);
    }

    /// True if another node's round waits for its turn.
    pub(crate) fn is_yielding(&self, now: Now) -> bool {
        now.mono < self.yields_until.load(Ordering::Relaxed)
    }

    /// True if a round did work on this node within the last two seconds.
    pub(crate) fn is_active(&self, now: Now) -> bool {
        let worked = self.worked.load(Ordering::Relaxed);
        worked > 0 && now.mono < worked.saturating_add(ACTIVE_MICROS)
    }

    /// Returns the time when this node last took part in a round, in microseconds of the monotonic
    /// clock; 0 = never.
    pub(crate) fn last_round_activity(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Starts the requested or next round; returns its number.
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
