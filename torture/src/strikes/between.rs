//! Row 28, nodes that are struck between two steps of a round: one node's syncs are held up, so
//! that all wait for it with each step, until another one shows that it has done the step which is
//! wanted.
//!
//! ```text
//!  held up is  a member                          the one that drives
//!  seal        driver and one member wait        members are sealed, the driver is last
//!  ready       a member and the driver are       all but the driver are, and nothing is proven
//!  commit      one member knows the proof        members know it, the driver is last
//! ```

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use super::Row;
use crate::Failure;
use crate::proofs::{Stage, begin_until, round, stage_of};
use crate::rollback::{NODES, copy};
use crate::strace::Strace;

/// How long each sync of the node takes that is held up: many looks at another one. Two of them,
/// for one is under way when a step begins, are less than the deadline of a step.
const HELD: Duration = Duration::from_millis(150);

/// How often a moment is tried before it counts as one that never comes.
const TRIES: usize = 10;

/// How often another node drives a round before the one that was struck goes on, in percent.
const ANOTHER: u64 = 50;

/// A node, by what it does in the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Driver,
    /// The one that shows how far it is.
    First,
    Second,
}

/// A moment in a round, and what befalls a node then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    /// The step that the first member has done.
    done: Stage,
    held_up: Who,
    struck: Who,
    /// It stands still; otherwise it is killed.
    stops: bool,
}

/// A test has the first of each: the proof is known to one member, and who drives is killed.
const STEPS: [Stage; 3] = [Stage::Proven, Stage::Ready, Stage::Sealed];
const PLACES: [(Who, Who); 5] = [
    (Who::Second, Who::Driver),
    (Who::Second, Who::Second),
    (Who::Driver, Who::First),
    (Who::Driver, Who::Driver),
    (Who::Second, Who::First),
];

/// How many moments there are.
pub(super) const MOMENTS: usize = STEPS.len() * PLACES.len() * 2;

impl Moment {
    /// One after the other: no two of the three lengths have a common factor.
    pub(super) fn of(number: usize) -> Self {
        let (held_up, struck) = PLACES[number % PLACES.len()];
        Self { done: STEPS[number % STEPS.len()], held_up, struck, stops: number % 2 == 1 }
    }
}

impl Row<'_> {
    /// Strikes a node in that moment of a round; whether that is possible here.
    pub(super) fn strike_in(&mut self, moment: Moment, driver: usize) -> Result<bool, Failure> {
        let first = self.other(driver);
        let second = (0..NODES).find(|node| ![driver, first].contains(node));
        let node_of = |who| match who {
            Who::Driver => driver,
            Who::First => first,
            Who::Second => second.unwrap_or(driver),
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

    /// A node is killed or stands still. It goes on at once, or after a round of another one.
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
