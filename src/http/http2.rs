//! HTTP/2: chosen by ALPN, or in plaintext by the first bytes that a client sends.
//!
//! ```text
//!  hyper ── a stream's request ──▶ StreamState::begin ──▶ answer ──▶ TrackedBody
//!    │                              (creates the watch)                │ each piece is a Sent
//!    └── the stream's task ◀── pieces of the answer ───────────────────┘
//!          if the sweep finds the stream too slow, the task ends: RST_STREAM
//! ```
//!
//! A stream may hold the same resources as an HTTP/1 connection, so it needs a slot too. The first
//! stream of a connection has the connection's slot, and each further stream its own slot. So slots
//! bound the resources of all clients, over either version of HTTP. One connection has at most
//! [`CONNECTION_WINDOW`] bytes of request bodies in memory.
//!
//! Limits that protect against floods:
//!
//! - Number of streams: [`MAX_STREAMS`], and slots.
//! - Resets: [`MAX_RESET_EARLY`] and [`MAX_ERROR_RESETS`].
//! - CONTINUATION frames: the `h2` crate's limit, which follows from [`MAX_HEAD_LEN`].
//! - DATA frames with hardly any bytes: the `h2` crate's limit, which follows from the window.
//! - All other frames: the bytes without a request ([`MAX_OVERHEAD_BYTES`]).

use std::cell::RefCell;
use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Buf;
use h2::Reason;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::CONTENT_LENGTH;
use hyper::rt::Executor;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::task::spawn_local;

use super::body::{Item, RangeInterrupted};
use super::{Body, MAX_HEAD_LEN, Service};
use crate::http::connection::streams::{StreamState, UnsentPiece};
use crate::http::connection::{ConnectionState, Socket};
use crate::transport;

/// The start of an HTTP/2 preface. No HTTP/1 client begins with these bytes (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI ";

/// Maximum number of concurrent requests on a connection. Clients rely on 100 (RFC 9113, 6.5.2).
const MAX_STREAMS: usize = 100;

/// One connection has at most 1/`SHARE` of the client slots, so that other clients are served too.
const SHARE: usize = 2;

/// Window of a stream: the bytes of a body that a client may send before the node reads them. An
/// HTTP/1 connection has a buffer of the same size.
const STREAM_WINDOW: u32 = 64 << 10;

/// Window of a connection for all bodies, 6.25 MiB: so large that uploads without memory do not
/// block uploads with memory.
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;

/// Maximum number of bytes that a client may send without a request: waiting bodies, and frames
/// that only keep the node busy. An honest client sends a few such bytes for each request.
const MAX_OVERHEAD_BYTES: u64 = CONNECTION_WINDOW as u64 + (1 << 20);

/// Maximum payload of a frame in bytes. HTTP/2 permits no smaller limit.
const MAX_FRAME: u32 = 16 << 10;

/// Maximum number of a request's headers, the same as over HTTP/1. Many small headers take far more
/// memory than their bytes.
const MAX_HEADERS: usize = 100;

/// Size of the header compression table in bytes, the default of HTTP/2.
const HEADER_TABLE: u32 = 4 << 10;

/// Size of the send buffer, in bytes. While fewer bytes wait to be sent, the next piece of an
/// answer is requested.
const SEND_BUFFER: usize = 16 << 10;

/// Maximum number of streams that a client has opened and reset, and that the node has not
/// processed yet. Honest clients cancel some requests. A client that sends such pairs without end
/// (CVE-2023-44487) loses the connection.
const MAX_RESET_EARLY: usize = 20;

/// Maximum number of a connection's streams that are reset for the client's errors. Data of a
/// refused body that arrives after its stream has lingered counts too, so the limit is not small.
const MAX_ERROR_RESETS: usize = 1024;

/// Maximum length in bytes of an answer whose end is sent together with its data. Until the client
/// takes the data, such an answer can be withdrawn only with its connection. The end of a longer
/// answer follows later, so the stream can be reset as long as a part of the answer waits.
const MAX_JOINT_END_BYTES: usize = 2048;

/// True if the client uses HTTP/2, as far as its first bytes or ALPN tell.
pub(crate) async fn is_spoken(stream: &transport::Stream) -> bool {
    match stream {
        // If the socket can't be read, the connection fails later.
        transport::Stream::Plain(socket) => starts_with_preface(socket).await.unwrap_or(false),
        transport::Stream::Tls(_) => stream.chose_http2(),
    }
}

async fn starts_with_preface(socket: &tokio::net::TcpStream) -> io::Result<bool> {
    loop {
        let ready = socket.ready(Interest::READABLE).await?;
        let peeked = socket.try_io(Interest::READABLE, || {
            let mut first = [0; PREFACE.len()];
            let (came, _) = recv(socket, &mut first, RecvFlags::PEEK)?;
            let is_so_far = came > 0 && first[..came] == PREFACE[..came];
            if is_so_far && came < PREFACE.len() && !ready.is_read_closed() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(is_so_far && came == PREFACE.len())
        });
        match peeked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            peeked => return peeked,
        }
    }
}

/// Serves a connection to its end. Returns true if it ended because of malformed input or a flood.
pub(crate) async fn serve(
    service: &Rc<Service>,
    watch: &Rc<ConnectionState>,
    socket: &mut Socket,
) -> bool {
    let is_malformed = run_connection(service, watch, socket).await;
    watch.end_streams();
    is_malformed
}

async fn run_connection(
    service: &Rc<Service>,
    watch: &Rc<ConnectionState>,
    socket: &mut Socket,
) -> bool {
    watch.mark_http2();
    service.counters.http2.add(1);
    let tasks = StreamExecutor::default();
    let answer = service_fn(|request| {
        let stream = StreamState::begin(service, watch);
        tasks.0.replace(stream.clone());
        answer(Rc::clone(service), stream, request)
    });
    let slots = service.limits().connection_slots.max_clients();
    let streams = MAX_STREAMS.min(slots / SHARE).max(1);
    let connection = Builder::new(tasks.clone())
        .max_concurrent_streams(streams as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEAD_LEN as u32)
        .header_table_size(HEADER_TABLE)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESET_EARLY)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .serve_connection(TokioIo::new(socket), answer);
    let mut connection = pin!(connection);
    let mut goodbye_said = false;
    let result = poll_fn(|cx| {
        let is_leaving = watch.is_leaving() || service.stopping.get();
        if (is_leaving || watch.is_given_up()) && !goodbye_said {
            goodbye_said = true;
            watch.leave();
            connection.as_mut().graceful_shutdown();
        }
        watch.set_waker(cx.waker());
        let polled = connection.as_mut().poll(cx);
        if watch.is_flooding(MAX_OVERHEAD_BYTES) {
            return Poll::Ready(Ending::Flood);
        }
        match polled {
            Poll::Ready(result) => Poll::Ready(Ending::Of(result)),
            // GOAWAY has been sent by now, unless the socket accepts no output.
            Poll::Pending if watch.is_given_up() => Poll::Ready(Ending::Of(Ok(()))),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    let error = match result {
        Ending::Flood => return true,
        Ending::Of(Ok(())) => return false,
        Ending::Of(Err(error)) => error,
    };
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| cause.is_go_away() && cause.is_library())
}

/// The reason why a connection ended.
enum Ending {
    Of(hyper::Result<()>),
    /// The client sent too many bytes that belong neither to requests nor to bodies.
    Flood,
}

/// Runs a stream's task until the task ends or the stream is given up. Then the stream lingers.
#[derive(Clone, Default)]
struct StreamExecutor(Rc<RefCell<Option<Rc<StreamState>>>>);

impl<F: Future + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, future: F) {
        // hyper spawns the future right after it has called the service. A future without a stream
        // ends at once.
        let Some(stream) = self.0.take() else {
            spawn_local(async move { drop(future.await) });
            return;
        };
        spawn_local(async move {
            let watch = stream.watch();
            {
                let mut future = pin!(future);
                poll_fn(|cx| {
                    if watch.is_given_up() || watch.connection().is_given_up() {
                        return Poll::Ready(());
                    }
                    watch.set_waker(cx.waker());
                    future.as_mut().poll(cx).map(drop)
                })
                .await;
            }
            watch.is_over();
            watch.linger().await;
        });
    }
}

async fn answer(
    service: Rc<Service>,
    stream: Option<Rc<StreamState>>,
    request: Request<Incoming>,
) -> Result<Response<TrackedBody>, h2::Error> {
    let Some(stream) = stream else { return Err(Reason::REFUSED_STREAM.into()) };
    if request.headers().len() > MAX_HEADERS {
        stream.watch().keep_unread_body(Some(request.into_body()));
        let mut response = Response::new(TrackedBody::new(Body::Empty, stream));
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Ok(response);
    }
    let is_head = request.method() == Method::HEAD;
    let answered = super::answer(service, Rc::clone(stream.watch()), request).await;
    let (mut head, mut body) = match answered {
        Ok(response) => response.into_parts(),
        Err(never) => match never {},
    };
    if is_head {
        if let Some(length) = body.size_hint().exact() {
            head.headers.insert(CONTENT_LENGTH, length.into());
        }
        body = Body::Empty;
    }
    Ok(Response::from_parts(head, TrackedBody::new(body, stream)))
}

/// A response's body. Each of its pieces is tracked until it is in the write buffer.
struct TrackedBody {
    body: Body,
    /// True if the end of the body is sent with its data.
    at_once: bool,
    ended: bool,
    stream: Rc<StreamState>,
}

impl TrackedBody {
    fn new(body: Body, stream: Rc<StreamState>) -> Self {
        let at_once =
            body.size_hint().exact().is_some_and(|length| length <= MAX_JOINT_END_BYTES as u64);
        Self { body, at_once, ended: false, stream }
    }
}

impl hyper::body::Body for TrackedBody {
    type Data = TrackedPiece;
    type Error = RangeInterrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<TrackedPiece>, RangeInterrupted>>> {
        if !self.ended {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(frame)) => {
                    let owed = UnsentPiece::new(&self.stream);
                    let sent = |item| TrackedPiece { item, owed };
                    return Poll::Ready(Some(frame.map(|frame| frame.map_data(sent))));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.stream.watch().has_unsent_pieces(cx) { Poll::Pending } else { Poll::Ready(None) }
    }

    fn is_end_stream(&self) -> bool {
        self.at_once && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A piece of an answer that reports how much of it is in the write buffer.
struct TrackedPiece {
    item: Item,
    owed: UnsentPiece,
}

impl Buf for TrackedPiece {
    fn remaining(&self) -> usize {
        self.item.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.item.chunk()
    }

    fn advance(&mut self, bytes: usize) {
        self.item.advance(bytes);
        self.owed.note_buffered(bytes);
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.item.chunks_vectored(slices)
    }
}
