//! Answers other than success: `application/problem+json` (RFC 9457).

use bytes::Bytes;
use cluster::{Denied, Quorum, Refusal, Trouble};
use hyper::{Method, StatusCode};
use serde::Serialize;

use super::{Answer, Body};
use crate::clock::NoVersion;

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

    pub(super) fn upgrade(protocol: &str) -> Self {
        let detail = format!("this is for other nodes, which ask to go on with {protocol}");
        let title = "Another protocol is needed";
        Self::new(StatusCode::UPGRADE_REQUIRED, "upgrade-required", title, detail)
    }

    /// An admin request of somebody who may not.
    pub(super) fn forbidden(detail: &str) -> Self {
        let title = "This is for those who administer the node";
        Self::new(StatusCode::FORBIDDEN, "forbidden", title, detail.to_owned())
    }

    /// A request that somebody else's page has sent.
    pub(super) fn foreign(who: &str) -> Self {
        let detail = format!(
            "{who} may not ask a node that listens on loopback, or any page on the web could; ask \
             from its own pages (/ui), from a program, or through a proxy of your own"
        );
        Self::new(StatusCode::FORBIDDEN, "foreign-origin", "This is for its own pages", detail)
            .undone()
    }

    /// A request under a name that is not this node's.
    pub(super) fn misdirected(authority: &str) -> Self {
        let shown: String = authority.chars().take(100).collect();
        let detail = format!(
            "{shown:?} is no name of this node, which listens on loopback and can't tell it from \
             one that a foreign page has pointed there; ask by address, or start it with \
             --allow-host NAME"
        );
        let (status, title) = (StatusCode::MISDIRECTED_REQUEST, "Another host was asked");
        Self::new(status, "misdirected-request", title, detail).undone()
    }

    /// A body that is encoded for its way.
    pub(super) fn coding() -> Self {
        let detail = "the only Transfer-Encoding understood here is \"chunked\", once";
        let (status, title) = (StatusCode::NOT_IMPLEMENTED, "The body's coding is not understood");
        Self::new(status, "transfer-coding", title, detail.to_owned()).undone()
    }

    /// Two recordings at once.
    pub(super) fn recording_runs(detail: String) -> Self {
        Self::new(StatusCode::CONFLICT, "recording-runs", "One recording at a time", detail)
    }

    /// A recording that came to nothing.
    pub(super) fn no_recording(detail: String) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "no-recording", "Nothing was recorded", detail)
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

    /// A client that found no place.
    pub(super) fn crowded(most: usize) -> Self {
        let what = format!("all {most} places for clients are taken (--connections)");
        Self::overload(&what).undone()
    }

    fn too_few(detail: String) -> Self {
        let title = "Fewer replicas answered than asked for";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "too-few-replicas", title, detail)
    }

    fn no_space(detail: String) -> Self {
        let status = StatusCode::INSUFFICIENT_STORAGE;
        Self::new(status, "no-space", "The disk is full", detail)
    }

    pub(super) fn storage(detail: impl Into<String>) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "storage-failed", "The storage failed", detail.into())
    }

    /// A range of which not even the first item could be read.
    pub(super) fn too_few_for_range(quorum: Quorum) -> Self {
        let detail = "for a part of the keys too few of their replicas answered in time";
        Self::too_few(detail.to_owned()).votes(quorum)
    }

    /// A request that too few replicas did their part of.
    pub(super) fn denied(denied: Denied) -> Self {
        let Denied { trouble, acked, quorum, unknown, detail, is_write } = denied;
        let detail = |otherwise: &str| detail.unwrap_or_else(|| otherwise.to_owned());
        let problem = match trouble {
            Trouble::TooFew => Self::too_few(detail(
                "too few replicas did their part in time; kvorum status shows which are down",
            )),
            Trouble::Busy => Self::overload(&detail("the replicas have too much to do")),
            Trouble::NoSpace => Self::no_space(detail("the replicas' disks are full")),
            Trouble::Failed => Self::storage(detail("the replicas' stores failed")),
        };
        let outcome = match (is_write, unknown) {
            (false, _) => None,
            (true, false) => Some(Outcome::None),
            (true, true) => Some(Outcome::Unknown),
        };
        let votes = Some(Votes { acked, required: quorum.ack, from: quorum.from });
        Self { votes, outcome, ..problem }
    }

    /// A write that got no version.
    pub(super) fn version(error: &NoVersion, quorum: Quorum) -> Self {
        match error {
            NoVersion::Lags => Self::overload("the clock waits for the disk"),
            NoVersion::Failed(error) if error.is_no_space() => Self::no_space(error.to_string()),
            NoVersion::Failed(error) => Self::storage(error.to_string()),
        }
        .undone()
        .votes(quorum)
    }

    /// A write whose version most of the others would refuse.
    pub(super) fn clock_ahead(quorum: Quorum) -> Self {
        let what = "this node's clock is too far ahead of most others' (--max-clock-skew): set it, \
                    or ask another node";
        Self::overload(what).undone().votes(quorum)
    }

    pub(super) fn votes(mut self, quorum: Quorum) -> Self {
        self.votes = Some(Votes { acked: 0, required: quorum.ack, from: quorum.from });
        self
    }

    pub(super) fn undone(mut self) -> Self {
        self.outcome = Some(Outcome::None);
        self
    }

    pub(super) fn retry(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16()
    }

    pub(super) fn wants_upgrade(&self) -> bool {
        self.status == StatusCode::UPGRADE_REQUIRED.as_u16()
    }

    pub(super) fn is_not_implemented(&self) -> bool {
        self.status == StatusCode::NOT_IMPLEMENTED.as_u16()
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
            headers: &[],
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
        headers: &[],
        body: Body::Whole(Bytes::from_static(NOT_FOUND)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUORUM: Quorum = Quorum { ack: 1, from: 1 };

    fn denied(trouble: Trouble, unknown: bool, is_write: bool) -> Problem {
        let detail = Some("said by the store".to_owned());
        Problem::denied(Denied { trouble, acked: 0, quorum: QUORUM, unknown, detail, is_write })
    }

    #[test]
    fn a_failed_write_says_whether_it_may_have_been_done() {
        for (trouble, unknown, status, kind) in [
            (Trouble::Busy, false, 503, "overload"),
            (Trouble::TooFew, true, 504, "too-few-replicas"),
            (Trouble::TooFew, false, 504, "too-few-replicas"),
            (Trouble::NoSpace, false, 507, "no-space"),
            (Trouble::Failed, false, 500, "storage-failed"),
            (Trouble::Failed, true, 500, "storage-failed"),
        ] {
            let problem = denied(trouble, unknown, true);
            assert_eq!((problem.status, problem.kind), (status, kind), "{trouble:?}");
            let outcome = if unknown { Outcome::Unknown } else { Outcome::None };
            assert_eq!(problem.outcome, Some(outcome), "{trouble:?}");
            assert_eq!(problem.retry(), status == 503);
            assert!(problem.detail.contains("said by the store"));
        }
    }

    #[test]
    fn a_damaged_record_is_never_a_404() {
        let problem = denied(Trouble::Failed, false, false);
        assert_eq!((problem.status, problem.kind), (500, "storage-failed"));
        assert_eq!(problem.outcome, None, "reads have no outcome");
    }

    #[test]
    fn bodies_are_problem_json() {
        let answer = denied(Trouble::TooFew, true, true).into_answer();
        let Body::Whole(body) = answer.body else { panic!("no body") };
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&json["acked"], &json["required"]), (&0.into(), &1.into()));
        assert_eq!((&json["from"], &json["outcome"]), (&1.into(), &"unknown".into()));
        assert_eq!(json["status"], 504);
        let absent: serde_json::Value = serde_json::from_slice(NOT_FOUND).unwrap();
        assert_eq!(absent["status"], 404);
    }
}
