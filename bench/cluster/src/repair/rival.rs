//! Repair by kvorum compared with repair by Cassandra, of the same data on three nodes. Before the
//! first repair of a repeat, one node misses the newest write of one key in a hundred. The second
//! repair finds equal data. Then clients load the cluster, first without repairs and then with
//! them:
//!
//! ```text
//!   a repeat   one node misses 1 % ─▶ full repair ─▶ full repair of equal data
//!              ─▶ load without repairs ─▶ load during full repairs
//! ```
//!
//! From kvorum's node, the benchmark removes the newest records. Cassandra's node is suspended
//! while the others accept the writes, without hints. The duration of a repair is the one that the
//! nodes report, which excludes the start of `kvorum repair` or of the JVM of `nodetool`. The
//! cluster that is not being measured is suspended.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bench_table::{Spread, Table, ratio};
use hdrhistogram::Histogram;

use super::{SHORT_WAIT, fill, lose, mib, round, run_load};
use crate::Bench;
use crate::cassandra::{self, Cassandra};
use crate::cost::loopback_bytes;
use crate::cql::{Client, FixedRateResults};
use crate::fleet::{Fleet, Kind, Launcher, SyncSetting};
use crate::requests::{LATE_SPACING, LONG_LEN};

const SECTION: &str = "repair, beside Cassandra";

/// Number of keys, as a multiple of the number in other sections.
const KEY_FACTOR: u64 = 8;

/// Requests per second, half of them PUTs, half GETs. Three JVMs on two CPUs can serve far more.
const RATE: f64 = 500.0;

/// Number of Cassandra clients, enough for [`RATE`] if each answer takes a tenth of a second.
const CLIENTS: usize = 50;

/// Duration of a run, as a multiple of `--seconds`. It is long, because a repair by Cassandra takes
/// seconds.
const DURATION_FACTOR: u64 = 4;

/// Number of uncounted repairs before the first measured one, in which the JVM compiles frequently
/// executed code.
const WARM_UP_REPAIRS: usize = 3;

/// Cost of a repair without clients.
#[derive(Debug, Default, Clone, Copy)]
struct Repair {
    seconds: f64,
    cpu: f64,
    /// Bytes that the nodes read from files.
    read: f64,
    /// Bytes that the nodes report as sent to one another. Cassandra's report omits streams.
    sent: f64,
    /// Bytes over the loopback interface, including headers and the requests to the nodes.
    carried: f64,
}

/// The figures of one repeat.
#[derive(Debug, Default, Clone, Copy)]
struct Run {
    /// Cost of the repair after a node has missed writes; `equal`: cost of the repair of equal
    /// data.
    missed: Repair,
    equal: Repair,
    /// 99th percentiles in milliseconds without repairs; `beside`: during consecutive repairs.
    quiet: Latencies,
    beside: Latencies,
    /// Share of the duration of the load with repairs in which a repair was running.
    share: f64,
    failed: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Latencies {
    get: f64,
    put: f64,
}

/// Runs the section if Cassandra is installed, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let Some(at) = cassandra::place() else {
        bench.report.say("Skipped Cassandra: CASSANDRA does not say where it is");
        return Ok(());
    };
    let keys = bench.scale.keys * KEY_FACTOR;
    let duration = Duration::from_secs(bench.scale.seconds * DURATION_FACTOR);
    eprintln!("{SECTION}: starting and filling Cassandra: some minutes");
    let version = cassandra::version(&at)?;
    let cassandra = start_filled(&mut bench.place, &at, keys, duration)?;
    cassandra.pause();
    let mut fleet = bench.place.start_with(Kind::Three(SyncSetting::Always), &SHORT_WAIT)?;
    fill(&fleet, keys)?;
    fleet.pause();
    let (mut own, mut rival) = (Vec::new(), Vec::new());
    for repeat in 0..bench.scale.repeats {
        for is_own in if repeat % 2 == 0 { [true, false] } else { [false, true] } {
            let name = if is_own { "kvorum" } else { "Cassandra" };
            eprintln!("{SECTION}: repeat {}, {name}", repeat + 1);
            let run = if is_own {
                measure_kvorum(&mut bench.place, &mut fleet, keys, duration)?
            } else {
                measure_cassandra(&cassandra, keys, duration)?
            };
            report_figures(bench, name, repeat, &run);
            if is_own { own.push(run) } else { rival.push(run) }
        }
    }
    say(bench, &version, keys, &own, &rival);
    Ok(())
}

/// Starts three nodes, writes all keys, and warms up the JVMs.
fn start_filled(
    place: &mut Launcher,
    at: &Path,
    keys: u64,
    duration: Duration,
) -> Result<Cassandra, String> {
    let cassandra = Cassandra::start(place, at, keys)?;
    let client = Client::connect(&cassandra.addresses(), CLIENTS)?;
    client.load(keys)?;
    client.run_at_fixed_rate(keys, RATE, duration)?;
    for _ in 0..WARM_UP_REPAIRS {
        cassandra.repair()?;
    }
    Ok(cassandra)
}

fn measure_kvorum(
    place: &mut Launcher,
    fleet: &mut Fleet,
    keys: u64,
    duration: Duration,
) -> Result<Run, String> {
    let lost = lose::late(place, fleet, keys)?;
    let (missed, differing) = kvorum_repair(fleet)?;
    if differing < lost || lost < keys / LATE_SPACING {
        return Err(format!("{lost} records were lost, and {differing} keys differed"));
    }
    let (equal, _) = kvorum_repair(fleet)?;
    let quiet = run_load(fleet, keys, RATE, duration, false)?;
    let beside = run_load(fleet, keys, RATE, duration, true)?;
    Ok(Run {
        missed,
        equal,
        quiet: Latencies { get: quiet.get, put: quiet.put },
        beside: Latencies { get: beside.get, put: beside.put },
        share: beside.share,
        failed: quiet.failed + beside.failed,
    })
}

/// Runs a full round of kvorum. Returns its cost, and the number of keys that differed.
fn kvorum_repair(fleet: &Fleet) -> Result<(Repair, u64), String> {
    let (cpu, read, carried) = (fleet.cpu(), fleet.bytes_read(), loopback_bytes());
    let round = round(fleet, true)?;
    let repair = Repair {
        seconds: round.seconds,
        cpu: fleet.cpu() - cpu,
        read: fleet.bytes_read() - read,
        // The coordinator of the round exchanges this many bytes with each of the two other nodes.
        sent: round.sent * 2.0,
        carried: loopback_bytes() - carried,
    };
    Ok((repair, round.differing))
}

fn measure_cassandra(cassandra: &Cassandra, keys: u64, duration: Duration) -> Result<Run, String> {
    cassandra.resume_and_wait()?;
    cassandra.pause_last()?;
    let addresses = cassandra.addresses();
    Client::only(&addresses[..2], CLIENTS)?.write_late(keys)?;
    cassandra.resume_and_wait()?;
    let client = Client::connect(&addresses, CLIENTS)?;
    let missed = cassandra_repair(cassandra, &client)?;
    let equal = cassandra_repair(cassandra, &client)?;
    client.run_at_fixed_rate(keys, RATE, cassandra::WARM_UP)?;
    let quiet = client.run_at_fixed_rate(keys, RATE, duration)?;
    let before: f64 = client.repairs()?.iter().sum();
    let over = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        let asker = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                cassandra.repair()?;
            }
            Ok::<(), String>(())
        });
        let beside = client.run_at_fixed_rate(keys, RATE, duration);
        over.store(true, Ordering::Relaxed);
        asker.join().map_err(|_| "the thread that asks for repairs panicked".to_owned())??;
        beside
    })?;
    let took = client.repairs()?.iter().sum::<f64>() - before;
    cassandra.pause();
    Ok(Run {
        missed,
        equal,
        quiet: latencies(&quiet),
        beside: latencies(&beside),
        share: took / duration.as_secs_f64(),
        failed: quiet.failed + beside.failed,
    })
}

fn cassandra_repair(cassandra: &Cassandra, client: &Client) -> Result<Repair, String> {
    let nodes: Vec<Client> = cassandra
        .addresses()
        .into_iter()
        .map(|node| Client::only(&[node], 1))
        .collect::<Result<_, _>>()?;
    let sent = || nodes.iter().map(Client::sent_bytes).sum::<Result<f64, String>>();
    // The durations are not in order, so the duration of the last repair is the growth of their
    // sum.
    let took = || client.repairs().map(|all| all.iter().sum::<f64>());
    let (seconds, bytes) = (took()?, sent()?);
    let (cpu, read, carried) = (cassandra.cpu(), cassandra.bytes_read(), loopback_bytes());
    cassandra.repair()?;
    let (cpu, read) = (cassandra.cpu() - cpu, cassandra.bytes_read() - read);
    let carried = loopback_bytes() - carried;
    Ok(Repair { seconds: took()? - seconds, cpu, read, sent: sent()? - bytes, carried })
}

fn latencies(results: &FixedRateResults) -> Latencies {
    let p99 = |latency: &Histogram<u64>| latency.value_at_quantile(0.99) as f64 / 1e6;
    Latencies { get: p99(&results.get), put: p99(&results.put) }
}

/// Rows of the table: name and figure.
const ROWS: [(&str, fn(&Run) -> f64); 14] = [
    ("1 % missed by a node: seconds", |run| run.missed.seconds),
    ("CPU seconds, all nodes", |run| run.missed.cpu),
    ("MiB read from files, all nodes", |run| mib(run.missed.read)),
    ("MiB over the loopback", |run| mib(run.missed.carried)),
    ("all equal: seconds", |run| run.equal.seconds),
    ("CPU seconds, all nodes (equal)", |run| run.equal.cpu),
    ("MiB read from files, all nodes (equal)", |run| mib(run.equal.read)),
    ("MiB over the loopback (equal)", |run| mib(run.equal.carried)),
    ("MiB that nodes count as sent, without streams (equal)", |run| mib(run.equal.sent)),
    ("clients: GET p99 ms, no repair", |run| run.quiet.get),
    ("PUT p99 ms, no repair", |run| run.quiet.put),
    ("GET p99 beside repairs, × none", |run| run.beside.get / run.quiet.get),
    ("PUT p99 beside repairs, × none", |run| run.beside.put / run.quiet.put),
    ("repairs at work meanwhile, %", |run| run.share * 100.0),
];

fn report_figures(bench: &mut Bench, name: &str, repeat: usize, run: &Run) {
    for (figure, of) in ROWS {
        bench.report.figure(SECTION, name, repeat, figure, of(run));
    }
}

fn say(bench: &mut Bench, version: &str, keys: u64, own: &[Run], rival: &[Run]) {
    let column = |of: fn(&Run) -> f64, runs: &[Run]| -> Vec<f64> { runs.iter().map(of).collect() };
    let mut table = Table::new(&["", "kvorum, × Cassandra", "kvorum", "Cassandra"]);
    for (name, of) in ROWS {
        let (own, rival) = (column(of, own), column(of, rival));
        table.row(vec![
            Some(name.to_owned()),
            ratio(&own, &rival).map(|ratio| ratio.to_string()),
            Spread::of(&own).map(|spread| spread.to_string()),
            Spread::of(&rival).map(|spread| spread.to_string()),
        ]);
    }
    let failed: u64 = own.iter().chain(rival).map(|run| run.failed).sum();
    bench.report.say(&format!(
        "## Repair, beside Cassandra\n\nCassandra {version}; three nodes and three replicas each, \
         {keys} keys with the same values of {LONG_LEN} bytes, written to all; `nodetool repair \
         -full`, as long as its `parent_repair_history` says, after {WARM_UP_REPAIRS} that are \
         not counted, \
         and a full round. Both sync before they answer. Over the loopback: all that it carried \
         from before the question until after the answer, `nodetool`'s own talk and looks at the \
         round included. Clients: open loop, {RATE}/s, half writes, half reads, quorum, beside \
         repairs that follow each other; {failed} requests failed. Kvorum with `{}`.",
        SHORT_WAIT[2..].join(" ")
    ));
    bench.report.say(&table.to_string());
}
