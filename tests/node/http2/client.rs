//! Two HTTP/2 clients: the crate `h2`, as programs use it, and a client that sends exactly the
//! given frames.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Reason, RecvStream};
use hyper::{HeaderMap, Request, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::process::TIMEOUT;

/// A client's connection, which makes progress only during calls of its functions.
pub(crate) struct Http2 {
    runtime: Runtime,
    pub(crate) send: SendRequest<Bytes>,
    pub(crate) connection: JoinHandle<Result<(), h2::Error>>,
    scheme: &'static str,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Http2 {
    /// Connects in plaintext, with prior knowledge that the server supports HTTP/2.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(tokio::net::TcpStream::connect(address)).unwrap();
        Self::over(runtime, stream, "http")
    }

    /// Connects over TLS; asserts that the node chooses HTTP/2 by ALPN.
    pub(crate) fn connect_tls(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from(address.ip().to_string()).unwrap();
            TlsConnector::from(Arc::clone(config)).connect(name, stream).await.unwrap()
        });
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        Self::over(runtime, stream, "https")
    }

    fn over(
        runtime: Runtime,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        scheme: &'static str,
    ) -> Self {
        let (send, connection) = runtime.block_on(async {
            let mut builder = client::Builder::new();
            // The connection's window must be larger than a stream's window.
            let builder = builder.initial_connection_window_size(4 << 20);
            let (send, connection) = builder.handshake(io).await.unwrap();
            (send, tokio::spawn(connection))
        });
        Self { runtime, send, connection, scheme }
    }

    /// Runs a future to completion; the connection makes progress meanwhile. Panics after the
    /// timeout.
    pub(crate) fn run<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { timeout(TIMEOUT, what).await.expect("it takes too long") })
    }

    pub(crate) fn head(&self, method: &str, target: &str) -> hyper::http::request::Builder {
        Request::builder().method(method).uri(format!("{}://localhost{target}", self.scheme))
    }

    pub(crate) fn send(&self, head: Request<()>, body: &[u8]) -> Result<Answer, h2::Error> {
        self.run(exchange(self.send.clone(), head, Bytes::copy_from_slice(body)))
    }

    /// Sends the head of a request. Returns the future of the answer, and the stream for the body.
    pub(crate) fn begin(
        &self,
        head: Request<()>,
    ) -> (client::ResponseFuture, h2::SendStream<Bytes>) {
        let send = self.send.clone();
        self.run(async move { send.ready().await.unwrap().send_request(head, false).unwrap() })
    }

    pub(crate) fn request(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        self.send(self.head(method, target).body(()).unwrap(), body).unwrap()
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.request("GET", target, b"")
    }

    pub(crate) fn put(&self, target: &str, value: &[u8]) -> Answer {
        self.request("PUT", target, value)
    }

    /// Waits until the connection ends; returns true if it ended without an error.
    pub(crate) fn ends_well(self) -> bool {
        let Self { runtime, send, connection, .. } = self;
        let ended = runtime.block_on(async { timeout(TIMEOUT, connection).await });
        let ended = ended.expect("it does not end");
        drop(send);
        ended.unwrap().is_ok_and(|()| true)
    }
}

/// Sends one request, and returns its answer.
pub(crate) async fn exchange(
    send: SendRequest<Bytes>,
    head: Request<()>,
    body: Bytes,
) -> Result<Answer, h2::Error> {
    let mut send = send.ready().await?;
    let (response, mut upload) = send.send_request(head, body.is_empty())?;
    if !body.is_empty() {
        upload.send_data(body, true)?;
    }
    let (head, body) = response.await?.into_parts();
    let body = all_of(body).await?;
    Ok(Answer { status: head.status, headers: head.headers, body })
}

pub(crate) async fn all_of(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that sends exactly the given frames.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// A received frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Returns the error code of an RST_STREAM or GOAWAY frame.
    pub(crate) fn reason(&self) -> Reason {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap()).into()
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes headers as literals that do not enter the dynamic table (RFC 7541, 6.2.2).
pub(crate) fn literals(headers: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str| {
        let mut bytes = vec![u8::try_from(text.len().min(127)).unwrap()];
        if let Some(mut rest) = text.len().checked_sub(127) {
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
        bytes.extend(text.as_bytes());
        bytes
    };
    headers
        .iter()
        .flat_map(|(name, value)| [vec![0], string(name), string(value)].concat())
        .collect()
}

/// Encodes the header block of a request with the four pseudo-headers.
pub(crate) fn head(method: &str, path: &str) -> Vec<u8> {
    let (method, path) = ((":method", method), (":path", path));
    literals(&[method, (":scheme", "http"), path, (":authority", "localhost")])
}

/// Encodes a request as a HEADERS frame; a GET ends the stream.
pub(crate) fn request(stream: u32, method: &str, path: &str) -> Vec<u8> {
    let ends = if method == "GET" { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | ends, stream, &head(method, path))
}

impl Raw {
    /// Connects in plaintext, and sends the preface and these settings.
    pub(crate) fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let mut raw = Self { stream, received: Vec::new() };
        raw.send(PREFACE);
        raw.configure(settings);
        raw
    }

    /// Connects, and sends the preface in two pieces; the first has `cut` bytes.
    pub(crate) fn connect_in_pieces(address: SocketAddr, cut: usize) -> Self {
        let mut raw = Self { stream: TcpStream::connect(address).unwrap(), received: Vec::new() };
        raw.stream.set_nodelay(true).unwrap();
        raw.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (first, rest) = PREFACE.split_at(cut);
        raw.send(first);
        raw.send(rest);
        raw.configure(&[]);
        raw
    }

    fn configure(&mut self, settings: &[(u16, u32)]) {
        let setting =
            |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        let settings: Vec<u8> = settings.iter().flat_map(setting).collect();
        self.send(&frame(SETTINGS, 0, 0, &settings));
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Reads the next frame. The end of the connection is an error.
    pub(crate) fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(head) = self.received.first_chunk::<9>() {
                let [a, b, c, kind, _, stream @ ..] = *head;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                if self.received.len() >= 9 + length {
                    let payload = self.received[9..9 + length].to_vec();
                    self.received.drain(..9 + length);
                    let stream = u32::from_be_bytes(stream);
                    return Ok(Frame { kind, stream, payload });
                }
            }
            let mut more = vec![0; 64 << 10];
            match self.stream.read(&mut more)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                came => self.received.extend_from_slice(&more[..came]),
            }
        }
    }

    /// Reads frames until one has this kind; returns that frame.
    pub(crate) fn until(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().unwrap();
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads all frames until the connection ends. Panics if the connection stays open.
    pub(crate) fn rest(&mut self) -> Vec<Frame> {
        let begun = Instant::now();
        let mut frames = Vec::new();
        loop {
            match self.next() {
                Ok(frame) => frames.push(frame),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("the connection stays open: {frames:?}")
                }
                Err(_) => return frames,
            }
            assert!(begun.elapsed() < TIMEOUT, "the connection stays open");
        }
    }
}
