//! Requests for admin tasks that a node carries out in the background, such as `repair` and
//! `compact`, and the display of their progress.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::args::ConnectionArgs;
use super::connection::{ClientConnection, Head, unexpected_response};
use super::problem::{ProblemDetails, UncertainRequest};
use super::{CommandFailure, connect, report_unanswered, unreachable_node};
use crate::operations::stderr;

/// Interval at which the command asks the node for the progress.
const PERIOD: Duration = Duration::from_millis(200);

/// Delay of the first progress line, if stderr is not a terminal.
pub(super) const FIRST_LINE: Duration = Duration::from_secs(4);

/// Interval of the progress lines after the first, if stderr is not a terminal.
pub(super) const EACH_LINE: Duration = Duration::from_secs(10);

/// A connection to a node that carries out an admin task.
pub(super) struct AdminClient<'a> {
    connection: ClientConnection,
    asked: &'a ConnectionArgs,
    /// True once a change was requested: from then on, a failed request leaves the change's outcome
    /// unknown.
    has_changed: bool,
}

/// A node's answer to a request for a task: the task's number.
#[derive(Serialize, Deserialize)]
struct Accepted {
    number: u64,
}

/// Formats the number of a requested task as the node does.
pub(super) fn task_number_json(number: u64) -> String {
    serde_json::to_string(&Accepted { number }).expect("numbers always serialize") + "\n"
}

impl<'a> AdminClient<'a> {
    pub(super) fn new(ask: &'a ConnectionArgs) -> Result<Self, CommandFailure> {
        Ok(Self { connection: connect(ask)?, asked: ask, has_changed: false })
    }

    /// Returns the flags of the connection, for printed commands.
    pub(super) fn flags(&self) -> String {
        self.asked.flags()
    }

    /// Requests a task; returns the task's number.
    pub(super) fn ask(&mut self, target: &str) -> Result<u64, CommandFailure> {
        let Accepted { number } = self.request_change(target, 202)?;
        Ok(number)
    }

    /// Polls the progress until `ended` returns a result. `ended` may send further requests. If
    /// stderr is not a terminal, prints the bar's message to stderr every few seconds, unless the
    /// output is JSON.
    pub(super) fn wait<Answer: DeserializeOwned, End>(
        &mut self,
        target: &str,
        mut ended: impl FnMut(&mut Self, Answer, &ProgressBar) -> Option<End>,
    ) -> Result<End, CommandFailure> {
        let bar = progress();
        let mut next_line = Instant::now() + FIRST_LINE;
        loop {
            let answer = self.request("GET", target, 200)?;
            if let Some(end) = ended(self, answer, &bar) {
                bar.finish_and_clear();
                return Ok(end);
            }
            let message = bar.message();
            let prints = bar.is_hidden() && !self.asked.json && !message.is_empty();
            if prints && Instant::now() >= next_line {
                stderr::say(format_args!("{message}"));
                next_line = Instant::now() + EACH_LINE;
            }
            thread::sleep(PERIOD);
        }
    }

    /// Requests information that the command can do without; `None` after any failure.
    pub(super) fn try_get<T: DeserializeOwned>(&mut self, target: &str) -> Option<T> {
        let (head, body) = self.answer("GET", target).ok()?;
        serde_json::from_slice(&body).ok().filter(|_| head.status == 200)
    }

    /// Sends a request that changes nothing; any other status than `status` is an error.
    pub(super) fn request<T: DeserializeOwned>(
        &mut self,
        method: &str,
        target: &str,
        status: u16,
    ) -> Result<T, CommandFailure> {
        let (ask, has_changed) = (self.asked, self.has_changed);
        let unread = |error: &io::Error| match has_changed {
            true => report_unanswered(UncertainRequest::Change, ask, error),
            false => unreachable_node(ask, error),
        };
        let (head, body) = self.answer(method, target).map_err(|error| unread(&error))?;
        if head.status != status {
            return Err(ProblemDetails::report(head.status, &body, self.asked));
        }
        serde_json::from_slice(&body)
            .map_err(|error| unread(&unexpected_response(&error.to_string())))
    }

    /// Sends a request for a change; any other status than `status` is an error. If the node's
    /// answer is missing or malformed, reports that the outcome is unknown.
    pub(super) fn request_change<T: DeserializeOwned>(
        &mut self,
        target: &str,
        status: u16,
    ) -> Result<T, CommandFailure> {
        let ask = self.asked;
        self.has_changed = true;
        let (head, body) = self
            .answer("POST", target)
            .map_err(|error| report_unanswered(UncertainRequest::Change, ask, &error))?;
        if head.status != status {
            return Err(ProblemDetails::report_with_outcome(
                UncertainRequest::Change,
                head.status,
                &body,
                ask,
            ));
        }
        let parsed = serde_json::from_slice(&body);
        parsed.map_err(|error| {
            report_unanswered(
                UncertainRequest::Change,
                ask,
                &unexpected_response(&error.to_string()),
            )
        })
    }

    fn answer(&mut self, method: &str, target: &str) -> io::Result<(Head, Vec<u8>)> {
        let head = self.connection.request(method, target, None, |_| {})?;
        let body = self.connection.body(&head)?;
        Ok((head, body))
    }
}

/// Returns a progress bar, hidden unless stderr is a terminal.
fn progress() -> ProgressBar {
    if io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() }
}

/// Shows the progress: as a share of the total `of`, or as a spinner if the total is not known.
pub(super) fn show(bar: &ProgressBar, done: u64, of: Option<u64>, message: String) {
    let template = if of.is_some() { "{bar:40} {percent} % {msg}" } else { "{spinner} {msg}" };
    bar.set_style(ProgressStyle::with_template(template).expect("both are well-formed"));
    if let Some(of) = of {
        bar.set_length(of.max(done));
    }
    bar.set_position(done);
    bar.set_message(message);
    bar.tick();
}

/// Formats a duration in milliseconds for the user; `None` counts as 0.
pub(super) fn duration_text(took_ms: Option<u64>) -> String {
    let took = Duration::from_millis(took_ms.unwrap_or(0));
    if took < Duration::from_secs(10) {
        format!("{:.1} s", took.as_secs_f64())
    } else {
        HumanDuration(took).to_string()
    }
}
