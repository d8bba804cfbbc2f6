//! The command line of a search.

use clap::Args as ClapArgs;

use super::decide::Bounds;
use super::slo::{Quantity, Slo};
use super::sweep::Sweep;
use crate::cli::{Count, Time};
use crate::trial::trial_args::SeriesArgs;
use crate::trial::{Error, Prepare};

/// Term that is added to an objective without a term for errors. Otherwise fast refusals could meet
/// the objective.
const ERRORS: &str = "errors<0.1%";

/// Minimum precision. With a finer precision, neighbouring rates would differ by less than the
/// noise.
const LEAST_PRECISION: f64 = 0.005;

/// Highest rate of a run.
const MAX_RATE: u64 = crate::MAX_RATE as u64;

/// Find the rate at which a server breaks
#[derive(Debug, Clone, ClapArgs)]
pub struct SearchArgs {
    /// The requests, their targets, and the server under test.
    #[command(flatten)]
    pub(crate) series: SeriesArgs,

    /// What a trial must meet: pNN, mean and max below a time in us, ms or s, errors below a
    /// percentage. Latency counts from the intended start; without a term for errors, errors<0.1%
    /// is added
    #[arg(long, value_name = "TERMS", default_value = "p99<10ms,errors<0.1%")]
    pub(crate) slo: Slo,

    /// Length of a trial, in s, or with ms, s, m or h; the first trials are half as long
    #[arg(short, long, value_name = "TIME", default_value = "10s")]
    pub(crate) duration: Time,

    /// Sends for this long before each trial; nothing of it is counted
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) warmup: Time,

    /// Lowest rate, 1 request a second or more, with k, M or G [default: a hundredth of --to, or of
    /// what a closed loop brings]
    #[arg(long, value_name = "RATE")]
    pub(crate) from: Option<Count>,

    /// Highest rate, requests a second, up to 10M, with k, M or G: no trial sends more, and there
    /// is no closed loop, which would [default: twice what a closed loop brings]
    #[arg(long, value_name = "RATE")]
    pub(crate) to: Option<Count>,

    /// How far the rate that passes and the one that fails may be apart, 0.5%..100%
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_precision)]
    pub(crate) precision: f64,

    /// Trials at each of these two, of which a majority must agree, 1..9
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=9))]
    pub(crate) repeats: u32,

    /// Search also with these requests in place of the first: a mix, as in get=100, or a script's
    /// file. Can be given several times
    #[arg(long, value_name = "MIX|FILE")]
    pub(crate) also: Vec<String>,

    /// Write data before the first trial, and again whenever they are fresh: "keys", every key of
    /// --key-count once; FILE.lua:N, N requests of a script. Nothing of it is counted
    #[arg(long, value_name = "WHAT")]
    pub(crate) prepare: Option<Prepare>,

    /// Start the server of --server anew for each trial
    #[arg(long, requires = "server")]
    pub(crate) restart: bool,

    /// Search once for each value of a flag of the server: loops=1,2,4 sets --loops. Given several
    /// times: for all combinations
    #[arg(long, value_name = "FLAG=VALUES", requires = "server")]
    pub(crate) sweep: Vec<Sweep>,
}

impl SearchArgs {
    /// Returns the objective. A term for errors is added if there is none.
    pub(crate) fn objective(&self) -> Slo {
        let mut slo = self.slo.clone();
        if !slo.terms.iter().any(|term| term.what == Quantity::Errors) {
            slo.terms.extend(ERRORS.parse::<Slo>().expect("a constant").terms);
        }
        slo
    }

    pub(crate) fn bounds(&self) -> Result<Bounds, Error> {
        if let (Some(from), Some(to)) = (self.from.map(|rate| rate.0), self.to.map(|rate| rate.0))
            && from > to
        {
            return Err(Error::Usage(format!("--from {from} is above --to {to}: exchange them")));
        }
        for (name, rate) in [("--from", self.from), ("--to", self.to)] {
            if let Some(Count(rate)) = rate
                && !(1..=MAX_RATE).contains(&rate)
            {
                return Err(Error::Usage(format!("{name} {rate}: it must be 1 to {MAX_RATE}")));
            }
        }
        Ok(Bounds {
            from: self.from.map(|rate| rate.0),
            to: self.to.map(|rate| rate.0),
            precision: self.precision,
            repeats: self.repeats,
        })
    }
}

/// A text that is not a valid precision.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("a percentage of 0.5% to 100%")]
struct PrecisionError;

fn parse_precision(text: &str) -> Result<f64, PrecisionError> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = percent.map(|percent| percent / 100.0);
    share.filter(|share| (LEAST_PRECISION..=1.0).contains(share)).ok_or(PrecisionError)
}
