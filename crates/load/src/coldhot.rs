//! The `coldhot` command: measures the effect of warm caches in four runs: `PUT`s and `GET`s, each
//! on a cold server and on a hot one.
//!
//! Two consecutive runs on one server differ in more than the warmth of caches: the second `PUT`
//! run finds the data of the first run. Therefore each run has its own store, and every store has
//! the same history before the measurement: all keys are written once (*fill*), and then the
//! *rehearsal* sends the same requests as the measured run. The only difference between a cold and
//! a hot run is one restart:
//!
//! ```text
//!  put-cold   fresh data ─ start ─ fill ─ rehearsal ─ idle ─ stop ─ start ─ idle ─ measured
//!  put-hot    fresh data ─ start ─ fill ─ rehearsal ─ idle ───────────────────────── measured
//!  get-cold   fresh data ─ start ─ fill ─ rehearsal ─ idle ─ stop ─ start ─ idle ─ measured
//!  get-hot    fresh data ─ start ─ fill ─ rehearsal ─ idle ───────────────────────── measured
//! ```
//!
//! A *cold* server is a new process, whose caches and pools are empty and whose code has not run
//! yet. Its data files are dropped from the page cache between stop and start. The CPU, the kernel
//! (the program's own file stays in the page cache) and the client are not cold. A server that
//! keeps the latest writes in memory has them in files after the restart. This difference is part
//! of the cost of a restart.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args as ClapArgs;

use crate::ServerProfile;
use crate::cli::{Count, Time};
use crate::record::{Series, Trial};
use crate::search::{Quantity, SloTime as Shown, group_digits};
use crate::server::DroppedFiles;
use crate::trial::series::SeriesWriter;
use crate::trial::trial_args::SeriesArgs;
use crate::trial::{
    Error, Preparation, Prepare, ServerUnderTest, TrialFigures, TrialParams, Workload,
    print_progress, print_results, program, progress, run as run_trial,
};
use crate::warning::RunWarning;

/// Maximum number of repeats. During a longer series, the machine would change more than the
/// server.
const MAX_REPEATS: i64 = 20;

/// Prefix of a printed percentile that has too few samples.
const FEW_SAMPLES_MARK: &str = "~";

/// The printed percentiles.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// Share of errors above which a run's row shows the share. Such a run measures mostly its errors.
const ERRORS_LIMIT: f64 = 0.001;

/// Measure what warmth is worth
#[derive(Debug, Clone, ClapArgs)]
pub struct ColdHotArgs {
    /// The requests, their targets, and the server under test.
    #[command(flatten)]
    pub(crate) series: SeriesArgs,

    /// Requests a second of the runs that write, with k, M or G
    #[arg(long, value_name = "RATE")]
    pub(crate) put_rate: Count,

    /// Requests a second of the runs that read, with k, M or G
    #[arg(long, value_name = "RATE")]
    pub(crate) get_rate: Count,

    /// Script of the runs that write, in place of keys and values made here
    #[arg(long, value_name = "FILE", requires_all = ["get_script", "prepare"])]
    pub(crate) put_script: Option<PathBuf>,

    /// Script of the runs that read
    #[arg(long, value_name = "FILE", requires_all = ["put_script", "prepare"])]
    pub(crate) get_script: Option<PathBuf>,

    /// What each store holds before: "keys", every key of --key-count once; FILE.lua:N, N requests
    /// of a script
    #[arg(long, value_name = "WHAT", default_value = "keys")]
    pub(crate) prepare: Prepare,

    /// Length of each run, in s, or with ms, s, m or h
    #[arg(short, long, value_name = "TIME", default_value = "30s")]
    pub(crate) duration: Time,

    /// How often the four runs are made, 1..20
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_REPEATS))]
    pub(crate) repeats: u32,
}

/// A measured run, and its role such as `put-cold`.
struct MeasuredRun {
    role: &'static str,
    figures: TrialFigures,
}

/// State shared by the runs.
struct ColdHotContext<'a> {
    args: &'a ColdHotArgs,
    server: ServerUnderTest<'a>,
    preparation: Preparation,
    kept: SeriesWriter,
    /// The data files that were last dropped from the page cache.
    dropped: Option<DroppedFiles>,
}

/// Makes the four runs, prints them and their differences, and stores the results in a directory.
/// Once `stop` is true, ends early with the runs so far.
pub fn run(
    args: &ColdHotArgs,
    known: &ServerProfile,
    stop: &Arc<AtomicBool>,
) -> Result<Series, Error> {
    let command = args.series.command()?;
    let Some(command) = command.filter(|command| command.has_data()) else {
        return Err(Error::Usage(
            "cold and hot runs need a server that can be started on fresh data: say --server \
             'COMMAND … {data} …', where {data} stands for the data directory"
                .to_owned(),
        ));
    };
    if args.series.request.mix.is_some() || args.series.request.script.is_some() {
        let why = "coldhot makes PUT runs and GET runs: leave out --mix and -s, or say \
                   --put-script and --get-script";
        return Err(Error::Usage(why.to_owned()));
    }
    let workload = |script: &Option<PathBuf>, mix: &str| {
        let script = script.as_ref().map(|file| file.display().to_string());
        args.series.workload(Some(script.as_deref().unwrap_or(mix)), known)
    };
    let put = workload(&args.put_script, "put=100")?;
    let get = workload(&args.get_script, "get=100")?;
    let preparation = Preparation::new(&args.prepare, &args.series.request, known)?;
    let kept = SeriesWriter::create(args.series.out.as_deref(), "coldhot", known, command.words())?;
    let config = args.series.start_config(Some(command), false);
    let server = ServerUnderTest::new(known, put.endpoints(), config, Arc::clone(stop));
    let mut context = ColdHotContext { args, server, preparation, kept, dropped: None };
    context.say(&format!(
        "{:>14} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "run", "requests/s", "answers/s", "p50", "p99", "p99.9", "max", "CPU/request"
    ));
    let mut measured = Vec::new();
    let mut ended = Ok(());
    'all: for _ in 0..args.repeats {
        for (role, workload, cold) in [
            ("put-cold", &put, true),
            ("put-hot", &put, false),
            ("get-cold", &get, true),
            ("get-hot", &get, false),
        ] {
            match context.measure(role, workload, cold) {
                Ok(figures) if !figures.interrupted => measured.push(MeasuredRun { role, figures }),
                Ok(_) => break 'all,
                Err(error) => {
                    ended = Err(error);
                    break 'all;
                }
            }
        }
    }
    let failed = ended.err().filter(|error| !error.is_interrupt());
    if failed.is_none() || !context.kept.discard_if_empty() {
        context.finish(&measured, stop.load(Ordering::Relaxed))?;
    }
    failed.map_or_else(|| Ok(context.kept.series().clone()), Err)
}

impl ColdHotContext<'_> {
    fn measure(
        &mut self,
        role: &'static str,
        workload: &Workload,
        cold: bool,
    ) -> Result<TrialFigures, Error> {
        let rate = if role.starts_with("put") { self.args.put_rate } else { self.args.get_rate };
        let duration = self.args.duration.0;
        let params =
            TrialParams { rate: Some(rate.0), warmup: Duration::ZERO, duration, profile: &[] };
        let bar = progress(&format!("{role}: fill, rehearsal"), Some(duration));
        self.server.stop();
        let note = self.server.ready(Some(&self.preparation))?;
        self.note(note);
        workload.rehearse(&params, self.server.stop_flag())?;
        let note = self.server.idle()?;
        self.note(note);
        if cold {
            self.cool_down()?;
        }
        bar.finish_and_clear();
        let bar = progress(&format!("{role}: measured"), Some(duration));
        let params = TrialParams { profile: &self.args.series.profile, ..params };
        let dir = self.kept.next_dir(role, params.rate);
        let figures = run_trial(&mut self.server, workload, &params, &self.kept.dir().join(&dir))?;
        bar.finish_and_clear();
        if let Some(died) = &figures.died {
            return Err(Error::Usage(format!("in {role} the server died: {died}")));
        }
        let why = if figures.interrupted { "ended early" } else { "" };
        self.say(&row(role, rate.0, &figures, why));
        self.kept.add_trial(Trial {
            dir,
            role: role.to_owned(),
            rate: Some(rate.0 as f64),
            why: why.to_owned(),
            ..Trial::default()
        })?;
        Ok(figures)
    }

    /// Stops the server, drops its data files from the page cache, and starts it on the same data.
    /// Waits until the server is idle.
    fn cool_down(&mut self) -> Result<(), Error> {
        let data = self.server.stop();
        if let Some(data) = &data {
            let path = data.path();
            self.dropped = Some(data.drop_from_page_cache().map_err(Error::write(&path))?);
        }
        self.server.start(data)?;
        let note = self.server.idle()?;
        self.note(note);
        Ok(())
    }

    fn finish(&mut self, measured: &[MeasuredRun], interrupted: bool) -> Result<(), Error> {
        if interrupted {
            self.kept.set_interrupted();
            self.kept.save()?;
        }
        for method in ["put", "get"] {
            if let Some(line) = difference(method, measured) {
                self.say(&line);
            }
        }
        let fewest = measured.iter().min_by_key(|run| run.figures.intended.len());
        let highest = QUANTILES[QUANTILES.len() - 1].1;
        if let Some(few) = fewest.and_then(|run| few_samples_warning(&run.figures, highest)) {
            self.say(&format!("{FEW_SAMPLES_MARK} {few}: a longer -d or a higher rate"));
        }
        if let Some(DroppedFiles { files, bytes }) = self.dropped {
            let mib = bytes as f64 / f64::from(1 << 20);
            self.say(&format!(
                "cold: a process started anew, and {files} data files ({mib:.1} MiB) that the \
                 page cache gave up; the CPU, the kernel and the client are not cold"
            ));
        }
        if self.server.in_memory() {
            self.say("note: the data lie in memory, where no page cache is dropped: --fresh DIR");
        }
        if self.args.repeats == 1 {
            self.say("note: one run each: a difference may be noise, --repeats 3 shows it");
        }
        let dir = self.kept.dir();
        let at = dir.display();
        self.say(&format!("\nkept in {at}; {} report {at}", program()));
        if self.args.series.json {
            let text = serde_json::to_string_pretty(self.kept.series());
            print_results(&text.expect("all of it is plain data"), dir)?;
        }
        Ok(())
    }

    fn note(&self, note: Option<String>) {
        if let Some(note) = note {
            self.say(&format!("      note: {note}"));
        }
    }

    fn say(&self, line: &str) {
        print_progress(line, self.args.series.json);
    }
}

fn row(role: &str, rate: u64, figures: &TrialFigures, why: &str) -> String {
    let at = |quantile| {
        let mark =
            if few_samples_warning(figures, quantile).is_some() { FEW_SAMPLES_MARK } else { "" };
        format!("{mark}{}", Shown(figures.value(Quantity::Quantile(quantile))))
    };
    let [p50, p99, p999] = QUANTILES.map(|(_, quantile)| at(quantile));
    let cpu = cpu_ms_per_answer(figures).map_or("-".to_owned(), |ms| Shown(ms).to_string());
    let errors = figures.value(Quantity::Errors);
    let errors = if errors > ERRORS_LIMIT {
        format!("{:.2} % errors", errors * 100.0)
    } else {
        String::new()
    };
    let line = format!(
        "{role:>14} {:>10} {:>10} {p50:>8} {p99:>8} {p999:>8} {:>8} {cpu:>12}  {errors}{why}",
        group_digits(rate),
        group_digits(figures.throughput.round() as u64),
        Shown(figures.value(Quantity::Max)).to_string(),
    );
    line.trim_end().to_owned()
}

/// Returns a warning if the run has too few samples for the percentile `quantile`.
fn few_samples_warning(figures: &TrialFigures, quantile: f64) -> Option<RunWarning> {
    RunWarning::few_samples(quantile, figures.intended.len())
}

/// Returns the servers' CPU time per answer, in milliseconds, or `None` if it is unknown or nothing
/// was answered.
fn cpu_ms_per_answer(figures: &TrialFigures) -> Option<f64> {
    let seconds: f64 = figures.servers.iter().map(|usage| usage.cpu_s).sum();
    let known = !figures.servers.is_empty() && !figures.intended.is_empty();
    known.then(|| seconds * 1e3 / figures.intended.len() as f64)
}

/// Describes the ratios between the medians of a method's hot runs and those of its cold runs.
/// Returns `None` without a hot run or without a cold run.
fn difference(method: &str, measured: &[MeasuredRun]) -> Option<String> {
    let of = |warmth: &str, value: &dyn Fn(&TrialFigures) -> Option<f64>| {
        let role = format!("{method}-{warmth}");
        let runs = measured.iter().filter(|run| run.role == role);
        let mut values: Vec<f64> = runs.filter_map(|run| value(&run.figures)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2)?;
        Some(values)
    };
    let compared = |name: &str, value: &dyn Fn(&TrialFigures) -> Option<f64>| {
        let (cold, hot) = (of("cold", value)?, of("hot", value)?);
        let median = |values: &[f64]| values[values.len() / 2];
        let ratio = median(&hot) / median(&cold);
        let apart = hot[hot.len() - 1] < cold[0] || cold[cold.len() - 1] < hot[0];
        let sure = if cold.len() > 1 && !apart { " (the repeats overlap)" } else { "" };
        let of_method = measured.iter().filter(|run| run.role.starts_with(method));
        let quantile = QUANTILES.iter().find(|(known, _)| *known == name);
        let few = quantile.is_some_and(|(_, at)| {
            of_method.clone().any(|run| few_samples_warning(&run.figures, *at).is_some())
        });
        let mark = if few { FEW_SAMPLES_MARK } else { "" };
        ratio.is_finite().then(|| format!("{name} {mark}{ratio:.2}×{sure}"))
    };
    let quantiles = QUANTILES.map(|(name, at)| {
        compared(name, &move |figures: &TrialFigures| Some(figures.value(Quantity::Quantile(at))))
    });
    let others = [
        compared("max", &|figures| Some(figures.value(Quantity::Max))),
        compared("CPU/request", &cpu_ms_per_answer),
    ];
    let parts: Vec<String> = quantiles.into_iter().chain(others).flatten().collect();
    (!parts.is_empty()).then(|| format!("{method}: hot is, of cold, {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::{FEW_SAMPLES_MARK, MeasuredRun, difference, few_samples_warning, row};
    use crate::trial::trial_figures::tests::figures;

    fn run(role: &'static str, ms: f64) -> MeasuredRun {
        MeasuredRun { role, figures: figures(1000, ms) }
    }

    #[test]
    fn hot_and_cold_runs_are_compared_by_their_medians() {
        let line = difference("put", &[run("put-cold", 4.0), run("put-hot", 2.0)]).unwrap();
        assert!(line.starts_with("put: hot is, of cold, p50 0.50×, p99 0.50×"), "{line}");
        assert!(line.ends_with("CPU/request 1.00×"), "{line}");
        let repeated = [("put-cold", 4.0), ("put-hot", 2.0), ("put-cold", 3.0), ("put-hot", 3.5)];
        let runs: Vec<MeasuredRun> = repeated.iter().map(|(role, ms)| run(role, *ms)).collect();
        let line = difference("put", &runs).unwrap();
        assert!(line.contains("p50 0.87× (the repeats overlap)"), "{line}");
    }

    #[test]
    fn a_percentile_of_too_few_samples_is_marked() {
        let few = |role, ms| MeasuredRun { role, figures: figures(500, ms) };
        let runs = [few("put-cold", 4.0), few("put-hot", 2.0)];
        assert!(few_samples_warning(&runs[0].figures, 0.99).is_none(), "5000 are enough for it");
        let line = row("put-cold", 100, &runs[0].figures, "");
        let cells: Vec<_> = line.split_whitespace().collect();
        assert!(
            !cells[4].starts_with(FEW_SAMPLES_MARK) && cells[5].starts_with(FEW_SAMPLES_MARK),
            "{line}"
        );
        let line = difference("put", &runs).unwrap();
        assert!(line.contains("p99 0.50×, p99.9 ~0.50×, max 0.50×"), "{line}");
    }

    #[test]
    fn a_missing_hot_or_cold_run_gives_no_difference() {
        assert_eq!(difference("put", &[run("put-cold", 4.0), run("get-hot", 1.0)]), None);
    }
}
