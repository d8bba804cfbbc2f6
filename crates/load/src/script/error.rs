//! Why a script could not go on: which file, in which phase, what it said and where.

use std::fmt;
use std::io;

/// What a script was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The file was being run.
    Load,
    /// `setup(thread)`.
    Setup,
    /// `init(args)`.
    Init,
    /// `request()`.
    Request,
    /// `response(status, headers, body)`.
    Response,
    /// `delay()`.
    Delay,
    /// `done(summary, latency, requests)`.
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

/// Why a script could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read the script {file}, nothing was sent: {cause}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Lua's error, or what was wrong with an answer of the script.
    #[error("script {file}, {phase}: {message}")]
    Lua {
        /// The file; `(none)` without a script.
        file: String,
        /// What it was doing.
        phase: Phase,
        /// Lua's words: `put.lua:3: attempt to …`.
        message: String,
    },
}
