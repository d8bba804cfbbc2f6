//! `/healthz`, `/readyz`, `/metrics`, `/v0/status`: endpoints for operators of the node.

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use super::{Answer, accept};
use crate::operations::reports::{Readiness, Reports};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Content type of Prometheus' older text format, for clients that prefer it.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

const FENCED: &str = "fenced: another process serves in this node's place\n";

const REMOVED: &str = "removed: this node is not a member of the cluster any more\n";

const OTHER_CLUSTER: &str = "other cluster: each node that this node lists belongs to another \
     cluster than the data of this node; kvorum status says what to do\n";

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
        Readiness::OtherCluster => unavailable(OTHER_CLUSTER.into()),
        Readiness::Failed(cause) => unavailable(format!("{cause}\n").into()),
    }
}

pub(super) fn metrics(reports: &Reports, headers: &HeaderMap) -> Answer {
    let wants = |kind| accept::quality(headers, kind);
    let (content_type, text) = if wants("text/plain") > wants("application/openmetrics-text") {
        (PLAIN, reports.plain_text_metrics())
    } else {
        (OPEN_METRICS, reports.metrics())
    };
    Answer { content_type: Some(content_type), ..Answer::text(StatusCode::OK, text) }
}

pub(super) fn status(reports: &Reports) -> Answer {
    Answer::json(StatusCode::OK, &reports.status())
}
