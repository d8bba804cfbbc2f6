//! `/healthz`, `/readyz`, `/metrics`, `/v0/status`: for those who run the node.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;

use super::{Answer, status};
use crate::node::Node;
use crate::operations::metrics;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const FENCED: &str =
    "fenced: another process with a copy of this node's data directory serves in its place\n";

pub(super) fn health() -> Answer {
    Answer::text(StatusCode::OK, "ok\n")
}

pub(super) fn ready(node: &Node) -> Answer {
    let unavailable = |why: Bytes| Answer::text(StatusCode::SERVICE_UNAVAILABLE, why);
    if node.is_stopping() {
        return unavailable("stopping\n".into());
    }
    if node.shared.vouching.is_fenced() {
        return unavailable(FENCED.into());
    }
    match node.db.health() {
        Err(failed) => unavailable(format!("{failed}\n").into()),
        Ok(()) => Answer::text(StatusCode::OK, "ready\n"),
    }
}

pub(super) fn metrics(node: &Arc<Node>) -> Answer {
    let text = metrics::encode(node);
    Answer { content_type: Some(METRICS_TYPE), ..Answer::text(StatusCode::OK, text) }
}

pub(super) fn status(node: &Arc<Node>) -> Answer {
    let json = status::encode(node);
    Answer { content_type: Some("application/json"), ..Answer::text(StatusCode::OK, json) }
}
