//! Simulates whole kvorum clusters in one thread: the production protocol and engine on simulated
//! machines, disks, clocks and networks, with clients and a checker. A seed determines the whole
//! run, so a failure that a sweep finds can be replayed event by event.
//!
//! ```text
//!   seed ─▶ plan ─▶ world: faults during requests ─▶ all faults heal ─▶ final checks
//!                          └── ledger: the clients' answers ─────────────▶ verdict
//!
//!   final checks: the cluster serves, holds all acknowledged writes, and its replicas agree
//! ```

#![forbid(unsafe_code)]

mod event_queue;
mod fences;
mod histories;
mod journal;
mod ledger;
mod machine_clock;
mod network;
mod plan;
mod random;
mod records;
mod scale;
mod store;
mod values;
mod world;

pub use histories::ContendedTally;
pub use ledger::Tally;
pub use plan::{Fault, Plan};
pub use scale::{
    Growth, ProtocolInstances, Scale, Traffic, measure, measure_join_traffic, protocol_instances,
};

use world::World;

/// The results of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Errors in the order of discovery; empty if the run passed.
    pub wrong: Vec<String>,
    /// Outcomes of the clients' operations.
    pub tally: Tally,
    /// Outcomes of operations on contended keys.
    pub contended: ContendedTally,
    /// Number of faults.
    pub faults: u64,
    /// Number of layout changes decided.
    pub changes: u64,
    /// Number of layout changes that moved keys and were completed.
    pub moves: u64,
    /// Number of nodes that joined: members of a settled layout that are not members of the settled
    /// layout before it.
    pub joined: u64,
    /// Number of nodes that left: members of a settled layout that are not members of the next
    /// settled layout.
    pub left: u64,
    /// The length of the run, in simulated microseconds.
    pub micros: u64,
    /// Number of lines in the journal.
    pub events: u64,
    /// Hash of the journal: equal runs have equal hashes.
    pub hash: u64,
    /// Number of messages between nodes.
    pub messages: u64,
}

/// Runs a plan to its end, or to the first error.
pub fn run(plan: &Plan) -> Report {
    let mut world = World::new(plan.clone());
    world.run_until(plan.seconds * 1_000_000);
    if world.ledger.wrong.is_empty() {
        world.end();
    }
    world.check_histories();
    world.report()
}
