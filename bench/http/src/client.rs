//! Runs the clients of closed loops (wrk, `crates/load` or redis-benchmark), and writes all keys
//! before a measurement.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use load::{KeyOrder, Keys, Pace, Plan, Target};

use crate::process::{CLIENT_CPU, Server, argv, find, pinned_command};

/// Number of connections of every closed-loop row.
pub(crate) const CONNECTIONS: usize = 64;

/// Length of a key in bytes: `k` and 15 digits for HTTP, `key:` and 12 digits for Redis.
pub(crate) const KEY_LEN: usize = 16;

/// Length of a value in bytes.
pub(crate) const VALUE_LEN: usize = 64;

/// Number of requests of a trial run, which measures the rate of Redis. The rate determines the
/// number of requests of the measured run, because redis-benchmark accepts no duration.
const REDIS_TRIAL: u64 = 50_000;

/// Number of `SET`s that are sent to Redis before the first of their answers is read.
const REDIS_PIPELINE: u64 = 1000;

/// Time limit for filling a store.
const FILL_TIMEOUT: Duration = Duration::from_secs(3600);

/// The figures of one closed-loop run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time of the server, in microseconds per request.
    pub(crate) server_micros: f64,
    /// Share of a CPU that the server used. If the share is well below one, the server was not the
    /// bottleneck.
    pub(crate) server_share: f64,
    /// Number of failed requests: those with an answer other than 2xx or with a socket error.
    /// Always 0 for Redis.
    pub(crate) failed: u64,
    /// Number of requests in the run.
    pub(crate) requests: f64,
}

/// The program that runs a closed loop over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Client {
    /// What everybody knows; with a script it takes about as much CPU as a hello-world.
    Wrk,
    /// `crates/load`, some 30 % cheaper: keeps even hello-world the limit.
    Own,
}

impl Client {
    /// Runs a closed loop against a server.
    pub(crate) fn run(
        self,
        server: &Server,
        method: Method,
        keys: u64,
        seconds: u64,
    ) -> Result<Run, String> {
        match self {
            Self::Wrk => wrk(server, method, keys, seconds),
            Self::Own => own(server, method, keys, seconds),
        }
    }
}

/// The method of a closed loop over HTTP, or the corresponding command of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// wrk runs `get.lua`.
    Get,
    /// wrk runs `put.lua`.
    Put,
}

impl Method {
    fn script(self) -> PathBuf {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.join(match self {
            Self::Get => "get.lua",
            Self::Put => "put.lua",
        })
    }

    fn redis(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "set",
        }
    }
}

/// Returns the command of wrk, pinned to the client's CPU.
pub(crate) fn wrk_command(
    address: SocketAddr,
    method: Method,
    keys: u64,
    seconds: u64,
) -> Result<Command, String> {
    let mut command = pinned_command(CLIENT_CPU, find("wrk", "wrk")?);
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), "-s"]);
    command.arg(method.script()).arg(format!("http://{address}"));
    command.args(["--", &keys.to_string()]);
    Ok(command)
}

/// Returns the target of requests to a server: a URL with a placeholder for the key.
pub(crate) fn target(server: &Server) -> Target {
    Target::new(server.address, "/v0/entity?id={key}")
}

fn own(server: &Server, method: Method, keys: u64, seconds: u64) -> Result<Run, String> {
    let plan = Plan {
        connections: CONNECTIONS,
        duration: Duration::from_secs(seconds),
        put_percent: if method == Method::Put { 100 } else { 0 },
        keys: Keys { order: KeyOrder::Uniform, count: keys, len: KEY_LEN },
        value_len: VALUE_LEN,
        ..Plan::new(target(server))
    };
    let cpu = server.cpu();
    let outcome = load::run(&plan).map_err(|error| error.to_string())?;
    let cpu = server.cpu() - cpu;
    let requests = outcome.answer_count() as f64;
    Ok(Run {
        rate: outcome.throughput(),
        server_micros: cpu * 1e6 / requests,
        server_share: cpu / outcome.elapsed.as_secs_f64(),
        failed: outcome.planned - outcome.tally.statuses.success(),
        requests,
    })
}

/// Runs wrk against a server.
pub(crate) fn wrk(server: &Server, method: Method, keys: u64, seconds: u64) -> Result<Run, String> {
    let command = wrk_command(server.address, method, keys, seconds)?;
    let cpu = server.cpu();
    let text = output(command)?;
    let cpu = server.cpu() - cpu;
    let (requests, elapsed) = wrk_requests_and_seconds(&text)
        .ok_or_else(|| format!("wrk printed no figures:\n{text}"))?;
    Ok(Run {
        rate: requests / elapsed,
        server_micros: cpu * 1e6 / requests,
        server_share: cpu / elapsed,
        failed: wrk_failures(&text),
        requests,
    })
}

/// Parses the number of requests and the seconds from a line like `  53081 requests in 3.00s,
/// 5.20MB read`.
pub(crate) fn wrk_requests_and_seconds(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find(|line| line.contains(" requests in "))?;
    let (requests, rest) = line.trim().split_once(" requests in ")?;
    let time = rest.split(',').next()?;
    let unit = time.find(|c: char| c.is_ascii_alphabetic())?;
    let scale = match &time[unit..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Some((requests.parse().ok()?, time[..unit].parse::<f64>().ok()? * scale))
}

fn wrk_failures(text: &str) -> u64 {
    let numbers = |line: &str| -> u64 {
        line.split(|c: char| !c.is_ascii_digit()).flat_map(str::parse::<u64>).sum()
    };
    text.lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("Non-2xx or 3xx responses:")
                .or_else(|| line.trim().strip_prefix("Socket errors:"))
        })
        .map(numbers)
        .sum()
}

/// Runs redis-benchmark for about `seconds`, after a trial run.
pub(crate) fn redis(
    server: &Server,
    method: Method,
    keys: u64,
    seconds: u64,
) -> Result<Run, String> {
    let trial = redis_rate(server, method, keys, REDIS_TRIAL)?;
    let requests = (trial * seconds as f64).max(1000.0).round();
    let cpu = server.cpu();
    let rate = redis_rate(server, method, keys, requests as u64)?;
    let cpu = server.cpu() - cpu;
    Ok(Run {
        rate,
        server_micros: cpu * 1e6 / requests,
        server_share: cpu / (requests / rate),
        failed: 0,
        requests,
    })
}

pub(crate) fn redis_command(
    address: SocketAddr,
    method: Method,
    keys: u64,
    requests: u64,
) -> Result<Command, String> {
    let mut command = pinned_command(CLIENT_CPU, find("redis-benchmark", "redis-tools")?);
    command.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
    command.args(["-c", &CONNECTIONS.to_string(), "-n", &requests.to_string()]);
    command.args(["-r", &keys.to_string(), "-d", &VALUE_LEN.to_string()]);
    command.args(["-t", method.redis(), "--csv"]);
    Ok(command)
}

fn redis_rate(server: &Server, method: Method, keys: u64, requests: u64) -> Result<f64, String> {
    let text = output(redis_command(server.address, method, keys, requests)?)?;
    // The line of the method is like "SET","107000.00",…, and the first line has headings.
    text.lines()
        .find_map(|line| {
            let mut cells = line.split(',').map(|cell| cell.trim_matches('"'));
            let name = cells.next()?;
            name.eq_ignore_ascii_case(method.redis()).then(|| cells.next()?.parse().ok())?
        })
        .ok_or_else(|| format!("redis-benchmark printed no figures:\n{text}"))
}

/// Runs a client to its end, and returns its output.
pub(crate) fn output(mut command: Command) -> Result<String, String> {
    let line = argv(&command);
    let output = command.output().map_err(|error| format!("`{line}`: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{line}` ended with {}: {text}{errors}", output.status))
    }
}

/// Writes all keys, each once.
pub(crate) fn fill(server: &Server, keys: u64, value_len: usize) -> Result<(), String> {
    let plan = Plan {
        connections: CONNECTIONS,
        pace: Pace::Closed,
        duration: FILL_TIMEOUT,
        limit: keys,
        put_percent: 100,
        keys: Keys { order: KeyOrder::Scattered, count: keys, len: KEY_LEN },
        value_len,
        ..Plan::new(target(server))
    };
    let outcome = load::run(&plan).map_err(|error| error.to_string())?;
    if outcome.tally.statuses.success() == keys {
        Ok(())
    } else {
        Err(format!(
            "only {} of {keys} keys could be put:\n{outcome}",
            outcome.tally.statuses.success()
        ))
    }
}

/// Writes all keys, each once, under the names that redis-benchmark uses.
pub(crate) fn fill_redis(server: &Server, keys: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(server.address)?;
    let value = "v".repeat(VALUE_LEN);
    let mut answers = Vec::new();
    for first in (0..keys).step_by(REDIS_PIPELINE as usize) {
        let last = (first + REDIS_PIPELINE).min(keys);
        let mut requests = String::new();
        for number in first..last {
            let key = format!("key:{number:012}");
            requests.push_str(&format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE_LEN}\r\n{value}\r\n",
                key.len()
            ));
        }
        stream.write_all(requests.as_bytes())?;
        answers.resize("+OK\r\n".len() * (last - first) as usize, 0);
        stream.read_exact(&mut answers)?;
    }
    Ok(())
}

/// Waits until the server has used almost no CPU time for `QUIET`, but at most two minutes.
pub(crate) fn settle(server: &Server) {
    const QUIET: Duration = Duration::from_millis(500);
    const LIMIT: Duration = Duration::from_secs(120);
    let deadline = Instant::now() + LIMIT;
    let mut before = server.cpu();
    while Instant::now() < deadline {
        std::thread::sleep(QUIET);
        let now = server.cpu();
        // Timers of an idle server may use two clock ticks of 10 ms. A flush or a compaction uses
        // far more.
        if now - before <= 0.021 {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::{wrk_failures, wrk_requests_and_seconds};

    #[test]
    fn requests_seconds_and_failures_are_parsed_from_wrk_output() {
        let text = "Running 3s test @ http://127.0.0.1:1\n  1 threads and 64 connections\n  \
                    53081 requests in 3.00s, 5.20MB read\n  \
                    Socket errors: connect 0, read 3, write 0, timeout 4\n  \
                    Non-2xx or 3xx responses: 10\nRequests/sec:  52936.16\n";
        assert_eq!(wrk_requests_and_seconds(text), Some((53081.0, 3.0)));
        assert_eq!(wrk_failures(text), 17);
        let last = wrk_requests_and_seconds("  7 requests in 1.50m, 1KB read");
        assert_eq!(last, Some((7.0, 90.0)));
        assert_eq!(wrk_requests_and_seconds("unable to connect"), None);
    }
}
