//! Row 28 of docs/results/reliability.md: keys are deleted while one of three nodes is down for
//! longer than hints for it are kept. The node returns, a round proves that all nodes are equal,
//! and compactions free the space. From then on nothing may bring deleted keys back, neither a late
//! hint nor an old copy of a directory. [`super::strikes`] tests faults in the middle of such
//! rounds. The three nodes over time:
//!
//! ```text
//!  A  old ─ older values, hints for C ─ down, copied ─────────── up ─┬─ proof ─ purge ─ copy of A
//!  B  old ─ older values ────────────── deletes, hints dropped ──────┤                  put back,
//!  C  old ─ copied, down ────────────── deletes ─────────────────────┘                  then of C
//! ```

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::net::Net;
use kit::oracle::audit;
use kit::oracle::ledger::Ledger;
use kit::workload::fill::{FillParams, fill, fill_some};

use crate::Setup;
use crate::old_copy::outdated::{wait_until_set_aside, while_read};
use crate::old_copy::rollback::{A, B, C, NODES, copy, membership};
use crate::replicas::proofs::{self, ARGS, compact, forget_hints, prove};

const VALUE_LEN: usize = 500;

/// Every key whose number is a multiple of this one has an older value in a hint.
const OLDER_OF: u64 = 4;

/// Number of deleted keys for each remaining key.
const DELETED: u64 = 100;

/// Number of keys that are read singly, at every node with every quorum.
const READ_KEYS: usize = 50;

/// One of this many keys is read while a node detects its outdated directory.
const READ_OF: usize = 20;

/// Maximum bytes of tables after the deletion, in percent of the bytes before.
const MAX_REMAINING_PERCENT: u64 = 5;

/// Timeout of a rebuild.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs two scenarios: a node that is down until all its hints are dropped, and a link that is cut
/// until all deleted keys are purged.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let away = away(setup)?;
    let cut = match behind_a_cut(setup) {
        Err(Failure::Skipped(why)) => format!("hints behind a cut link skipped: {why}"),
        other => other?,
    };
    Ok(format!("{away}; {cut}"))
}

/// Fills all nodes with keys, most of which are to be deleted. Returns these keys, and the size of
/// all tables in bytes.
fn fill_cluster(
    setup: &Setup,
    cluster: &Cluster,
    ledger: &Arc<Ledger>,
) -> Result<FilledCluster, Failure> {
    let keys = setup.size(200_000, 2_000);
    let what = FillParams { keys, value_len: VALUE_LEN, prefix: 'd', votes: "&ack=3&from=3" };
    fill(cluster.addresses(), ledger, what)?;
    let doomed = ledger.keys();
    fill(cluster.addresses(), ledger, FillParams { keys: keys / DELETED, prefix: 's', ..what })?;
    Ok(FilledCluster { what, doomed, bytes: compact(setup, cluster)? })
}

struct FilledCluster {
    what: FillParams,
    doomed: Vec<String>,
    bytes: u64,
}

impl FilledCluster {
    /// Compacts all nodes. Returns the remaining size of the tables in percent.
    fn compact_and_compare(&self, setup: &Setup, cluster: &Cluster) -> Result<f64, Failure> {
        let after = compact(setup, cluster)?;
        if after * 100 > self.bytes * MAX_REMAINING_PERCENT {
            let before = self.bytes;
            let what = format!("{before} bytes of deleted keys are {after} bytes yet");
            return Err(Failure::Broken(what));
        }
        Ok(after as f64 * 100.0 / self.bytes as f64)
    }
}

fn is_older(number: u64) -> bool {
    number.is_multiple_of(OLDER_OF)
}

fn away(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &ARGS)?;
    let ledger = Arc::new(Ledger::default());
    let filled = fill_cluster(setup, &cluster, &ledger)?;
    let copies = [A, C].map(|node| (node, cluster.dir().join(format!("copy-{node}"))));
    cluster.stop(C)?;
    copy(cluster.data(C), &copies[1].1)?;
    let older = FillParams { votes: audit::VOTES, ..filled.what };
    fill_some(&[cluster.addresses()[A]], &ledger, older, is_older)?;
    cluster.stop(A)?;
    copy(cluster.data(A), &copies[0].1)?;
    cluster.start_node(C)?;
    audit::delete(&cluster.others(A), &ledger, &filled.doomed, audit::VOTES)?;
    let mut dropped = 0;
    for node in [B, C] {
        cluster.stop(node)?;
        dropped += forget_hints(cluster.data(node))?;
        cluster.start_node(node)?;
    }
    cluster.start_node(A)?;
    cluster.wait_until_ready()?;
    let missed = audit::audit_node(&cluster, A, &ledger)?.wrong();
    if missed < filled.doomed.len() as u64 {
        let what = format!("only {missed} deletes of {} were missed", filled.doomed.len());
        return Err(Failure::Environment(what));
    }
    let round = prove(setup, &cluster, B)?;
    let left = filled.compact_and_compare(setup, &cluster)?;
    let mut answers = audit::check_everywhere(&cluster, &ledger, READ_KEYS)?;
    for (node, kept) in &copies {
        put_back(setup, &mut cluster, &ledger, (*node, kept))?;
        answers += audit::check_everywhere(&cluster, &ledger, READ_KEYS)?;
    }
    prove(setup, &cluster, A)?;
    let again = filled.compact_and_compare(setup, &cluster)?;
    answers += audit::check_everywhere(&cluster, &ledger, READ_KEYS)?;
    Ok(format!(
        "{} keys deleted while a node was away, {dropped} hints dropped, {missed} deletes missed: \
         proven {:.1} s after it was asked for, {} MB of tables became **{left:.2} %**, and \
         {again:.2} % after old copies of two directories were put back, both set aside; **0 \
         risen** in {answers} answers of every node under every quorum",
        filled.doomed.len(),
        round.took.as_secs_f64(),
        filled.bytes / 1_000_000,
    ))
}

/// Restores a directory from before the deletion. The node must detect the older copy, set it aside
/// and exit; after a restart, the node is rebuilt. The two other nodes continue meanwhile.
fn put_back(
    setup: &Setup,
    cluster: &mut Cluster,
    ledger: &Ledger,
    (node, kept): (usize, &Path),
) -> Result<(), Failure> {
    cluster.stop(node)?;
    std::fs::rename(cluster.data(node), kept.with_extension("newer"))?;
    std::fs::rename(kept, cluster.data(node))?;
    let addresses = cluster.addresses().to_vec();
    let keys: Vec<String> = ledger.keys().into_iter().step_by(READ_OF).collect();
    let noticed = || wait_until_set_aside(cluster, node);
    let (_, found) = while_read(&addresses, ledger, &keys, noticed)?;
    if let Some((asked, found)) = found.iter().enumerate().find(|(_, found)| found.wrong() > 0) {
        let (node, asked) = (node + 1, asked + 1);
        let what = format!("while node {node} finds that its copy is old, node {asked}: {found}");
        return Err(Failure::Broken(what));
    }
    cluster.start_node(node)?;
    cluster.wait_until_ready()?;
    let begun = Instant::now();
    while membership(cluster, node)? != "member" {
        if begun.elapsed() > TIMEOUT {
            return Err(Failure::Broken(format!("node {} is not rebuilt", node + 1)));
        }
        thread::sleep(POLL_INTERVAL);
    }
    let round = proofs::round(setup, cluster, node, true)?;
    match round.is_equal && round.count("differing") == 0 {
        true => Ok(()),
        false => Err(round.wrong("finds the rebuilt node not equal")),
    }
}

/// Delivers hints with older values to a node after the purge. Until then, the link to the node is
/// cut, while both ends of the link reach the third node.
fn behind_a_cut(setup: &Setup) -> Result<String, Failure> {
    let net = Net::new(NODES)?;
    net.inside(|| {
        let cluster = Cluster::start(&setup.binary, NODES, Some(&net), &ARGS)?;
        let ledger = Arc::new(Ledger::default());
        let filled = fill_cluster(setup, &cluster, &ledger)?;
        net.cut_both_ways(A, C)?;
        let older = FillParams { votes: audit::VOTES, ..filled.what };
        fill_some(&[cluster.addresses()[A]], &ledger, older, is_older)?;
        audit::delete(&[cluster.addresses()[B]], &ledger, &filled.doomed, "&ack=3&from=3")?;
        prove(setup, &cluster, B)?;
        compact(setup, &cluster)?;
        let kept = hints(&cluster)?;
        if kept == 0 {
            return Err(Failure::Environment("node 1 keeps no hints for node 3".to_owned()));
        }
        net.heal()?;
        let begun = Instant::now();
        while hints(&cluster)? > 0 {
            if begun.elapsed() > TIMEOUT {
                let status = cluster.status(A)?;
                return Err(Failure::Broken(format!("late hints stay: {status}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
        cluster.wait_until_ready()?;
        // Hints use disk space too, so the space is measured after their delivery.
        let left = filled.compact_and_compare(setup, &cluster)?;
        let answers = audit::check_everywhere(&cluster, &ledger, READ_KEYS)?;
        Ok(format!(
            "{kept} hints of older values kept back by a cut link until all was purged: **0 \
             risen** in {answers} answers, {left:.2} % left"
        ))
    })
}

/// Returns the number of hints that A stores for C.
fn hints(cluster: &Cluster) -> Result<u64, Failure> {
    let kept = cluster.node(A)?.metric("kvorum_hints{peer=\"n3\"}")?;
    Ok(kept.unwrap_or_default() as u64)
}
