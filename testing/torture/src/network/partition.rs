//! Rows 15 to 17 of docs/results/reliability.md: the network of three nodes is cut in two, cut and
//! restored repeatedly, cut in one direction, cut so that only one node reaches both others, made
//! to lose every third packet, and made slow. Writers continue at all nodes. A node without a
//! quorum must refuse requests. Afterwards every acknowledged write must exist, and all replicas
//! must be equal.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::Client;
use kit::cluster::{Agreement, Cluster};
use kit::faults::net::Net;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers};

use crate::Setup;

const NODES: usize = 3;

/// Longer than a node needs to detect that another node is unreachable, so that the check runs
/// during the fault and not at its beginning.
const DETECTION_TIME: Duration = Duration::from_millis(1500);

/// Timeout of a refusal: the nodes' own deadline of 1 s, and a margin for a busy machine.
const REFUSED_WITHIN: Duration = Duration::from_secs(4);

/// Timeout for a majority to serve again.
const SERVES_WITHIN: Duration = Duration::from_secs(15);

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartitionFault {
    Full,
    Flapping,
    OneWay,
    Bridge,
    Loss,
    Slow,
}

const FAULTS: [PartitionFault; 6] = [
    PartitionFault::Full,
    PartitionFault::Flapping,
    PartitionFault::OneWay,
    PartitionFault::Bridge,
    PartitionFault::Loss,
    PartitionFault::Slow,
];

/// Injects each fault `rounds` times. A test injects only the first three faults.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let net = Net::new(NODES)?;
    net.inside(|| play(setup, &net))
}

fn play(setup: &Setup, net: &Net) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--memory", "64MiB"];
    let cluster = Cluster::start(&setup.binary, NODES, Some(net), &args)?;
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let mut lines = Vec::new();
    for fault in &FAULTS[..setup.size(FAULTS.len(), 3)] {
        let mut worst = Agreement::default();
        for round in 0..setup.rounds {
            let agreed = one(setup, net, &cluster, &ledger, *fault, &mut random);
            let agreed = agreed.map_err(|failure| match failure {
                Failure::Broken(what) => Failure::Broken(format!(
                    "{what} ({fault:?}, seed {}, round {round})",
                    setup.seed
                )),
                other => other,
            })?;
            worst.took = worst.took.max(agreed.took);
            worst.read = worst.read.max(agreed.read);
        }
        lines.push(format!(
            "{fault:?} C after {:.1} s{}",
            worst.took.as_secs_f64(),
            if worst.read == 0 { String::new() } else { format!(" ({} by reading)", worst.read) }
        ));
    }
    let (acknowledged, _, unknown) = ledger.counts();
    Ok(format!(
        "{} rounds each: {}; {acknowledged} writes acknowledged, {unknown} unknown, 0 lost",
        setup.rounds,
        lines.join(", ")
    ))
}

fn one(
    setup: &Setup,
    net: &Net,
    cluster: &Cluster,
    ledger: &Arc<Ledger>,
    fault: PartitionFault,
    random: &mut Random,
) -> Result<Agreement, Failure> {
    let lasts = Duration::from_millis(setup.size(3000, 500) + random.below(setup.size(3000, 500)));
    let patience = REFUSED_WITHIN;
    let work =
        WriterParams { clients: 12, keys: 60, large: 1, patience, ..WriterParams::default() };
    let writers = Writers::start_on(cluster.addresses(), ledger, work, random.number())?;
    thread::sleep(Duration::from_millis(300));
    let victim = random.below(NODES as u64) as usize;
    let other = (victim + 1) % NODES;
    match fault {
        PartitionFault::Full => {
            net.isolate(victim)?;
            thread::sleep(DETECTION_TIME);
            refuses(cluster, ledger, victim)?;
            serves(cluster, (0..NODES).filter(|node| *node != victim))?;
        }
        PartitionFault::Flapping => {
            let begun = Instant::now();
            while begun.elapsed() < lasts + DETECTION_TIME {
                net.isolate(victim)?;
                thread::sleep(Duration::from_millis(100 + random.below(600)));
                net.heal()?;
                thread::sleep(Duration::from_millis(100 + random.below(600)));
            }
        }
        PartitionFault::OneWay => {
            net.cut(victim, other)?;
            thread::sleep(DETECTION_TIME);
            serves(cluster, 0..NODES)?;
        }
        PartitionFault::Bridge => {
            net.cut_both_ways(victim, other)?;
            thread::sleep(DETECTION_TIME);
            serves(cluster, 0..NODES)?;
        }
        PartitionFault::Loss => net.drop_packets(30)?,
        PartitionFault::Slow => net.slow_down(victim, "1mbit")?,
    }
    thread::sleep(lasts);
    net.heal()?;
    writers.stop()?;
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    cluster.check(ledger)?;
    Ok(agreed)
}

/// Checks that a node without peers refuses, in time, requests that need two replicas.
fn refuses(cluster: &Cluster, ledger: &Ledger, node: usize) -> Result<(), Failure> {
    let mut client = Client::connect_within(cluster.addresses()[node], REFUSED_WITHIN)?;
    let (ticket, value) = ledger.put("minority", 100);
    let answers = [
        client.request("PUT", "/v0/entity?id=minority&ack=2&from=3", &value),
        client.request("GET", "/v0/entity?id=minority&ack=2&from=3", b""),
    ];
    ledger.end(ticket, kit::workload::writers::outcome_of(&answers[0]));
    for answer in answers {
        match answer {
            Ok(answer) if matches!(answer.status, 503 | 504) => {}
            Ok(answer) => {
                let status = answer.status;
                return Err(Failure::Broken(format!("a minority answers {status} to 2 of 3")));
            }
            Err(error) => {
                return Err(Failure::Broken(format!("a minority does not refuse: {error}")));
            }
        }
    }
    Ok(())
}

/// Waits until these nodes, which reach a majority, serve again.
fn serves(cluster: &Cluster, nodes: impl Iterator<Item = usize>) -> Result<(), Failure> {
    for node in nodes {
        let begun = Instant::now();
        loop {
            let asked = Client::connect_within(cluster.addresses()[node], REFUSED_WITHIN);
            let answer = asked.and_then(|mut client| {
                client.request("GET", "/v0/entity?id=majority&ack=2&from=3", b"")
            });
            if answer.as_ref().is_ok_and(|answer| answer.status == 404) {
                break;
            }
            if begun.elapsed() > SERVES_WITHIN {
                return Err(Failure::Broken(format!(
                    "node {} sees a majority and does not serve: {answer:?}",
                    node + 1
                )));
            }
        }
    }
    Ok(())
}
