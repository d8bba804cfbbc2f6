//! System calls per request, and CPU time per request by layer. Separate runs measure these costs,
//! because counting slows the server.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bench_table::Table;

use crate::Bench;
use crate::client::{self, Method, VALUE_LEN, wrk_command, wrk_requests_and_seconds};
use crate::layers;
use crate::process::{Server, find};
use crate::rivals::{Rival, SyncSetting};

const SECTION: &str = "cost";

/// Number of different keys.
const KEYS: u64 = 200_000;

/// Number of system calls that the table lists, the most frequent ones.
const NAMED_CALLS: usize = 6;

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(
        "## Cost of a request\n\nSystem calls, \
         counted by `perf stat -e raw_syscalls:sys_enter` over one \
         run of wrk; which ones, by `strace -c -f` over another (which slows the server down, so \
         that more requests share a wake-up). Nanoseconds by layer: CPU time of the server, by the \
         crate of the function that `perf record` found it in.",
    );
    let mut table = Table::new(&["", "calls/request", "most frequent, per request (strace)"]);
    let mut columns = vec!["ns/request"];
    columns.extend(layers::NAMES);
    columns.push("all");
    let mut by_layer = Table::new(&columns);
    for (name, rival, method) in [
        ("hyper hello, GET", Rival::Hyper, Method::Get),
        ("kvorum GET", Rival::kvorum(SyncSetting::Interval), Method::Get),
        ("hyper hello, PUT", Rival::Hyper, Method::Put),
        ("kvorum PUT, never", Rival::kvorum(SyncSetting::Never), Method::Put),
        ("kvorum PUT, interval", Rival::kvorum(SyncSetting::Interval), Method::Put),
        ("kvorum PUT, always", Rival::kvorum(SyncSetting::Always), Method::Put),
    ] {
        let server = bench.place.start(&rival).and_then(|server| {
            if let Rival::Kvorum(..) = rival {
                client::fill(&server, KEYS, VALUE_LEN)?;
            }
            client::settle(&server);
            Ok(server)
        });
        let server = match server {
            Ok(server) => server,
            Err(why) => {
                bench.report.say(&format!("Skipped {name}: {why}"));
                continue;
            }
        };
        let log = bench.place.root.join("calls");
        let counted = count_system_calls(&server, method, bench.scale.seconds, &log);
        let frequent_calls = frequent_calls(&server, method, bench.scale.seconds, &log);
        let spent = layers::measure(&server, method, KEYS, bench.scale.seconds, &bench.place.root);
        by_layer.row(match spent {
            Ok(nanos) => {
                let mut line = vec![Some(name.to_owned())];
                line.extend(nanos.iter().map(|nanos| Some(format!("{nanos:.0}"))));
                line.push(Some(format!("{:.0}", nanos.iter().sum::<f64>())));
                for (layer, nanos) in layers::NAMES.iter().zip(nanos) {
                    let figure = format!("ns in {}", layer.replace(", ", " "));
                    bench.report.figure(SECTION, name, 0, &figure, nanos);
                }
                line
            }
            Err(why) => {
                bench.report.say(&format!("No samples of {name}: {why}"));
                vec![None; columns.len()]
            }
        });
        if let Ok(calls) = counted {
            bench.report.figure(SECTION, name, 0, "calls_per_request", calls);
        }
        table.row(vec![
            Some(name.to_owned()),
            Some(counted.map_or_else(|why| why, |calls| format!("{calls:.2}"))),
            Some(frequent_calls.unwrap_or_else(|why| why)),
        ]);
    }
    bench.report.say(&table.to_string());
    bench.report.say(&by_layer.to_string());
    Ok(())
}

/// Counts the system calls per request, with perf.
fn count_system_calls(
    server: &Server,
    method: Method,
    seconds: u64,
    log: &Path,
) -> Result<f64, String> {
    let wrk = wrk_command(server.address, method, KEYS, seconds)?;
    let mut perf = Command::new(find("perf", "linux-perf")?);
    perf.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &server.pid().to_string()]);
    perf.arg("-o").arg(log).arg("--").arg(wrk.get_program()).args(wrk.get_args());
    let text = client::output(perf)?;
    let (requests, _) = wrk_requests_and_seconds(&text).ok_or("wrk printed no figures")?;
    let counts = fs::read_to_string(log).map_err(|error| error.to_string())?;
    let calls: f64 = counts
        .lines()
        .find(|line| line.contains("raw_syscalls"))
        .and_then(|line| line.split(',').next()?.parse().ok())
        .ok_or("perf counted nothing")?;
    Ok(calls / requests)
}

/// Lists the most frequent system calls with their numbers per request, counted by strace.
fn frequent_calls(
    server: &Server,
    method: Method,
    seconds: u64,
    log: &Path,
) -> Result<String, String> {
    let wrk = wrk_command(server.address, method, KEYS, seconds)?;
    let strace = strace(server, log)?;
    let text = client::output(wrk);
    stop(strace)?;
    let (requests, _) = wrk_requests_and_seconds(&text?).ok_or("wrk printed no figures")?;
    let counts = fs::read_to_string(log).map_err(|error| error.to_string())?;
    // The columns are: % time, seconds, usecs/call, calls, [errors,] name.
    let mut calls: Vec<(f64, &str)> = counts
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, calls) = (*words.last()?, words.get(3)?.parse().ok()?);
            (name != "total").then_some((calls, name))
        })
        .collect();
    calls.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named = calls.iter().take(NAMED_CALLS);
    let named: Vec<String> =
        named.map(|(calls, name)| format!("{name} {:.3}", calls / requests)).collect();
    Ok(named.join(", "))
}

fn strace(server: &Server, log: &Path) -> Result<Child, String> {
    Command::new(find("strace", "strace")?)
        .args(["-c", "-f", "-p", &server.pid().to_string(), "-o"])
        .arg(log)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("strace: {error}"))
}

/// Interrupts strace, which then writes its table.
fn stop(mut strace: Child) -> Result<(), String> {
    if let Some(pid) = rustix::process::Pid::from_raw(strace.id().cast_signed()) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
    strace.wait().map(|_| ()).map_err(|error| format!("strace: {error}"))
}
