//! How many connections there may be at once, and who gets in when all places are taken.
//!
//! ```text
//!              places for clients are left                   --connections
//!  accepted ──▶ Client ◀───────────────────────────────┐
//!      └──────▶ Guest ── the first request of a client ┘     GUESTS more
//!                 │       (waits a little, else 503)
//!                 ├── a peer: goes on in the nodes' own protocol, which has bounds of its own
//!                 └── a probe, a look at the node: answered, then closed
//! ```
//!
//! So clients never keep out the other nodes, nor those who look after this one. For each guest
//! the client that has been idle for longest is closed, and for whoever finds no guest's place
//! the guest that has said nothing for longest.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Whatever it asks is done.
    Client,
    /// It came when all places of clients were taken.
    Guest,
}

/// All places of a node.
#[derive(Debug)]
pub(crate) struct Places {
    clients: AtomicUsize,
    max_clients: usize,
    guests: AtomicUsize,
    max_guests: usize,
    /// Guests that wait to be clients, and requests that wait for a place: they come before whoever
    /// is accepted next.
    waiting: AtomicUsize,
    left: Notify,
}

fn take(count: &AtomicUsize, most: usize) -> bool {
    let more = |now| (now < most).then_some(now + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

impl Places {
    pub(crate) fn new(clients: usize, guests: usize) -> Self {
        Self {
            clients: AtomicUsize::new(0),
            max_clients: clients,
            guests: AtomicUsize::new(0),
            max_guests: guests,
            waiting: AtomicUsize::new(0),
            left: Notify::new(),
        }
    }

    /// A place for a new connection; `None` = there is none.
    pub(crate) fn enter(&self) -> Option<Place> {
        if self.nobody_waits() && take(&self.clients, self.max_clients) {
            return Some(Place::Client);
        }
        take(&self.guests, self.max_guests).then_some(Place::Guest)
    }

    /// A client's place for another request of an HTTP/2 connection at the same time, as another
    /// connection would have one.
    pub(crate) fn enter_again(&self) -> bool {
        self.nobody_waits() && take(&self.clients, self.max_clients)
    }

    /// The same for a request that waits for one.
    pub(crate) fn enter_at_last(&self) -> bool {
        take(&self.clients, self.max_clients)
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Makes a guest a client, if a place is free.
    pub(crate) fn settle(&self) -> bool {
        let settled = take(&self.clients, self.max_clients);
        if settled {
            self.leave(Place::Guest);
        }
        settled
    }

    /// Gives a place back.
    pub(crate) fn leave(&self, place: Place) {
        let count = match place {
            Place::Client => &self.clients,
            Place::Guest => &self.guests,
        };
        let before = count.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a place is given back once");
        self.left.notify_one();
    }

    /// Until somebody leaves, or has left since this was awaited last.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    /// Whether a guest may stay for longer: half of the places are for those who come and go.
    pub(crate) fn guests_are_few(&self) -> bool {
        self.guests.load(Ordering::Relaxed) <= self.max_guests / 2
    }

    /// A guest or a request waits for a place, for as long as the result lives.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Clients at once.
    pub(crate) fn max_clients(&self) -> usize {
        self.max_clients
    }
}

/// A guest that waits to become a client, or a request that waits for a place.
pub(crate) struct Waiting<'a>(&'a Places);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let before = self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "who stops waiting was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_come_after_clients_and_settle_when_one_leaves() {
        let places = Places::new(2, 2);
        let came: Vec<_> = (0..5).map(|_| places.enter()).collect();
        let (client, guest) = (Some(Place::Client), Some(Place::Guest));
        assert_eq!(came, [client, client, guest, guest, None]);
        assert!(!places.settle() && !places.guests_are_few());
        places.leave(Place::Client);
        assert!(places.settle() && places.guests_are_few());
        assert_eq!([places.enter(), places.enter()], [guest, None]);
    }

    #[test]
    fn a_guest_that_waits_comes_before_whoever_is_new() {
        let places = Places::new(1, 2);
        assert_eq!([places.enter(), places.enter()], [Some(Place::Client), Some(Place::Guest)]);
        let waiting = places.wait();
        places.leave(Place::Client);
        assert_eq!(places.enter(), Some(Place::Guest));
        assert!(!places.enter_again(), "nor one of HTTP/2");
        assert!(places.settle());
        drop(waiting);
    }
}
