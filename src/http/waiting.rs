//! HTTP answers of a node that waits to join a cluster: it is alive, and not ready.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::problem::Problem;
use crate::transport::Stream;

/// Time limit for a client's request, which has no more than a head, and for reading the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum size of a request's head, in bytes: the minimum that hyper permits.
const HEAD_BYTES: usize = 8192;

/// Answers one request. `asked` is the URL of the node that is asked to admit this one.
pub(crate) async fn converse(stream: Stream, asked: &str) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.uri().path(), asked);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off or is slow gets no answer.
    let _ = timeout(PATIENCE, connection).await;
}

fn answer(path: &str, asked: &str) -> Response<String> {
    let text = "text/plain; charset=utf-8";
    let (status, content_type, body) = match path {
        "/healthz" => (StatusCode::OK, text, "ok\n".to_owned()),
        "/readyz" => {
            let why = format!("joining: this node waits for a place in the cluster of {asked}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text, why)
        }
        _ => {
            let problem = Problem::joining(asked);
            (problem.status(), problem.content_type(), problem.json())
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
