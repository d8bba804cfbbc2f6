//! CPU time of a request by layer: `perf record` samples one run, and samples are summed by the
//! crate of the sampled function. Samples of an inlined function count for its caller.

use std::path::Path;
use std::process::Command;

use crate::client::{self, Method, wrk_command, wrk_requests_and_seconds};
use crate::process::{Server, find};

/// Samples per second.
const FREQUENCY: &str = "2999";

/// Layers in user space, each with the prefixes of its crates' names. Functions of all other crates
/// belong to the last of [`NAMES`].
const LAYERS: [(&str, &[&str]); 4] = [
    ("hyper, http", &["hyper", "http", "want"]),
    ("tokio, mio", &["tokio", "mio"]),
    ("kvorum", &["kvorum", "cluster"]),
    ("lsm", &["lsm", "lz4_flex", "quick_cache", "xxhash", "crossbeam"]),
];

/// Names of all layers, which are the columns of the table.
pub(crate) const NAMES: [&str; 6] =
    ["kernel", "hyper, http", "tokio, mio", "kvorum", "lsm", "libc, std, other"];

/// Measures the CPU time per request in each layer of [`NAMES`], in nanoseconds.
pub(crate) fn measure(
    server: &Server,
    method: Method,
    keys: u64,
    seconds: u64,
    dir: &Path,
) -> Result<[f64; 6], String> {
    let data = dir.join("samples");
    let wrk = wrk_command(server.address, method, keys, seconds)?;
    let mut record = Command::new(find("perf", "linux-perf")?);
    record.args(["record", "-q", "-F", FREQUENCY, "-p", &server.pid().to_string(), "-o"]);
    record.arg(&data).arg("--").arg(wrk.get_program()).args(wrk.get_args());
    let cpu = server.cpu();
    let text = client::output(record)?;
    let cpu = server.cpu() - cpu;
    let (requests, _) = wrk_requests_and_seconds(&text).ok_or("wrk printed no figures")?;
    let mut report = Command::new(find("perf", "linux-perf")?);
    report.args(["report", "--stdio", "--no-children", "-F", "overhead,sym", "-t", ";", "-i"]);
    report.arg(&data);
    Ok(shares(&client::output(report)?).map(|share| share * cpu * 1e9 / requests))
}

/// Sums the shares by layer, from lines like `1.65%;[.]
/// hyper::proto::h1::io::Buffered<T,B>::poll_flush`.
fn shares(report: &str) -> [f64; 6] {
    let mut shares = [0.0; 6];
    for line in report.lines() {
        let Some((percent, symbol)) = line.split_once(';') else { continue };
        let Ok(percent) = percent.trim().trim_end_matches('%').parse::<f64>() else { continue };
        shares[layer(symbol.trim())] += percent / 100.0;
    }
    shares
}

fn layer(symbol: &str) -> usize {
    let Some(name) = symbol.strip_prefix("[.]") else { return 0 };
    let name = name.trim().trim_start_matches(['<', '&', '(', '[', '*']).trim_start_matches("mut ");
    let known = LAYERS.iter().position(|(_, crates)| {
        crates.iter().any(|prefix| name.starts_with(prefix) && name.contains("::"))
    });
    known.map_or(NAMES.len() - 1, |layer| layer + 1)
}

#[cfg(test)]
mod tests {
    use super::{LAYERS, NAMES, shares};

    #[test]
    fn samples_are_added_up_by_crate() {
        let report = "# comment\n 50.00%;[k] tcp_ack\n 20.00%;[.] hyper::proto::h1::io::f\n 10.00%;\
                      [.] <tokio::io::AsyncFd as core::ops::Drop>::drop\n 5.00%;[.] lsm::db::get\n\
                      15.00%;[.] __libc_recv\n";
        assert_eq!(shares(report), [0.5, 0.2, 0.1, 0.0, 0.05, 0.15]);
        assert!(LAYERS.iter().zip(&NAMES[1..]).all(|(layer, name)| layer.0 == *name));
    }
}
