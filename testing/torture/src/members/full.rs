//! The row `fulljoiner`: the disk of a joining node has no space for the data that moves to the
//! node. Requests must continue, and `kvorum cluster status` must name the node and the reason. An
//! abort must revert the change, and a second change must complete without help once there is
//! space.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::mount::Mount;
use kit::node::{Launch, Node};
use kit::oracle::ledger::Ledger;
use kit::workload::prober::{ProbeFigures, ProbeParams, Prober};

use super::{COORDINATOR, MembersRow, NODES, POLL_INTERVAL, TIMEOUT};
use crate::Setup;
use crate::restart::restarts::check_all_succeeded;

/// Size of the joining node's disk in MiB, and its size after the enlargement.
const DISK_MIB: u64 = 24;
const ENLARGED_DISK_MIB: u64 = 512;

/// Number of values of 100 kB. Three quarters of them move to the fourth node.
const VALUES: usize = 400;

/// Time for which the status must keep naming the node with the full disk.
const FULL: Duration = Duration::from_secs(1);

/// Runs the row once.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let disk = Mount::tmpfs(DISK_MIB)?;
    let cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "interval"])?;
    let (joined, ledger) = (Vec::new(), Arc::new(Ledger::default()));
    let mut row = MembersRow { setup, cluster, joined, names: NODES, ledger, taken: 0, planned: 0 };
    row.fill(VALUES)?;
    let prober =
        Prober::start(row.cluster.addresses(), &row.ledger, ProbeParams::USUAL, setup.seed)?;
    let epoch = row.revert_change(&disk)?;
    fs::remove_dir_all(disk.path().join("data"))?;
    let took = row.complete_after_enlarging(&disk, epoch)?;
    let seen: ProbeFigures = prober.stop()?;
    check_all_succeeded(&seen)?;
    row.check()?;
    Ok(format!(
        "a joiner with a full disk: named, gone back from, and {:.1} s after there was room the \
         next change was done; {} requests, {} tried twice, 0 failed, 0 lost",
        took.as_secs_f64(),
        seen.requests,
        seen.retried
    ))
}

impl MembersRow<'_> {
    /// Applies a change whose new node has a full disk, and aborts it. Returns the epoch after the
    /// abort.
    fn revert_change(&mut self, disk: &Mount) -> Result<u64, Failure> {
        let (name, _, node) = self.apply_join(disk)?;
        self.wait_until_named(&name)?;
        self.command(&["abort", "--wait"])?;
        // A process that has used the reverted layout can't join again.
        node.kill()?;
        let layout = self.layout(1).unwrap_or_default();
        let nodes = layout["nodes"].as_array().map_or(0, Vec::len);
        match layout["epoch"].as_u64().filter(|_| layout["stage"] == "settled" && nodes == NODES) {
            Some(epoch) => Ok(epoch),
            None => Err(Failure::Broken(format!("the change was gone back from: {layout}"))),
        }
    }

    /// Applies the change again, and enlarges the disk meanwhile. Returns the time from the
    /// enlargement until the end of the change.
    fn complete_after_enlarging(&mut self, disk: &Mount, epoch: u64) -> Result<Duration, Failure> {
        let (name, launch, node) = self.apply_join(disk)?;
        self.wait_until_named(&name)?;
        disk.resize(ENLARGED_DISK_MIB)?;
        let begun = Instant::now();
        self.wait_until_settled(epoch + 4)?;
        self.joined.push(super::JoinedNode { name, launch, node: Some(node) });
        Ok(begun.elapsed())
    }

    /// Applies a change that adds a node with this disk.
    fn apply_join(&mut self, disk: &Mount) -> Result<(String, Launch, Node), Failure> {
        self.names += 1;
        let name = format!("n{}", self.names);
        let small = ["--memory", "64MiB", "--memtable", "2MiB"];
        let launch = self.cluster.joiner(&self.setup.binary, &name, disk.path(), &small)?;
        let starts = launch.clone();
        let starts = thread::spawn(move || starts.start());
        let plan = self.plan(&["--add".to_owned(), name.clone()])?;
        self.command(&["apply", plan["plan"].as_str().unwrap_or_default()])?;
        let panicked = |_| Failure::Environment("a start panicked".to_owned());
        let node = starts.join().map_err(panicked)??;
        Ok((name, launch, node))
    }

    /// Waits until the status names the node and the reason, and continues to do so for a second.
    fn wait_until_named(&self, name: &str) -> Result<(), Failure> {
        let (begun, mut since) = (Instant::now(), None);
        loop {
            // The exit code is ignored, because the command reports an error while nodes use
            // different layouts.
            let status = self.cluster.command(&self.setup.binary, COORDINATOR, &["status"])?.stdout;
            let status = String::from_utf8_lossy(&status).into_owned();
            let slow = format!("not yet {name} (took ");
            let is_named = status.contains("read old: ")
                && status.contains(&slow)
                && status.contains(&format!("{name} has a full disk: "));
            since = if is_named { since.or(Some(Instant::now())) } else { None };
            if since.is_some_and(|since| since.elapsed() > FULL) {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                return Err(Failure::Broken(format!("{name} is not named: {status}")));
            }
            thread::sleep(POLL_INTERVAL * 10);
        }
    }
}
