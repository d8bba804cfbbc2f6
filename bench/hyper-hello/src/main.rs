//! The fastest HTTP server that hyper allows: one `current_thread` runtime, no routing, no store.
//! Reports divide kvorum's figures by the figures of this server.
//!
//! A `GET` is answered with 200 and 64 bytes, as many as the values that the benchmark reads. The
//! body of any other request is read, and the answer is 201 without a body.
//!
//!     hyper-hello [ADDRESS [MICROS]]        default: 127.0.0.1:8080 0
//!
//! MICROS is extra CPU time per request, in microseconds, with which the server is slower by a
//! known amount.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

static VALUE: [u8; 64] = [b'v'; 64];

async fn hello(
    request: Request<Incoming>,
    work: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let begun = Instant::now();
    while begun.elapsed() < work {
        std::hint::spin_loop();
    }
    if request.method() == Method::GET {
        return Ok(Response::new(Full::new(Bytes::from_static(&VALUE))));
    }
    let status = match request.into_body().collect().await {
        Ok(_) => StatusCode::CREATED,
        Err(_) => StatusCode::BAD_REQUEST,
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    Ok(response)
}

async fn serve(address: &str, work: Duration) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            // A broken connection affects only its client.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(
                    TokioIo::new(stream),
                    service_fn(move |request| hello(request, work)),
                )
                .await;
        });
    }
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let micros = args.next().map_or(Ok(0), |micros| micros.parse()).map_err(io::Error::other)?;
    let served = serve(&address, Duration::from_micros(micros));
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(served)
}
