//! Reports of errors in a node's answers, to the user or as JSON.

use std::io::{self, ErrorKind};

use serde::Deserialize;
use serde_json::{Value, json};

use super::bytes::add as add_bytes;
use super::{CommandFailure, ConnectionArgs, fail};
use crate::operations::stderr;

/// The fields of an `application/problem+json` body that are shown to users.
#[derive(Debug, Deserialize)]
pub(super) struct ProblemDetails {
    /// The kind of problem, a word. In answers of other programs it is missing, or a URI.
    #[serde(rename = "type")]
    kind: String,
    title: String,
    status: u16,
    #[serde(default)]
    detail: String,
    acked: Option<u32>,
    required: Option<u32>,
    from: Option<u32>,
    outcome: Option<String>,
}

/// Kind of the answer for a key without a value.
const NOT_FOUND: &str = "not-found";

/// Kind of the answer for a condition that is not met.
const CONDITION_FAILED: &str = "precondition-failed";

impl ProblemDetails {
    /// Parses the problem in an answer; `None` if the body is not in kvorum's format.
    fn read(status: u16, body: &[u8]) -> Option<Self> {
        let problem: Self = serde_json::from_slice(body).ok()?;
        let word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        (problem.status == status && problem.kind.bytes().all(word)).then_some(problem)
    }

    /// Returns true if kvorum reports that a key has no value; false for a 404 of another program.
    pub(super) fn is_absence(status: u16, body: &[u8]) -> bool {
        Self::read(status, body).is_some_and(|problem| problem.kind == NOT_FOUND)
    }

    /// Returns true if kvorum reports that a write's condition is not met.
    pub(super) fn is_condition_failed(status: u16, body: &[u8]) -> bool {
        Self::read(status, body).is_some_and(|problem| problem.kind == CONDITION_FAILED)
    }

    /// Reports the problem to the user, or as JSON.
    pub(super) fn report(status: u16, body: &[u8], ask: &ConnectionArgs) -> CommandFailure {
        match Self::read(status, body) {
            Some(_) if ask.json => {
                stderr::say(format_args!("{}", String::from_utf8_lossy(body).trim_end()));
                CommandFailure::Failed
            }
            Some(_) => Self::report_node(status, body, &ask.url),
            None => Self::report_other_program(status, ask),
        }
    }

    /// Reports that another program answered a request that changes nothing, to the user or as
    /// JSON.
    pub(super) fn report_other_program(status: u16, ask: &ConnectionArgs) -> CommandFailure {
        UnknownOutcome::OtherProgram(status)
            .report_unchanged(&other_program_text(&ask.url, status), ask)
    }

    /// Reports an unexpected answer to a write or another change, and the request's outcome. The
    /// outcome is unknown if another program answered.
    pub(super) fn report_with_outcome(
        what: UncertainRequest,
        status: u16,
        body: &[u8],
        ask: &ConnectionArgs,
    ) -> CommandFailure {
        match Self::read(status, body) {
            Some(_) if ask.json => Self::report(status, body, ask),
            Some(problem) => {
                fail(format!("{} answers {status}: {}", ask.url, problem.words() + problem.end()))
            }
            None => UnknownOutcome::OtherProgram(status).report(
                what,
                &other_program_text(&ask.url, status),
                ask,
            ),
        }
    }

    /// Reports as JSON that a key has no value.
    pub(super) fn report_absent(key: &[u8], body: &[u8]) -> CommandFailure {
        let object = serde_json::from_slice::<serde_json::Map<String, Value>>(body);
        let mut object = object.unwrap_or_default();
        add_bytes(&mut object, "key", key);
        stderr::say(format_args!("{}", Value::from(object)));
        CommandFailure::No
    }

    /// Reports that a write's condition is not met, with the current version.
    pub(super) fn report_condition_failed(
        body: &[u8],
        current: Option<&str>,
        ask: &ConnectionArgs,
    ) {
        let object = serde_json::from_slice::<serde_json::Map<String, Value>>(body);
        if let (true, Ok(mut object)) = (ask.json, object) {
            object.extend(current.map(|version| ("version".to_owned(), version.into())));
            stderr::say(format_args!("{}", Value::from(object)));
            return;
        }
        let current =
            current.map_or(String::new(), |version| format!(". The current version is {version}"));
        let end = Self::read(412, body).map_or("", |problem| problem.end());
        let _ =
            fail(format!("{} answers {}{end}{current}", ask.url, Self::describe_answer(412, body)));
    }

    /// Reports an unexpected answer of the node at `url` to the user.
    pub(super) fn report_node(status: u16, body: &[u8], url: &str) -> CommandFailure {
        fail(format!("{url} answers {}", Self::describe_answer(status, body)))
    }

    /// Describes an unexpected answer.
    pub(super) fn describe_answer(status: u16, body: &[u8]) -> String {
        match Self::read(status, body) {
            Some(problem) => format!("{status}: {}", problem.words()),
            None => not_kvorum_text(status),
        }
    }

    fn words(&self) -> String {
        let mut words = self.title.clone();
        if !self.detail.is_empty() {
            words += ": ";
            words += &self.detail;
        }
        if let (Some(acked), Some(required), Some(from)) = (self.acked, self.required, self.from) {
            words += &format!(" ({acked} of {required} required replicas, out of {from})");
        }
        words
    }

    /// Describes the outcome of a write; empty if the answer names no outcome. A node may name an
    /// outcome in the answer to a read too, if it refuses the request before it parses the method.
    /// Reports of reads do not call this function.
    fn end(&self) -> &'static str {
        match self.outcome.as_deref() {
            Some("none") => ". Nothing was written",
            Some(_) => ". The write may have been applied, or may be later",
            None => "",
        }
    }
}

/// A request whose outcome may be unknown.
#[derive(Debug, Clone, Copy)]
pub(super) enum UncertainRequest {
    /// A write of a key.
    Write,
    /// Any other change.
    Change,
}

/// Reason why the outcome of a request is unknown.
#[derive(Debug, Clone, Copy)]
pub(super) enum UnknownOutcome {
    /// Another program answered with this status.
    OtherProgram(u16),
    /// The answer is malformed.
    Malformed,
    /// The answer is missing or incomplete.
    NoAnswer,
}

impl UnknownOutcome {
    /// Classifies the error of an incomplete answer.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidData => Self::Malformed,
            _ => Self::NoAnswer,
        }
    }

    /// Reports the failure `why` of a write or another change whose outcome is unknown, to the user
    /// or as JSON.
    pub(super) fn report(
        self,
        what: UncertainRequest,
        why: &str,
        ask: &ConnectionArgs,
    ) -> CommandFailure {
        if !ask.json {
            let failed = fail(why);
            let what = match what {
                UncertainRequest::Write => "the write may have been applied",
                UncertainRequest::Change => "what was asked for may have been done",
            };
            stderr::say(format_args!("kvorum: outcome unknown: {what}, or may be later"));
            return failed;
        }
        let mut object = self.object(why);
        object["outcome"] = "unknown".into();
        stderr::say(format_args!("{object}"));
        CommandFailure::Failed
    }

    /// Reports the failure `why` of a request that changed nothing: the request asks for no change,
    /// or was not sent.
    pub(super) fn report_unchanged(self, why: &str, ask: &ConnectionArgs) -> CommandFailure {
        if !ask.json {
            return fail(why);
        }
        stderr::say(format_args!("{}", self.object(why)));
        CommandFailure::Failed
    }

    fn object(self, why: &str) -> Value {
        let (kind, title) = match self {
            Self::OtherProgram(_) | Self::Malformed => {
                ("unexpected-response", "Unexpected response")
            }
            Self::NoAnswer => ("no-response", "No response"),
        };
        let mut object = json!({"type": kind, "title": title, "detail": why});
        if let Self::OtherProgram(status) = self {
            object["status"] = status.into();
        }
        object
    }
}

/// Describes an answer of the node at `url` whose body is not in kvorum's format.
pub(super) fn other_program_text(url: &str, status: u16) -> String {
    format!("{url} answers {}", not_kvorum_text(status))
}

/// Describes an answer whose body is not in kvorum's format.
fn not_kvorum_text(status: u16) -> String {
    format!(
        "{status} with an unexpected response body: is this a kvorum node, or is a proxy in \
    between?"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_printed_with_all_its_fields() {
        let words = |rest: &str| {
            let json = format!(r#"{{"type":"t","status":400,"title":"T"{rest}}}"#);
            let problem = ProblemDetails::read(400, json.as_bytes()).unwrap();
            problem.words() + problem.end()
        };
        assert_eq!(words(r#","detail":"d""#), "T: d");
        assert_eq!(
            words(r#","acked":1,"required":2,"from":3,"outcome":"unknown","x":1"#),
            "T (1 of 2 required replicas, out of 3). The write may have been applied, or may \
             be later"
        );
        assert_eq!(words(r#","outcome":"none""#), "T. Nothing was written");
    }
    #[test]
    fn answers_of_other_programs_are_recognized() {
        let own = r#"{"type":"not-found","title":"Key not found","status":404}"#;
        assert!(ProblemDetails::is_absence(404, own.as_bytes()));
        for (status, body) in [
            (404, ""),
            (404, "<html>not found</html>"),
            (404, "{}"),
            (404, r#"{"status":404,"error":"Not Found","path":"/v0/entity"}"#),
            (404, r#"{"type":"about:blank","title":"Not Found","status":404}"#),
            (404, r#"{"type":"bad-request","title":"T","status":404}"#),
            (400, own),
        ] {
            assert!(!ProblemDetails::is_absence(status, body.as_bytes()), "{body}");
        }
        assert!(ProblemDetails::describe_answer(502, b"<html>").contains("is this a kvorum node"));
    }
}
