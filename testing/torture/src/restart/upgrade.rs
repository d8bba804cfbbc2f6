//! The row `upgrade`: the nodes of a cluster are upgraded from an earlier release one after
//! another, while clients send requests at a fixed rate, with up to two attempts each. Then a node
//! joins.
//!
//! ```text
//!  3 nodes of the earlier release ─▶ stop one, start it as this release, make a plan
//!                                 ─▶ the same with the next … ─▶ a fourth node joins
//! ```

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::node::Node;
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::check;
use kit::workload::prober::{ProbeParams, Prober};

use crate::Setup;
use crate::restart::restarts::check_all_succeeded;

const NODES: usize = 3;

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which nodes of both releases run together.
const MIXED: Duration = Duration::from_secs(2);

/// Runs the row with the binary of the earlier release, `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let Some(earlier) = &setup.earlier else {
        let why = "it needs --earlier BINARY, the kvorum of an earlier release";
        return Err(Failure::Skipped(why.to_owned()));
    };
    let before = Setup { binary: earlier.clone(), ..setup.clone() };
    let mut report = String::new();
    for _ in 0..setup.rounds {
        report = round(setup, &before)?;
    }
    Ok(report)
}

fn round(setup: &Setup, before: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&before.binary, NODES, None, &["--sync", "always"])?;
    let ledger = Arc::new(Ledger::default());
    let prober = Prober::start(cluster.addresses(), &ledger, ProbeParams::USUAL, setup.seed)?;
    thread::sleep(MIXED);
    for node in 0..NODES {
        cluster.stop(node)?;
        cluster.launches[node].binary.clone_from(&setup.binary);
        cluster.start_node(node)?;
        cluster.wait_until_ready()?;
        thread::sleep(MIXED);
        if node + 1 < NODES {
            cluster.output(&setup.binary, node, &["plan", "--replicas", "2"])?;
            // A node of the new release is killed too, while nodes of the earlier release still
            // run.
            cluster.kill(node)?;
            thread::sleep(MIXED / 4);
            cluster.start_node(node)?;
            cluster.wait_until_ready()?;
        }
    }
    let seen = prober.stop()?;
    check_all_succeeded(&seen)?;
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    let joined = joins(setup, &cluster)?;
    cluster.check(&ledger)?;
    check(&joined, &ledger, ProcessState::Same)?;
    Ok(format!(
        "{NODES} nodes upgraded one after the other, two killed meanwhile, then one joined: {} \
         requests, {} tried twice, 0 failed, longest gap {} ms, p99 {:.0} ms; C after {:.1} s, 0 \
         lost",
        seen.requests,
        seen.retried,
        seen.longest_gap.as_millis(),
        seen.percentile(99.0).as_secs_f64() * 1e3,
        agreed.took.as_secs_f64(),
    ))
}

/// Adds a node after all nodes have been upgraded.
fn joins(setup: &Setup, cluster: &Cluster) -> Result<Node, Failure> {
    let home = cluster.dir().join("joins");
    fs::create_dir_all(&home)?;
    let launch = cluster.joiner(&setup.binary, "joins", &home, &[])?;
    let starting = thread::spawn(move || launch.start());
    let plan = cluster.make_plan(&setup.binary, 0, &["--add", "joins"], CONVERGENCE_TIMEOUT)?;
    cluster.output(
        &setup.binary,
        0,
        &["apply", "--wait", plan["plan"].as_str().unwrap_or_default()],
    )?;
    starting.join().map_err(|_| Failure::Environment("a start panicked".to_owned()))?
}
