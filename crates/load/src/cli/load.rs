//! The command `load`: runs a plan and reports its results.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use super::args::LoadArgs;
use super::check::CheckedArgs;
use super::profile::{self, Recording};
use super::progress::Progress;
use super::run_record::{self, ReportText};
use super::servers::Servers;
use super::sinks::Sinks;
use crate::cli;
use crate::control::Control;
use crate::error::Error;
use crate::interrupt::interrupt_flag;
use crate::outcome::Outcome;
use crate::plan::{Plan, Requests};
use crate::print;
use crate::record::Run;
use crate::run::run_under;
use crate::rundir::RunDir;
use crate::script::{Script, Scripts, Summary};
use crate::server_profile::ServerProfile;
use crate::tally::Tally;
use crate::warning::RunWarning;

/// End state of a run that has figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEnd {
    /// The run ended as planned.
    Fine,
    /// The run has a warning or a failed request, and `--strict` was given.
    Warned,
    /// Ctrl-C interrupted the run.
    Interrupted,
    /// The exit code that the script's `done` chose, which is not 0.
    Script(u8),
}

/// The reason for a failed run, as one readable line.
#[derive(Debug)]
pub enum LoadFailure {
    /// The command line is invalid.
    Usage(cli::Error),
    /// The run failed for any other reason.
    Run(String),
}

impl<E: std::error::Error> From<E> for LoadFailure {
    fn from(error: E) -> Self {
        Self::Run(error.to_string())
    }
}

/// Runs the plan that `args` describes, and prints the results.
pub fn load(args: &LoadArgs, known: &ServerProfile) -> Result<LoadEnd, LoadFailure> {
    let mut checked = args.check(known).map_err(LoadFailure::Usage)?;
    checked.resolve()?;
    let mut out = FigureOutput::open(args.json)?;
    let mut scripts = scripts(&checked)?;
    let stop = interrupt_flag()?;
    let started = SystemTime::now();
    let servers = Servers::snapshot(known, &checked.plan.targets);
    let mut sinks = Sinks::open(args, started, &servers.columns())?;
    let mut run = run_record::create_run(&checked, known, started);
    if !args.json {
        out.say(&print::header(&run))?;
    }
    let work = LoadContext { args, known, plan: &checked.plan, servers: &servers };
    let of_threads = scripts.as_mut().map(Scripts::threads).unwrap_or_default();
    let (outcome, recordings) = match work.carry_out(of_threads, &mut sinks, stop) {
        Ok(done) => done,
        Err(error) => {
            sinks.dir.into_iter().for_each(RunDir::discard);
            return Err(error.into());
        }
    };
    run_record::fill(&mut run, &outcome);
    if args.is_detailed() {
        warn_of_few_samples(&mut run, &outcome);
    }
    run.servers = servers.finish();
    profile::keep(&mut run, sinks.dir.as_mut(), recordings);
    let write_error = report(args, &checked, &mut run, &outcome, sinks, &mut out)?;
    let said = scripts.as_mut().map(|scripts| run_done(scripts, &outcome)).transpose()?.flatten();
    match write_error {
        Some(line) => Err(LoadFailure::Run(line)),
        None if said.is_some_and(|code| code > 0) => Ok(LoadEnd::Script(said.unwrap_or_default())),
        None if outcome.interrupted => Ok(LoadEnd::Interrupted),
        None if args.strict && has_warning_or_failure(&run) => Ok(LoadEnd::Warned),
        None => Ok(LoadEnd::Fine),
    }
}

/// Returns true if a run fails under `--strict`. A few failed requests cause no warning, because
/// they hardly change the figures.
fn has_warning_or_failure(run: &Run) -> bool {
    !run.warnings.is_empty() || run.error_share().is_some_and(|share| share > 0.0)
}

/// Loads the scripts, if there are any.
fn scripts(checked: &CheckedArgs) -> Result<Option<Scripts>, LoadFailure> {
    if !matches!(checked.plan.requests, Requests::Script) {
        return Ok(None);
    }
    let scripts = Scripts::load(&checked.sources, checked.plan.threads)?;
    Ok(Some(scripts))
}

/// Context of a run while requests are sent.
struct LoadContext<'a> {
    args: &'a LoadArgs,
    known: &'a ServerProfile,
    plan: &'a Plan,
    servers: &'a Servers,
}

impl LoadContext<'_> {
    fn carry_out(
        &self,
        scripts: &mut [Script],
        sinks: &mut Sinks,
        stop: Arc<AtomicBool>,
    ) -> Result<(Outcome, Vec<Recording>), Error> {
        let Plan { targets, warmup, duration, .. } = self.plan;
        let progress = Progress::start(*warmup, *duration);
        let events = &self.args.profile;
        let recordings = profile::start(self.known, targets, events, *warmup, *duration);
        let control = Control::new(stop).on_begin(|| progress.show_begin());
        let control = control.on_interval(|interval| {
            progress.add_second(interval);
            sinks.add_second(interval, &self.servers.take_scraped_values());
        });
        let outcome = run_under(self.plan, scripts, &control);
        drop(control);
        progress.finish();
        let outcome = outcome?;
        let finish = |recordings: profile::Recordings| recordings.finish(outcome.interrupted);
        let recordings = recordings.map(finish).unwrap_or_default();
        Ok((outcome, recordings))
    }
}

/// Writes the remaining files and prints the figures. Returns the message of the first failed
/// write, or `None`.
fn report(
    args: &LoadArgs,
    checked: &CheckedArgs,
    run: &mut Run,
    outcome: &Outcome,
    mut sinks: Sinks,
    out: &mut FigureOutput,
) -> Result<Option<String>, LoadFailure> {
    let mut write_error = sinks.first_error();
    let mut note = |error: crate::rundir::Error| {
        write_error.get_or_insert(format!("{error}; the figures are complete"));
    };
    if let (Some(dir), Some(file)) = (&mut sinks.dir, &args.request.script) {
        let copied = std::fs::read(file).map(|text| dir.file("script.lua", &text));
        if let Ok(Err(error)) = copied {
            note(error);
        }
        run.plan.script = "script.lua".to_owned();
    }
    let all = ReportText { run, args, tally: &outcome.tally, rates: &outcome.thread_rates };
    let text = all.to_string();
    let header = print::header(run);
    let each: Vec<(String, Run, String)> = run_record::by_target(args, run, outcome, checked);
    // The files come first: standard output may be closed, and the run cannot be repeated.
    if let Some(mut dir) = sinks.dir {
        for (name, run, text) in &each {
            let json = serde_json::to_vec_pretty(run).expect("all of it is plain data");
            let written = dir.file(&format!("{name}/output.txt"), text.as_bytes());
            let written = written.and_then(|()| dir.file(&format!("{name}/run.json"), &json));
            written.unwrap_or_else(&mut note);
        }
        dir.finish(run, &format!("{header}{text}")).unwrap_or_else(&mut note);
    }
    if args.json {
        let mut all = serde_json::to_value(&*run).expect("all of it is plain data");
        if !each.is_empty() {
            let targets: Vec<&Run> = each.iter().map(|(_, of, _)| of).collect();
            all["targets"] = serde_json::to_value(targets).expect("all of it is plain data");
        }
        out.say(&format!("{all:#}\n"))?;
    } else {
        out.say(&text)?;
        each.iter().try_for_each(|(_, _, text)| out.say(&format!("\n{text}")))?;
    }
    Ok(write_error)
}

/// Output stream of the figures.
struct FigureOutput(Box<dyn Write>);

impl FigureOutput {
    /// Opens standard output. With `alone`, redirects all other output to stdout, such as that of
    /// scripts, to stderr.
    fn open(alone: bool) -> Result<Self, LoadFailure> {
        if !alone {
            return Ok(Self(Box::new(io::stdout())));
        }
        let failed = |cause: rustix::io::Errno| LoadFailure::Run(format!("stdout: {cause}"));
        let out = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 0).map_err(failed)?;
        rustix::stdio::dup2_stdout(io::stderr()).map_err(failed)?;
        Ok(Self(Box::new(File::from(out))))
    }

    fn say(&mut self, text: &str) -> Result<(), LoadFailure> {
        let said = self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush());
        said.map_err(|cause| LoadFailure::Run(format!("stdout: {cause}")))
    }
}

/// Adds a warning if any percentile of the detailed output has too few samples.
/// [`Outcome::warnings`] checks only the usual percentile.
fn warn_of_few_samples(run: &mut Run, outcome: &Outcome) {
    let printed = print::PERCENTILES.map(|percent| percent / 100.0);
    let below_all = printed.split_last().map_or(&[][..], |(_, rest)| rest);
    let few = RunWarning::few_samples_of_any(below_all, outcome.all_methods().intended.len());
    if let Some(few) = few.as_ref().map(RunWarning::record)
        && !(outcome.interrupted && outcome.planned == 0)
    {
        let usual = run.warnings.iter_mut().find(|warning| warning.code == few.code);
        match usual {
            Some(usual) => *usual = few,
            None => run.warnings.push(few),
        }
    }
}

/// Runs the script's `done`, if it has one.
fn run_done(scripts: &mut Scripts, outcome: &Outcome) -> Result<Option<u8>, crate::script::Error> {
    let Tally { errors, statuses, bytes, .. } = &outcome.tally;
    scripts.run_done(&Summary {
        duration: outcome.elapsed,
        requests: outcome.answer_count(),
        bytes: *bytes,
        connect: errors.connect,
        read: errors.read,
        write: errors.write,
        status: statuses.between(400, 999),
        timeout: errors.timeout,
        latency: &outcome.all_methods().intended,
        requests_per_second: &outcome.thread_rates,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Counts;

    /// So few failures cause no warning.
    #[test]
    fn one_failed_request_of_thousands_fails_a_strict_run() {
        let run = |refused| Run {
            counts: Counts { planned: 6000, answered: 6000, refused, ..Counts::default() },
            ..Run::default()
        };
        assert!(!has_warning_or_failure(&run(0)));
        assert!(has_warning_or_failure(&run(1)));
    }
}
