//! The command line of a search.

use std::str::FromStr;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::decide::Bounds;
use super::slo::{Slo, What};
use super::sweep::Sweep;
use crate::trial::Error;
use crate::trial::args::{SeriesArgs, parse_time};

/// A search without an objective for errors gets this one: answers that are refusals are fast.
const ERRORS: &str = "errors<0.1%";

/// Narrowest precision: below it, neighbours differ by less than any noise.
const LEAST_PRECISION: f64 = 0.005;

/// Find the rate at which a server breaks
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// What is sent and where.
    #[command(flatten)]
    pub(crate) series: SeriesArgs,

    /// What a trial must meet: pNN, mean and max below a time in us, ms or s, errors below a
    /// percentage. Latency counts from the intended start; without a term for errors, errors<0.1%
    /// is added
    #[arg(long, value_name = "TERMS", default_value = "p99<10ms,errors<0.1%")]
    pub(crate) slo: Slo,

    /// Length of a trial in s, m or h; the first are half as long [default: 10s]
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    #[arg(hide_default_value = true)]
    pub(crate) duration: Duration,

    /// Load before each trial that is not counted, in s, m or h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub(crate) warmup: Duration,

    /// Lowest rate, requests a second; k and M are known [default: a hundredth of what a closed loop
    /// brings]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) from: Option<u64>,

    /// Highest rate, requests a second; k and M are known [default: twice what a closed loop brings]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) to: Option<u64>,

    /// How far the rate that passes and the one that fails may be apart, 0.5%..100%
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_precision)]
    pub(crate) precision: f64,

    /// Trials at each of these two, of which a majority must agree, 1..9
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=9))]
    pub(crate) repeats: u32,

    /// Requests, as METHOD=PERCENT,…; given several times, each is searched
    #[arg(long, value_name = "MIX", default_value = "get=100")]
    pub(crate) mix: Vec<Mix>,

    /// Write every key once before the first trial, and again whenever the data are fresh
    #[arg(long)]
    pub(crate) prepare: bool,

    /// Start the server of --server anew for each trial
    #[arg(long, requires = "server")]
    pub(crate) restart: bool,

    /// Search once for each value of a flag of the server: loops=1,2,4 sets --loops. Given several
    /// times: for all combinations
    #[arg(long, value_name = "FLAG=VALUES", requires = "server")]
    pub(crate) sweep: Vec<Sweep>,
}

/// A mix of methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mix {
    pub(crate) name: String,
    pub(crate) put_percent: u8,
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "methods with percentages that make 100, as in put=50,get=50".to_owned();
        let (mut put, mut all) = (0, 0u32);
        for part in text.split(',') {
            let (method, percent) = part.split_once('=').ok_or_else(wrong)?;
            let percent: u8 = percent.trim_end_matches('%').parse().map_err(|_| wrong())?;
            match method.to_ascii_lowercase().as_str() {
                "put" => put += percent,
                "get" => {}
                _ => return Err(wrong()),
            }
            all += u32::from(percent);
        }
        let name = text.to_owned();
        (all == 100).then_some(Self { name, put_percent: put }).ok_or_else(wrong)
    }
}

impl Args {
    /// The objective, errors included.
    pub(crate) fn objective(&self) -> Slo {
        let mut slo = self.slo.clone();
        if !slo.terms.iter().any(|term| term.what == What::Errors) {
            slo.terms.extend(ERRORS.parse::<Slo>().expect("a constant").terms);
        }
        slo
    }

    pub(crate) fn bounds(&self) -> Result<Bounds, Error> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from > to
        {
            return Err(Error::Asked(format!("--from {from} is above --to {to}: exchange them")));
        }
        Ok(Bounds {
            from: self.from,
            to: self.to,
            precision: self.precision,
            repeats: self.repeats,
        })
    }
}

/// `2500`, `2.5k`, `1M`.
fn parse_rate(text: &str) -> Result<u64, String> {
    let units = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let unit = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(*unit)?, *scale)));
    let (digits, scale) = unit.unwrap_or((text, 1.0));
    let rate = digits.parse::<f64>().ok().map(|rate| rate * scale);
    let rate = rate.filter(|rate| (1.0..=1e9).contains(rate));
    rate.map(|rate| rate as u64).ok_or_else(|| "a rate of 1 to 1G, as in 2500 or 2.5k".to_owned())
}

fn parse_precision(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = percent.map(|percent| percent / 100.0);
    share
        .filter(|share| (LEAST_PRECISION..=1.0).contains(share))
        .ok_or_else(|| "a percentage of 0.5% to 100%".to_owned())
}
