//! The acceptor accepts connections, takes a connection slot for each, and passes it to the loop
//! with the fewest connections.

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

/// Maximum number of connections that the kernel queues for the acceptor. (The kernel reduces it to
/// net.core.somaxconn.)
const BACKLOG: i32 = 4096;

/// Pause after a failed accept, or without a free slot. An immediate retry would spin, because the
/// listener stays readable.
const BACK_OFF: Duration = Duration::from_millis(20);

/// Binds the address. Clients are refused until [`listen`].
pub(crate) fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Starts to listen on a bound socket.
pub(crate) fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections forever, each after it has a slot.
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
                if concerns_one_connection(&error) {
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
        // If the setup of a socket fails, its client has already closed it.
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

/// Returns a slot for an accepted connection. While no slot is free, closes connections in reserve
/// slots that have sent no request.
async fn find_slot(loops: &[Handle], slots: &ConnectionSlots) -> ConnectionSlot {
    loop {
        if let Some(slot) = slots.acquire() {
            return slot;
        }
        for handle in loops {
            // A loop with a full command queue gets the command at a later attempt.
            let _ = handle.commands.try_send(LoopCommand::CloseReserve);
        }
        // The wait is limited, because a long time may pass before a slot is released.
        let _ = timeout(BACK_OFF, slots.wait_for_release()).await;
    }
}

/// Closes the client connection that has been idle for longest on any loop, if there is one.
fn close_idle_client(loops: &[Handle]) {
    let idle = |handle: &&Handle| handle.counters.idle_ticks.load(Ordering::Relaxed);
    if let Some(handle) = loops.iter().max_by_key(idle).filter(|handle| idle(handle) > 0) {
        // If the command is lost, the next connection in a reserve slot causes another.
        let _ = handle.commands.try_send(LoopCommand::CloseIdleClient);
    }
}

/// Returns true if an accept error concerns only the connection that was to be accepted.
fn concerns_one_connection(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::PERM].map(Some).contains(&errno)
}
