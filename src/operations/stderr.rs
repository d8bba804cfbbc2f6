//! Output to stderr: the log of a node, and the last line of a command. A blocked or closed stderr
//! neither blocks nor fails the process.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::thread;

use protocol::visible;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::operations::output::LineWriter;
use crate::settings::config::Logging;
use crate::settings::values::LogFormat;

/// The log and its format, set when logging starts.
static LOG: OnceLock<(LineWriter, LogFormat)> = OnceLock::new();

/// The format of lines before logging starts.
static EARLY_FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Sets the format of lines until logging starts.
pub(crate) fn begin(format: LogFormat) {
    let _ = EARLY_FORMAT.set(format);
}

/// Returns the format of lines.
pub(crate) fn format() -> LogFormat {
    let before = || EARLY_FORMAT.get().copied().unwrap_or(LogFormat::Text);
    LOG.get().map_or_else(before, |(_, format)| *format)
}

/// Starts logging: traced events go to stderr from now on.
pub(crate) fn log(logging: &Logging) -> io::Result<()> {
    let output = LineWriter::start("stderr", &io::stderr(), |_, lines| {
        tracing::error!(lines, "log lines were dropped: stderr was blocked");
    });
    let output = output?;
    let (output, _) = LOG.get_or_init(|| (output, logging.format));
    let lines = Lines(output);
    let filtered = tracing_subscriber::registry().with(logging.filter.clone());
    let layer =
        tracing_subscriber::fmt::layer().with_writer(move || lines).log_internal_errors(false);
    match logging.format {
        LogFormat::Text => filtered.with(layer.with_ansi(false)).init(),
        LogFormat::Json => filtered.with(layer.json().flatten_event(true)).init(),
    }
    Ok(())
}

/// A writer that queues each logged event as a unit.
#[derive(Clone, Copy)]
struct Lines(&'static LineWriter);

impl Write for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        // Names and keys in a line are untrusted, so control characters are escaped. Lines are
        // expected to be UTF-8.
        match str::from_utf8(lines) {
            Ok(text) => self.0.push(visible(text).as_bytes()),
            Err(_) => self.0.push(lines),
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints a line in the log's format, after all lines logged earlier.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let line = line.to_string();
    let line = visible(&line);
    match LOG.get() {
        Some((log, format)) => {
            match format {
                LogFormat::Text => log.push(format!("{line}\n").as_bytes()),
                LogFormat::Json if tracing::enabled!(tracing::Level::ERROR) => {
                    tracing::error!("{line}");
                }
                // The last line is printed at every log level.
                LogFormat::Json => {
                    let line = serde_json::json!({ "level": "ERROR", "message": line.to_string() });
                    log.push(format!("{line}\n").as_bytes());
                }
            }
            log.flush();
        }
        None if format() == LogFormat::Json => {
            let lines = tracing_subscriber::fmt().json().flatten_event(true);
            let lines = lines.log_internal_errors(false).with_writer(io::stderr).finish();
            tracing::subscriber::with_default(lines, || tracing::error!("{line}"));
        }
        None => {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Prints a panic in the log's format. Without a log, and in text format, `otherwise` prints it.
pub(crate) fn print_panic(panic: &PanicHookInfo<'_>, otherwise: impl Fn(&PanicHookInfo<'_>)) {
    if LOG.get().is_none() && format() == LogFormat::Text {
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

/// Waits up to a second until the logged lines are written. Called before the process ends.
pub(crate) fn flush() {
    if let Some((log, _)) = LOG.get() {
        log.flush();
    }
}

/// Returns the number of dropped log lines.
pub(crate) fn dropped_lines() -> u64 {
    LOG.get().map_or(0, |(log, _)| log.dropped_lines())
}
