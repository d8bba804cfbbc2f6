//! `/healthz`, `/readyz`, `/metrics`, `/v0/status`: for those who run the node.

use bytes::Bytes;
use hyper::StatusCode;

use super::Answer;
use crate::operations::reports::{Readiness, Reports};

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const FENCED: &str =
    "fenced: another process with a copy of this node's data directory serves in its place\n";

const REMOVED: &str = "removed: this node is not a member of the cluster any more\n";

pub(super) fn health() -> Answer {
    Answer::text(StatusCode::OK, "ok\n")
}

pub(super) fn ready(reports: &Reports) -> Answer {
    let unavailable = |why: Bytes| Answer::text(StatusCode::SERVICE_UNAVAILABLE, why);
    match reports.readiness() {
        Readiness::Ready => Answer::text(StatusCode::OK, "ready\n"),
        Readiness::Stopping => unavailable("stopping\n".into()),
        Readiness::Fenced => unavailable(FENCED.into()),
        Readiness::Removed => unavailable(REMOVED.into()),
        Readiness::Failed(cause) => unavailable(format!("{cause}\n").into()),
    }
}

pub(super) fn metrics(reports: &Reports) -> Answer {
    Answer { content_type: Some(METRICS_TYPE), ..Answer::text(StatusCode::OK, reports.metrics()) }
}

pub(super) fn status(reports: &Reports) -> Answer {
    Answer::json(StatusCode::OK, &reports.status())
}
