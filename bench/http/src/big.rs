//! `GET`s from a data set at least ten times the memory budget.

use bench_table::{Spread, Table, ratio};

use crate::Bench;
use crate::client::{self, KEY_LEN, Method, Run};
use crate::rivals::{Rival, SyncSetting};

const SECTION: &str = "big";

/// Length of a value in bytes. With the keys, ten million values are 1.34 GiB.
const BIG_VALUE_LEN: usize = 128;

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench, keys: u64, memory: &str) -> Result<(), String> {
    let data = keys * (KEY_LEN + BIG_VALUE_LEN) as u64;
    bench.report.say(&format!(
        "## GET over {keys} keys\n\n{:.2} GiB of keys and values of {BIG_VALUE_LEN} random bytes, \
         `--memory {memory}`; closed loop.",
        data as f64 / f64::from(1 << 30)
    ));
    let hyper = bench.place.start(&Rival::Hyper)?;
    let flags = vec!["--memory".to_owned(), memory.to_owned()];
    let kvorum = match bench.place.start(&Rival::Kvorum(SyncSetting::Interval, flags)) {
        Ok(kvorum) => kvorum,
        Err(why) => {
            bench.report.say(&format!("Skipped: {why}"));
            return Ok(());
        }
    };
    client::fill(&kvorum, keys, BIG_VALUE_LEN)?;
    client::settle(&kvorum);
    let (mut hello, mut ours): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
    for repeat in 0..bench.scale.repeats {
        kvorum.pause();
        let run = bench.client.run(&hyper, Method::Get, keys, bench.scale.seconds)?;
        bench.report.figure(SECTION, "hyper", repeat, "requests_per_second", run.rate);
        hello.push(run);
        kvorum.resume();
        let run = bench.client.run(&kvorum, Method::Get, keys, bench.scale.seconds)?;
        bench.report.figure(SECTION, "kvorum", repeat, "requests_per_second", run.rate);
        ours.push(run);
    }
    let rates = |runs: &[Run]| runs.iter().map(|run| run.rate).collect::<Vec<_>>();
    let mut table =
        Table::new(&["", "× hyper", "requests/s", "server CPU µs/request", "failed", "peak MiB"]);
    for (name, runs, server) in
        [("hyper hello, GET", &hello, &hyper), ("kvorum GET", &ours, &kvorum)]
    {
        let micros: Vec<f64> = runs.iter().map(|run| run.server_micros).collect();
        table.row(vec![
            Some(name.to_owned()),
            ratio(&rates(runs), &rates(&hello)).map(|s| s.to_string()),
            Spread::of(&rates(runs)).map(|s| s.to_string()),
            Spread::of(&micros).map(|s| s.to_string()),
            Some(runs.iter().map(|run| run.failed).sum::<u64>().to_string()),
            Some((server.peak_memory() >> 20).to_string()),
        ]);
    }
    bench.report.say(&table.to_string());
    bench.report.say(&format!("Commands: `{}`", kvorum.argv));
    Ok(())
}
