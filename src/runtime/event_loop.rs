//! An event loop: one thread with a tokio `current_thread` runtime, its share of the connections,
//! and its own protocol instance ([`Requests`]). Loops share only [`Node`].

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::counters::Counters;
use crate::http::connection::streams::Watches;
use crate::http::connection::{
    AnswerMemory, ConnectionState, ScratchBuffer, Security, Socket, TICK,
};
use crate::http::etags::Etags;
use crate::http::{self, OwnNames, Service, http2};
use crate::node::Node;
use crate::node::connection_slots::ConnectionSlot;
use crate::node::requests::Requests;
use crate::node::task;
use crate::operations::reports::Reports;
use crate::transport::{AcceptedStream, Stream, Tls};

/// hyper's buffer limit for a connection in each direction, in bytes. A large body is read in few
/// pieces, and a request's head (at most [`http::MAX_HEAD_LEN`]) fits.
const BUFFER_BYTES: usize = 64 * 1024;

/// Maximum number of commands, mostly sockets, that wait for a loop.
const MAX_QUEUED_SOCKETS: usize = 256;

/// Time for which connections stay open when the node stops. Requests that arrive are answered, and
/// the answer announces the end of the connection. Then idle connections are closed.
const LEAVE_TIME: Duration = Duration::from_millis(100);

/// Maximum duration of requests in flight when the node stops.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// A command from another thread to a loop.
#[derive(Debug)]
pub(crate) enum LoopCommand {
    /// Serve this connection, which has this connection slot.
    Serve(TcpStream, ConnectionSlot),
    /// Close the client connection that has been idle for longest, because another connection
    /// waits.
    CloseIdleClient,
    /// Close the connection in a reserve slot that has sent no request for longest, because another
    /// connection waits.
    CloseReserve,
    /// Complete the requests in flight, then end.
    Stop,
}

/// Another thread's handle to a loop.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Commands for the loop.
    pub(crate) commands: mpsc::Sender<LoopCommand>,
    /// The loop's counters.
    pub(crate) counters: Arc<Counters>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Waits for the end of the loop's thread.
    pub(crate) fn join(self) {
        // If the thread panicked, the panic was already printed.
        let _ = self.thread.join();
    }
}

/// An event loop's connections, and the state that serves them.
pub(crate) struct EventLoop {
    node: Arc<Node>,
    requests: Rc<Requests>,
    /// Answers the requests of HTTP connections.
    service: Rc<Service>,
    counters: Arc<Counters>,
    now: Rc<Cell<u32>>,
    stopping: Rc<Cell<bool>>,
    watches: Watches,
    scratch: ScratchBuffer,
    /// Number of refused ranges at the last tick.
    refused_ranges: Cell<u64>,
}

/// Starts loop `number` of `node`.
pub(crate) fn start(node: &Arc<Node>, names: &Arc<OwnNames>, number: usize) -> io::Result<Handle> {
    let (commands, received) = mpsc::channel(MAX_QUEUED_SOCKETS);
    let counters = Arc::clone(&node.counters[number]);
    let (node, names, own) = (Arc::clone(node), Arc::clone(names), Arc::clone(&counters));
    let (report, started) = std::sync::mpsc::sync_channel(1);
    let thread = thread::Builder::new().name(format!("loop-{number}")).spawn(move || {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_io().enable_time().build_local(LocalOptions::default());
        // The thread in `start` waits for this report.
        match runtime {
            Ok(runtime) => {
                let _ = report.send(Ok(()));
                runtime.block_on(EventLoop::new(node, names, own).run(received));
            }
            Err(error) => {
                let _ = report.send(Err(error));
            }
        }
    })?;
    started.recv().map_err(|_| io::Error::other("its thread ended"))??;
    Ok(Handle { commands, counters, thread })
}

impl EventLoop {
    fn new(node: Arc<Node>, names: Arc<OwnNames>, counters: Arc<Counters>) -> Rc<Self> {
        let requests = Requests::new(Arc::clone(&node), &counters);
        let stopping = Rc::new(Cell::new(false));
        Rc::new_cyclic(|this: &Weak<Self>| {
            let own = Weak::clone(this);
            let close_idle_client = Box::new(move || {
                if let Some(this) = own.upgrade() {
                    this.close_idle_client();
                }
            });
            let service = Service {
                requests: Rc::clone(&requests),
                reports: Reports::new(Arc::clone(&node)),
                counters: Arc::clone(&counters),
                etags: Etags::default(),
                names,
                stopping: Rc::clone(&stopping),
                streams: Watches::default(),
                without_slot: Cell::new(0),
                close_idle_client,
            };
            Self {
                node,
                requests,
                service: Rc::new(service),
                counters,
                now: Rc::new(Cell::new(0)),
                stopping,
                watches: Watches::default(),
                scratch: ScratchBuffer::default(),
                refused_ranges: Cell::default(),
            }
        })
    }

    async fn run(self: Rc<Self>, mut commands: mpsc::Receiver<LoopCommand>) {
        self.requests.start();
        let events = self.node.task_events.lock().take();
        if let Some(events) = events {
            self.requests.keep_peer_connections();
            tokio::task::spawn_local(task::run(Rc::clone(&self.requests), events));
        }
        let this = Rc::clone(&self);
        tokio::task::spawn_local(async move { this.sweep().await });
        loop {
            match commands.recv().await {
                Some(LoopCommand::Serve(stream, slot)) => self.serve(stream, slot),
                Some(LoopCommand::CloseIdleClient) => self.close_idle_client(),
                Some(LoopCommand::CloseReserve) => {
                    self.close_longest(ConnectionState::request_overdue)
                }
                Some(LoopCommand::Stop) | None => break,
            }
        }
        let begun = Instant::now();
        while !self.watches.all().is_empty() && begun.elapsed() < LEAVE_TIME {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.stopping.set(true);
        self.requests.goodbye();
        for watch in self.watches.all().iter().chain(self.service.streams.all().iter()) {
            watch.wake();
        }
        while !self.watches.all().is_empty() && begun.elapsed() < DRAIN_TIME {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let left = self.watches.all().len();
        if left > 0 {
            tracing::warn!(
                connections = left,
                "closing connections: still busy after {DRAIN_TIME:?}"
            );
            self.cut_off().await;
        }
        self.requests.finish_forwarded().await;
        self.requests.close().await;
    }

    /// Ends the remaining connections, each in a way that its client detects.
    async fn cut_off(&self) {
        for watch in self.watches.all().iter() {
            watch.mark_incomplete();
            watch.give_up();
        }
        // The tasks of the connections run before this task resumes.
        tokio::task::yield_now().await;
    }

    /// Checks all connections once per tick, and updates the idle counter. Never ends.
    async fn sweep(&self) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.now.set(self.now.get().wrapping_add(1));
            self.counters.sweeps.add(1);
            for watch in self.watches.all().iter().chain(self.service.streams.all().iter()) {
                if watch.sweep() {
                    self.counters.timed_out.add(1);
                }
            }
            self.report_idle();
            self.abort_slow_transfers();
        }
    }

    /// Aborts the slowest uploads and unread answers while other requests lack their memory.
    fn abort_slow_transfers(&self) {
        let node = &self.node;
        let (watches, streams) = (self.watches.all(), self.service.streams.all());
        let all = || watches.iter().chain(streams.iter());
        let wanted = node.limits.bodies.wanted_bytes() + node.limits.beginnings.wanted_bytes();
        if wanted > 0 {
            let slow = all().filter_map(|watch| Some((watch.slow_pace()?, watch)));
            let mut slow: Vec<_> = slow.collect();
            slow.sort_by_key(|(pace, _)| *pace);
            let mut given = 0;
            for (_, watch) in slow {
                if given >= wanted {
                    break;
                }
                given += watch.abort_upload();
                self.counters.transfers_aborted.add(1);
            }
        }
        let abort_unread = |memory| {
            for watch in all().filter(|watch| watch.is_unread(memory)) {
                watch.cut_off();
                self.counters.transfers_aborted.add(1);
            }
        };
        if node.answers.wanted_bytes() > 0 {
            abort_unread(AnswerMemory::Value);
        }
        let refused = node.pages.refused_ranges();
        if self.refused_ranges.replace(refused) != refused {
            abort_unread(AnswerMemory::Range);
        }
    }

    /// Closes the client connection that has been idle for longest, if there is one.
    fn close_idle_client(&self) {
        self.close_longest(ConnectionState::idle_ticks);
        self.report_idle();
    }

    fn close_longest<T: Ord + Copy>(&self, time: impl Fn(&ConnectionState) -> Option<T>) {
        let watches = self.watches.all();
        let left = watches.iter().filter(|watch| !watch.is_given_up());
        let longest = left.filter_map(|watch| Some((time(watch)?, watch)));
        if let Some((_, watch)) = longest.max_by_key(|(time, _)| *time) {
            watch.give_up();
            self.counters.evicted.add(1);
        }
    }

    /// Publishes the longest idle time of this loop's clients for the acceptor.
    fn report_idle(&self) {
        let watches = self.watches.all();
        let left = watches.iter().filter(|watch| !watch.is_given_up());
        let longest = left.filter_map(|watch| watch.idle_ticks()).max();
        self.counters.idle_ticks.store(longest.unwrap_or(0), Ordering::Relaxed);
    }

    fn serve(self: &Rc<Self>, stream: TcpStream, slot: ConnectionSlot) {
        let stream = match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "dropped a connection: epoll registration failed");
                self.counters.connections.fetch_sub(1, Ordering::Relaxed);
                self.node.limits.connection_slots.release(slot);
                return;
            }
        };
        let watch = ConnectionState::new(Rc::clone(&self.now), slot);
        watch.client.set(stream.peer_addr().ok());
        self.watches.add(&watch);
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            this.converse(stream, &watch).await;
            this.unregister(&watch);
        });
    }

    fn unregister(&self, watch: &ConnectionState) {
        self.watches.remove(watch);
        self.counters.connections.fetch_sub(1, Ordering::Relaxed);
        self.node.limits.connection_slots.release(watch.slot());
    }

    /// Waits for `beginning`, which reads a connection's first bytes; `None` if the connection is
    /// given up, or the node stops.
    async fn begin<T>(
        &self,
        watch: &ConnectionState,
        beginning: impl Future<Output = T>,
    ) -> Option<T> {
        let mut beginning = pin!(beginning);
        let come = poll_fn(|cx| {
            if watch.is_given_up() || self.stopping.get() {
                return Poll::Ready(None);
            }
            watch.set_waker(cx.waker());
            beginning.as_mut().poll(cx).map(Some)
        });
        come.await
    }

    /// Completes a TLS handshake within the time limit of a request's head. Returns `None` if the
    /// handshake fails.
    async fn tls_handshake(
        &self,
        tls: &Tls,
        stream: tokio::net::TcpStream,
        watch: &ConnectionState,
    ) -> Option<Stream> {
        let (stream, security) = match self.begin(watch, tls.accept(stream)).await? {
            Ok(AcceptedStream::Client(stream)) => (stream, Security::Tls),
            Ok(AcceptedStream::Peer(stream)) => {
                let lacks_certificate = tls.asks_clients();
                let channel = stream.channel()?;
                (stream, Security::Peer { channel, lacks_certificate })
            }
            Ok(AcceptedStream::InClear(stream)) => {
                watch.security.set(Security::Missing);
                return Some(stream.into());
            }
            Err(error) => {
                self.counters.tls_failed.add(1);
                let client = watch.client.get();
                tracing::debug!(?client, "TLS handshake failed: {error}");
                return None;
            }
        };
        self.counters.tls_handshakes.add(1);
        watch.security.set(security);
        Some(stream)
    }

    /// Serves a connection to its end.
    async fn converse(self: &Rc<Self>, stream: tokio::net::TcpStream, watch: &Rc<ConnectionState>) {
        let stream = match &self.node.tls {
            None => Stream::from(stream),
            Some(tls) => match self.tls_handshake(tls, stream, watch).await {
                Some(stream) => stream,
                None => return,
            },
        };
        let Some(is_http2) = self.begin(watch, http2::is_spoken(&stream)).await else { return };
        let mut socket = Socket::new(stream, Rc::clone(watch), Rc::clone(&self.scratch));
        if is_http2 {
            if http2::serve(&self.service, watch, &mut socket).await {
                self.counters.malformed.add(1);
            }
            socket.end();
            return;
        }
        let service =
            service_fn(|request| http::answer(Rc::clone(&self.service), Rc::clone(watch), request));
        let mut connection = http1::Builder::new()
            .half_close(true)
            .max_buf_size(BUFFER_BYTES)
            .max_header_size(http::MAX_HEAD_LEN)
            .serve_connection(TokioIo::new(socket), service);
        let mut goodbye_said = false;
        let result = poll_fn(|cx| {
            if watch.is_given_up() {
                return Poll::Ready(Ok(()));
            }
            if self.stopping.get() && !goodbye_said {
                goodbye_said = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            watch.set_waker(cx.waker());
            Pin::new(&mut connection).poll(cx)
        })
        .await;
        if result.is_err_and(|error| error.is_parse()) {
            self.counters.malformed.add(1);
        }
        let parts = connection.into_parts();
        let mut socket = parts.io.into_inner();
        poll_fn(|cx| {
            if watch.is_given_up() {
                return Poll::Ready(());
            }
            watch.set_waker(cx.waker());
            socket.poll_end(cx)
        })
        .await;
        if let Some(stream) = socket.end() {
            self.requests.upgrade(stream, parts.read_buf);
        }
    }
}
