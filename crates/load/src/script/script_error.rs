//! Errors of scripts, with file and line, phase, and message.

use std::fmt;
use std::io;

/// Lua's name of the file with the table `wrk`.
pub(super) const WRK: &str = "wrk.lua";

/// The phase of a script in which an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The run of the file.
    Load,
    /// The call of `setup(thread)`.
    Setup,
    /// The call of `init(args)`.
    Init,
    /// The call of `request()`.
    Request,
    /// The call of `response(status, headers, body)`.
    Response,
    /// The call of `delay()`.
    Delay,
    /// The call of `done(summary, latency, requests)`.
    Done,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "load",
            Self::Setup => "setup",
            Self::Init => "init",
            Self::Request => "request",
            Self::Response => "response",
            Self::Delay => "delay",
            Self::Done => "done",
        })
    }
}

/// The failure of a script.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read the script {file}: {cause}")]
    Read {
        /// The script's file.
        file: String,
        /// The system's error.
        cause: io::Error,
    },
    /// Lua raised an error, or the script returned an invalid value.
    #[error("script {place}: in {phase}: {message}")]
    Lua {
        /// File and, if it is known, line.
        place: String,
        /// Phase of the script.
        phase: Phase,
        /// The error's message.
        message: String,
    },
}

impl Error {
    pub(super) fn from_lua(file: &str, phase: Phase, error: &mlua::Error) -> Self {
        let text = message(error);
        let (line, message) = match split(&text) {
            // The line of the caller in the script is more useful than a line of `wrk.lua`.
            Some((WRK, _, message)) => (line_of(file, error), message),
            // The error is in another file, a module that the script required.
            Some((source, _, _)) if !is_source(source, file) => (None, text.as_str()),
            Some((_, line, message)) => (Some(line.to_owned()), message),
            None => (line_of(file, error), text.as_str()),
        };
        let place = line.map_or(file.to_owned(), |line| format!("{file}:{line}"));
        Self::Lua { place, phase, message: message.to_owned() }
    }
}

/// Returns an error's message without its location.
fn message(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            return message(cause);
        }
        mlua::Error::BadArgument { cause, .. } => return message(cause),
        mlua::Error::RuntimeError(text) => text.as_str(),
        mlua::Error::SyntaxError { message, .. } => message.as_str(),
        other => return other.to_string(),
    };
    text.split("\nstack traceback:").next().unwrap_or_default().trim_end().to_owned()
}

/// Splits `SOURCE:LINE: MESSAGE` into its three parts. Returns `None` for a text of another form.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let colons = text.match_indices(':').map(|(at, _)| at);
    colons.take(8).find_map(|at| {
        let (line, message) = text[at + 1..].split_once(": ")?;
        let number = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
        number.then_some((&text[..at], line, message))
    })
}

/// Returns true if `source`, Lua's short name of a file, can be that of `file`. Lua cuts off the
/// beginning of long names.
fn is_source(source: &str, file: &str) -> bool {
    source == file || source.strip_prefix("...").is_some_and(|end| file.ends_with(end))
}

/// Returns the line of the script with the failed call, or `None` if it is unknown.
fn line_of(file: &str, error: &mlua::Error) -> Option<String> {
    let traceback = match error {
        mlua::Error::CallbackError { traceback, .. } => traceback.as_str(),
        mlua::Error::RuntimeError(text) => text.split_once("\nstack traceback:")?.1,
        _ => return None,
    };
    let mut lines = traceback.lines().filter_map(|line| split(line.trim_start()));
    lines.find(|(source, _, _)| is_source(source, file)).map(|(_, line, _)| line.to_owned())
}
