//! Whole kvorum clusters in one thread: the same protocol and engine that serve, on simulated
//! machines, disks, clocks and networks, with clients and a judge. One seed decides everything, so
//! every failure that a sweep finds can be looked at again, line by line.
//!
//! ```text
//!   seed ─▶ plan ─▶ world: faults while clients ask ─▶ all heals ─▶ it must serve, hold, agree
//!                          └── ledger: what they were answered ──────▶ verdict
//! ```

#![forbid(unsafe_code)]

mod agenda;
mod fences;
mod histories;
mod journal;
mod ledger;
mod network;
mod plan;
mod random;
mod records;
mod scale;
mod store;
mod values;
mod wall;
mod world;

pub use histories::Contended;
pub use ledger::Tally;
pub use plan::{Fault, Plan};
pub use scale::{Growth, Parts, Scale, Traffic, measure, measure_growth, parts};

use world::World;

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What was wrong, in the order of its discovery; empty = all is well.
    pub wrong: Vec<String>,
    /// How the clients' operations ended.
    pub tally: Tally,
    /// The same of contended keys.
    pub contended: Contended,
    /// Faults that happened.
    pub faults: u64,
    /// Changes of the layout that were decided.
    pub changes: u64,
    /// Times that keys had moved when all was settled again.
    pub moves: u64,
    /// Nodes that were members of a layout by which nothing moves and were not before …
    pub joined: u64,
    /// … and those that were not any more.
    pub left: u64,
    /// The length of the run, in simulated microseconds.
    pub micros: u64,
    /// Events of the run.
    pub events: u64,
    /// The hash over all events: equal runs have equal hashes.
    pub hash: u64,
    /// Messages between nodes.
    pub messages: u64,
}

/// Runs a plan to its end, or to the first thing that is wrong.
pub fn run(plan: &Plan) -> Report {
    let mut world = World::new(plan.clone());
    world.run_until(plan.seconds * 1_000_000);
    if world.ledger.wrong.is_empty() {
        world.end();
    }
    world.check_histories();
    world.report()
}
