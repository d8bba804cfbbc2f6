//! Memory of a node whose clients keep idle connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bench_table::{Server, Table};
use load::{Control, KeyOrder, Keys, Pace, Plan};

use crate::Bench;

const SECTION: &str = "idle";

/// Numbers of idle connections.
const COUNTS: [usize; 2] = [1_000, 5_000];

/// Memory budget. An eighth of it is for connections, enough slots for the greatest number.
const MEMORY: &str = "1500MiB";

/// Lengths in bytes of the values that a connection writes and reads. 0 = only GETs of absent keys.
const VALUES: [usize; 3] = [0, 64, 16 << 10];

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(
        "## Idle connections\n\nResident memory of a node (`/proc/PID/status`) for each connection \
         that is kept, KiB: what it grew by, at most. Each is used twice in six seconds: for GETs \
         of absent keys, or for GETs and PUTs of values of the given length.",
    );
    let mut table = Table::new(&["", "clear", "TLS", "TLS takes more"]);
    for connections in COUNTS {
        for value_len in VALUES {
            let mut each = [0.0; 2];
            for (secure, kib) in each.iter_mut().enumerate() {
                *kib = measure_growth(bench, connections, value_len, secure == 1)?;
                let name = format!("{connections} of {value_len} bytes, {secure}");
                bench.report.figure(SECTION, &name, 0, "kib", *kib);
            }
            let what =
                if value_len == 0 { "no value".into() } else { format!("{value_len} bytes") };
            table.row(vec![
                Some(format!("{connections} connections, {what}")),
                Some(format!("{:.1}", each[0])),
                Some(format!("{:.1}", each[1])),
                Some(format!("{:.1}", each[1] - each[0])),
            ]);
        }
    }
    bench.report.say(&table.to_string());
    Ok(())
}

/// Measures the growth of the node's resident memory per connection, in KiB: from before the
/// connections open, to the greatest memory while each connection is used twice.
fn measure_growth(
    bench: &mut Bench,
    connections: usize,
    value_len: usize,
    secure: bool,
) -> Result<f64, String> {
    let more = ["--memory", MEMORY];
    let node = bench.place.nodes(1, secure, &more)?.remove(0);
    let keys = Keys { order: KeyOrder::Sequential, count: 1_000, len: 16 };
    let target = bench.place.target(&node, secure);
    // These requests precede the first reading of the memory, so that it includes the memory of
    // values.
    let mut first = Plan { limit: 5_000, keys, value_len, ..Plan::new(target.clone()) };
    first.put_percent = if value_len == 0 { 0 } else { 50 };
    first.duration = Duration::from_secs(60);
    load::run(&first).map_err(|error| error.to_string())?;
    let before = resident(&node);
    // Each connection is used twice, three seconds apart.
    let plan = Plan {
        connections,
        pace: Pace::Open(connections as f64 / 3.0),
        duration: Duration::from_secs(6),
        limit: u64::MAX,
        ..first
    };
    let most = AtomicU64::new(0);
    let control = Control::default().on_interval(|_| {
        most.fetch_max(resident(&node), Ordering::Relaxed);
    });
    let outcome = load::run_under(&plan, &mut [], &control).map_err(|error| error.to_string())?;
    drop(control);
    if outcome.answer_count() < connections as u64 {
        return Err(format!("not all connections were used:\n{outcome}"));
    }
    Ok(most.into_inner().saturating_sub(before) as f64 / connections as f64 / 1024.0)
}

fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let line = |text: &String| {
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    status.ok().as_ref().and_then(line).unwrap_or(0) * 1024
}
