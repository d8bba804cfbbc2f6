//! Builds the report of a run: the contents of `run.json`, and the text for people.

use std::fmt;
use std::time::SystemTime;

use hdrhistogram::Histogram;

use super::args::LoadArgs;
use super::check::CheckedArgs;
use crate::machine::{machine, rfc3339};
use crate::outcome::{self, Outcome};
use crate::plan::{Arrival, Pace};
use crate::print::{self, Printed};
use crate::record::{FORMAT, PlanRecord, Run};
use crate::server_profile::ServerProfile;
use crate::tally::Tally;
use crate::warning::RunWarning;

/// Returns the part of the run's record that is known before the first request.
pub(crate) fn create_run(checked: &CheckedArgs, known: &ServerProfile, started: SystemTime) -> Run {
    let plan = &checked.plan;
    Run {
        format: FORMAT,
        source: "load".to_owned(),
        tool: known.tool.to_owned(),
        argv: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        started: rfc3339(started),
        machine: machine(),
        plan: PlanRecord {
            targets: checked.urls.iter().map(|url| url.text.clone()).collect(),
            copies: plan.copies(),
            threads: plan.threads,
            connections: plan.connections,
            rate: match plan.pace {
                Pace::Open(rate) => Some(rate),
                Pace::Closed => None,
            },
            closed: plan.pace == Pace::Closed,
            arrival: match plan.arrival {
                Arrival::Even => "even".to_owned(),
                Arrival::Poisson => "poisson".to_owned(),
            },
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.duration.as_secs_f64(),
            requests: checked.requests.clone(),
            script: String::new(),
            seed: plan.seed,
        },
        ..Run::default()
    }
}

/// Fills in the run's results.
pub(crate) fn fill(run: &mut Run, outcome: &Outcome) {
    run.interrupted = outcome.interrupted;
    run.elapsed_s = outcome.elapsed.as_secs_f64();
    run.throughput = Some(outcome.throughput());
    run.counts = outcome.counts();
    run.latency = outcome.latencies();
    run.backlog.clone_from(&outcome.backlog);
    run.client_cpu_s = outcome.client_cpu.as_secs_f64();
    run.warnings = outcome.warnings().iter().map(RunWarning::record).collect();
}

/// Returns one report for each target with its own rate and connections, otherwise none. A report
/// is a directory name, the run, and the text with its header.
pub(super) fn by_target(
    args: &LoadArgs,
    run: &Run,
    outcome: &Outcome,
    checked: &CheckedArgs,
) -> Vec<(String, Run, String)> {
    let rates = outcome.thread_rates_by_target.iter();
    let targets = outcome.by_target.iter().zip(&checked.urls).zip(rates);
    let each = targets.map(|(((name, tally), url), rates)| {
        let share = outcome.planned / outcome.by_target.len() as u64;
        let time = outcome.duration.min(outcome.elapsed).as_secs_f64();
        let mut of = run.clone();
        of.plan.targets = vec![url.text.clone()];
        of.plan.copies = 1;
        of.counts = outcome::counts(tally, share);
        of.latency = outcome::latencies(tally);
        let rate = if time > 0.0 { tally.in_time as f64 / time } else { 0.0 };
        of.throughput = Some(rate);
        of.servers.retain(|server| server.url == url.origin());
        of.profiles.clear();
        // Only the report of the whole run has the warnings.
        of.warnings.clear();
        of.backlog.clear();
        let reported = ReportText { run: &of, args, tally, rates };
        let text = format!("{}{reported}", print::header(&of));
        (name.replace(':', "-"), of, text)
    });
    each.collect()
}

/// The text below the header.
pub(super) struct ReportText<'a> {
    pub(super) run: &'a Run,
    pub(super) args: &'a LoadArgs,
    pub(super) tally: &'a Tally,
    pub(super) rates: &'a Histogram<u64>,
}

impl fmt::Display for ReportText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latencies = self.tally.all_latencies();
        let printed = Printed {
            run: self.run,
            intended: &latencies.intended,
            written: &latencies.written,
            rates: self.rates,
            detail: self.args.is_detailed(),
            uncorrected: self.args.u_latency,
        };
        printed.fmt(f)
    }
}
