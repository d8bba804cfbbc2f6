//! HTTP answers of a node that waits to join a cluster. A waiting node is alive, and not ready.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::problem::Problem;
use super::routes::GET_AND_HEAD;
use crate::transport::Stream;

/// Time limit of a connection, in which the client sends its request and reads the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a request's head, in bytes. hyper permits no smaller limit.
const HEAD_BYTES: usize = 8192;

/// The reason why connections get only these answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waiting<'a> {
    /// The node waits for a place in the cluster of the node at this URL.
    ForPlace(&'a str),
    /// The client sent plaintext to a port that requires TLS.
    ForTls,
}

/// Answers one HTTP/1 request. HTTP/2 would require another server, which enlarges the program by 2
/// %. A client with TLS learns in the handshake that there is no HTTP/2.
pub(crate) async fn answer_request(stream: Stream, waiting: Waiting<'_>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = waiting.answer(request.method(), request.uri().path());
        // If the connection were closed while the client still sends its body, the client would
        // lose the answer.
        spawn_local(discard(request.into_body()));
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off or is too slow gets no answer.
    let _ = timeout(CONNECTION_TIMEOUT, connection).await;
}

/// Reads and discards a body to its end.
async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
}

impl Waiting<'_> {
    fn answer(self, method: &Method, path: &str) -> Response<String> {
        let Self::ForPlace(asked) = self else { return refusal(&Problem::in_clear()) };
        let is_read = *method == Method::GET || *method == Method::HEAD;
        match path {
            "/healthz" | "/readyz" if !is_read => refusal(&Problem::method(method, GET_AND_HEAD)),
            "/healthz" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" => {
                let why =
                    format!("joining: this node waits for a place in the cluster of {asked}\n");
                response(StatusCode::SERVICE_UNAVAILABLE, TEXT, why)
            }
            _ => refusal(&Problem::joining_node(asked)),
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
