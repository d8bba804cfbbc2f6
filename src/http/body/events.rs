//! The event stream of the dashboard, as a response body. The events arrive through a channel.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::{Content, Item};
use crate::counters::memory_budget::MemoryReservation;
use crate::http::connection::Open;
use crate::node::requests::Requests;
use crate::tokens::lookup::CachedToken;

/// The events of one stream.
pub(crate) struct Events {
    requests: Rc<Requests>,
    /// True once the node stops.
    stopping: Rc<Cell<bool>>,
    events: mpsc::Receiver<Bytes>,
    /// Token by which the stream was requested; `None` if the request needed no token of the
    /// layout.
    token: Option<Rc<CachedToken>>,
    _held: MemoryReservation,
    _open: Open,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    /// Creates a stream of `events`. The stream ends once the token is no longer valid. At its end
    /// it releases `held` and `open`.
    pub(in crate::http) fn new(
        requests: Rc<Requests>,
        stopping: Rc<Cell<bool>>,
        events: mpsc::Receiver<Bytes>,
        token: Option<Rc<CachedToken>>,
        (held, open): (MemoryReservation, Open),
    ) -> Self {
        Self { requests, stopping, events, token, _held: held, _open: open }
    }

    /// Polls for the next event. The stream ends when the node stops, or the token is no longer
    /// valid.
    pub(in crate::http) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.stopping.get() {
            return Poll::Ready(None);
        }
        let event = std::task::ready!(self.events.poll_recv(cx));
        let ends = self.token.as_ref().is_some_and(|token| !self.requests.is_token_valid(token));
        Poll::Ready(event.filter(|_| !ends).map(|event| event.chain(Content::default())))
    }
}
