//! The search for the highest rate: runs the trials that `decide` chooses, classifies each trial,
//! and prints a line for it.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::classify_step::{ClassifiedStep, classify};
use super::decide::{
    Bounds, History, Role, SearchBounds, SearchStep, StepVerdict, TrialResult, find_bounds, next,
};
use super::group_digits;
use super::limit::{DIED, Limit, limit};
use super::plot::{Dot, plot};
use super::recorded::commands;
use super::search_args::SearchArgs;
use super::slo::{Quantity, Slo, SloTime};
use super::sweep::SweepPoint;
use crate::ServerProfile;
use crate::record::{Finding, Trial, Warning};
use crate::trial::series::SeriesWriter;
use crate::trial::{
    Error, Preparation, ServerUnderTest, TrialFigures, TrialParams, Workload, print_progress,
    progress, run,
};

/// Factor by which a trial may be longer than usual, to get the samples that the objective needs.
const MAX_LENGTH_FACTOR: u32 = 10;

/// Factor on the needed number of samples, because requests in flight at the end yield no samples.
const SAMPLE_FACTOR: f64 = 1.05;

/// Highest share of errors in the first trial. With more errors, the search would measure the
/// refusals.
const ERRORS_LIMIT: f64 = 0.5;

/// Rates of the profiled trials, relative to the rate that passes: one below it, and one in
/// overload.
const PROFILED: [f64; 2] = [0.7, 1.05];

/// Maximum number of CPUs that other processes may use without a warning. The system's own work
/// uses some CPU time.
const OTHERS_LIMIT: f64 = 0.2;

/// Code of the warning about CPU use by other processes.
const OTHERS: &str = "other-processes";

/// Columns of a trial's line and its row in `curve.csv`.
const COLUMNS: &str = "search,trial,role,rate,seconds,answers_per_s,p50_ms,p99_ms,p99.9_ms,verdict";

/// One search with its context and results.
pub(super) struct Search<'a> {
    args: &'a SearchArgs,
    known: &'a ServerProfile,
    kept: &'a mut SeriesWriter,
    workload: &'a Workload,
    server: ServerUnderTest<'a>,
    preparation: Option<Preparation>,
    stop: &'a AtomicBool,
    label: String,
    slo: Slo,
    history: History,
    dots: Vec<Dot>,
    /// Figures of the last trial at each rate that did not pass. The limiting resource is derived
    /// from the figures of one rate.
    missed: BTreeMap<u64, TrialFigures>,
    /// The lowest rate tried, and the mean time at that rate from the write to the answer, in
    /// milliseconds.
    unloaded: Option<(u64, f64)>,
    /// Maximum number of CPUs that processes other than server and client used in a trial.
    others: f64,
    /// Cause of the server's death, for each trial in which the server died. `trial_count` is the
    /// number of all trials.
    died: Vec<String>,
    trial_count: usize,
    /// Directories of the trials in which the server recorded itself.
    recorded: Vec<String>,
}

/// A finished trial.
struct FinishedTrial {
    figures: TrialFigures,
    classified: Option<ClassifiedStep>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        args: &'a SearchArgs,
        known: &'a ServerProfile,
        stop: &'a Arc<AtomicBool>,
        kept: &'a mut SeriesWriter,
        workload: &'a Workload,
        point: &SweepPoint,
        label: String,
    ) -> Result<Self, Error> {
        let config = args.series.start_config(point.command.clone(), args.restart);
        Ok(Self {
            args,
            known,
            kept,
            workload,
            server: ServerUnderTest::new(known, workload.endpoints(), config, Arc::clone(stop)),
            preparation: args.series.preparation(args.prepare.as_ref(), known)?,
            stop,
            label,
            slo: args.objective(),
            history: History::default(),
            dots: Vec::new(),
            missed: BTreeMap::new(),
            unloaded: None,
            others: 0.0,
            died: Vec::new(),
            trial_count: 0,
            recorded: Vec::new(),
        })
    }

    /// Runs the search, then stores and prints the results, even after an interrupt.
    pub(super) fn run(mut self) -> Result<(), Error> {
        let bounds = self.args.bounds()?;
        self.say_head();
        let ended = self.search_rates(&bounds);
        let found = find_bounds(&bounds, &self.history);
        let begun = self.history.ceiling.is_some() || !self.history.tried.is_empty();
        if begun {
            self.say_found(&bounds, &found)?;
        }
        ended
    }

    fn search_rates(&mut self, bounds: &Bounds) -> Result<(), Error> {
        while !self.stop.load(Ordering::Relaxed) {
            match next(bounds, &self.history) {
                SearchStep::Ceiling => self.find_ceiling()?,
                SearchStep::Try { rate, role, full } => {
                    let over = self.trial(Some(rate), role, full)?;
                    let Some(classified) = over.classified else { break };
                    if self.history.ceiling.is_none() && self.history.tried.is_empty() {
                        check_first_answers(
                            &over.figures,
                            &format!("at {}/s", group_digits(rate)),
                        )?;
                    }
                    let verdict = classified.verdict;
                    self.history.tried.push(TrialResult { rate, full, verdict });
                }
                SearchStep::Done(found) => return self.record(&found),
            }
        }
        Ok(())
    }

    /// Runs two trials in which the server records a profile: one well below the rate that passes,
    /// and one just above it.
    fn record(&mut self, found: &SearchBounds) -> Result<(), Error> {
        let Some(passes) = found.passes.filter(|_| !self.args.series.profile.is_empty()) else {
            return Ok(());
        };
        let most = self.args.bounds()?.to.unwrap_or(u64::MAX);
        for share in PROFILED {
            let rate = (passes as f64 * share).round().max(1.0) as u64;
            let rate = rate.min(most);
            self.recorded.push(self.kept.next_dir(role_name(Role::Profile), Some(rate)));
            let over = self.trial(Some(rate), Role::Profile, true)?;
            if over.figures.interrupted {
                break;
            }
        }
        Ok(())
    }

    fn find_ceiling(&mut self) -> Result<(), Error> {
        let FinishedTrial { figures, .. } = self.trial(None, Role::Ceiling, false)?;
        if figures.interrupted {
            return Ok(());
        }
        if let Some(died) = &figures.died {
            return Err(Error::Usage(format!("in a closed loop the server died: {died}")));
        }
        check_first_answers(&figures, "in a closed loop")?;
        self.history.ceiling = Some((figures.throughput.round() as u64).max(1));
        Ok(())
    }

    /// Runs one trial on a ready server, then stores the result and prints it.
    fn trial(&mut self, rate: Option<u64>, role: Role, full: bool) -> Result<FinishedTrial, Error> {
        let waiting = progress(&format!("{} getting ready", role_name(role)), None);
        if let Some(note) = self.server.ready(self.preparation.as_ref())? {
            self.say(&format!("      note: {note}"));
        }
        waiting.finish_and_clear();
        let recorded = role == Role::Profile;
        let params = TrialParams {
            rate,
            warmup: self.args.warmup.0,
            duration: self.length(rate, full),
            profile: if recorded { &self.args.series.profile } else { &[] },
        };
        let name = role_name(role);
        let dir = self.kept.next_dir(name, rate);
        let said =
            rate.map_or("a closed loop".to_owned(), |rate| format!("{}/s", group_digits(rate)));
        let bar = progress(&format!("{name}: {said}"), Some(params.warmup + params.duration));
        let path = self.kept.dir().join(&dir);
        let figures = run(&mut self.server, self.workload, &params, &path)?;
        bar.finish_and_clear();
        let classified =
            rate.filter(|_| !figures.interrupted).map(|_| classify(&self.slo, &figures));
        let over = FinishedTrial { figures, classified };
        self.store_trial(&over, role, &params, dir)?;
        self.keep_figures(rate, &over);
        Ok(over)
    }

    /// Returns the length of a trial at this rate: long enough for the needed samples, up to
    /// [`MAX_LENGTH_FACTOR`] times the usual length.
    fn length(&self, rate: Option<u64>, full: bool) -> Duration {
        let usual = if full { self.args.duration.0 } else { self.args.duration.0 / 2 };
        let needed =
            rate.map_or(0.0, |rate| self.slo.samples() as f64 * SAMPLE_FACTOR / rate as f64);
        usual.max(Duration::from_secs_f64(needed)).min(self.args.duration.0 * MAX_LENGTH_FACTOR)
    }

    fn store_trial(
        &mut self,
        over: &FinishedTrial,
        role: Role,
        params: &TrialParams<'_>,
        dir: String,
    ) -> Result<(), Error> {
        let FinishedTrial { figures, classified } = over;
        let verdict = classified.as_ref().map_or("", |classified| verdict_name(classified.verdict));
        let why = classified.as_ref().map_or(String::new(), |classified| classified.why.clone());
        let why = if figures.interrupted { "ended early".to_owned() } else { why };
        self.say_trial(role, params, figures, verdict, &why);
        self.add_to_curve(role, params, figures, verdict)?;
        if let (Some(rate), Some(classified)) = (params.rate, classified) {
            let ms = figures.value(Quantity::Quantile(self.slo.quantile()));
            self.dots.push(Dot { rate, ms, verdict: classified.verdict });
        }
        self.kept.add_trial(Trial {
            dir,
            role: role_name(role).to_owned(),
            value: self.label.clone(),
            rate: params.rate.map(|rate| rate as f64),
            verdict: verdict.to_owned(),
            why,
        })
    }

    /// Keeps the figures for the limit, which is derived at the end.
    fn keep_figures(&mut self, rate: Option<u64>, over: &FinishedTrial) {
        self.others = self.others.max(over.figures.others_cpus().unwrap_or(0.0));
        self.trial_count += 1;
        self.died.extend(over.figures.died.clone());
        let (Some(rate), Some(classified)) = (rate, &over.classified) else { return };
        if classified.verdict != StepVerdict::Pass {
            self.missed.insert(rate, over.figures.clone());
        }
        if self.unloaded.is_none_or(|(lowest, _)| rate <= lowest) {
            self.unloaded = Some((rate, over.figures.answer_ms()));
        }
    }

    fn say(&self, line: &str) {
        print_progress(line, self.args.series.json);
    }

    fn say_head(&self) {
        let label = if self.label.is_empty() { self.workload.name.as_str() } else { &self.label };
        self.say(&format!(
            "\n{label}: {} on {} connections",
            self.slo,
            self.workload.connections()
        ));
        let high = Quantity::Quantile(self.slo.quantile()).to_string();
        self.say(&format!(
            "    # trial    requests/s    time  answers/s      p50 {high:>8}  verdict"
        ));
    }

    fn say_trial(
        &self,
        role: Role,
        params: &TrialParams<'_>,
        figures: &TrialFigures,
        verdict: &str,
        why: &str,
    ) {
        let number = self.kept.series().trials.len() + 1;
        let rate = params.rate.map_or("closed".to_owned(), group_digits);
        let seconds = format!("{:.1} s", params.duration.as_secs_f64());
        let answers = figures.is_run().then(|| group_digits(figures.throughput.round() as u64));
        let answers = answers.unwrap_or("-".to_owned());
        let at = |quantile| {
            let value = figures.value_if_answered(Quantity::Quantile(quantile));
            value.map_or("-".to_owned(), |ms| SloTime(ms).to_string())
        };
        let (p50, high) = (at(0.5), at(self.slo.quantile()));
        let name = role_name(role);
        let says = [verdict, why].into_iter().filter(|part| !part.is_empty());
        let says = says.collect::<Vec<_>>().join(": ");
        let line = format!(
            "{number:>5} {name:<8} {rate:>10} {seconds:>7} {answers:>10} {p50:>8} {high:>8}  {says}"
        );
        self.say(line.trim_end());
    }

    fn add_to_curve(
        &self,
        role: Role,
        params: &TrialParams<'_>,
        figures: &TrialFigures,
        verdict: &str,
    ) -> Result<(), Error> {
        let path = self.kept.dir().join("curve.csv");
        let label = self.label.replace('"', "\"\"");
        let (number, seconds) =
            (self.kept.series().trials.len() + 1, params.duration.as_secs_f64());
        let rate = params.rate.map_or(String::new(), |rate| rate.to_string());
        let (role, cells) = (role_name(role), cells(figures));
        let row = format!("\"{label}\",{number},{role},{rate},{seconds},{cells},{verdict}\n");
        let head = if path.exists() { String::new() } else { format!("{COLUMNS}\n") };
        let mut open = OpenOptions::new();
        let file = open.create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all((head + &row).as_bytes()))
            .map_err(Error::write(&path))
    }

    /// Returns the resource that limits the server at the lowest rate that did not pass.
    fn limit(&self, found: &SearchBounds) -> Option<Limit> {
        let missed = self.missed.get(&found.fails.or(found.unclear)?)?;
        let unloaded = self.unloaded.map_or(0.0, |(_, ms)| ms);
        let limit = limit(missed, self.known.write_stall_counters, unloaded);
        let deaths = describe_deaths(&self.died, self.trial_count).filter(|_| limit.what == DIED);
        Some(Limit { why: deaths.unwrap_or(limit.why), ..limit })
    }

    fn say_found(&mut self, bounds: &Bounds, found: &SearchBounds) -> Result<(), Error> {
        let name = Quantity::Quantile(self.slo.quantile()).to_string();
        self.say(&format!("\n{}", plot(&name, &self.dots, self.slo.limit_ms())));
        let limit = self.limit(found);
        let died = limit.as_ref().is_some_and(|limit| limit.what == DIED);
        let ceiling = self.history.ceiling;
        self.say(&describe(bounds, found, &self.slo, ceiling, died));
        if let Some(Limit { what, why }) = &limit {
            self.say(&format!("limit: {what}: {why}"));
        }
        if let Some(deaths) = describe_deaths(&self.died, self.trial_count).filter(|_| !died) {
            self.say(&format!("WARNING {deaths}"));
        }
        if let [below, above] = &self.recorded[..] {
            let commands = commands(self.known.profile_diff, self.kept.dir(), below, above);
            if !commands.is_empty() {
                self.say("what changes at the breaking point:");
            }
            for command in commands {
                self.say(&format!("  {command}"));
            }
        }
        let warnings = result_warnings(found, self.others);
        for warning in warnings.iter().filter(|warning| warning.code == OTHERS) {
            self.say(&format!("WARNING {}", warning.text));
        }
        if self.server.in_memory() {
            self.say("note: the data lie in memory, where nothing waits for a disk: --fresh DIR");
        }
        let limit = limit.unwrap_or(Limit { what: "", why: String::new() });
        self.kept.add_finding(Finding {
            value: self.label.clone(),
            passes: found.passes.map(|rate| rate as f64),
            fails: found.fails.map(|rate| rate as f64),
            ceiling: ceiling.map(|rate| rate as f64),
            limit: limit.what.to_owned(),
            why: limit.why,
            warnings,
        })
    }
}

/// Returns an error if the answers of the first trial are mostly errors, or if there are none.
fn check_first_answers(figures: &TrialFigures, how: &str) -> Result<(), Error> {
    let errors = figures.value(Quantity::Errors);
    if figures.died.is_none() && errors > ERRORS_LIMIT {
        return Err(Error::Usage(format!(
            "{how} {:.0} % of the requests were answered with errors{}, so there is nothing to \
             search for: are the URL and the data right (--prepare keys writes all keys)?",
            errors * 100.0,
            figures.format_redirects(" - ")
        )));
    }
    if figures.died.is_none() && figures.in_time == 0 {
        return Err(Error::Usage(format!("{how} nothing was answered")));
    }
    Ok(())
}

/// Returns warnings about the results, which are stored with them.
fn result_warnings(found: &SearchBounds, others: f64) -> Vec<Warning> {
    let rate = |rate: u64| format!("{}/s", group_digits(rate));
    let confirmed = (!found.confirmed)
        .then(|| ("not-confirmed", "ended early: its edges do not have their majority".to_owned()));
    let unclear = found
        .unclear
        .map(|unclear| ("no-verdict", format!("the trials at {} say neither", rate(unclear))));
    let above = found
        .passes_above
        .map(|above| ("not-monotone", format!("it passed again at {}", rate(above))));
    let others = (others > OTHERS_LIMIT).then(|| {
        let text = format!(
            "other processes took up to {others:.1} CPUs during trials: the server may hold more \
             on a quiet machine"
        );
        (OTHERS, text)
    });
    let doubts = [confirmed, unclear, above, others].into_iter().flatten();
    doubts.map(|(code, text)| Warning { code: code.to_owned(), text }).collect()
}

/// Describes the results in a sentence.
fn describe(
    bounds: &Bounds,
    found: &SearchBounds,
    slo: &Slo,
    ceiling: Option<u64>,
    died: bool,
) -> String {
    let rate = |rate: u64| format!("{}/s", group_digits(rate));
    let unclear = found.unclear.map(|unclear| format!("no verdict at {}", rate(unclear)));
    let mut text = match (found.passes, found.fails) {
        (Some(passes), Some(fails)) => {
            format!("holds {}, breaks at {} ({slo})", rate(passes), rate(fails))
        }
        (Some(passes), None) if unclear.is_some() => format!("holds {} ({slo})", rate(passes)),
        (Some(passes), None) => format!(
            "holds {} ({slo}) and never failed: raise --to to find where it breaks",
            rate(passes)
        ),
        // A server that dies may die at every rate, so the text suggests no lower rate.
        (None, Some(fails)) if died => format!("the server died at {} ({slo})", rate(fails)),
        (None, Some(fails)) if bounds.from == Some(fails) => {
            format!("already fails at --from, {} ({slo}): lower it", rate(fails))
        }
        (None, Some(fails)) => format!(
            "already fails at {} ({slo}), and no lower rate passed: weaken --slo, or lower --from",
            rate(fails)
        ),
        (None, None) => format!("no rate passed or failed ({slo})"),
    };
    for part in [unclear, ceiling.map(|ceiling| format!("closed loop {}", rate(ceiling)))] {
        text.extend(part.map(|part| format!("; {part}")));
    }
    if let Some(above) = found.passes_above {
        text.push_str(&format!("; not monotone: it passed again at {}", rate(above)));
    }
    if !found.confirmed {
        text.push_str("; not confirmed: ended early");
    }
    text
}

/// Returns the figures for one row of `curve.csv`. Unknown figures are empty.
fn cells(figures: &TrialFigures) -> String {
    let answers = figures.is_run().then(|| format!("{:.1}", figures.throughput));
    let at = |quantile| {
        figures.value_if_answered(Quantity::Quantile(quantile)).map(|ms| format!("{ms:.4}"))
    };
    [answers, at(0.5), at(0.99), at(0.999)].map(Option::unwrap_or_default).join(",")
}

/// Describes the server's deaths: the number of trials in which the server died, and the cause of
/// the last death. Returns `None` if it never died.
fn describe_deaths(died: &[String], trials: usize) -> Option<String> {
    let (last, many) = (died.last()?, died.len());
    Some(format!("the server died in {many} of {trials} trials, at last so: {last}"))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Ceiling => "ceiling",
        Role::Bracket => "bracket",
        Role::Bisect => "bisect",
        Role::Confirm => "confirm",
        Role::Profile => "profile",
    }
}

fn verdict_name(verdict: StepVerdict) -> &'static str {
    match verdict {
        StepVerdict::Pass => "pass",
        StepVerdict::Fail => "fail",
        StepVerdict::Inconclusive => "inconclusive",
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Bounds, SearchBounds, TrialFigures, cells, describe, describe_deaths, result_warnings,
    };
    use crate::trial::trial_figures::tests::figures;

    #[test]
    fn a_trial_without_a_run_leaves_empty_cells() {
        assert_eq!(cells(&figures(1000, 2.0)), "1000.0,2.0009,2.0009,2.0009");
        let mut nothing = TrialFigures { planned: 0, throughput: 0.0, ..figures(1000, 2.0) };
        nothing.intended.clear();
        assert_eq!(cells(&nothing), ",,,");
    }

    #[test]
    fn a_dead_server_is_the_reported_finding() {
        let bounds = Bounds { from: Some(100), to: None, precision: 0.05, repeats: 3 };
        let found = SearchBounds { fails: Some(100), confirmed: true, ..SearchBounds::default() };
        let text = describe(&bounds, &found, &"p99<10ms".parse().unwrap(), None, true);
        assert_eq!(text, "the server died at 100/s (p99<10ms)", "no lower rate would help");
        assert_eq!(describe_deaths(&[], 3), None);
        let died = ["signal 9 ended it", "exit code 1"].map(str::to_owned);
        let text = "the server died in 2 of 3 trials, at last so: exit code 1";
        assert_eq!(describe_deaths(&died, 3).as_deref(), Some(text));
    }

    #[test]
    fn findings_are_described_in_a_sentence() {
        let bounds = Bounds { from: Some(100), to: None, precision: 0.05, repeats: 3 };
        let slo = "p99<10ms".parse().unwrap();
        let all = SearchBounds { confirmed: true, ..SearchBounds::default() };
        for (found, expected) in [
            (
                SearchBounds { passes: Some(38_400), fails: Some(40_300), ..all },
                "holds 38,400/s, breaks at 40,300/s (p99<10ms); closed loop 61,000/s",
            ),
            (
                SearchBounds { passes: Some(38_400), ..all },
                "holds 38,400/s (p99<10ms) and never failed: raise --to to find where it breaks; \
                 closed loop 61,000/s",
            ),
            (
                SearchBounds { passes: Some(900), unclear: Some(1000), ..all },
                "holds 900/s (p99<10ms); no verdict at 1,000/s; closed loop 61,000/s",
            ),
            (
                SearchBounds { fails: Some(100), ..all },
                "already fails at --from, 100/s (p99<10ms): lower it; closed loop 61,000/s",
            ),
            (
                SearchBounds {
                    passes: Some(1),
                    fails: Some(9),
                    passes_above: Some(20),
                    ..SearchBounds::default()
                },
                "holds 1/s, breaks at 9/s (p99<10ms); closed loop 61,000/s; not monotone: it \
                 passed again at 20/s; not confirmed: ended early",
            ),
        ] {
            assert_eq!(describe(&bounds, &found, &slo, Some(61_000), false), expected);
        }
    }

    #[test]
    fn doubts_about_findings_become_warnings() {
        let codes = |found: &SearchBounds, others| -> Vec<String> {
            result_warnings(found, others).into_iter().map(|warning| warning.code).collect()
        };
        let sound = SearchBounds { confirmed: true, ..SearchBounds::default() };
        assert!(codes(&sound, 0.1).is_empty());
        let doubted = SearchBounds {
            unclear: Some(5),
            passes_above: Some(9),
            confirmed: false,
            ..SearchBounds::default()
        };
        let all = ["not-confirmed", "no-verdict", "not-monotone", "other-processes"];
        assert_eq!(codes(&doubted, 1.9), all);
        assert!(
            result_warnings(&sound, 1.9)[0].text.starts_with("other processes took up to 1.9 CPUs")
        );
    }
}
