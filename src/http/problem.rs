//! Answers other than success: `application/problem+json` (RFC 9457).

use bytes::Bytes;
use cluster::{Quorum, Refusal};
use hyper::{Method, StatusCode};
use serde::Serialize;

use super::{Answer, Body};
use crate::clock::NoVersion;
use crate::pages::PageError;
use crate::reads::ReadError;
use crate::writes::WriteError;

const CONTENT_TYPE: &str = "application/problem+json";

/// What became of a write that was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// Nothing was stored, and nothing will be.
    None,
    /// It may be stored, or be so later.
    Unknown,
}

/// How many replicas answered, of how many that had to.
#[derive(Debug, Clone, Copy, Serialize)]
struct Votes {
    acked: u8,
    required: u8,
    from: u8,
}

/// Why a request was not done.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    votes: Option<Votes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip)]
    allow: Option<&'static str>,
}

/// The answer to the only problem that is nobody's: built once, for it may be most of the answers.
const NOT_FOUND: &[u8] = br#"{"type":"not-found","title":"No value under this key","status":404}"#;

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: String) -> Self {
        let status = status.as_u16();
        Self { kind, title, status, detail, votes: None, outcome: None, allow: None }
    }

    pub(super) fn bad_request(detail: String) -> Self {
        let title = "The request is not understood";
        Self::new(StatusCode::BAD_REQUEST, "bad-request", title, detail)
    }

    pub(super) fn quorum(refusal: Refusal) -> Self {
        Self::bad_request(refusal.to_string())
    }

    pub(super) fn unknown_path(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::bad_request(format!("there is nothing at {shown:?}; try /v0/entity?id=KEY"))
    }

    pub(super) fn method(method: &Method, allow: &'static str) -> Self {
        let shown: String = method.as_str().chars().take(20).collect();
        let detail = format!("{shown} can't be done here, only {allow}");
        let title = "Another method is needed";
        let mut problem =
            Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", title, detail);
        problem.allow = Some(allow);
        problem
    }

    pub(super) fn too_large(bound: usize) -> Self {
        let detail = format!("a value has at most {bound} bytes here (--max-value)");
        let title = "The value is too large";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "value-too-large", title, detail).undone()
    }

    pub(super) fn overload(what: &str) -> Self {
        let detail = format!("{what}; try again in a moment");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overload", "Too much at once", detail)
    }

    fn deadline() -> Self {
        let detail = "the store did not answer in time (--deadline)".to_owned();
        let title = "Fewer replicas answered than asked for";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "too-few-replicas", title, detail)
    }

    fn store(error: &lsm::Error) -> Self {
        let detail = error.to_string();
        if error.is_no_space() {
            let status = StatusCode::INSUFFICIENT_STORAGE;
            return Self::new(status, "no-space", "The disk is full", detail);
        }
        match error {
            lsm::Error::Busy { .. } | lsm::Error::Closing => Self::overload(&detail),
            _ => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, "storage-failed", "The storage failed", detail)
            }
        }
    }

    /// A read that no replica answered.
    pub(super) fn read(error: &ReadError, quorum: Quorum) -> Self {
        match error {
            ReadError::QueueFull => Self::overload("too many reads wait for the disk (--queue)"),
            ReadError::Deadline => Self::deadline(),
            ReadError::Store(error) => Self::store(error),
        }
        .votes(quorum)
    }

    /// A range of which not even the first page could be read.
    pub(super) fn page(error: &PageError, quorum: Quorum) -> Self {
        match error {
            PageError::NoRoom(_) => Self::overload("too many range reads at once"),
            PageError::Store(error) => Self::store(error),
        }
        .votes(quorum)
    }

    /// A range whose first page did not come in time.
    pub(super) fn page_deadline(quorum: Quorum) -> Self {
        Self::deadline().votes(quorum)
    }

    /// A write that was not acknowledged.
    pub(super) fn write(error: &WriteError, quorum: Quorum) -> Self {
        match error {
            WriteError::Busy => Self::overload("too many writes wait for the disk").undone(),
            WriteError::Deadline => Self::deadline().unknown(),
            WriteError::Store(error) => {
                let problem = Self::store(error);
                // Everything else fails before the log is touched.
                let unknown = matches!(error, lsm::Error::Failed { begun: true, .. });
                if unknown { problem.unknown() } else { problem.undone() }
            }
        }
        .votes(quorum)
    }

    /// A write that got no version.
    pub(super) fn version(error: &NoVersion, quorum: Quorum) -> Self {
        match error {
            NoVersion::Lags => Self::overload("the clock waits for the disk"),
            NoVersion::Failed(error) => Self::store(error),
        }
        .undone()
        .votes(quorum)
    }

    fn votes(mut self, quorum: Quorum) -> Self {
        self.votes = Some(Votes { acked: 0, required: quorum.ack, from: quorum.from });
        self
    }

    pub(super) fn undone(mut self) -> Self {
        self.outcome = Some(Outcome::None);
        self
    }

    fn unknown(mut self) -> Self {
        self.outcome = Some(Outcome::Unknown);
        self
    }

    pub(super) fn retry(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16()
    }

    pub(super) fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    pub(super) fn into_answer(self) -> Answer {
        let body = serde_json::to_vec(&self).expect("strings and numbers always serialize");
        Answer {
            status: StatusCode::from_u16(self.status).expect("made of a StatusCode"),
            version: None,
            content_type: Some(CONTENT_TYPE),
            body: Body::Whole(Bytes::from(body)),
        }
    }
}

/// No value under the key: an answer, not a failure.
pub(super) fn not_found() -> Answer {
    Answer {
        status: StatusCode::NOT_FOUND,
        version: None,
        content_type: Some(CONTENT_TYPE),
        body: Body::Whole(Bytes::from_static(NOT_FOUND)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    const QUORUM: Quorum = Quorum { ack: 1, from: 1 };

    fn io_error(kind: io::ErrorKind) -> lsm::Error {
        let source = Arc::new(io::Error::from(kind));
        lsm::Error::Io { operation: "write", file: "f".to_owned(), source }
    }

    fn corrupt() -> lsm::Error {
        lsm::Error::Corrupt { file: "f".to_owned(), offset: 7, what: "check".to_owned() }
    }

    #[test]
    fn a_failed_write_says_whether_it_may_have_been_done() {
        let failed = |begun| lsm::Error::Failed { cause: "sync".into(), begun };
        for (error, status, kind, outcome) in [
            (WriteError::Busy, 503, "overload", Outcome::None),
            (WriteError::Deadline, 504, "too-few-replicas", Outcome::Unknown),
            (WriteError::Store(lsm::Error::Busy { what: "x" }), 503, "overload", Outcome::None),
            (WriteError::Store(lsm::Error::NoSpace { what: "x" }), 507, "no-space", Outcome::None),
            (
                WriteError::Store(io_error(io::ErrorKind::StorageFull)),
                507,
                "no-space",
                Outcome::None,
            ),
            (
                WriteError::Store(io_error(io::ErrorKind::Other)),
                500,
                "storage-failed",
                Outcome::None,
            ),
            (WriteError::Store(failed(false)), 500, "storage-failed", Outcome::None),
            (WriteError::Store(failed(true)), 500, "storage-failed", Outcome::Unknown),
        ] {
            let problem = Problem::write(&error, QUORUM);
            assert_eq!((problem.status, problem.kind), (status, kind), "{error:?}");
            assert_eq!(problem.outcome, Some(outcome), "{error:?}");
            assert_eq!(problem.retry(), status == 503);
        }
    }

    #[test]
    fn a_damaged_record_is_never_a_404() {
        let problem = Problem::read(&ReadError::Store(corrupt()), QUORUM);
        assert_eq!((problem.status, problem.kind), (500, "storage-failed"));
        assert_eq!(problem.outcome, None, "reads have no outcome");
        let problem = Problem::page(&PageError::Store(corrupt()), QUORUM);
        assert_eq!((problem.status, problem.kind), (500, "storage-failed"));
    }

    #[test]
    fn bodies_are_problem_json() {
        let answer = Problem::write(&WriteError::Deadline, QUORUM).into_answer();
        let Body::Whole(body) = answer.body else { panic!("no body") };
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&json["acked"], &json["required"]), (&0.into(), &1.into()));
        assert_eq!((&json["from"], &json["outcome"]), (&1.into(), &"unknown".into()));
        assert_eq!(json["status"], 504);
        let absent: serde_json::Value = serde_json::from_slice(NOT_FOUND).unwrap();
        assert_eq!(absent["status"], 404);
    }
}
