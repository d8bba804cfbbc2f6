//! Requests per core and CPU time per request of the load generator in a closed loop, beside wrk,
//! with and without Lua.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bench_table::{Server, Spread, Table, ratio};
use load::script::{Scripts, Source};
use load::url::Url;
use load::{Control, Plan, Requests, Target};

use crate::Bench;
use crate::place;

const SECTION: &str = "cost";

const CONNECTIONS: usize = 64;

/// Ticks of `/proc/PID/stat` per second: fixed for user space on Linux.
const TICKS: f64 = 100.0;

/// A row: its client and script, and the row to compare with.
struct Row {
    name: &'static str,
    wrk: bool,
    script: Option<PathBuf>,
    beside: usize,
    rates: Vec<f64>,
    micros: Vec<f64>,
}

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let server = place::hello(dir.path())?;
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("get.lua");
    let row = |name, wrk, script: Option<&PathBuf>, beside| {
        let script = script.cloned();
        Row { name, wrk, script, beside, rates: Vec::new(), micros: Vec::new() }
    };
    let mut rows = vec![
        row("wrk", true, None, 0),
        row("kvorum-bench load --closed", false, None, 0),
        row("wrk, Lua request()", true, Some(&lua), 2),
        row("kvorum-bench load --closed, Lua request()", false, Some(&lua), 2),
        row("wrk (again)", true, None, 0),
    ];
    for repeat in 0..bench.repeats {
        let forwards = (0..rows.len()).collect::<Vec<_>>();
        let order = if repeat % 2 == 0 { forwards } else { forwards.into_iter().rev().collect() };
        for index in order {
            let row = &mut rows[index];
            let before = cpu();
            let (requests, seconds) = measure(row, &server, bench.seconds)?;
            let micros = (cpu() - before) * 1e6 / requests;
            bench.report.figure(SECTION, row.name, repeat, "requests_per_s", requests / seconds);
            bench.report.figure(SECTION, row.name, repeat, "client_cpu_us", micros);
            row.rates.push(requests / seconds);
            row.micros.push(micros);
        }
    }
    bench.report.say(&format!(
        "## Cost\n\nClosed loop on {CONNECTIONS} connections, one thread, against hyper-hello. \
         Per core: requests for each second of the client's CPU time, which is what it could send \
         were the server never the limit."
    ));
    let mut table =
        Table::new(&["", "requests/s", "client CPU µs/request", "per core", "per core, × wrk"]);
    let per_core = |row: &Row| row.micros.iter().map(|micros| 1e6 / micros).collect::<Vec<_>>();
    for row in &rows {
        let own = per_core(row);
        let wrk = per_core(&rows[row.beside]);
        let cells = [&row.rates, &row.micros, &own];
        let mut line = vec![Some(row.name.to_owned())];
        line.extend(cells.map(|cell| Spread::of(cell).map(|spread| spread.to_string())));
        line.push(ratio(&own, &wrk).map(|spread| spread.to_string()));
        table.row(line);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

/// Runs one repeat of a row. Returns the number of requests, and the duration of the run in
/// seconds.
fn measure(row: &Row, server: &Server, seconds: u64) -> Result<(f64, f64), String> {
    if row.wrk { wrk(row, server, seconds) } else { own(row, server, seconds) }
}

fn own(row: &Row, server: &Server, seconds: u64) -> Result<(f64, f64), String> {
    let plan = Plan {
        connections: CONNECTIONS,
        duration: Duration::from_secs(seconds),
        requests: Requests::Script,
        ..Plan::new(Target::new(server.address, "/"))
    };
    let source = Source {
        file: row.script.clone(),
        url: Url::parse(&format!("http://{}", server.address)).map_err(|e| e.to_string())?,
        spread: Vec::new(),
        headers: Vec::new(),
        args: vec![format!("http://{}", server.address)],
        addresses: vec![server.address],
    };
    let mut scripts = Scripts::load(&[source], 1).map_err(|error| error.to_string())?;
    let outcome = load::run_under(&plan, scripts.threads(), &Control::default())
        .map_err(|error| error.to_string())?;
    Ok((outcome.answer_count() as f64, outcome.elapsed.as_secs_f64()))
}

fn wrk(row: &Row, server: &Server, seconds: u64) -> Result<(f64, f64), String> {
    let mut command = place::pinned_command(place::CLIENT_CPU, &place::wrk()?);
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s")]);
    if let Some(script) = &row.script {
        command.arg("-s").arg(script);
    }
    command.arg(format!("http://{}", server.address));
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("wrk: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let no_figures = || format!("wrk printed no figures:\n{text}");
    let line = text.lines().find(|line| line.contains(" requests in ")).ok_or_else(no_figures)?;
    let mut words = line.split_whitespace();
    let requests: f64 = words.next().and_then(|word| word.parse().ok()).ok_or_else(no_figures)?;
    let rate =
        text.lines().find_map(|line| line.strip_prefix("Requests/sec:")).ok_or_else(no_figures)?;
    let rate: f64 = rate.trim().parse().map_err(|_| no_figures())?;
    Ok((requests, requests / rate))
}

/// Returns the CPU time of this process and its reaped children, in seconds.
fn cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in brackets, may contain anything. The 12th to 15th fields after it are utime,
    // stime, cutime and cstime.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks: u64 = after.split_whitespace().skip(11).take(4).flat_map(str::parse::<u64>).sum();
    ticks as f64 / TICKS
}
