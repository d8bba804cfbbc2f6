//! Answers that report a failure: `application/problem+json` (RFC 9457).

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use protocol::{
    FailureKind, NodeId, Quorum, QuorumError, ReplicaOutcome, RequestFailure, Tag, escape, visible,
};
use serde::{Serialize, Serializer};
use server::NoVersion;

use super::{Answer, Body, caching};
use crate::operations::access::ChangeError;

pub(crate) const CONTENT_TYPE: &str = "application/problem+json";

/// The outcome of a write that was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// Nothing was stored, and nothing will be stored.
    None,
    /// The write may already be stored, or may be stored later.
    Unknown,
}

/// The number of replicas that answered, and the number that had to answer.
#[derive(Debug, Clone, Copy, Serialize)]
struct VoteCount {
    acked: u8,
    required: u8,
    from: u8,
}

/// The outcome on each replica, by node name.
#[derive(Debug, Default, Serialize)]
struct ReplicaOutcomes {
    /// Replicas that completed their part.
    answered: Vec<String>,
    failed: Vec<Failure>,
    /// Replicas that were asked, and whose missing answers can't change the outcome.
    pending: Vec<String>,
    /// Milliseconds from the start of the request to this answer.
    took_ms: f64,
}

/// A replica that did not complete its part.
#[derive(Debug, Serialize)]
struct Failure {
    node: String,
    reason: &'static str,
}

/// Maximum number of node names in a sentence. The lists of the document have all names.
const MAX_NAMED: usize = 4;

/// Declares the types of problems, each with its status, its name in answers, and its title.
macro_rules! types {
    ($($word:ident: $status:ident $name:literal $title:literal;)*) => {
        /// The `type` of a problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Type { $($word),* }

        impl Type {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$word),*];

            pub(crate) fn status(self) -> StatusCode {
                match self { $(Self::$word => StatusCode::$status),* }
            }

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$word => $name),* }
            }

            fn title(self) -> &'static str {
                match self { $(Self::$word => $title),* }
            }
        }
    };
}

types! {
    BadRequest: BAD_REQUEST "bad-request" "Bad request";
    Unauthorized: UNAUTHORIZED "unauthorized" "Token required";
    Forbidden: FORBIDDEN "forbidden" "The token is not good for this";
    ForeignOrigin: FORBIDDEN "foreign-origin" "Cross-origin request refused";
    NotFound: NOT_FOUND "not-found" "Key not found";
    NoSuchPath: NOT_FOUND "no-such-path" "No such path";
    MethodNotAllowed: METHOD_NOT_ALLOWED "method-not-allowed" "Method not allowed";
    RecordingInProgress: CONFLICT "recording-in-progress" "A recording is already running";
    NotANumber: CONFLICT "not-a-number" "Not a number";
    Overflow: CONFLICT "overflow" "Sum out of range";
    JoinRefused: CONFLICT "join-refused" "The node can't join";
    TokenRefused: CONFLICT "token-refused" "The tokens can't be changed like that";
    QuotaRefused: CONFLICT "quota-refused" "The quotas can't be changed like that";
    PlanRefused: CONFLICT "plan-refused" "The change is refused";
    FinalizeRefused: CONFLICT "finalize-refused" "The upgrade can't be finalized yet";
    IdempotencyKeyUsed: CONFLICT "idempotency-key-used" "Idempotency key used";
    ContentCoding: UNSUPPORTED_MEDIA_TYPE "content-coding" "Content-Encoding not supported";
    PreconditionFailed: PRECONDITION_FAILED "precondition-failed" "Precondition failed";
    ValueTooLarge: PAYLOAD_TOO_LARGE "value-too-large" "Value too large";
    MisdirectedRequest: MISDIRECTED_REQUEST "misdirected-request" "Misdirected request";
    IdempotencyKeyReused: UNPROCESSABLE_ENTITY "idempotency-key-reused" "Idempotency key reused";
    UpgradeRequired: UPGRADE_REQUIRED "upgrade-required" "Upgrade required";
    RateLimited: TOO_MANY_REQUESTS "rate-limited" "Rate limit of the token reached";
    StorageFailed: INTERNAL_SERVER_ERROR "storage-failed" "Storage failed";
    RecordingFailed: INTERNAL_SERVER_ERROR "recording-failed" "Recording failed";
    TransferCoding: NOT_IMPLEMENTED "transfer-coding" "Transfer-Encoding not supported";
    Overload: SERVICE_UNAVAILABLE "overload" "Overloaded";
    Undecided: SERVICE_UNAVAILABLE "undecided" "The council did not decide";
    FinalizeIncomplete: SERVICE_UNAVAILABLE "finalize-incomplete" "Not all stores were raised";
    Fenced: SERVICE_UNAVAILABLE "fenced" "This node is fenced";
    Removed: SERVICE_UNAVAILABLE "removed" "This node was removed";
    Joining: SERVICE_UNAVAILABLE "joining" "This node waits for its place";
    TooFewReplicas: GATEWAY_TIMEOUT "too-few-replicas" "Not enough replicas answered";
    NoSpace: INSUFFICIENT_STORAGE "no-space" "Disk full";
    QuotaReached: INSUFFICIENT_STORAGE "quota-reached" "Quota of a prefix reached";
}

impl Serialize for Type {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

/// The reason why a request failed, as the document in the answer.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: Type,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    votes: Option<VoteCount>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    parts: Option<Box<ReplicaOutcomes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip)]
    allow: Option<&'static str>,
    #[serde(skip)]
    retry_after: Option<u32>,
    /// Tag of the current value.
    #[serde(skip)]
    tag: Option<Box<Tag>>,
}

/// The answer for an absent key, the only problem that is not an error. The text is a constant,
/// because this answer may be the most frequent one.
const NOT_FOUND: &[u8] = br#"{"type":"not-found","title":"Key not found","status":404}"#;

impl Problem {
    fn new(kind: Type, detail: String) -> Self {
        let (title, status) = (kind.title(), kind.status().as_u16());
        let (votes, parts, outcome) = (None, None, None);
        let (allow, retry_after, tag) = (None, None, None);
        Self { kind, title, status, detail, votes, parts, outcome, allow, retry_after, tag }
    }

    pub(crate) fn bad_request(detail: String) -> Self {
        Self::new(Type::BadRequest, detail)
    }

    pub(crate) fn quorum(refusal: QuorumError) -> Self {
        Self::bad_request(refusal.to_string())
    }

    pub(crate) fn unknown_path(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        // On paths of keys, a 404 means that a key has no value. So a misspelled path gets another
        // status.
        let first = path.split('/').find(|segment| !segment.is_empty());
        let is_of_keys = first.is_some_and(|segment| segment.eq_ignore_ascii_case("v0"));
        let kind = if is_of_keys { Type::BadRequest } else { Type::NoSuchPath };
        Self::new(kind, format!("no such path: {shown:?}; try /v0/entity?id=KEY"))
    }

    pub(crate) fn method(method: &Method, allow: &'static str) -> Self {
        let shown: String = method.as_str().chars().take(20).collect();
        let detail = format!("{shown} is not allowed on this path; allowed: {allow}");
        Self { allow: Some(allow), ..Self::new(Type::MethodNotAllowed, detail) }
    }

    /// Refuses `POST /v0/entity` without `add`.
    pub(crate) fn no_addition() -> Self {
        let allow = "GET, HEAD, PUT, DELETE";
        let detail = format!(
            "POST is allowed with add=N only, which adds N to a decimal number; to store a value, \
             send PUT; allowed without add: {allow}"
        );
        let problem = Self::new(Type::MethodNotAllowed, detail);
        Self { allow: Some(allow), ..problem.without_effect() }
    }

    /// Refuses `POST /v0/entity?add=N` with a body. The client may think that the body is the
    /// number.
    pub(crate) fn addition_with_body() -> Self {
        let detail = "POST with add=N takes no body, and this one has one: the number is N in the \
            URL; to store the body as the value, send PUT";
        Self::bad_request(detail.to_owned()).without_effect()
    }

    pub(crate) fn upgrade(protocol: &str) -> Self {
        let detail = format!("this path is for other nodes, which send Upgrade: {protocol}");
        Self::new(Type::UpgradeRequired, detail)
    }

    /// Refuses a request without a known token.
    pub(crate) fn unauthorized(detail: &str) -> Self {
        Self::new(Type::Unauthorized, detail.to_owned())
    }

    /// Refuses a request whose sender lacks the right.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(Type::Forbidden, detail.into())
    }

    /// Refuses a request above a rate limit. A retry is permitted after `wait` nanoseconds.
    pub(crate) fn too_fast(name: &str, wait: u64) -> Self {
        let detail = format!("token {name:?} has used up its rate on this node; retry later");
        let seconds = wait.div_ceil(1_000_000_000).clamp(1, u64::from(u32::MAX));
        let retry_after = Some(seconds as u32);
        Self { retry_after, ..Self::new(Type::RateLimited, detail) }
    }

    /// Refuses an impossible change of the tokens.
    pub(crate) fn token_change_refused(detail: String) -> Self {
        Self::new(Type::TokenRefused, detail)
    }

    /// Refuses an impossible change of the quotas.
    pub(crate) fn quota_change_refused(detail: String) -> Self {
        Self::new(Type::QuotaRefused, detail)
    }

    /// Reports a failed change of tokens or quotas. `refuse` constructs the refusal of an
    /// impossible change.
    pub(crate) fn change_failed(error: ChangeError, refuse: fn(String) -> Self) -> Self {
        match error {
            ChangeError::Access(error) => refuse(error.to_string()),
            ChangeError::NotBegun(why) => refuse(why),
            ChangeError::Random(_) => Self::overload(&error.to_string()),
            ChangeError::Undecided | ChangeError::UndecidedToken => {
                Self::undecided_change(error.to_string())
            }
        }
    }

    /// Refuses a write under a prefix whose quota is full.
    pub(crate) fn quota_reached(prefix: &[u8], stored: u64, hard: u64) -> Self {
        let detail = format!(
            "about {stored} bytes are stored under the prefix \"{}\", and its quota is {hard}: \
             delete some of these keys, or have the quota raised (kvorum quota set)",
            escape(prefix)
        );
        Self::new(Type::QuotaReached, detail).without_effect()
    }

    /// Reports a change of tokens or quotas whose outcome is unknown.
    pub(crate) fn undecided_change(detail: String) -> Self {
        Self::new(Type::Undecided, detail)
    }

    /// Refuses a plaintext request on a port that requires TLS.
    pub(crate) fn in_clear() -> Self {
        let detail = "this port speaks TLS, and the request came in clear: use https:// instead of \
            http://. What it carried was readable on its way: if that was a token, revoke it";
        Self::new(Type::BadRequest, detail.to_owned()).without_effect()
    }

    /// Refuses a request sent by a foreign page.
    pub(crate) fn foreign_page(who: &str) -> Self {
        let detail = format!(
            "{who} may not send requests to this node, because then any web page could; use the \
             node's own pages (/ui), a program, or your own proxy, or start the node with \
             --allow-origin URL for pages that you trust"
        );
        Self::new(Type::ForeignOrigin, detail).without_effect()
    }

    /// Refuses a request whose `Host` is not a name of this node.
    pub(crate) fn misdirected_request(authority: &str) -> Self {
        let shown: String = authority.chars().take(100).collect();
        let detail = format!(
            "{shown:?} is not a name of this node. To its own machine it answers by its own names \
             only, because a foreign page could point any other name at it; use 127.0.0.1, or \
             start the node with --allow-host NAME"
        );
        Self::new(Type::MisdirectedRequest, detail).without_effect()
    }

    /// Refuses a body with an unsupported transfer coding.
    pub(crate) fn unsupported_coding() -> Self {
        let detail = "the only supported Transfer-Encoding is \"chunked\", once";
        Self::new(Type::TransferCoding, detail.to_owned()).without_effect()
    }

    /// Refuses a value with a content coding, such as compression.
    pub(crate) fn content_coding(coding: &[u8]) -> Self {
        let shown: String = String::from_utf8_lossy(coding).chars().take(100).collect();
        let detail = format!(
            "Content-Encoding: {shown:?} is not supported, because it is not stored, and a reader \
             could not know that the value is encoded: send the value without this header, and \
             inform its readers by other means if its bytes are encoded"
        );
        Self::new(Type::ContentCoding, detail).without_effect()
    }

    /// Refuses a recording while another one runs.
    pub(crate) fn concurrent_recording(detail: String) -> Self {
        Self::new(Type::RecordingInProgress, detail)
    }

    /// Refuses a layout plan that can't be applied.
    pub(crate) fn plan_refused(detail: String) -> Self {
        Self::new(Type::PlanRefused, detail)
    }

    /// Refuses to raise the members' store format. Nothing was changed.
    pub(crate) fn not_finalized(detail: String) -> Self {
        Self::new(Type::FinalizeRefused, detail)
    }

    /// Reports that some stores were not raised, or that their state is unknown.
    pub(crate) fn half_finalized(detail: String) -> Self {
        Self::new(Type::FinalizeIncomplete, detail)
    }

    /// Refuses a node's request to join.
    pub(crate) fn join_refused(detail: String) -> Self {
        Self::new(Type::JoinRefused, detail)
    }

    /// Reports a recording that failed.
    pub(crate) fn no_recording(detail: String) -> Self {
        Self::new(Type::RecordingFailed, detail)
    }

    pub(crate) fn too_large(bound: usize) -> Self {
        let detail = format!("the value is longer than {bound} bytes (--max-value)");
        Self::new(Type::ValueTooLarge, detail).without_effect()
    }

    /// Refuses a write whose condition is false. `current` is the tag of the current value, if
    /// there is a value.
    pub(crate) fn condition_failed(current: Option<Tag>) -> Self {
        let detail = match current {
            Some(_) => "the condition is not true of the value that there is: its tag is in ETag",
            None => "the condition is not true: there is no value",
        };
        let problem = Self::new(Type::PreconditionFailed, detail.to_owned());
        Self { tag: current.map(Box::new), ..problem.without_effect() }
    }

    /// Adds a note that a weak tag in `If-Match` matches no value.
    pub(crate) fn with_weak_tags(mut self) -> Self {
        self.detail += ". A weak tag (W/\"...\") in If-Match is true of no value (RFC 9110, \
            section 13.1.1): send the tag without W/";
        self
    }

    /// Refuses an addition to a value that is not a number.
    pub(crate) fn not_a_number() -> Self {
        let detail = "the value is not a decimal number of 64 bits, such as 12 or -3";
        Self::new(Type::NotANumber, detail.to_owned()).without_effect()
    }

    /// Refuses an addition whose sum overflows.
    pub(crate) fn overflow() -> Self {
        let detail = "the sum does not fit into 64 bits (-9223372036854775808 to \
            9223372036854775807)";
        Self::new(Type::Overflow, detail.to_owned()).without_effect()
    }

    /// Refuses a write whose idempotency key may belong to an earlier write. The replicas no longer
    /// know whether such a write exists, or its outcome.
    pub(crate) fn idempotency_unknown() -> Self {
        let detail = "an earlier write may have used this Idempotency-Key, and its outcome is not \
            known any more; this request was not applied. If it repeats a request that was \
            answered, that answer holds. Otherwise read the key to see what is there: under a \
            new Idempotency-Key the write may be done twice. Use a new Idempotency-Key for each \
            write. If a new one is refused too, disks were \
            replaced: kvorum status names the nodes that may not know of earlier writes, and \
            until when; until then, only writes without an Idempotency-Key are done";
        let problem = Self::new(Type::IdempotencyKeyUsed, detail.to_owned());
        Self { outcome: Some(Outcome::Unknown), ..problem }
    }

    /// Refuses a write whose idempotency key belongs to a different request.
    pub(crate) fn idempotency_key_reused() -> Self {
        let detail = "an earlier request for this key used this Idempotency-Key, and was another \
            one: another method, value, number, condition or ttl. This request was not applied. \
            Use a new Idempotency-Key for each write, and the same one only to send the same \
            request again";
        Self::new(Type::IdempotencyKeyReused, detail.to_owned()).without_effect()
    }

    pub(crate) fn overload(what: &str) -> Self {
        let detail = format!("{what}; retry later");
        Self::new(Type::Overload, detail)
    }

    /// Refuses a client that found no free slot.
    pub(crate) fn no_free_slot(most: usize) -> Self {
        let what = format!("all {most} client connections are in use (--connections)");
        Self::overload(&what).without_effect()
    }

    fn too_few(detail: String) -> Self {
        Self::new(Type::TooFewReplicas, detail)
    }

    fn no_space(detail: String) -> Self {
        Self::new(Type::NoSpace, detail)
    }

    pub(crate) fn storage(detail: impl Into<String>) -> Self {
        Self::new(Type::StorageFailed, detail.into())
    }

    /// Reports a range of which even the first item could not be read.
    pub(crate) fn too_few_for_range(quorum: Quorum) -> Self {
        let detail = "too few replicas answered for a part of the range";
        Self::too_few(detail.to_owned()).votes(quorum)
    }

    /// Reports a request that too few replicas completed. `name` returns a node's name. `took` is
    /// the time from the start of the request to its failure.
    pub(crate) fn from_failure(
        failed: RequestFailure,
        name: impl Fn(NodeId) -> String,
        took: Duration,
    ) -> Self {
        let RequestFailure { failure, acked, parts, quorum, unknown, detail, is_write, .. } =
            failed;
        let named: Vec<_> = parts.iter().map(|(node, part)| (name(*node), *part)).collect();
        // The word is "answered" instead of "stored by" if a write stored nothing, because the
        // replicas did less than store the record.
        let reported = describe_outcome(&named, is_write && unknown, took);
        let detail = match detail {
            Some(detail) if parts.len() == 1 => detail,
            Some(detail) => format!("{detail}; {reported}"),
            None => reported,
        };
        let problem = match failure {
            FailureKind::TooFew => Self::too_few(detail),
            FailureKind::Busy => Self::overload(&detail),
            FailureKind::NoSpace => Self::no_space(detail),
            FailureKind::Failed => Self::storage(detail),
            FailureKind::Fenced => Self::fenced_node(),
        };
        let outcome = match (is_write, unknown) {
            (false, _) => None,
            (true, false) => Some(Outcome::None),
            (true, true) => Some(Outcome::Unknown),
        };
        let votes = Some(VoteCount { acked, required: quorum.ack, from: quorum.from });
        let parts = Some(Box::new(ReplicaOutcomes::of(named, took)));
        Self { votes, parts, outcome, ..problem }
    }

    /// Refuses a request to a node whose identity another process has taken over.
    pub(crate) fn fenced_node() -> Self {
        let detail = "another process, with a copy of this node's data directory or with one of \
            its own, serves in its place: stop one of them, then restart the other";
        Self::new(Type::Fenced, detail.to_owned())
    }

    /// Refuses a request to a node that waits to join a cluster. `asked` is the URL of the node
    /// that it asks.
    pub(crate) fn joining_node(asked: &str) -> Self {
        let detail = format!(
            "this node waits for a place in the cluster of {asked} (kvorum cluster plan --add, \
             apply), and serves nothing until then: ask another node"
        );
        Self::new(Type::Joining, detail).without_effect()
    }

    /// Refuses a request to a node that is no longer a member of the cluster.
    pub(crate) fn removed_node(epoch: u64) -> Self {
        Self::new(
            Type::Removed,
            format!(
                "this node was removed from the cluster and is not a member in epoch {epoch}. Ask \
                 another node; to add this one again, start it with an empty directory and --join"
            ),
        )
    }

    /// Refuses a request to a removed node that only members can answer. `members` are nodes that
    /// the client can ask instead.
    pub(crate) fn removed_node_with_members(epoch: u64, members: &[String]) -> Self {
        let detail = format!(
            "this node was removed from the cluster and is not a member in epoch {epoch}: it \
             neither hears of members, tokens and quotas any more nor can change them. Ask a \
             member: {}",
            members.join(", ")
        );
        Self::new(Type::Removed, detail).without_effect()
    }

    /// Refuses a write for which the node issued no version.
    pub(crate) fn version(error: &NoVersion, quorum: Quorum) -> Self {
        match error {
            NoVersion::Lags => Self::overload("the disk is too slow to persist the clock's bound"),
            NoVersion::Failed(error) if error.is_no_space() => Self::no_space(error.to_string()),
            NoVersion::Failed(error) => Self::storage(error.to_string()),
            NoVersion::Ahead(ahead) => Self::overload(&ahead.to_string()),
        }
        .without_effect()
        .votes(quorum)
    }

    pub(crate) fn votes(mut self, quorum: Quorum) -> Self {
        self.votes = Some(VoteCount { acked: 0, required: quorum.ack, from: quorum.from });
        self
    }

    pub(crate) fn without_effect(mut self) -> Self {
        self.outcome = Some(Outcome::None);
        self
    }

    /// Returns the seconds after which the client should retry; `None` if the answer names no such
    /// time.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        let is_busy = self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16();
        self.retry_after.or(is_busy.then_some(1))
    }

    pub(crate) fn wants_token(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED.as_u16()
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).expect("made of a StatusCode")
    }

    pub(crate) fn wants_upgrade(&self) -> bool {
        self.status == StatusCode::UPGRADE_REQUIRED.as_u16()
    }

    pub(crate) fn is_not_implemented(&self) -> bool {
        self.status == StatusCode::NOT_IMPLEMENTED.as_u16()
    }

    /// True if a foreign page sent the request, or its `Host` is not a name of this node.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.kind, Type::ForeignOrigin | Type::MisdirectedRequest)
    }

    /// Returns the media type of the document.
    pub(crate) fn content_type(&self) -> &'static str {
        CONTENT_TYPE
    }

    /// True if the value has a content coding, which is not accepted.
    pub(crate) fn refuses_coding(&self) -> bool {
        self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE.as_u16()
    }

    pub(crate) fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    /// Returns the document as JSON, without control characters: people read it on terminals, and
    /// the names in it are untrusted.
    pub(crate) fn json(&self) -> String {
        let body = serde_json::to_string(self).expect("strings and numbers always serialize");
        visible(&body).into_owned()
    }

    pub(crate) fn into_answer(self) -> Answer {
        let body = self.json();
        Answer {
            status: self.status(),
            tag: self.tag.map(|tag| *tag),
            receipt: None,
            expiry_ms: 0,
            content_type: Some(CONTENT_TYPE),
            extra_header: None,
            headers: &caching::FRESH,
            body: Body::Whole(Bytes::from(body).into()),
        }
    }
}

impl ReplicaOutcomes {
    fn of(named: Vec<(String, ReplicaOutcome)>, took: Duration) -> Self {
        let took_ms = (took.as_secs_f64() * 1e4).round() / 10.0;
        let mut parts = Self { took_ms, ..Self::default() };
        for (node, part) in named {
            let reason = match part {
                ReplicaOutcome::Done | ReplicaOutcome::Promised => {
                    parts.answered.push(node);
                    continue;
                }
                ReplicaOutcome::Pending => {
                    parts.pending.push(node);
                    continue;
                }
                ReplicaOutcome::Unasked => continue,
                ReplicaOutcome::NotAuthoritative => "not-authoritative",
                ReplicaOutcome::Unreached => "unreachable",
                ReplicaOutcome::Silent => "timeout",
                ReplicaOutcome::Busy => "overload",
                ReplicaOutcome::NoSpace => "no-space",
                ReplicaOutcome::Failed => "storage-failed",
                ReplicaOutcome::Declined => "refused",
                ReplicaOutcome::Hidden => "future-version",
            };
            parts.failed.push(Failure { node, reason });
        }
        parts
    }
}

/// Describes the outcome on the replicas in a sentence.
fn describe_outcome(named: &[(String, ReplicaOutcome)], is_stored: bool, took: Duration) -> String {
    let groups = [
        (ReplicaOutcome::Done, if is_stored { "stored by" } else { "answered" }),
        (ReplicaOutcome::Promised, "answered, and not known to have stored it"),
        (ReplicaOutcome::Unreached, "unreachable"),
        (ReplicaOutcome::Silent, "timed out"),
        (ReplicaOutcome::Busy, "overloaded"),
        (ReplicaOutcome::NoSpace, "disk full"),
        (ReplicaOutcome::Failed, "storage failed"),
        (ReplicaOutcome::Declined, "refused, because clocks or topologies differ"),
        (ReplicaOutcome::Hidden, "hidden by a record whose timestamp is ahead of the clock"),
        (ReplicaOutcome::NotAuthoritative, "not authoritative (joining or rebuilding)"),
        (ReplicaOutcome::Pending, "not waited for"),
    ];
    let reported = groups.iter().filter_map(|(part, what)| {
        let of_part = named.iter().filter(|(_, known)| known == part);
        let names: Vec<&str> = of_part.map(|(name, _)| name.as_str()).collect();
        let more = names.len().saturating_sub(MAX_NAMED);
        let shown = names[..names.len() - more].join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| format!("{what}: {shown}{more}"))
    });
    let mut reported = reported.collect::<Vec<_>>().join("; ");
    if reported.is_empty() {
        // A restarted read waits before it asks replicas again.
        reported.push_str("no replica was asked since the request began anew");
    }
    format!("{reported}; after {}", format_took(took))
}

fn format_took(took: Duration) -> String {
    let ms = took.as_secs_f64() * 1e3;
    if ms < 9.95 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// Answers a read of a key that has no value. The answer is a result, not a failure.
pub(crate) fn not_found() -> Answer {
    Answer {
        status: Type::NotFound.status(),
        tag: None,
        receipt: None,
        expiry_ms: 0,
        content_type: None,
        extra_header: None,
        headers: &caching::ABSENT,
        body: Body::Whole(Bytes::from_static(NOT_FOUND).into()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf as _;

    use super::*;
    use crate::counters::STATUSES;

    const QUORUM: Quorum = Quorum { ack: 1, from: 1 };

    fn problem_of_failure(failure: FailureKind, unknown: bool, is_write: bool) -> Problem {
        let detail = Some("said by the store".to_owned());
        let (quorum, parts) = (QUORUM, vec![(NodeId(0), ReplicaOutcome::Failed)]);
        let (acked, since) = (0, 0);
        let failed =
            RequestFailure { failure, acked, parts, since, quorum, unknown, detail, is_write };
        Problem::from_failure(failed, |_| "n0".to_owned(), Duration::from_millis(12))
    }

    #[test]
    fn a_failed_request_names_each_replica_with_its_outcome() {
        let parts = [
            ReplicaOutcome::Done,
            ReplicaOutcome::Unreached,
            ReplicaOutcome::Pending,
            ReplicaOutcome::NotAuthoritative,
            ReplicaOutcome::Silent,
        ];
        let parts: Vec<_> =
            parts.into_iter().enumerate().map(|(n, p)| (NodeId(n as u16), p)).collect();
        let failed = RequestFailure {
            failure: FailureKind::TooFew,
            acked: 1,
            parts,
            since: 0,
            quorum: Quorum { ack: 4, from: 5 },
            unknown: true,
            detail: None,
            is_write: true,
        };
        let name = |node: NodeId| format!("n{}", node.0);
        let problem = Problem::from_failure(failed, name, Duration::from_micros(1234));
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["answered"], serde_json::json!(["n0"]));
        assert_eq!(json["pending"], serde_json::json!(["n2"]));
        let failed = serde_json::json!([
            {"node": "n1", "reason": "unreachable"},
            {"node": "n3", "reason": "not-authoritative"},
            {"node": "n4", "reason": "timeout"},
        ]);
        assert_eq!((&json["failed"], &json["took_ms"]), (&failed, &1.2.into()));
        let said = "stored by: n0; unreachable: n1; timed out: n4; not authoritative (joining or \
            rebuilding): n3; not waited for: n2; after 1.2 ms";
        assert!(problem.detail.ends_with(said), "{}", problem.detail);
    }

    #[test]
    fn a_failure_sentence_names_at_most_four_nodes() {
        let named: Vec<_> = (0..255).map(|n| (format!("n{n}"), ReplicaOutcome::Silent)).collect();
        let reported = describe_outcome(&named, false, Duration::from_secs(1));
        assert_eq!(reported, "timed out: n0, n1, n2, n3 and 251 more; after 1000 ms");
    }

    #[test]
    fn a_failure_sentence_reports_that_no_replica_was_asked() {
        let named = [("n0".to_owned(), ReplicaOutcome::Unasked)];
        let reported = describe_outcome(&named, false, Duration::from_secs(1));
        assert_eq!(reported, "no replica was asked since the request began anew; after 1000 ms");
    }

    #[test]
    fn a_failed_write_says_whether_it_may_have_been_done() {
        for (failure, unknown, status, kind) in [
            (FailureKind::Busy, false, 503, "overload"),
            (FailureKind::TooFew, true, 504, "too-few-replicas"),
            (FailureKind::TooFew, false, 504, "too-few-replicas"),
            (FailureKind::NoSpace, false, 507, "no-space"),
            (FailureKind::Failed, false, 500, "storage-failed"),
            (FailureKind::Failed, true, 500, "storage-failed"),
        ] {
            let problem = problem_of_failure(failure, unknown, true);
            assert_eq!((problem.status, problem.kind.name()), (status, kind), "{failure:?}");
            let outcome = if unknown { Outcome::Unknown } else { Outcome::None };
            assert_eq!(problem.outcome, Some(outcome), "{failure:?}");
            assert_eq!(problem.retry_after(), (status == 503).then_some(1));
            assert!(problem.detail.contains("said by the store"));
        }
    }

    #[test]
    fn a_damaged_record_is_never_a_404() {
        let problem = problem_of_failure(FailureKind::Failed, false, false);
        assert_eq!((problem.status, problem.kind), (500, Type::StorageFailed));
        assert_eq!(problem.outcome, None, "reads have no outcome");
    }

    #[test]
    fn bodies_are_problem_json() {
        let answer = problem_of_failure(FailureKind::TooFew, true, true).into_answer();
        let Body::Whole(body) = answer.body else { panic!("no body") };
        let json: serde_json::Value = serde_json::from_slice(body.chunk()).unwrap();
        assert_eq!((&json["acked"], &json["required"]), (&0.into(), &1.into()));
        assert_eq!((&json["from"], &json["outcome"]), (&1.into(), &"unknown".into()));
        assert_eq!(json["status"], 504);
        for kind in Type::ALL {
            assert!(STATUSES.contains(&kind.status().as_u16()), "{kind:?} has no counter");
        }
        let absent: serde_json::Value = serde_json::from_slice(NOT_FOUND).unwrap();
        let (kind, title) = (Type::NotFound.name(), Type::NotFound.title());
        let wanted = serde_json::json!({"type": kind, "title": title, "status": 404});
        assert_eq!(absent, wanted);
    }
}
