//! One connection to or from another node, after the handshake. A loop's tasks push messages to the
//! connection. The connection's [`Driver`](super::driver::Driver) does the I/O, and each push wakes
//! the driver.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use protocol::handshake::PeerSeen;
use protocol::{Message, NodeId, Reply};
use server::link::{Connection, Direction, Round};

use super::facts::PeerFacts;
use crate::counters::Counters;
use crate::counters::clocks;
use crate::counters::memory_budget::MemoryReservation;

/// One connection to or from another node.
pub(super) struct PeerConnection {
    pub(super) counters: Arc<Counters>,
    pub(super) peer: NodeId,
    pub(super) direction: Direction,
    pub(super) machine: RefCell<Connection<MemoryReservation>>,
    driver: RefCell<Option<Waker>>,
}

impl PeerConnection {
    pub(super) fn new(
        facts: &Arc<PeerFacts>,
        counters: &Arc<Counters>,
        seen: &PeerSeen,
        direction: Direction,
    ) -> Rc<Self> {
        Rc::new(Self {
            counters: Arc::clone(counters),
            peer: seen.node,
            direction,
            machine: RefCell::new(Connection::new(&facts.table, seen, direction, clocks::now())),
            driver: RefCell::default(),
        })
    }

    /// Returns true if the other node has asked this node to send no more requests.
    #[cfg(test)]
    pub(super) fn is_leaving(&self) -> bool {
        self.machine.borrow().is_leaving()
    }

    /// Returns the number of unsent bytes.
    #[cfg(test)]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.machine.borrow().unsent_bytes()
    }

    /// Queues a message. Returns false if the queue is full.
    pub(super) fn push(&self, message: Message) -> bool {
        let pushed = self.machine.borrow_mut().push(message, clocks::now);
        if pushed {
            self.wake();
        }
        pushed
    }

    /// Answers a request that was received on this connection.
    pub(super) fn respond(&self, id: u64, reply: Reply) {
        self.machine.borrow_mut().respond(id, reply, clocks::now);
        self.wake();
    }

    /// Announces to the other node that this node accepts no more requests.
    pub(super) fn goodbye(&self) {
        self.machine.borrow_mut().goodbye();
        self.wake();
    }

    /// Sends a ping if a ping is due.
    pub(super) fn ping(&self, round: Round) {
        let turn = round.is_turn_of(self.peer);
        let mut machine = self.machine.borrow_mut();
        machine.ping(clocks::now(), turn, round.skips);
        let wakes = machine.close_reason().is_some() || machine.unsent_bytes() > 0;
        drop(machine);
        // Most connections are idle, and send nothing in this round.
        if wakes {
            self.wake();
        }
    }

    /// Closes the connection once all data is written and the other node has closed its end.
    pub(super) fn finish(&self) {
        self.machine.borrow_mut().finish();
        self.wake();
    }

    /// Closes the connection at once. Unsent data is lost.
    pub(super) fn close(&self, why: &'static str) {
        self.machine.borrow_mut().close(why);
        self.wake();
    }

    fn wake(&self) {
        if let Some(driver) = self.driver.borrow().as_ref() {
            driver.wake_by_ref();
        }
    }

    /// Registers the driver's waker.
    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *driver = Some(waker.clone());
        }
    }
}
