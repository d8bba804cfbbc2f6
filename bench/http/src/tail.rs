//! Latency at a fixed rate while flushes and compactions run. Latency counts from the intended
//! start of a request.

use std::time::Duration;

use bench_table::{Spread, Table, ratio};
use hdrhistogram::Histogram;
use load::{KeyOrder, Keys, Method, Outcome, Pace, Plan};

use crate::Bench;
use crate::client::{self, CONNECTIONS, KEY_LEN, VALUE_LEN};
use crate::group_commit;
use crate::process::Server;
use crate::rivals::{Rival, SyncSetting};

const SECTION: &str = "tail";

/// Timeout of a request for the server's metrics.
const SCRAPE_LIMIT: Duration = Duration::from_secs(10);

/// Requests per second of the measured rows.
const RATE: u64 = 60_000;

/// Percentage of `PUT`s among the requests of the row in which `PUT`s are sent in addition to
/// `GET`s at [`RATE`], so that there are data to flush and compact.
const PUTS_BESIDE: u8 = 10;

/// Requests per second with `sync = always`. A disk that syncs in 100 µs, with 64 waiting records
/// per sync, reaches this rate with a margin.
const RATE_ALWAYS: u64 = 20_000;

/// Size of the memtable, so small that at these rates a flush and compactions run every second or
/// two.
const MEMTABLE: &str = "4MiB";

/// Number of different keys. They fill many memtables, so that several levels contain tables.
const KEYS: u64 = 1_000_000;
const KEYS_QUICK: u64 = 200_000;

struct Row {
    name: &'static str,
    rival: Rival,
    rate: u64,
    put_percent: u8,
    server: Option<Server>,
    outcomes: Vec<Outcome>,
    /// Bytes per second that the server wrote to the disk.
    written: Vec<f64>,
    /// Numbers of flushes and of compactions during all repeats.
    background: [f64; 2],
}

fn rows() -> Vec<Row> {
    let small = |sync| Rival::Kvorum(sync, vec!["--memtable".to_owned(), MEMTABLE.to_owned()]);
    let row = |name, rival, rate, put_percent| Row {
        name,
        rival,
        rate,
        put_percent,
        server: None,
        outcomes: Vec::new(),
        written: Vec::new(),
        background: [0.0; 2],
    };
    let mixed = RATE * 100 / (100 - u64::from(PUTS_BESIDE));
    vec![
        row("hyper hello, GET", Rival::Hyper, RATE, 0),
        row("hyper hello, GET (again)", Rival::Hyper, RATE, 0),
        row("kvorum GET, with PUTs beside", small(SyncSetting::Interval), mixed, PUTS_BESIDE),
        row("kvorum PUT, interval", small(SyncSetting::Interval), RATE, 100),
        row("kvorum PUT, always", small(SyncSetting::Always), RATE_ALWAYS, 100),
    ]
}

/// The reported percentiles, by name.
fn percentiles(h: &Histogram<u64>) -> [(&'static str, f64); 4] {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    [
        ("p50", ms(h.value_at_quantile(0.5))),
        ("p99", ms(h.value_at_quantile(0.99))),
        ("p99.9", ms(h.value_at_quantile(0.999))),
        ("max", ms(h.max())),
    ]
}

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let keys = if bench.scale.quick { KEYS_QUICK } else { KEYS };
    bench.report.say(&format!(
        "## Latency at a fixed rate\n\nOpen loop, {CONNECTIONS} connections, {keys} keys, \
         `--memtable {MEMTABLE}`; milliseconds from the intended start. GET: {RATE}/s, and \
         {PUTS_BESIDE} % PUTs on top; PUT interval: {RATE}/s; PUT always: {RATE_ALWAYS}/s."
    ));
    let mut rows = rows();
    for row in &mut rows {
        match start(bench, row, keys) {
            Ok(server) => row.server = Some(server),
            Err(why) => bench.report.say(&format!("Skipped {}: {why}", row.name)),
        }
    }
    rows.retain(|row| row.server.is_some());
    let mut bare = Vec::new();
    for repeat in 0..bench.scale.repeats {
        for row in &mut rows {
            measure(bench, row, keys, repeat)?;
        }
        if let Some(always) = rows.iter().find(|row| row.is_kvorum_with_sync_always()) {
            let background = always.written.last().copied().unwrap_or(0.0);
            let latency = run_bare_loop(bench, background, repeat)?;
            bare.push(percentiles(&latency));
        }
    }
    report(bench, &rows, &bare);
    Ok(())
}

impl Row {
    fn is_kvorum_with_sync_always(&self) -> bool {
        matches!(self.rival, Rival::Kvorum(SyncSetting::Always, _))
    }

    /// Returns the latencies of the row's method.
    fn latency(&self, outcome: &Outcome) -> Histogram<u64> {
        let method = if self.put_percent == 100 { Method::Put } else { Method::Get };
        outcome
            .tally
            .latencies(method)
            .map_or_else(|| outcome.all_methods().intended, |latencies| latencies.intended.clone())
    }
}

fn start(bench: &mut Bench, row: &Row, keys: u64) -> Result<Server, String> {
    let server = bench.place.start(&row.rival)?;
    if let Rival::Kvorum(..) = row.rival {
        client::fill(&server, keys, VALUE_LEN)?;
        client::settle(&server);
    }
    server.pause();
    Ok(server)
}

/// Returns the duration of a repeat. It is longer than in a closed loop, so that several flushes
/// run, and hundreds of samples are beyond p99.9.
fn duration(bench: &Bench) -> Duration {
    Duration::from_secs(bench.scale.seconds * if bench.scale.quick { 2 } else { 4 })
}

fn measure(bench: &mut Bench, row: &mut Row, keys: u64, repeat: usize) -> Result<(), String> {
    let Some(server) = &row.server else { return Ok(()) };
    let plan = Plan {
        connections: CONNECTIONS,
        pace: Pace::Open(row.rate as f64),
        duration: duration(bench),
        put_percent: row.put_percent,
        keys: Keys { order: KeyOrder::Uniform, count: keys, len: KEY_LEN },
        value_len: VALUE_LEN,
        seed: repeat as u64,
        ..Plan::new(client::target(server))
    };
    server.resume();
    let before = server.bytes_written();
    let work_before = background_work(server);
    let outcome = load::run(&plan).map_err(|error| error.to_string())?;
    let written = (server.bytes_written() - before) as f64 / outcome.elapsed.as_secs_f64();
    let work = background_work(server);
    server.pause();
    for i in 0..2 {
        row.background[i] += work[i] - work_before[i];
    }
    for (figure, value) in percentiles(&row.latency(&outcome)) {
        bench.report.figure(SECTION, row.name, repeat, &format!("{figure}_ms"), value);
    }
    bench.report.figure(SECTION, row.name, repeat, "answers_per_second", outcome.throughput());
    bench.report.figure(SECTION, row.name, repeat, "disk_bytes_per_second", written);
    row.outcomes.push(outcome);
    row.written.push(written);
    Ok(())
}

/// Returns the numbers of flushes and compactions so far, from the server's metrics.
fn background_work(server: &Server) -> [f64; 2] {
    let text = load::server::fetch(server.address, "/metrics", SCRAPE_LIMIT).unwrap_or_default();
    ["flushes", "compactions"].map(|name| {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(metric, _)| metric.contains(name))
            .filter_map(|(_, value)| value.parse::<f64>().ok())
            .sum()
    })
}

/// Runs the bare loop while tables are written at the rate at which the server's flushes and
/// compactions wrote: `written`, the bytes per second of the server, less the bytes per second of
/// the log, which a short run without tables measures. Returns the latencies of the loop.
fn run_bare_loop(bench: &mut Bench, written: f64, repeat: usize) -> Result<Histogram<u64>, String> {
    let failed = |error| format!("the bare fdatasync loop: {error}");
    let dir = bench.place.root.clone();
    let alone =
        group_commit::run(&dir, RATE_ALWAYS, Duration::from_secs(2), 0.0).map_err(failed)?;
    let background = (written - alone.bytes_per_second).max(0.0);
    let bare = group_commit::run(&dir, RATE_ALWAYS, duration(bench), background).map_err(failed)?;
    for (figure, value) in percentiles(&bare.latency) {
        bench.report.figure(SECTION, "bare", repeat, &format!("{figure}_ms"), value);
    }
    bench.report.figure(SECTION, "bare", repeat, "background_bytes_per_second", background);
    Ok(bare.latency)
}

fn report(bench: &mut Bench, rows: &[Row], bare: &[[(&'static str, f64); 4]]) {
    let mut table = Table::new(&[
        "ms, median (least–greatest)",
        "p50",
        "p99",
        "p99.9",
        "max",
        "answers/s",
        "disk MB/s",
        "flushes, compactions",
    ]);
    let column = |all: &[[(&str, f64); 4]], i: usize| -> Vec<f64> {
        all.iter().map(|repeat| repeat[i].1).collect()
    };
    let cells = |all: &[[(&str, f64); 4]]| -> Vec<Option<String>> {
        (0..4).map(|i| Spread::of(&column(all, i)).map(|s| s.to_string())).collect()
    };
    let mut always = None;
    for row in rows {
        let all: Vec<_> = row.outcomes.iter().map(|o| percentiles(&row.latency(o))).collect();
        let mut line = vec![Some(row.name.to_owned())];
        line.extend(cells(&all));
        let rates: Vec<f64> = row.outcomes.iter().map(Outcome::throughput).collect();
        line.push(Spread::of(&rates).map(|s| s.to_string()));
        let written: Vec<f64> = row.written.iter().map(|bytes| bytes / 1e6).collect();
        line.push(Spread::of(&written).map(|s| s.to_string()));
        line.push(Some(format!("{}, {}", row.background[0], row.background[1])));
        table.row(line);
        if row.is_kvorum_with_sync_always() {
            always = Some(all);
        }
    }
    if !bare.is_empty() {
        let mut line = vec![Some("bare group commit, fdatasync".to_owned())];
        line.extend(cells(bare));
        line.extend([None, None, None]);
        table.row(line);
    }
    bench.report.say(&table.to_string());
    if let Some(ratio) = always.and_then(|all| ratio(&column(&all, 2), &column(bare, 2))) {
        bench.report.say(&format!("PUT always over the bare loop at p99.9: {ratio} ×"));
    }
    for row in rows {
        for (repeat, outcome) in row.outcomes.iter().enumerate() {
            for warning in outcome.warnings() {
                bench.report.say(&format!("{} repeat {repeat}: {warning}", row.name));
            }
        }
        if let Some(server) = &row.server {
            bench.report.say(&format!("{}: `{}`", row.name, server.argv));
        }
    }
}
