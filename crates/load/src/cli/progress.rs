//! The live line: on stderr, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::control::Interval;

/// Between two moves of the sign that something goes on.
const TICK: Duration = Duration::from_millis(200);

/// A run, as it goes.
pub(super) struct Progress {
    bar: ProgressBar,
    warmup: Duration,
}

impl Progress {
    /// Begins with connecting.
    pub(super) fn start(warmup: Duration, duration: Duration) -> Self {
        // It draws to stderr, and to nothing if that is no terminal.
        let bar = ProgressBar::new(duration.as_secs().max(1));
        let style = ProgressStyle::with_template("{spinner} {pos}/{len}s  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message("connecting");
        bar.enable_steady_tick(TICK);
        Self { bar, warmup }
    }

    /// All are connected.
    pub(super) fn begun(&self) {
        self.bar.set_message(if self.warmup.is_zero() { "sending" } else { "warming up" });
    }

    /// A second is over.
    pub(super) fn second(&self, interval: &Interval) {
        let tally = &interval.tally;
        let latency = tally.all_latencies().intended;
        let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
        let per_second = tally.statuses.all() as f64 / interval.length_s.max(1e-3);
        let failed = tally.statuses.refused() + tally.errors.lost();
        // After the plan's end come answers that are waited for.
        let length = self.bar.length().unwrap_or(u64::MAX);
        self.bar.set_position((interval.start_s + 1).min(length));
        self.bar.set_message(format!(
            "{per_second:.0} answers/s  p50 {:.2} ms  p99 {:.2} ms  failed {failed}  backlog {}",
            ms(0.5),
            ms(0.99),
            interval.backlog
        ));
    }

    /// Takes the line away: the figures come.
    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
