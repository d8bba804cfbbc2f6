//! The least an HTTP server can do with hyper: one `current_thread` runtime, no routing, no store.
//! kvorum's figures are divided by this one's.
//!
//! A `GET` is answered 200 with 64 bytes, as long as the values that the benchmark reads; anything
//! else has its body read and is answered 201 without one.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

static VALUE: [u8; 64] = [b'v'; 64];

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
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

async fn serve(address: &str) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            // A connection that breaks concerns its client alone.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(hello))
                .await;
        });
    }
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(serve(&address))
}
