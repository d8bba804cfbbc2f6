//! Row 28 of docs/results/reliability.md, with faults between two steps of a round. The syncs of
//! one node are delayed, so that at each step all nodes wait for that node. The fault is injected
//! when another node reports that it has completed the chosen step. The table shows the state of
//! the other nodes at that time:
//!
//! ```text
//!  step     a member is delayed                     the coordinator is delayed
//!  seal     the other member is sealed              both members are sealed
//!  ready    coordinator and other member are ready  both members are ready, nothing is proven
//!  commit   the other member knows the proof        both members know the proof
//! ```

use std::fs;
use std::time::Duration;

use kit::Failure;
use kit::faults::strace::Strace;
use rustix::process::Signal;

use super::StrikesRow;
use crate::old_copy::rollback::{NODES, copy};
use crate::replicas::proofs::{Stage, begin_until, round, stage_of};

/// Additional duration of each sync of the delayed node, long enough for many polls of another
/// node. Two such syncs must be shorter than the deadline of a step, because one sync may be in
/// progress when the step begins.
const HELD: Duration = Duration::from_millis(150);

/// Maximum number of rounds in which an injection point is tried.
const TRIES: usize = 10;

/// Percentage of faults after which another node coordinates a round before the node with the fault
/// continues.
const ANOTHER: u64 = 50;

/// The role of a node in the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoundRole {
    Driver,
    /// The member whose progress is polled.
    First,
    Second,
}

/// A moment in a round, and the fault that is injected then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InjectionPoint {
    /// The last step that the first member has completed at that moment.
    done: Stage,
    held_up: RoundRole,
    struck: RoundRole,
    /// True if the node is suspended, false if it is killed.
    stops: bool,
}

/// A test uses the first entry of each list: one member knows the proof, and the coordinator is
/// killed.
const STEPS: [Stage; 3] = [Stage::Proven, Stage::Ready, Stage::Sealed];
const PLACES: [(RoundRole, RoundRole); 5] = [
    (RoundRole::Second, RoundRole::Driver),
    (RoundRole::Second, RoundRole::Second),
    (RoundRole::Driver, RoundRole::First),
    (RoundRole::Driver, RoundRole::Driver),
    (RoundRole::Second, RoundRole::First),
];

/// Number of injection points.
pub(super) const MOMENTS: usize = STEPS.len() * PLACES.len() * 2;

impl InjectionPoint {
    /// Returns the injection point with this number. Consecutive numbers cover all injection
    /// points, because the three lengths are pairwise coprime.
    pub(super) fn of(number: usize) -> Self {
        let (held_up, struck) = PLACES[number % PLACES.len()];
        Self { done: STEPS[number % STEPS.len()], held_up, struck, stops: number % 2 == 1 }
    }
}

impl StrikesRow<'_> {
    /// Injects a fault at that moment of a round. Returns false if strace is not available.
    pub(super) fn strike_in(
        &mut self,
        moment: InjectionPoint,
        driver: usize,
    ) -> Result<bool, Failure> {
        let first = self.other(driver);
        let second = (0..NODES).find(|node| ![driver, first].contains(node));
        let node_of = |who| match who {
            RoundRole::Driver => driver,
            RoundRole::First => first,
            RoundRole::Second => second.unwrap_or(driver),
        };
        let log = self.cluster.dir().join("strace.log");
        let delay = format!("delay_enter={}", HELD.as_micros());
        let held_up = self.cluster.node(node_of(moment.held_up))?;
        let held_up = match Strace::attach(held_up, "fdatasync", &delay, &log) {
            Err(Failure::Skipped(_)) => return Ok(false),
            held_up => held_up?,
        };
        for _ in 0..TRIES {
            let full = self.random.percent(50);
            if begin_until(&self.cluster, (driver, full), (first, moment.done))? {
                self.strike_one(node_of(moment.struck), moment.stops)?;
                drop(held_up);
                return Ok(true);
            }
        }
        Err(Failure::Environment(format!("in {TRIES} rounds {moment:?} never came")))
    }

    /// Kills or suspends a node, and restarts or resumes it, either at once or after a round of
    /// another node.
    fn strike_one(&mut self, node: usize, stops: bool) -> Result<(), Failure> {
        match stops {
            true => self.cluster.node(node)?.signal(Signal::STOP)?,
            false => self.cluster.kill(node)?,
        }
        let looked_at = self.cluster.dir().join("struck");
        copy(self.cluster.data(node), &looked_at)?;
        self.stages.note(stage_of(&looked_at)?);
        fs::remove_dir_all(looked_at)?;
        if self.random.percent(ANOTHER) {
            let another = self.other(node);
            round(self.setup, &self.cluster, another, false)?;
        }
        match stops {
            true => self.cluster.node(node)?.signal(Signal::CONT),
            false => self.cluster.start_node(node),
        }
    }
}
