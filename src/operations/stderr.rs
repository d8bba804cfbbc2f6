//! stderr: the log of a node, and what a command says that ends. Nobody reading it is no reason to
//! wait or to fail.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::thread;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::operations::output::Output;
use crate::settings::config::Logging;
use crate::settings::values::LogFormat;

/// Where a node logs to, once it does.
static LOG: OnceLock<Output> = OnceLock::new();

/// From now on what is traced is logged.
pub(crate) fn log(logging: &Logging) -> io::Result<()> {
    let output = Output::start("stderr", &io::stderr(), |_, lines| {
        tracing::error!(lines, "log lines were dropped: stderr was blocked");
    });
    let output = output?;
    let lines = Lines(LOG.get_or_init(|| output));
    let filtered = tracing_subscriber::registry().with(logging.filter.clone());
    let layer =
        tracing_subscriber::fmt::layer().with_writer(move || lines).log_internal_errors(false);
    match logging.format {
        LogFormat::Text => filtered.with(layer.with_ansi(false)).init(),
        LogFormat::Json => filtered.with(layer.json()).init(),
    }
    Ok(())
}

/// Takes each event as one write.
#[derive(Clone, Copy)]
struct Lines(&'static Output);

impl Write for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.0.push(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Says a line, after what was logged before.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    match LOG.get() {
        Some(log) => {
            log.push(format!("{line}\n").as_bytes());
            log.flush();
        }
        None => {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Says what a panic is about; `otherwise` does so where nothing is logged.
pub(crate) fn panicked(panic: &PanicHookInfo<'_>, otherwise: impl Fn(&PanicHookInfo<'_>)) {
    if LOG.get().is_none() {
        return otherwise(panic);
    }
    let thread = thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => say(format_args!("thread '{name}' {panic}\n{backtrace}")),
        _ => say(format_args!("thread '{name}' {panic}")),
    }
}

/// Waits a moment for what was logged to be written: the process ends.
pub(crate) fn flush() {
    if let Some(log) = LOG.get() {
        log.flush();
    }
}

/// Lines of the log that were dropped.
pub(crate) fn dropped() -> u64 {
    LOG.get().map_or(0, Output::dropped)
}
