//! Requests per second of all servers in a closed loop.

use bench_table::{Spread, Table, ratio};

use crate::Bench;
use crate::client::{self, CONNECTIONS, Client, KEY_LEN, Method, Run, VALUE_LEN};
use crate::process::{Server, argv};
use crate::rivals::{Rival, SyncSetting};

const SECTION: &str = "throughput";

/// Number of different keys, so few that they stay in every cache.
const HOT_KEYS: u64 = 200_000;

/// Names of the rows of hyper, to which the ratios of other rows refer.
const HELLO: &str = "hyper hello, GET";
const HELLO_PUT: &str = "hyper hello, PUT";

/// Share of its CPU that a server must use to count as the bottleneck of its row.
const LIMITED_SHARE: f64 = 0.95;

struct Row {
    name: String,
    rival: Rival,
    method: Method,
    /// Name of the row of Redis in the corresponding mode.
    like: Option<String>,
    server: Server,
    runs: Vec<Run>,
}

impl Row {
    fn rates(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.rate).collect()
    }

    fn micros(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.server_micros).collect()
    }

    fn server_share(&self) -> f64 {
        let shares: Vec<f64> = self.runs.iter().map(|run| run.server_share).collect();
        Spread::of(&shares).map_or(0.0, |spread| spread.median)
    }

    fn measure(&self, client: Client, seconds: u64) -> Result<Run, String> {
        self.server.resume();
        let run = match self.rival {
            Rival::Redis(_) => client::redis(&self.server, self.method, HOT_KEYS, seconds),
            _ => client.run(&self.server, self.method, HOT_KEYS, seconds),
        };
        self.server.pause();
        run
    }
}

/// Returns the rows: name, server, method, and the name of the row of Redis to compare with.
fn plan() -> Vec<(String, Rival, Method, Option<String>)> {
    let redis = |method: Method, sync| match method {
        Method::Get => "Redis GET".to_owned(),
        Method::Put => format!("Redis SET, {sync}"),
    };
    let mut rows = vec![
        (HELLO.to_owned(), Rival::Hyper, Method::Get, None),
        (format!("{HELLO} (again)"), Rival::Hyper, Method::Get, None),
        (HELLO_PUT.to_owned(), Rival::Hyper, Method::Put, None),
        ("nginx return 200, GET".to_owned(), Rival::Nginx, Method::Get, None),
        (
            "kvorum GET".to_owned(),
            Rival::kvorum(SyncSetting::Interval),
            Method::Get,
            Some(redis(Method::Get, SyncSetting::Never)),
        ),
        (
            redis(Method::Get, SyncSetting::Never),
            Rival::Redis(SyncSetting::Never),
            Method::Get,
            None,
        ),
    ];
    for sync in [SyncSetting::Never, SyncSetting::Interval, SyncSetting::Always] {
        let like = redis(Method::Put, sync);
        rows.push((format!("kvorum PUT, {sync}"), Rival::kvorum(sync), Method::Put, Some(like)));
        rows.push((redis(Method::Put, sync), Rival::Redis(sync), Method::Put, None));
    }
    rows
}

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## Throughput\n\nClosed loop, {CONNECTIONS} connections, keys of {KEY_LEN} bytes, values \
         of {VALUE_LEN}, {HOT_KEYS} hot keys."
    ));
    let mut rows = start(bench);
    for repeat in 0..bench.scale.repeats {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let row = &mut rows[index];
            let run = row.measure(bench.client, bench.scale.seconds)?;
            bench.report.figure(SECTION, &row.name, repeat, "requests_per_second", run.rate);
            bench.report.figure(SECTION, &row.name, repeat, "server_us", run.server_micros);
            bench.report.figure(SECTION, &row.name, repeat, "server_share", run.server_share);
            bench.report.figure(SECTION, &row.name, repeat, "failed", run.failed as f64);
            row.runs.push(run);
        }
    }
    let table = table(&rows);
    bench.report.say(&table.to_string());
    for row in rows.iter().filter(|row| row.server_share() < LIMITED_SHARE) {
        bench.report.say(&format!(
            "WARNING {}: the server used {:.0} % of its CPU: the client, the disk or other load on \
             the machine was the limit. Compare by CPU.",
            row.name,
            row.server_share() * 100.0
        ));
    }
    let commands = commands(&rows, bench.client, bench.scale.seconds)?;
    bench.report.say(&commands);
    Ok(())
}

/// Starts the servers of all rows, and writes all keys. A server that can't be started is reported
/// and left out.
fn start(bench: &mut Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, rival, method, like) in plan() {
        let server = bench.place.start(&rival).and_then(|server| {
            match rival {
                Rival::Kvorum(..) => client::fill(&server, HOT_KEYS, VALUE_LEN)?,
                Rival::Redis(_) => client::fill_redis(&server, HOT_KEYS)
                    .map_err(|error| format!("filling Redis: {error}"))?,
                Rival::Hyper | Rival::Nginx => {}
            }
            client::settle(&server);
            server.pause();
            Ok(server)
        });
        match server {
            Ok(server) => rows.push(Row { name, rival, method, like, server, runs: Vec::new() }),
            Err(why) => bench.report.say(&format!("Skipped {name}: {why}")),
        }
    }
    rows
}

fn table(rows: &[Row]) -> Table {
    let rates = |name: &str| rows.iter().find(|row| row.name == name).map(Row::rates);
    let over = |row: &Row, name: &str| {
        rates(name).and_then(|to| ratio(&row.rates(), &to)).map(|ratio| ratio.to_string())
    };
    let hello = rows.iter().find(|row| row.name == HELLO).map(Row::micros);
    let mut table = Table::new(&[
        "",
        "× hyper GET",
        "× hyper GET, by CPU",
        "× hyper, same method",
        "× Redis, like mode",
        "requests/s",
        "server CPU µs/request",
        "server CPU",
        "failed",
    ]);
    for row in rows {
        let same = if row.method == Method::Get { HELLO } else { HELLO_PUT };
        let spread = |figures: &[f64]| Spread::of(figures).map(|spread| spread.to_string());
        // The ratio of CPU times is inverted, because less CPU time is better.
        let by_cpu = hello.as_ref().and_then(|hello| ratio(hello, &row.micros()));
        table.row(vec![
            Some(row.name.clone()),
            over(row, HELLO),
            by_cpu.map(|ratio| ratio.to_string()),
            over(row, same),
            row.like.as_deref().and_then(|like| over(row, like)),
            spread(&row.rates()),
            spread(&row.micros()),
            Some(format!("{:.0} %", row.server_share() * 100.0)),
            Some(row.runs.iter().map(|run| run.failed).sum::<u64>().to_string()),
        ]);
    }
    table
}

/// Returns the command lines that were run.
fn commands(rows: &[Row], driver: Client, seconds: u64) -> Result<String, String> {
    let mut text = "Commands:\n\n".to_owned();
    for row in rows {
        let client = match row.rival {
            _ if driver == Client::Own && !matches!(row.rival, Rival::Redis(_)) => {
                text += &format!("* {}: `{}` with crates/load\n", row.name, row.server.argv);
                continue;
            }
            Rival::Redis(_) => {
                let requests = row.runs.last().map_or(0.0, |run| run.requests) as u64;
                client::redis_command(row.server.address, row.method, HOT_KEYS, requests)?
            }
            _ => client::wrk_command(row.server.address, row.method, HOT_KEYS, seconds)?,
        };
        text += &format!("* {}: `{}` with `{}`\n", row.name, row.server.argv, argv(&client));
    }
    Ok(text)
}
