//! The live progress line, which is printed on stderr, and only on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::control::Interval;

/// Interval between two moves of the spinner.
const TICK: Duration = Duration::from_millis(200);

/// Progress of a run.
pub(super) struct Progress {
    bar: ProgressBar,
    warmup: Duration,
}

impl Progress {
    /// Starts the line in its connecting phase.
    pub(super) fn start(warmup: Duration, duration: Duration) -> Self {
        // The bar draws to stderr, and draws nothing if stderr is not a terminal.
        let bar = ProgressBar::new(duration.as_secs().max(1));
        let style = ProgressStyle::with_template("{spinner} {pos}/{len}s  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message("connecting");
        bar.enable_steady_tick(TICK);
        Self { bar, warmup }
    }

    /// Shows that all connections are established.
    pub(super) fn show_begin(&self) {
        self.bar.set_message(if self.warmup.is_zero() { "sending" } else { "warming up" });
    }

    /// Shows the figures of a finished second.
    pub(super) fn add_second(&self, interval: &Interval) {
        let tally = &interval.tally;
        let latency = tally.all_latencies().intended;
        let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
        let per_second = tally.statuses.all() as f64 / interval.length_s.max(1e-3);
        let failed = tally.statuses.refusals() + tally.errors.count_lost();
        // Late answers still arrive after the plan's end.
        let length = self.bar.length().unwrap_or(u64::MAX);
        self.bar.set_position((interval.start_s + 1).min(length));
        self.bar.set_message(format!(
            "{per_second:.0} answers/s  p50 {:.2} ms  p99 {:.2} ms  failed {failed}  backlog {}",
            ms(0.5),
            ms(0.99),
            interval.backlog
        ));
    }

    /// Removes the line, before the figures are printed.
    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
