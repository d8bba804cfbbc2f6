//! Connection slots limit concurrent connections. This module also admits connections when all
//! client slots are taken.
//!
//! ```text
//!   accepted ─┬─▶ Client: one of the --connections client slots, if one is free
//!             └─▶ Reserve: one of RESERVE_SLOTS more; its first request decides:
//!                  ├── a client's request: waits briefly for a client slot, else gets 503
//!                  ├── a peer: switches to the peer protocol, which has limits of its own
//!                  └── a probe, a status request: is answered, then closed
//! ```
//!
//! So clients never keep out other nodes or operators. A reserve slot admits a connection for a
//! short time. When a connection gets a reserve slot, the node closes the client connection
//! that has been idle for longest. When a new connection finds no free reserve slot, each event
//! loop closes its reserve connection that has sent no request for longest.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The kind of a connection's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionSlot {
    /// A client slot: all requests are served.
    Client,
    /// A reserve slot. All client slots were taken when the connection was accepted.
    Reserve,
}

/// All connection slots of a node.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    clients: AtomicUsize,
    max_clients: usize,
    reserve: AtomicUsize,
    max_reserve: usize,
    /// Number of requests, and of connections in reserve slots, that wait for a client slot, and so
    /// have priority over new connections.
    waiting: AtomicUsize,
    released: Notify,
}

fn take(count: &AtomicUsize, most: usize) -> bool {
    let more = |now| (now < most).then_some(now + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

impl ConnectionSlots {
    pub(crate) fn new(clients: usize, reserve: usize) -> Self {
        Self {
            clients: AtomicUsize::new(0),
            max_clients: clients,
            reserve: AtomicUsize::new(0),
            max_reserve: reserve,
            waiting: AtomicUsize::new(0),
            released: Notify::new(),
        }
    }

    /// Takes a slot for a new connection; `None` if all slots are taken.
    pub(crate) fn acquire(&self) -> Option<ConnectionSlot> {
        if self.nobody_waits() && take(&self.clients, self.max_clients) {
            return Some(ConnectionSlot::Client);
        }
        take(&self.reserve, self.max_reserve).then_some(ConnectionSlot::Reserve)
    }

    /// Takes a client slot for a further concurrent request of an HTTP/2 connection, as for a
    /// separate connection. Returns false if no slot is free.
    pub(crate) fn acquire_for_stream(&self) -> bool {
        self.nobody_waits() && take(&self.clients, self.max_clients)
    }

    /// Takes a client slot for a request that has waited. Returns false if no slot is free.
    pub(crate) fn acquire_after_wait(&self) -> bool {
        take(&self.clients, self.max_clients)
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Moves a connection from its reserve slot to a client slot. Returns false if no client slot
    /// is free.
    pub(crate) fn move_to_client_slot(&self) -> bool {
        let settled = take(&self.clients, self.max_clients);
        if settled {
            self.release(ConnectionSlot::Reserve);
        }
        settled
    }

    /// Releases a slot.
    pub(crate) fn release(&self, slot: ConnectionSlot) {
        let count = match slot {
            ConnectionSlot::Client => &self.clients,
            ConnectionSlot::Reserve => &self.reserve,
        };
        let before = count.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a slot is returned once");
        self.released.notify_one();
    }

    /// Waits until a slot is released. Returns at once if one was released since the last wait.
    pub(crate) async fn wait_for_release(&self) {
        self.released.notified().await;
    }

    /// True if a connection may stay in its reserve slot. Half of the reserve slots are kept for
    /// short-lived connections.
    pub(crate) fn reserve_is_half_free(&self) -> bool {
        self.reserve.load(Ordering::Relaxed) <= self.max_reserve / 2
    }

    /// Registers a request, or a connection in a reserve slot, as waiting for a client slot. The
    /// drop of the result ends the registration.
    pub(crate) fn wait(&self) -> SlotWaiter<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        SlotWaiter(self)
    }

    /// Returns the limit on concurrent clients.
    pub(crate) fn max_clients(&self) -> usize {
        self.max_clients
    }
}

/// A request or connection registered as waiting for a client slot.
pub(crate) struct SlotWaiter<'a>(&'a ConnectionSlots);

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        let before = self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "who stops waiting was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_connection_moves_to_a_client_slot_once_one_is_released() {
        let slots = ConnectionSlots::new(2, 2);
        let came: Vec<_> = (0..5).map(|_| slots.acquire()).collect();
        let (client, reserve) = (Some(ConnectionSlot::Client), Some(ConnectionSlot::Reserve));
        assert_eq!(came, [client, client, reserve, reserve, None]);
        assert!(!slots.move_to_client_slot() && !slots.reserve_is_half_free());
        slots.release(ConnectionSlot::Client);
        assert!(slots.move_to_client_slot() && slots.reserve_is_half_free());
        assert_eq!([slots.acquire(), slots.acquire()], [reserve, None]);
    }

    #[test]
    fn a_waiting_reserve_connection_has_priority_over_a_new_connection() {
        let slots = ConnectionSlots::new(1, 2);
        assert_eq!(
            [slots.acquire(), slots.acquire()],
            [Some(ConnectionSlot::Client), Some(ConnectionSlot::Reserve)]
        );
        let waiting = slots.wait();
        slots.release(ConnectionSlot::Client);
        assert_eq!(slots.acquire(), Some(ConnectionSlot::Reserve));
        assert!(!slots.acquire_for_stream(), "nor one of HTTP/2");
        assert!(slots.move_to_client_slot());
        drop(waiting);
    }
}
