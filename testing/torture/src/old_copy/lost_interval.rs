//! The power cut of row 38 of docs/results/reliability.md: under `--sync interval` one of three
//! nodes loses its last acknowledged writes. The other node that acknowledged the writes still
//! stores them, so no read from two of three nodes may miss them.

use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::mount::{Mount, make_image};
use kit::oracle::audit;
use kit::oracle::ledger::Ledger;
use rustix::process::Signal;

use crate::Setup;
use crate::old_copy::rollback::{A, B, C, Findings, KEYS, NODES, TIMEOUT, wait_until_met};

/// Size of the image with the data of one node, in bytes.
const IMAGE_BYTES: u64 = 512 << 20;

/// The sync interval, long enough that all writes are acknowledged between two syncs; and a pause
/// long enough for a sync.
const SYNC: &str = "interval:5000";
const SYNCED: Duration = Duration::from_millis(6500);

/// Key of the only write before the second power cut.
const SINGLE: &str = "single";

/// Cuts the power twice: after many writes, and after a single write.
pub(crate) fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", SYNC, "--deadline", "250ms"];
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &args)?;
    let image = cluster.dir().join("image");
    make_image(&image, IMAGE_BYTES)?;
    let mut disk = Mount::image(&image)?;
    cluster.launches[A].data = disk.path().join("data");
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let ledger = Ledger::default();
    let mut findings = Findings::default();
    let outcome = cuts(setup, &mut cluster, &mut disk, &ledger, &mut findings);
    // The file systems can be unmounted only after the nodes have stopped.
    (0..NODES).try_for_each(|node| cluster.kill(node))?;
    outcome?;
    findings.verdict()
}

fn cuts(
    setup: &Setup,
    cluster: &mut Cluster,
    disk: &mut Mount,
    ledger: &Ledger,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let count = setup.size(KEYS.0, KEYS.1);
    audit::prepare(cluster.addresses(), ledger, "", count)?;
    std::thread::sleep(SYNCED);
    cluster.kill(C)?;
    audit::edit(&cluster.others(C), ledger, "", count)?;
    cut(cluster, disk)?;
    let lost = audit::audit_node(cluster, A, ledger)?.wrong();
    findings.note(format!("after the cut A lacked {lost} of {} writes", 3 * count));
    // Half of the keys are read while C is down, and the other half while B is suspended. Each key
    // is read only once, because a read repairs A's lost writes.
    let keys = ledger.keys();
    let (ab, ac) = keys.split_at(keys.len() / 2);
    let both = [cluster.addresses()[A], cluster.addresses()[B]];
    // A may not be authoritative before it has connected to C, which might know of further lost
    // writes.
    wait_until_met(cluster)?;
    findings.reads("C down", &audit::read(&both, ledger, ab)?);
    cluster.node(B)?.signal(Signal::STOP)?;
    cluster.start_node(C)?;
    let others = [cluster.addresses()[A], cluster.addresses()[C]];
    let found = audit::read(&others, ledger, ac)?;
    cluster.node(B)?.signal(Signal::CONT)?;
    findings.reads("B paused", &found);
    findings.check_with_all(cluster, ledger)?;
    single(cluster, disk, ledger, findings)
}

/// Writes one key through A while C is down, and cuts A's power, so that only B stores the write.
fn single(
    cluster: &mut Cluster,
    disk: &mut Mount,
    ledger: &Ledger,
    findings: &mut Findings,
) -> Result<(), Failure> {
    std::thread::sleep(SYNCED);
    cluster.kill(C)?;
    audit::write_one(cluster.addresses()[A], ledger, SINGLE)?;
    cut(cluster, disk)?;
    wait_until_met(cluster)?;
    cluster.node(B)?.signal(Signal::STOP)?;
    cluster.start_node(C)?;
    let others = [cluster.addresses()[A], cluster.addresses()[C]];
    let found = audit::read(&others, ledger, &[SINGLE.to_owned()])?;
    cluster.node(B)?.signal(Signal::CONT)?;
    // The documented exception: A loses a write that only B stores. The write reappears as soon as
    // a read asks B, or B sends it to C as a hint.
    findings.note(format!("a single write before the cut, B paused: {found}"));
    let (all, keys) = (cluster.addresses(), ledger.keys());
    let (found, took) = audit::read_until_right(all, ledger, &keys, TIMEOUT)?;
    match took {
        Some(took) => {
            findings.note(format!("all back: {found}, right {:.1} s later", took.as_secs_f64()))
        }
        None => findings.record_broken(format!("not all right after {TIMEOUT:?}: {found}")),
    }
    Ok(())
}

/// Cuts the power of A's disk, and restores it.
fn cut(cluster: &mut Cluster, disk: &mut Mount) -> Result<(), Failure> {
    disk.cut_power()?;
    cluster.kill(A)?;
    disk.remount()?;
    cluster.start_node(A)
}
