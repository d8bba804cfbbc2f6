//! Repair rounds: the cost of a full and of an incremental round without clients, and the effect of
//! a running round on clients. Two clusters, *quiet* and *busy*, take the load in turn; the other
//! one is suspended:
//!
//! ```text
//!   quiet    --repair-interval off   load without rounds, and load during requested rounds
//!   busy     --repair-interval 10s   load during scheduled rounds
//! ```
//!
//! The rounds without clients run on *quiet*, and on a cluster with a small memtable. Two more
//! clusters with few keys, one with the default settings and one without rounds, are compared to
//! show what repair costs while no round runs (the difference has been within the noise). The disk
//! space of deleted keys (`purge`) and the comparison with Cassandra (`rival`) are sections of
//! their own.

mod lose;
pub(crate) mod purge;
pub(crate) mod rival;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench_table::{Spread, Table, ratio};
use load::{KeyOrder, Method, Outcome, Pace, Plan, Requests};
use serde_json::Value;

use crate::Bench;
use crate::fleet::{self, Fleet, Kind, SyncSetting};
use crate::metrics::{Counts, SCRAPE_TIMEOUT};
use crate::requests;

const SECTION: &str = "repair";

/// Number of keys, as a multiple of the number in other sections.
const KEY_FACTOR: u64 = 40;

/// Requests per second to all three nodes together, half of them PUTs, half GETs.
const RATE: f64 = 3_000.0;

/// Duration of a run, as a multiple of `--seconds`.
const DURATION_FACTOR: u64 = 2;

/// Age from which a round compares a record: twice the sum of the default `--deadline` and
/// `--max-clock-skew`, and a margin.
const SETTLED: Duration = Duration::from_millis(3_200);

/// Time limit of a round.
const ROUND_LIMIT: Duration = Duration::from_secs(120);

/// Pause between two polls of a round.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Number of keys in the two clusters that are compared while no round runs.
const FEW_KEYS: u64 = 20_000;

const NO_ROUNDS: [&str; 2] = ["--repair-interval", "off"];

/// Flags that shorten the wait at the start of a requested round, in which earlier writes settle.
/// With the default of 3 s, the wait would be longer than the work of a round, and few of the
/// clients' requests would be sent during that work.
const SHORT_WAIT: [&str; 6] =
    ["--repair-interval", "off", "--deadline", "250ms", "--max-clock-skew", "10ms"];

const SMALL_MEMTABLE: [&str; 4] = ["--repair-interval", "off", "--memtable", "1MiB"];

const IN_TABLES: &str = "`--memtable 1MiB`, so that what is written anew is in tables";

const IN_MEMORY: &str = "the default memtable, which has room for what is written anew";

const FREQUENT_ROUNDS: [&str; 4] = ["--repair-interval", "10s", "--repair-full-interval", "10s"];

/// A finished round.
struct Round {
    seconds: f64,
    read: f64,
    /// Number of keys that differed.
    differing: u64,
    /// Bytes exchanged between the round's coordinator and each other node.
    sent: f64,
    /// True if tombstones written before the round may be purged.
    is_proven: bool,
}

/// One run of the load.
struct Run {
    /// 99th percentiles in milliseconds.
    get: f64,
    put: f64,
    cpu: f64,
    failed: u64,
    /// Share of the polls that found a round in progress.
    share: f64,
}

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let keys = bench.scale.keys * KEY_FACTOR;
    bench.report.say(&format!(
        "## Repair\n\nThree nodes, {keys} keys with values of {} bytes on each, `--sync interval`, \
         all equal.",
        requests::LONG_LEN
    ));
    let kind = Kind::Three(SyncSetting::Interval);
    let small = bench.place.start_with(kind, &SMALL_MEMTABLE)?;
    fill(&small, keys)?;
    rounds(bench, &small, keys, IN_TABLES)?;
    drop(small);
    let quiet = bench.place.start_with(kind, &SHORT_WAIT)?;
    fill(&quiet, keys)?;
    rounds(bench, &quiet, keys, IN_MEMORY)?;
    quiet.pause();
    let busy = bench.place.start_with(kind, &FREQUENT_ROUNDS)?;
    fill(&busy, keys)?;
    busy.pause();
    load(bench, &quiet, &busy, keys)?;
    drop((quiet, busy));
    between(bench)
}

fn fill(fleet: &Fleet, keys: u64) -> Result<(), String> {
    let long = Requests::Custom(requests::LONG_VALUES);
    each_once(fleet, keys, long, Duration::from_secs(600), "put")
}

/// Sends one request for each key, in order. `what` ends the error that not all requests succeeded:
/// "only … keys could be `what`".
fn each_once(
    fleet: &Fleet,
    keys: u64,
    requests: Requests,
    limit: Duration,
    what: &str,
) -> Result<(), String> {
    let mut plan = Plan { requests, ..fleet.plan(true, keys, limit) };
    plan.keys.order = KeyOrder::Sequential;
    let outcome = fleet::run(&Plan { limit: keys, put_percent: 100, ..plan })?;
    let done = outcome.tally.statuses.success();
    if done == keys { Ok(()) } else { Err(format!("only {done} of {keys} keys could be {what}")) }
}

/// Runs the rounds without clients. Each repeat has a full round, then writes to one percent of the
/// keys, then an incremental round.
fn rounds(bench: &mut Bench, fleet: &Fleet, keys: u64, what: &str) -> Result<(), String> {
    thread::sleep(SETTLED);
    let stored = stored_bytes(fleet)?;
    let (mut full, mut incremental) = (Vec::new(), Vec::new());
    for repeat in 0..bench.scale.repeats {
        full.push(round(fleet, true)?);
        let plan = fleet.plan(true, keys, Duration::from_secs(60));
        let requests = Requests::Custom(requests::LONG_VALUES);
        let seed = repeat as u64 + 1;
        fleet::run(&Plan { limit: keys / 100, put_percent: 100, requests, seed, ..plan })?;
        thread::sleep(SETTLED);
        incremental.push(round(fleet, false)?);
    }
    let mut table = Table::new(&[
        "",
        "seconds",
        "MiB read, all nodes",
        "of what is stored",
        "MiB between two nodes",
    ]);
    for (name, rounds) in [("full", &full), ("1 % written anew, incremental", &incremental)] {
        let spread = |of: &dyn Fn(&Round) -> f64| {
            let column: Vec<f64> = rounds.iter().map(of).collect();
            Spread::of(&column)
        };
        for (repeat, round) in rounds.iter().enumerate() {
            bench.report.figure(SECTION, name, repeat, "seconds", round.seconds);
            bench.report.figure(SECTION, name, repeat, "read_bytes", round.read);
            bench.report.figure(SECTION, name, repeat, "pair_bytes", round.sent);
        }
        let percent = spread(&|round| round.read / stored * 100.0);
        table.row(vec![
            Some(name.to_owned()),
            spread(&|round| round.seconds).map(|s| s.to_string()),
            spread(&|round| mib(round.read)).map(|s| s.to_string()),
            percent.map(|percent| format!("{percent} %")),
            spread(&|round| mib(round.sent)).map(|s| s.to_string()),
        ]);
    }
    bench.report.say(&format!(
        "Rounds that are asked for, without clients; {what}; {:.0} MiB on all disks.",
        mib(stored)
    ));
    bench.report.say(&table.to_string());
    Ok(())
}

/// Returns the number of bytes on the disks of all nodes together.
fn stored_bytes(fleet: &Fleet) -> Result<f64, String> {
    let of = |node| Ok(get(node, "/v0/status")?["disk_bytes"].as_f64().unwrap_or(0.0));
    fleet.addresses().into_iter().map(of).sum()
}

fn get(node: std::net::SocketAddr, path: &str) -> Result<Value, String> {
    let page =
        load::server::fetch(node, path, SCRAPE_TIMEOUT).map_err(|error| error.to_string())?;
    serde_json::from_str(&page).map_err(|error| format!("{path}: {error}"))
}

/// Requests a round from the first node, and waits for its end. Replicas that still differ then are
/// an error.
fn round(fleet: &Fleet, full: bool) -> Result<Round, String> {
    let node = fleet.addresses()[0];
    let before = Counts::of(&fleet.addresses());
    let begun = Instant::now();
    let number = get(node, "/admin/repair")?["last"]["number"].as_u64().unwrap_or(0) + 1;
    ask_for_round(fleet, full)?;
    loop {
        let last = &get(node, "/admin/repair")?["last"];
        if last["number"].as_u64().is_some_and(|last| last >= number) {
            if last["equal"] != true {
                return Err(format!("not all is equal: {last}"));
            }
            let counts = Counts::of(&fleet.addresses()).since(&before);
            let seconds = last["took_ms"].as_f64().unwrap_or(0.0) / 1e3;
            let read = last["bytes_read"].as_f64().unwrap_or(0.0);
            let sent = counts.get("peer_bytes_sent") / 2.0;
            let differing = last["differing"].as_u64().unwrap_or(0);
            return Ok(Round { seconds, read, differing, sent, is_proven: last["proven"] == true });
        }
        if begun.elapsed() > ROUND_LIMIT {
            return Err("a round of repair does not end".to_owned());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn ask_for_round(fleet: &Fleet, full: bool) -> Result<(), String> {
    let request = format!(
        "POST /admin/repair?full={full} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    );
    let answer = fleet::send_request(fleet.addresses()[0], request.as_bytes());
    match answer {
        Ok(answer) if answer.status == 202 => Ok(()),
        Ok(answer) => Err(format!("no round: {answer:?}")),
        Err(error) => Err(format!("no round: {error}")),
    }
}

/// Alternates runs of the same load with and without rounds.
fn load(bench: &mut Bench, quiet: &Fleet, busy: &Fleet, keys: u64) -> Result<(), String> {
    let rows = [
        ("none", quiet, false),
        ("none (again)", quiet, false),
        ("by themselves, share 5 %", busy, false),
        ("asked for, one after the other", quiet, true),
    ];
    let mut runs: Vec<Vec<Run>> = rows.iter().map(|_| Vec::new()).collect();
    for repeat in 0..bench.scale.repeats {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (name, fleet, asked) = rows[index];
            let seconds = bench.scale.seconds * DURATION_FACTOR;
            let run = run_load(fleet, keys, RATE, Duration::from_secs(seconds), asked)?;
            for (figure, value) in [
                ("get_p99_ms", run.get),
                ("put_p99_ms", run.put),
                ("cpu_us", run.cpu),
                ("share", run.share),
            ] {
                bench.report.figure(SECTION, name, repeat, figure, value);
            }
            runs[index].push(run);
        }
    }
    let mut table = Table::new(&[
        "rounds",
        "GET p99, × none",
        "PUT p99, × none",
        "GET p99 ms",
        "PUT p99 ms",
        "CPU µs/request",
        "rounds at work",
        "failed",
    ]);
    for ((name, ..), of) in rows.iter().zip(&runs) {
        let column = |figure: fn(&Run) -> f64, runs: &[Run]| -> Vec<f64> {
            runs.iter().map(figure).collect()
        };
        let spread = |figure| Spread::of(&column(figure, of)).map(|spread| spread.to_string());
        let over = |figure| {
            ratio(&column(figure, of), &column(figure, &runs[0])).map(|ratio| ratio.to_string())
        };
        table.row(vec![
            Some((*name).to_owned()),
            over(|run| run.get),
            over(|run| run.put),
            spread(|run| run.get),
            spread(|run| run.put),
            spread(|run| run.cpu),
            Spread::of(&column(|run| run.share * 100.0, of)).map(|share| format!("{share} %")),
            Some(of.iter().map(|run| run.failed).sum::<u64>().to_string()),
        ]);
    }
    bench.report.say(&format!(
        "Open loop, {RATE}/s over all nodes, half PUT, half GET of any key, `ack` 2 of `from` 3; \
         milliseconds from the intended start. *At work*: looks that found a round under way (one \
         with a share of 5 % rests 95 % of its time). All but those that rounds come to by \
         themselves with `{}`.",
        SHORT_WAIT[2..].join(" ")
    ));
    bench.report.say(&table.to_string());
    Ok(())
}

/// Runs the load. If `asked`, also requests full rounds, each as soon as the last one has ended.
fn run_load(
    fleet: &Fleet,
    keys: u64,
    rate: f64,
    duration: Duration,
    asked: bool,
) -> Result<Run, String> {
    let mut plan = fleet.plan(true, keys, duration);
    plan.requests = Requests::Custom(requests::LONG_VALUES);
    (plan.pace, plan.put_percent) = (Pace::Open(rate), 50);
    fleet.resume(&plan)?;
    let (over, looks, found) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let cpu = fleet.cpu();
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let running = Counts::of(&fleet.addresses()).get("repair_running") > 0.0;
                looks.fetch_add(1, Ordering::Relaxed);
                found.fetch_add(u64::from(running), Ordering::Relaxed);
                // Requested only if no round runs or waits, because a request during the wait of an
                // earlier request would restart that wait. A refused request lowers the share.
                if asked && is_idle(fleet).is_ok_and(|is_idle| is_idle) {
                    let _ = ask_for_round(fleet, true);
                }
                thread::sleep(POLL_INTERVAL * 5);
            }
        });
        let outcome = fleet::run(&plan);
        over.store(true, Ordering::Relaxed);
        outcome
    })?;
    let cpu = fleet.cpu() - cpu;
    if asked {
        wait_for_end(fleet)?;
    }
    fleet.pause();
    Ok(Run {
        get: p99(&outcome, Method::Get),
        put: p99(&outcome, Method::Put),
        cpu: cpu * 1e6 / outcome.answer_count().max(1) as f64,
        failed: outcome.planned - outcome.tally.statuses.success(),
        share: found.into_inner() as f64 / looks.into_inner().max(1) as f64,
    })
}

fn wait_for_end(fleet: &Fleet) -> Result<(), String> {
    let begun = Instant::now();
    while !is_idle(fleet)? {
        if begun.elapsed() > ROUND_LIMIT {
            return Err("a round of repair does not end".to_owned());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns true if the first node has no round in progress or waiting.
fn is_idle(fleet: &Fleet) -> Result<bool, String> {
    let rounds = get(fleet.addresses()[0], "/admin/repair")?;
    Ok(rounds["waiting"].is_null() && rounds["current"].is_null())
}

fn p99(outcome: &Outcome, method: Method) -> f64 {
    let latencies = outcome.tally.latencies(method);
    latencies.map_or(0.0, |of| of.intended.value_at_quantile(0.99) as f64 / 1e6)
}

/// Compares the CPU time per request of a cluster without rounds with that of a cluster with the
/// default settings, under which no round begins within an hour.
fn between(bench: &mut Bench) -> Result<(), String> {
    let kind = Kind::Three(SyncSetting::Interval);
    let names = ["--repair-interval off", "the default, between two rounds"];
    let fleets = [bench.place.start_with(kind, &NO_ROUNDS)?, bench.place.start(kind)?];
    for fleet in &fleets {
        fill(fleet, FEW_KEYS)?;
        fleet.pause();
    }
    let mut cpu = [Vec::new(), Vec::new()];
    for repeat in 0..bench.scale.repeats {
        for index in if repeat % 2 == 0 { [0, 1] } else { [1, 0] } {
            let seconds = Duration::from_secs(bench.scale.seconds);
            let run = run_load(&fleets[index], FEW_KEYS, RATE, seconds, false)?;
            bench.report.figure(SECTION, names[index], repeat, "cpu_us", run.cpu);
            cpu[index].push(run.cpu);
        }
    }
    let mut table = Table::new(&["between rounds", "CPU, × off", "CPU µs/request, all nodes"]);
    for (name, of) in names.iter().zip(&cpu) {
        table.row(vec![
            Some((*name).to_owned()),
            ratio(of, &cpu[0]).map(|ratio| ratio.to_string()),
            Spread::of(of).map(|spread| spread.to_string()),
        ]);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
