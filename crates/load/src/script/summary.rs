//! The arguments of `done(summary, latency, requests)`.
//!
//! ```text
//!  latency[i]    the i-th smallest of all values                               as in wrk2
//!  latency(i)    the i-th of the #latency distinct values, and its count       as in wrk
//!  latency.min .max .mean .stdev   latency:percentile(99.9)
//! ```

use std::time::Duration;

use hdrhistogram::Histogram;
use mlua::{Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value};

/// Results of a run, as passed to `done`.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'a> {
    /// Duration of the run.
    pub duration: Duration,
    /// Number of answers.
    pub requests: u64,
    /// Bytes received from the servers.
    pub bytes: u64,
    /// Connections that could not be established.
    pub connect: u64,
    /// Requests that failed while reading.
    pub read: u64,
    /// Requests that failed while writing.
    pub write: u64,
    /// Answers with a status above 399.
    pub status: u64,
    /// Answers later than the timeout.
    pub timeout: u64,
    /// Latencies from the intended start in nanoseconds.
    pub latency: &'a Histogram<u64>,
    /// Answers per second of one thread, sampled repeatedly.
    pub requests_per_second: &'a Histogram<u64>,
}

impl Summary<'_> {
    pub(super) fn table(&self, lua: &Lua) -> mlua::Result<Table> {
        let errors = lua.create_table_from([
            ("connect", self.connect),
            ("read", self.read),
            ("write", self.write),
            ("status", self.status),
            ("timeout", self.timeout),
        ])?;
        let summary = lua.create_table_from([
            ("duration", self.duration.as_micros() as u64),
            ("requests", self.requests),
            ("bytes", self.bytes),
        ])?;
        summary.raw_set("errors", errors)?;
        Ok(summary)
    }
}

/// wrk's statistics object: the distinct values in ascending order, each with the number of values
/// up to and including it.
#[derive(Debug)]
pub(super) struct Stats {
    values: Vec<(u64, u64)>,
    mean: f64,
    stdev: f64,
}

impl Stats {
    /// Creates the statistics of latencies, in microseconds.
    pub(super) fn latency(histogram: &Histogram<u64>) -> Self {
        Self::of(histogram, 1000)
    }

    /// Creates the statistics of answers per second.
    pub(super) fn rates(histogram: &Histogram<u64>) -> Self {
        Self::of(histogram, 1)
    }

    fn of(histogram: &Histogram<u64>, unit: u64) -> Self {
        let mut values: Vec<(u64, u64)> = Vec::new();
        let mut upto = 0;
        for step in histogram.iter_recorded() {
            upto += step.count_at_value();
            let value = step.value_iterated_to().min(histogram.max());
            let value = (value + unit / 2) / unit;
            match values.last_mut() {
                Some(last) if last.0 == value => last.1 = upto,
                _ => values.push((value, upto)),
            }
        }
        let unit = unit as f64;
        Self { values, mean: histogram.mean() / unit, stdev: histogram.stdev() / unit }
    }

    fn len(&self) -> u64 {
        self.values.last().map_or(0, |last| last.1)
    }

    /// Returns the `rank`-th smallest value, from 1 on. A rank out of range is clamped. Returns 0
    /// without values.
    fn value_at_rank(&self, rank: f64) -> u64 {
        let at = self.values.partition_point(|&(_, upto)| (upto as f64) < rank);
        self.values.get(at).or(self.values.last()).map_or(0, |value| value.0)
    }

    /// Returns the `index`-th distinct value, from 1 on, and its count, or zeros if there are fewer
    /// values.
    fn distinct(&self, index: u64) -> (u64, u64) {
        let Some(at) = (index as usize).checked_sub(1) else { return (0, 0) };
        let Some(&(value, upto)) = self.values.get(at) else { return (0, 0) };
        let before = at.checked_sub(1).map_or(0, |before| self.values[before].1);
        (value, upto - before)
    }
}

impl UserData for Stats {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("min", |_, this| Ok(this.values.first().map_or(0, |v| v.0)));
        fields.add_field_method_get("max", |_, this| Ok(this.values.last().map_or(0, |v| v.0)));
        fields.add_field_method_get("mean", |_, this| Ok(this.mean));
        fields.add_field_method_get("stdev", |_, this| Ok(this.stdev));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("percentile", |_, this, percent: f64| {
            Ok(this.value_at_rank((percent / 100.0 * this.len() as f64).round()))
        });
        methods.add_meta_method(MetaMethod::Len, |_, this, ()| Ok(this.values.len()));
        methods.add_meta_method(MetaMethod::Call, |_, this, index: f64| {
            Ok(this.distinct(index.max(0.0) as u64))
        });
        methods.add_meta_method(MetaMethod::Index, |_, this, key: Value| {
            Ok(key
                .as_number()
                .or(key.as_integer().map(|i| i as f64))
                .map(|i| this.value_at_rank(i)))
        });
    }
}
