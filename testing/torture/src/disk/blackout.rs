//! Row 24 of docs/results/reliability.md: power fails at all replicas at once. Each replica has its
//! data on its own ext4 image. Every write that two of three replicas acknowledged under
//! `sync=always` must survive.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::mount::{Mount, make_image};
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers};

use crate::Setup;

const NODES: usize = 3;

/// Size of an image in bytes: space for the data of many rounds.
const IMAGE_BYTES: u64 = 1 << 30;

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Cuts the power of all nodes `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", "always", "--memory", "64MiB", "--memtable", "2MiB"];
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &args)?;
    let mut disks = Vec::new();
    for node in 0..NODES {
        let image = cluster.dir().join(format!("image-{node}"));
        make_image(&image, IMAGE_BYTES)?;
        let disk = Mount::image(&image)?;
        cluster.launches[node].data = disk.path().join("data");
        disks.push(disk);
    }
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let mut read = 0;
    for _ in 0..setup.rounds {
        let work = WriterParams {
            value_len: 10_000,
            patience: Duration::from_secs(3),
            ..WriterParams::default()
        };
        let writers = Writers::start_on(cluster.addresses(), &ledger, work, random.number())?;
        thread::sleep(Duration::from_millis(200 + random.below(setup.size(1500, 500))));
        disks.iter().try_for_each(Mount::cut_power)?;
        thread::sleep(Duration::from_millis(20));
        (0..NODES).try_for_each(|node| cluster.kill(node))?;
        writers.stop()?;
        disks.iter_mut().try_for_each(Mount::remount)?;
        (0..NODES).try_for_each(|node| cluster.start_node(node))?;
        cluster.wait_until_ready()?;
        cluster.check(&ledger)?;
        read = read.max(cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?.read);
        cluster.check(&ledger)?;
    }
    let (acknowledged, _, unknown) = ledger.counts();
    // The file systems can be unmounted only after the nodes have stopped.
    (0..NODES).try_for_each(|node| cluster.stop(node))?;
    Ok(format!(
        "{} cuts of all three: {acknowledged} writes acknowledged, {unknown} unknown, 0 lost; at \
         most {read} keys differed until they were read",
        setup.rounds
    ))
}
