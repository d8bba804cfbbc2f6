//! Row "upgrade": the nodes of a cluster are upgraded from an earlier release one after the other,
//! while clients ask at a fixed pace and try each request at most twice. While both releases run
//! nothing of the layout can be changed; afterwards a node joins.
//!
//! ```text
//!  earlier ×3 ─▶ stop one, start it as this release ─▶ a plan is refused ─▶ … ─▶ all: one joins
//! ```

use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::cluster::{Cluster, free_addresses};
use crate::ledger::{Ledger, Process};
use crate::prober::{Pace, Prober};
use crate::restarts::all_succeeded;
use crate::{Failure, Setup};

const NODES: usize = 3;

/// How long hints may take to bring everything about.
const BY_ITSELF: Duration = Duration::from_secs(30);

/// How long nodes of both releases run side by side.
const MIXED: Duration = Duration::from_secs(2);

/// Runs it with the binary of the earlier release; `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let Some(earlier) = &setup.earlier else {
        let why = "it needs --earlier BINARY, the kvorum of an earlier release";
        return Err(Failure::Skipped(why.to_owned()));
    };
    let before = Setup { binary: earlier.clone(), ..setup.clone() };
    let mut told = String::new();
    for _ in 0..setup.rounds {
        told = round(setup, &before)?;
    }
    Ok(told)
}

fn round(setup: &Setup, before: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(before, NODES, None, &["--sync", "always"])?;
    let ledger = Arc::new(Ledger::default());
    let prober = Prober::start(cluster.addresses(), &ledger, Pace::USUAL, setup.seed)?;
    thread::sleep(MIXED);
    for node in 0..NODES {
        cluster.stop(node)?;
        cluster.launches[node].binary.clone_from(&setup.binary);
        cluster.start_node(node)?;
        cluster.until_ready()?;
        thread::sleep(MIXED);
        if node + 1 < NODES {
            is_refused(setup, &cluster, node)?;
            // A node of this release is killed too, and those of the earlier one go on.
            cluster.kill(node)?;
            thread::sleep(MIXED / 4);
            cluster.start_node(node)?;
            cluster.until_ready()?;
        }
    }
    let seen = prober.stop()?;
    all_succeeded(&seen)?;
    let agreed = cluster.agree(BY_ITSELF)?;
    let joined = joins(setup, &cluster)?;
    cluster.check(&ledger)?;
    crate::check(&joined, &ledger, Process::Same)?;
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

fn command(
    setup: &Setup,
    cluster: &Cluster,
    node: usize,
    args: &[&str],
) -> Result<Output, Failure> {
    let url = format!("http://{}", cluster.addresses()[node]);
    Ok(Command::new(&setup.binary).arg("cluster").args(args).args(["--url", &url]).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A plan says who must be upgraded first.
fn is_refused(setup: &Setup, cluster: &Cluster, node: usize) -> Result<(), Failure> {
    let plan = command(setup, cluster, node, &["plan", "--replicas", "2"])?;
    let why = text(&plan.stderr);
    if plan.status.success() || !why.contains("runs an earlier release of kvorum") {
        let what = format!("a plan beside nodes of the earlier release is not refused: {why}");
        return Err(Failure::Broken(what));
    }
    Ok(())
}

/// A node joins, now that all are of this release.
fn joins(setup: &Setup, cluster: &Cluster) -> Result<crate::node::Node, Failure> {
    let home = cluster.dir().join("joins");
    std::fs::create_dir_all(&home)?;
    let url = format!("http://{}", cluster.addresses()[0]);
    let mut launch = setup.launch(&home, &home, &["--join", &url, "--name", "joins"]);
    launch.listen = free_addresses(1)?[0];
    let starting = thread::spawn(move || launch.start());
    let begun = std::time::Instant::now();
    let id = loop {
        let plan = command(setup, cluster, 0, &["plan", "--json", "--add", "joins"])?;
        if plan.status.success() {
            let told: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap_or_default();
            break told["plan"].as_str().unwrap_or_default().to_owned();
        }
        if begun.elapsed() > BY_ITSELF {
            return Err(Failure::Broken(format!("nobody can join: {}", text(&plan.stderr))));
        }
        thread::sleep(MIXED / 20);
    };
    let applied = command(setup, cluster, 0, &["apply", "--wait", &id])?;
    if !applied.status.success() {
        return Err(Failure::Broken(format!("nobody joins: {}", text(&applied.stderr))));
    }
    starting.join().map_err(|_| Failure::Trouble("a start panicked".to_owned()))?
}
