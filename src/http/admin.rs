//! `/healthz`, `/readyz`, `/metrics`, `/v0/status`: for those who run the node.

use std::sync::Arc;

use hyper::StatusCode;

use super::{Answer, Route, status};
use crate::node::Node;
use crate::operations::metrics;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn get(node: &Arc<Node>, route: Route) -> Answer {
    match route {
        Route::Ready if node.is_stopping() => {
            Answer::text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
        }
        Route::Ready if node.shared.vouching.is_fenced() => {
            let text = "fenced: another process with a copy of this node's data directory serves \
                        in its place\n";
            Answer::text(StatusCode::SERVICE_UNAVAILABLE, text)
        }
        Route::Ready => match node.db.health() {
            Err(failed) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, format!("{failed}\n")),
            Ok(()) => Answer::text(StatusCode::OK, "ready\n"),
        },
        Route::Metrics => Answer {
            content_type: Some(METRICS_TYPE),
            ..Answer::text(StatusCode::OK, metrics::encode(node))
        },
        Route::Status => Answer {
            content_type: Some("application/json"),
            ..Answer::text(StatusCode::OK, status::encode(node))
        },
        _ => Answer::text(StatusCode::OK, "ok\n"),
    }
}
