//! Request bodies: received within bounds, or skipped so that the connection can go on.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};

use super::problem::Problem;
use crate::budget::Held;
use crate::connection::Watch;
use crate::node::Node;

/// How much of a body that nobody wants is read to keep the connection. A client that sends more
/// gets its answer and a closed connection.
const SKIP_BYTES: u64 = 64 * 1024;

/// What is set aside for a body of unknown length; doubled as it arrives.
const STEP_BYTES: usize = 64 * 1024;

/// The body of one request.
pub(super) struct Upload<'a> {
    body: Incoming,
    watch: &'a Watch,
    /// The client waits for "100 Continue", which hyper sends when the body is first polled.
    expects: bool,
    ended: bool,
    failed: bool,
    /// Not all of it was here at once: the pace of the rest is watched.
    waited: bool,
}

/// A value that was received.
pub(super) enum Value {
    /// In one piece, in the connection's buffer.
    Whole(Bytes),
    /// In pieces, gathered in memory that was set aside.
    Gathered {
        /// The pieces put together.
        bytes: Vec<u8>,
        /// Their memory.
        held: Held,
    },
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Gathered { bytes, .. } => bytes,
        }
    }
}

impl Value {
    /// The memory that was set aside, without the value.
    pub(super) fn into_held(self) -> Option<Held> {
        match self {
            Self::Whole(_) => None,
            Self::Gathered { held, .. } => Some(held),
        }
    }
}

impl<'a> Upload<'a> {
    pub(super) fn new(body: Incoming, watch: &'a Watch, expects: bool) -> Self {
        let ended = body.is_end_stream();
        Self { body, watch, expects, ended, failed: false, waited: false }
    }

    /// Receives a value of at most `--max-value` bytes.
    pub(super) async fn receive(&mut self, node: &Node) -> Result<Value, Problem> {
        let received = self.gather(node).await;
        self.watch.body_ends();
        received
    }

    async fn gather(&mut self, node: &Node) -> Result<Value, Problem> {
        let max = node.config.max_value;
        if self.body.size_hint().lower() > max as u64 {
            return Err(Problem::too_large(max));
        }
        let first = self.piece().await?.unwrap_or_default();
        if first.len() > max {
            return Err(Problem::too_large(max));
        }
        if self.ended {
            return Ok(Value::Whole(first));
        }
        let no_room = || Problem::overload("too many bytes are being received").undone();
        // While it waits for memory nothing more is read, and the client waits too. What length is
        // known is taken at once: uploads that each hold a part and wait for the rest end never.
        let more = async |bytes| node.bodies.wait(bytes, node.config.deadline).await;
        let mut room = self.body.size_hint().exact().map_or(STEP_BYTES, |left| left as usize);
        room += first.len();
        let mut held = more(room).await.ok_or_else(no_room)?;
        let mut gathered = Vec::with_capacity(room);
        let mut piece = first;
        loop {
            while room < gathered.len() + piece.len() {
                held.merge(more(room).await.ok_or_else(no_room)?);
                room *= 2;
                gathered.reserve_exact(room - gathered.len());
            }
            gathered.extend_from_slice(&piece);
            let Some(next) = self.piece().await? else {
                return Ok(Value::Gathered { bytes: gathered, held });
            };
            if gathered.len() + next.len() > max {
                return Err(Problem::too_large(max));
            }
            piece = next;
        }
    }

    /// Reads to the end if that is near; `false` if the rest must be cut off with the connection.
    pub(super) async fn skip(&mut self) -> bool {
        if !self.ended
            && (self.failed || self.expects || self.body.size_hint().lower() > SKIP_BYTES)
        {
            return false;
        }
        let mut skipped = 0;
        while !self.ended {
            match self.piece().await {
                Ok(Some(piece)) => skipped += piece.len() as u64,
                Ok(None) => {}
                Err(_) => return false,
            }
            if skipped > SKIP_BYTES {
                return false;
            }
        }
        true
    }

    /// The next piece; `None` at the end. Trailers are ignored.
    async fn piece(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let frame = poll_fn(|cx| {
                let polled = Pin::new(&mut self.body).poll_frame(cx);
                if polled.is_pending() && !std::mem::replace(&mut self.waited, true) {
                    self.watch.body_begins();
                }
                polled
            })
            .await;
            match frame {
                Some(Ok(frame)) => {
                    self.ended = self.body.is_end_stream();
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    self.failed = true;
                    return Err(Problem::bad_request(format!("the body can't be read: {error}")));
                }
                None => {
                    self.ended = true;
                    return Ok(None);
                }
            }
        }
    }
}
