//! The client commands: `kvorum put`, `get`, `del`, `add`, `scan`, `status`, `repair`, `compact`,
//! `cluster`, `token`, `quota`, `dev add`, `dev remove`.
//!
//! ```text
//!  args ─▶ entity · scan · status ─▶ connection ─▶ a node
//!                    │
//!                    ├─▶ stdout: the result, and nothing else
//!                    └─▶ stderr: errors; progress on a terminal
//! ```

mod admin;
mod args;
mod bytes;
mod cluster;
mod compact;
mod connection;
mod dev;
mod entity;
mod problem;
mod profile;
mod quota;
mod repair;
mod scan;
mod status;
mod token;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use args::{
    AddArgs, CompactArgs, DelArgs, KeyArgs, PutArgs, RepairArgs, ScanArgs, StatusArgs,
};
use args::{ConnectionArgs, TtlArgs, VoteArgs, WantReceipt};
pub(crate) use cluster::{ClusterArgs, cluster};
pub(crate) use compact::compact;
use connection::ClientConnection;
pub(crate) use dev::dev;
pub(crate) use entity::{add, del, get, put};
use problem::{ProblemDetails, UncertainRequest, UnknownOutcome};
pub(crate) use profile::{ProfileArgs, profile};
use protocol::visible;
pub(crate) use quota::{QuotaArgs, quota};
pub(crate) use repair::repair;
use rustix::fs::OFlags;
pub(crate) use scan::scan;
pub(crate) use status::status;
pub(crate) use token::{TokenArgs, token};

use crate::operations::stderr;
use crate::settings::secret;

/// Default timeout for connecting and for each part of an answer: ten times the default
/// `--deadline`, so that a working node times out first.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of a command's failure. The reason has already been printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandFailure {
    /// The answer is no: there is no value under the key, a condition is not met, or not every node
    /// is up.
    No,
    /// The command failed for any other reason.
    Failed,
}

impl From<CommandFailure> for ExitCode {
    fn from(unable: CommandFailure) -> Self {
        match unable {
            CommandFailure::No => Self::from(1),
            CommandFailure::Failed => Self::from(2),
        }
    }
}

/// Prints the reason of a failure on one line.
fn fail(why: impl std::fmt::Display) -> CommandFailure {
    stderr::say(format_args!("kvorum: {why}"));
    CommandFailure::Failed
}

/// Prints a result, with control characters escaped, because names in the result may come from any
/// client. A pipe that the reader has closed, as `head` does, is not a failure.
fn print(text: &str) -> Result<(), CommandFailure> {
    print_to_reader(text).map(drop)
}

/// Prints a result as [`print()`] does; returns false if the reader has closed the pipe.
fn print_to_reader(text: &str) -> Result<bool, CommandFailure> {
    match try_print(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(fail(format!("stdout: {error}"))),
    }
}

/// Prints the result of a change. If printing fails, reports `done`, which says what was changed
/// and how to continue.
fn print_done(text: &str, done: impl std::fmt::Display) -> Result<(), CommandFailure> {
    try_print(text).map_err(|error| fail(format!("stdout: {error}; {done}")))
}

fn try_print(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(visible(text).as_bytes()).and_then(|()| out.flush())
}

/// Returns true if a standard stream was closed when the process began: the standard library has
/// then opened `/dev/null` in its place, for reading and writing. A shell redirects from or to
/// `/dev/null` for reading or for writing only; another program that starts this one may open it
/// for both.
fn is_closed(stream: impl AsFd) -> bool {
    let is_null = || {
        let null = rustix::fs::stat("/dev/null")?;
        rustix::fs::fstat(&stream).map(|stat| stat.st_rdev == null.st_rdev)
    };
    rustix::fs::fcntl_getfl(&stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
        && is_null().unwrap_or(false)
}

/// Connects to the node named by the arguments.
fn connect(ask: &ConnectionArgs) -> Result<ClientConnection, CommandFailure> {
    let token = token_of(ask.token_file.as_deref())?;
    let patience = ask.timeout.map_or(TIMEOUT, |timeout| timeout.0);
    let connection =
        ClientConnection::open(&ask.url, &ask.certificates, patience, token.as_deref());
    connection.map_err(|error| unreachable_node(ask, &error))
}

/// Hint at the settings that name another node, for all commands except `profile`.
const URL_HINT: &str = " (--url, KVORUM_URL)";

/// Returns true if a node refused the connection in the TLS handshake, and so has read no request.
fn is_refused_handshake(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Reports, to the user or as JSON, that a node is unreachable or has sent no response. The request
/// changes nothing, or was not sent.
fn unreachable_node(ask: &ConnectionArgs, error: &io::Error) -> CommandFailure {
    UnknownOutcome::of(error).report_unchanged(&unreachable_text(&ask.url, error, URL_HINT), ask)
}

/// Reports, to the user or as JSON, that a node did not answer a write or another change. The
/// outcome is unknown, unless the node refused the connection.
fn report_unanswered(
    what: UncertainRequest,
    ask: &ConnectionArgs,
    error: &io::Error,
) -> CommandFailure {
    if is_refused_handshake(error) {
        return unreachable_node(ask, error);
    }
    let why = unreachable_text(&ask.url, error, URL_HINT);
    UnknownOutcome::of(error).report(what, &why, ask)
}

/// Describes why a node is unreachable. `by` names the settings that choose another node, or is
/// empty.
fn unreachable_text(url: &str, error: &io::Error, by: &str) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("{url}: {error}; is a node running there?{by}")
        }
        io::ErrorKind::TimedOut if by == URL_HINT => format!("{url}: {error} (--timeout)"),
        _ => format!("{url}: {error}"),
    }
}

/// Returns the token for requests, from the file, or from a variable if no file is given; `None` if
/// neither has a token.
fn token_of(file: Option<&Path>) -> Result<Option<String>, CommandFailure> {
    let variable = || secret::CLIENT.variable().or_else(|| secret::ADMIN.variable());
    let variable = if file.is_some() { None } else { variable() };
    let (token, warning) = secret::CLIENT.load(file, variable).map_err(fail)?;
    if let Some(warning) = warning {
        stderr::say(format_args!("kvorum: {warning}"));
    }
    match token.as_ref().map(|token| str::from_utf8(token.bytes())) {
        None => Ok(None),
        Some(Ok(token)) if !token.contains(char::is_control) => Ok(Some(token.to_owned())),
        Some(_) => Err(fail("invalid token: it must be one line of text")),
    }
}

/// Returns the bytes of a key on the command line; an empty key is an error.
fn key_bytes(key: &OsStr, escaped: bool) -> Result<Vec<u8>, CommandFailure> {
    let bytes = match escaped {
        true => bytes::unescape(key.as_bytes()).map_err(fail)?,
        false => key.as_bytes().to_vec(),
    };
    if bytes.is_empty() { Err(fail("the key must not be empty")) } else { Ok(bytes) }
}

impl WantReceipt {
    /// Returns the query parameter, to be appended to another one.
    fn query(&self) -> &'static str {
        if self.receipt { "&receipt=true" } else { "" }
    }
}

impl TtlArgs {
    /// Returns the query parameter, to be appended to another one.
    fn query(&self) -> String {
        self.ttl.map(|ttl| format!("&ttl={ttl}")).unwrap_or_default()
    }
}

impl VoteArgs {
    /// Returns the query parameters, to be appended to another one.
    fn query(&self) -> String {
        let ack = self.ack.map(|ack| format!("&ack={ack}"));
        let from = self.from.map(|from| format!("&from={from}"));
        ack.unwrap_or_default() + &from.unwrap_or_default()
    }
}
