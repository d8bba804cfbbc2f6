//! The requests of a series, as a plan without rate and duration.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use super::{Error, TrialFigures, TrialParams};
use crate::cli::servers::Servers;
use crate::cli::{CheckedArgs, RequestArgs, profile, run_record};
use crate::control::Control;
use crate::outcome::Outcome;
use crate::plan::{Pace, Plan, Requests};
use crate::print::{self, Printed};
use crate::record::Run;
use crate::rundir::RunDir;
use crate::script::{Script, Scripts};
use crate::server::Endpoint;
use crate::server_profile::ServerProfile;
use crate::tally::Latencies;
use crate::warning::RunWarning;

/// Time limit of the preparation.
const PREPARE_LIMIT: Duration = Duration::from_secs(3600);

/// The requests of a series.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// Name as given: a mix, or a script's file.
    pub(crate) name: String,
    checked: CheckedArgs,
}

impl Workload {
    /// Creates the workload of `args`, and resolves its addresses.
    pub(crate) fn new(args: &RequestArgs, known: &ServerProfile) -> Result<Self, Error> {
        let mut checked = args.check(known)?;
        checked.resolve()?;
        let script = args.script.as_ref().map(|file| file.display().to_string());
        let name = script.or_else(|| args.mix.clone()).unwrap_or_else(|| checked.requests.clone());
        Ok(Self { name, checked })
    }

    /// Returns the endpoints of all servers.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let of_targets = self.checked.plan.targets.iter().flat_map(|target| {
            target.addresses.iter().map(move |address| target.endpoint(*address))
        });
        let mut endpoints: Vec<Endpoint> = of_targets.collect();
        endpoints.sort_unstable_by_key(|endpoint| endpoint.address);
        endpoints.dedup_by_key(|endpoint| endpoint.address);
        endpoints
    }

    /// Returns the number of connections to all servers.
    pub(crate) fn connections(&self) -> usize {
        self.checked.plan.all_connections()
    }

    /// Returns the number of different keys of the plan. A script does not use them.
    pub(super) fn key_count(&self) -> u64 {
        self.checked.plan.keys.count
    }

    /// Sends the requests of a trial, and stores the run in `dir`.
    pub(crate) fn send(
        &self,
        params: &TrialParams<'_>,
        dir: &Path,
        known: &ServerProfile,
        stop: &Arc<AtomicBool>,
    ) -> Result<Outcome, Error> {
        let started = SystemTime::now();
        let checked = CheckedArgs { plan: self.plan(params), ..self.checked.clone() };
        let plan = &checked.plan;
        let servers = Servers::snapshot(known, &plan.targets);
        let mut kept = RunDir::create(dir, started, &servers.columns())?;
        let mut run = run_record::create_run(&checked, known, started);
        run.plan.warmup_s = params.warmup.as_secs_f64();
        let recordings =
            profile::start(known, &plan.targets, params.profile, Duration::ZERO, params.duration);
        let sent = {
            let control = Control::new(Arc::clone(stop));
            let control = control
                .on_interval(|interval| kept.add_second(interval, &servers.take_scraped_values()));
            self.run(plan, &control)
        };
        let outcome = match sent {
            Ok(outcome) => outcome,
            Err(error) => {
                kept.discard();
                return Err(error);
            }
        };
        run_record::fill(&mut run, &outcome);
        run.servers = servers.finish();
        let recordings = recordings.map(|all| all.finish(outcome.interrupted));
        profile::keep(&mut run, Some(&mut kept), recordings.unwrap_or_default());
        if let Some(file) = self.checked.sources.first().and_then(|source| source.file.as_ref()) {
            // The script was readable a moment ago. A failed copy must not end the series.
            if std::fs::read(file).is_ok_and(|text| kept.file("script.lua", &text).is_ok()) {
                run.plan.script = "script.lua".to_owned();
            }
        }
        let text = text(&run, &outcome);
        kept.finish(&run, &text)?;
        Ok(outcome)
    }

    /// Sends the requests without storing a run.
    pub(crate) fn rehearse(
        &self,
        params: &TrialParams<'_>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), Error> {
        self.run(&self.plan(params), &Control::new(Arc::clone(stop))).map(drop)
    }

    /// Sends `requests` requests in a closed loop. Returns an error unless all of them succeed.
    pub(crate) fn prepare(&self, requests: u64, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        let (pace, duration) = (Pace::Closed, PREPARE_LIMIT);
        let plan = Plan { pace, duration, limit: requests, ..self.checked.plan.clone() };
        let outcome = self.run(&plan, &Control::new(Arc::clone(stop)))?;
        let done = outcome.tally.statuses.success();
        if done < requests && !outcome.interrupted {
            return Err(Error::Prepare(format!(
                "{done} of {requests} requests ({}) were done: of the answers {} were no 2xx, and \
                 {} requests were lost",
                self.name,
                outcome.answer_count() - done,
                outcome.tally.errors.read + outcome.tally.errors.write
            )));
        }
        Ok(())
    }

    fn plan(&self, params: &TrialParams<'_>) -> Plan {
        let pace = params.rate.map_or(Pace::Closed, |rate| Pace::Open(rate as f64));
        Plan { pace, duration: params.duration, ..self.checked.plan.clone() }
    }

    /// Runs the plan. Loads scripts anew for each run. Does not call a script's `done`, which
    /// prints for people.
    fn run(&self, plan: &Plan, control: &Control<'_>) -> Result<Outcome, Error> {
        let mut scripts = match plan.requests {
            Requests::Script => Some(Scripts::load(&self.checked.sources, plan.threads)?),
            Requests::Keys | Requests::Custom(_) => None,
        };
        let threads: &mut [Script] = scripts.as_mut().map(Scripts::threads).unwrap_or_default();
        Ok(crate::run_under(plan, threads, control)?)
    }

    pub(crate) fn figures(&self, outcome: &Outcome) -> TrialFigures {
        let Latencies { intended, written, late } = outcome.all_methods();
        let failed = &outcome.tally.errors;
        let backlog = outcome.warnings().into_iter().find_map(|warning| match warning {
            RunWarning::BacklogGrowing { backlog, .. } => Some(backlog),
            _ => None,
        });
        let refused = outcome.tally.statuses.refusals();
        let (redirects, words) = redirects(outcome);
        let busiest = outcome.busy.iter().copied().fold(0.0, f64::max);
        let together = outcome.busy.iter().sum::<f64>() / outcome.cpus as f64;
        TrialFigures {
            planned: outcome.planned,
            in_time: outcome.tally.in_time,
            throughput: outcome.throughput(),
            errors: refused + redirects + failed.count_lost(),
            redirects: words,
            intended,
            written,
            late,
            backlog,
            client_busy: busiest.max(together),
            client_cpus: outcome.client_cpu.as_secs_f64() / outcome.elapsed.as_secs_f64().max(1e-9),
            interrupted: outcome.interrupted,
            ..self.nothing()
        }
    }

    /// Returns the figures of a trial that did not take place.
    pub(crate) fn nothing(&self) -> TrialFigures {
        let Latencies { intended, written, late } = Latencies::new();
        TrialFigures {
            planned: 0,
            in_time: 0,
            throughput: 0.0,
            errors: 0,
            redirects: String::new(),
            intended,
            written,
            late,
            connections: self.connections(),
            backlog: None,
            client_busy: 0.0,
            client_cpus: 0.0,
            servers: Vec::new(),
            metrics: Vec::new(),
            died: None,
            interrupted: false,
        }
    }
}

/// Counts and describes redirects. A redirect only names another URL, so the request was not
/// carried out.
fn redirects(outcome: &Outcome) -> (u64, String) {
    let of_status = outcome.tally.statuses.by_status().into_iter();
    let redirects = of_status.filter(|(status, _)| (300..400).contains(status) && *status != 304);
    let redirects: Vec<(u16, u64)> = redirects.collect();
    let count = redirects.iter().map(|(_, count)| count).sum::<u64>();
    let most = redirects.iter().max_by_key(|(_, count)| *count);
    let words = most.map(|(status, _)| {
        let share = count as f64 / outcome.answer_count() as f64 * 100.0;
        format!("{share:.0} % of the answers were redirects ({status})")
    });
    (count, words.unwrap_or_default())
}

/// Formats the figures as wrk2 does.
fn text(run: &Run, outcome: &Outcome) -> String {
    let latencies = outcome.all_methods();
    let printed = Printed {
        run,
        intended: &latencies.intended,
        written: &latencies.written,
        rates: &outcome.thread_rates,
        detail: true,
        uncorrected: false,
    };
    format!("{}{printed}", print::header(run))
}
