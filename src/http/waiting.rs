//! HTTP answers of a node that waits to join a cluster: it is alive, and not ready.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::problem::Problem;
use super::routes::READ;
use crate::transport::Stream;

/// Time limit of a connection: for a client's request with its body, and for reading the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time for the requests under way when the time limit is over.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Maximum size of a request's head, in bytes: the minimum that hyper permits.
const HEAD_BYTES: usize = 8192;

/// Maximum number of concurrent requests of an HTTP/2 connection: only health checks are expected.
const MAX_STREAMS: u32 = 8;

/// The connections to be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waiting<'a> {
    /// The node waits for a place in the cluster of the node at this URL.
    ForPlace(&'a str),
    /// The client speaks plaintext on a port that speaks TLS.
    ForTls,
}

/// Answers the requests of a connection, of HTTP/1 or HTTP/2.
pub(crate) async fn converse(stream: Stream, waiting: Waiting<'_>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = waiting.answer(request.method(), request.uri().path());
        // A client that still sends its body would lose the answer if the connection were closed.
        spawn_local(discard(request.into_body()));
        async { Ok::<_, Infallible>(response) }
    });
    let mut builder = Builder::new(LocalExecutor);
    builder.http1().keep_alive(false).max_buf_size(HEAD_BYTES);
    builder.http2().max_concurrent_streams(MAX_STREAMS).max_header_list_size(HEAD_BYTES as u32);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // A client that breaks off or is slow gets no answer.
    if timeout(PATIENCE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_ANSWERS, connection).await;
    }
}

/// Reads a body to its end.
async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
}

/// Runs the tasks of HTTP/2 streams on the thread that serves their connection.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(async move { drop(future.await) });
    }
}

impl Waiting<'_> {
    fn answer(self, method: &Method, path: &str) -> Response<String> {
        let Self::ForPlace(asked) = self else { return refusal(&Problem::in_clear()) };
        let is_read = *method == Method::GET || *method == Method::HEAD;
        match path {
            "/healthz" | "/readyz" if !is_read => refusal(&Problem::method(method, READ)),
            "/healthz" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" => {
                let why =
                    format!("joining: this node waits for a place in the cluster of {asked}\n");
                response(StatusCode::SERVICE_UNAVAILABLE, TEXT, why)
            }
            _ => refusal(&Problem::joining(asked)),
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn refusal(problem: &Problem) -> Response<String> {
    let mut response = response(problem.status(), problem.content_type(), problem.json());
    if let Some(methods) = problem.allow() {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    }
    response
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
