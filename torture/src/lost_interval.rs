//! Power cut of row 38: under `--sync interval` one of three nodes loses its last acknowledged
//! writes. The other node that acknowledged them still has them, so no read of two of three may
//! miss them.

use std::time::Duration;

use rustix::process::Signal;

use crate::audit;
use crate::cluster::Cluster;
use crate::ground::{Mount, make_image};
use crate::ledger::Ledger;
use crate::rollback::{A, B, C, Findings, KEYS, NODES, PATIENCE, meet};
use crate::{Failure, Setup};

/// Size of the image with the data of one node, in bytes.
const IMAGE_BYTES: u64 = 512 << 20;

/// Sync interval long enough that all writes between two syncs are acknowledged first, and a pause
/// that includes a sync.
const SYNC: &str = "interval:5000";
const SYNCED: Duration = Duration::from_millis(6500);

/// The key of the very last write.
const SINGLE: &str = "single";

/// Cuts the power after many writes, and after a single write.
pub(crate) fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", SYNC, "--deadline", "250ms"];
    let mut cluster = Cluster::plan(setup, NODES, None, &args)?;
    let image = cluster.dir().join("image");
    make_image(&image, IMAGE_BYTES)?;
    let mut disk = Mount::image(&image)?;
    cluster.launches[A].data = disk.path().join("data");
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.until_ready()?;
    let ledger = Ledger::default();
    let mut findings = Findings::default();
    let outcome = cuts(setup, &mut cluster, &mut disk, &ledger, &mut findings);
    // The nodes must stop before their disks are unmounted.
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
    let lost = audit::held(cluster, A, ledger)?.wrong();
    findings.note(format!("after the cut A lacked {lost} of {} writes", 3 * count));
    // First with C down; then the others with C and without B, because reading brings A its lost
    // writes.
    let keys = ledger.keys();
    let (ab, ac) = keys.split_at(keys.len() / 2);
    let both = [cluster.addresses()[A], cluster.addresses()[B]];
    // A may not be authoritative before it is connected to C, which may know of more lost writes.
    meet(cluster)?;
    findings.reads("C down", &audit::read(&both, ledger, ab)?);
    cluster.node(B)?.signal(Signal::STOP)?;
    cluster.start_node(C)?;
    let others = [cluster.addresses()[A], cluster.addresses()[C]];
    let found = audit::read(&others, ledger, ac)?;
    cluster.node(B)?.signal(Signal::CONT)?;
    findings.reads("B paused", &found);
    findings.with_all(cluster, ledger)?;
    single(cluster, disk, ledger, findings)
}

/// Writes once through A, and lets no other node hear of the write before the cut.
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
    meet(cluster)?;
    cluster.node(B)?.signal(Signal::STOP)?;
    cluster.start_node(C)?;
    let others = [cluster.addresses()[A], cluster.addresses()[C]];
    let found = audit::read(&others, ledger, &[SINGLE.to_owned()])?;
    cluster.node(B)?.signal(Signal::CONT)?;
    // The documented exception: A loses a write that only B knows of. The write reappears as soon
    // as B is asked, or brings it to C as a hint.
    findings.note(format!("a single write before the cut, B paused: {found}"));
    let (all, keys) = (cluster.addresses(), ledger.keys());
    let (found, took) = audit::read_until_right(all, ledger, &keys, PATIENCE)?;
    match took {
        Some(took) => {
            findings.note(format!("all back: {found}, right {:.1} s later", took.as_secs_f64()))
        }
        None => findings.broken(format!("not all right after {PATIENCE:?}: {found}")),
    }
    Ok(())
}

/// Cuts and restores the power of A's disk.
fn cut(cluster: &mut Cluster, disk: &mut Mount) -> Result<(), Failure> {
    disk.cut_power()?;
    cluster.kill(A)?;
    disk.remount()?;
    cluster.start_node(A)
}
