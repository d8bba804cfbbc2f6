//! The acceptor: accepts connections, takes a connection slot for each, and hands it to
//! the loop with the fewest connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::timeout;

use crate::counters::Accepting;
use crate::node::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::runtime::event_loop::{Handle, LoopCommand};

/// Connections that the kernel queues between two accepts. (It reduces this to net.core.somaxconn.)
const BACKLOG: i32 = 4096;

/// Pause when no connection can be accepted, for lack of file descriptors or connection slots.
/// Retrying at once would spin, because the listener stays readable.
const BACK_OFF: Duration = Duration::from_millis(20);

/// Binds the address without serving on it yet: clients are refused until [`listen`].
pub(crate) fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Starts to listen.
pub(crate) fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections forever, each once it has a slot.
pub(crate) async fn run(
    listener: TcpListener,
    loops: &[Handle],
    slots: &ConnectionSlots,
    counts: &Accepting,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut failing = false;
    loop {
        let accepted = listener.accept().await;
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                if is_of_one_connection(&error) {
                    continue;
                }
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections; open connections are still \
                        served");
                }
                close_idle_client(loops);
                tokio::time::sleep(BACK_OFF).await;
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            tracing::info!("accepting connections again");
        }
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        // A socket that can't be set up was already closed by its client.
        let Ok(stream) = stream.into_std() else { continue };
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        let slot = find_slot(loops, slots).await;
        if slot == ConnectionSlot::Reserve {
            close_idle_client(loops);
        }
        let open = |handle: &&Handle| handle.counters.connections.load(Ordering::Relaxed);
        let Some(handle) = loops.iter().min_by_key(open) else { return Ok(()) };
        handle.counters.connections.fetch_add(1, Ordering::Relaxed);
        if handle.commands.send(LoopCommand::Serve(stream, slot)).await.is_err() {
            handle.counters.connections.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::other("an event loop exited"));
        }
    }
}

/// Returns a slot for an accepted connection. While none is free, closes connections in reserve
/// slots that owe a request.
async fn find_slot(loops: &[Handle], slots: &ConnectionSlots) -> ConnectionSlot {
    loop {
        if let Some(slot) = slots.acquire() {
            return slot;
        }
        for handle in loops {
            // A loop with a full queue gets the command later.
            let _ = handle.commands.try_send(LoopCommand::CloseReserve);
        }
        // The wait is bounded, because it may be long until a connection leaves.
        let _ = timeout(BACK_OFF, slots.wait_for_release()).await;
    }
}

/// Closes the client connection that has been idle for longest on any loop, if there is one.
fn close_idle_client(loops: &[Handle]) {
    let idle = |handle: &&Handle| handle.counters.idle_ticks.load(Ordering::Relaxed);
    if let Some(handle) = loops.iter().max_by_key(idle).filter(|handle| idle(handle) > 0) {
        // If the command is lost, the next connection in a reserve slot sends it again.
        let _ = handle.commands.try_send(LoopCommand::CloseIdleClient);
    }
}

/// Returns true if an accept error concerns only the connection that would have been accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::PERM].map(Some).contains(&errno)
}
