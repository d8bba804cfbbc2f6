//! Request bodies: the node receives them within bounds, or skips them to keep the connection open.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};
use hyper::header::EXPECT;
use server::link::MessageReservation;

use super::access::Principal;
use super::problem::Problem;
use super::service::Service;
use crate::counters::memory_budget::{Budget, MemoryReservation};
use crate::http::connection::ConnectionState;
use crate::node::limits::Limits;
use crate::settings::memory::{LONG_RECORD, longest_wait};

/// Maximum number of bytes of an unwanted body that are read to keep the connection open. If the
/// body is longer, the connection is closed after the answer.
const SKIP_BYTES: u64 = 64 * 1024;

/// Reservation in bytes for the beginning of a body of unknown length. A longer body reserves
/// `--max-value`.
const BEGINNING: usize = 64 * 1024;

/// Maximum number of copies of a value for which an upload reserves memory.
const MAX_COPIES: usize = 2;

/// Returns the budget for the beginnings of uploads of unknown length, in bytes: the memory for
/// bodies, minus the bytes that one such upload needs to complete; at least the budget of one
/// beginning.
pub(crate) fn beginning_bytes(bodies: usize, max_value: usize) -> usize {
    bodies.saturating_sub(MAX_COPIES * max_value).max(MAX_COPIES * BEGINNING)
}

const SLOWER: &str = "this slow upload was aborted to free memory for waiting requests";

/// An upload that was aborted in favor of waiting requests.
struct UploadAborted;

/// The state of a body's unread part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnreadPart {
    /// More bytes may arrive.
    Coming,
    /// The body is complete, so nothing is unread.
    Nothing,
    /// The client broke off the upload.
    Lost,
}

impl UnreadPart {
    /// Returns the state according to hyper.
    fn of(body: &Incoming) -> Self {
        if body.is_end_stream() { Self::Nothing } else { Self::Coming }
    }
}

/// The body of one request.
pub(crate) struct Upload<'a> {
    body: Incoming,
    watch: &'a ConnectionState,
    /// The right by which the request was admitted.
    right: &'a Principal,
    rest: UnreadPart,
    /// True if not all of the body was available at once. The connection's state then watches the
    /// rate of the rest.
    waited: bool,
    /// Bytes received so far.
    received: u64,
    /// Total time spent waiting for memory.
    memory_wait_so_far: Duration,
    /// Number of copies of the received value for which memory is reserved, because they are in
    /// memory at the same time.
    copies: usize,
}

/// A received value.
pub(crate) enum Value {
    /// A value in one piece, in the connection's buffer. A long value has a reservation for a copy.
    Whole(Bytes, Option<MemoryReservation>),
    /// A value that arrived in pieces, gathered in reserved memory.
    Gathered {
        /// All pieces in one buffer.
        bytes: Vec<u8>,
        /// The reservation for `bytes`.
        held: MemoryReservation,
    },
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Whole(bytes, _) => bytes,
            Self::Gathered { bytes, .. } => bytes,
        }
    }
}

impl Value {
    /// Returns the reservation, and drops the value.
    #[inline]
    pub(crate) fn into_reservation(self) -> Option<MemoryReservation> {
        match self {
            Self::Whole(_, held) => held,
            Self::Gathered { held, .. } => Some(held),
        }
    }
}

impl<'a> Upload<'a> {
    #[inline]
    pub(super) fn new(body: Incoming, watch: &'a ConnectionState, right: &'a Principal) -> Self {
        let rest = UnreadPart::of(&body);
        Self {
            body,
            watch,
            right,
            rest,
            waited: false,
            received: 0,
            memory_wait_so_far: Duration::ZERO,
            copies: 1,
        }
    }

    /// Receives a value of at most `--max-value` bytes. A body may take minutes to arrive, so the
    /// right of the request is checked again after the body is complete.
    pub(crate) async fn receive(&mut self, service: &Service) -> Result<Value, Problem> {
        let received = self.gather(service.limits()).await;
        self.watch.holds(0);
        self.watch.end_body();
        let received = received?;
        self.check(service)?;
        Ok(received)
    }

    /// Refuses the request if its right has ended. Nothing was written yet.
    pub(crate) fn check(&self, service: &Service) -> Result<(), Problem> {
        self.right.check(service).map_err(Problem::without_effect)
    }

    /// Receives a value with memory for two copies. A conditional write keeps the value until its
    /// outcome is known, and its record is the second copy.
    pub(crate) async fn receive_for_two_copies(
        &mut self,
        service: &Service,
    ) -> Result<Value, Problem> {
        self.copies = MAX_COPIES;
        self.receive(service).await
    }

    async fn gather(&mut self, limits: &Limits) -> Result<Value, Problem> {
        let max = limits.max_value;
        if self.body.size_hint().lower() > max as u64 {
            return Err(Problem::too_large(max));
        }
        let first = self.piece().await?.unwrap_or_default();
        if first.len() > max {
            return Err(Problem::too_large(max));
        }
        if self.rest == UnreadPart::Nothing {
            let long = first.len() > LONG_RECORD;
            let held = if long {
                Some(self.room(limits, &limits.bodies, first.len()).await?)
            } else {
                None
            };
            return Ok(Value::Whole(first, held));
        }
        // While the upload waits for memory, the node reads nothing, so the client waits too. A
        // known length is reserved at once. For an unknown length, the beginning is reserved first,
        // then the maximum length of a value. Smaller steps could deadlock: several uploads could
        // each hold a part and wait for the next part.
        let known = self.body.size_hint().exact().map(|left| first.len() + left as usize);
        let is_short = known.is_none() && first.len() < BEGINNING.min(max);
        let mut beginning = match is_short {
            true => Some(self.room(limits, &limits.beginnings, BEGINNING).await?),
            false => None,
        };
        let mut room = known.unwrap_or(if is_short { BEGINNING.min(max) } else { max });
        let mut held = self.room(limits, &limits.bodies, room).await?;
        self.watch.holds(held.bytes() / self.copies);
        let mut gathered = Vec::with_capacity(known.unwrap_or(0));
        let mut piece = first;
        loop {
            let len = gathered.len() + piece.len();
            if room < len {
                held.merge(self.room(limits, &limits.bodies, max - room).await?);
                drop(beginning.take());
                self.watch.holds(held.bytes() / self.copies);
                room = max;
            }
            if gathered.capacity() < len {
                let capacity = (2 * gathered.capacity()).clamp(len, room);
                gathered.reserve_exact(capacity - gathered.len());
            }
            gathered.extend_from_slice(&piece);
            let Some(next) = self.piece().await? else {
                held.shrink(gathered.capacity() * self.copies);
                return Ok(Value::Gathered { bytes: gathered, held });
            };
            if gathered.len() + next.len() > max {
                return Err(Problem::too_large(max));
            }
            piece = next;
        }
    }

    /// Reserves memory for `bytes` bytes of the value. The total time of an upload's waits is
    /// limited to the longest wait of a request.
    async fn room(
        &mut self,
        limits: &Limits,
        budget: &Budget,
        bytes: usize,
    ) -> Result<MemoryReservation, Problem> {
        let bytes = bytes * self.copies;
        if let Some(held) = budget.take(bytes) {
            return Ok(held);
        }
        let begun = Instant::now();
        let most = longest_wait(limits.deadline);
        let max_wait = most.saturating_sub(self.memory_wait_so_far);
        let held = budget.wait(bytes, max_wait).await;
        self.memory_wait_so_far += begun.elapsed();
        held.ok_or_else(|| {
            Problem::overload("the memory for request bodies is in use").without_effect()
        })
    }

    /// Returns true if the body has no bytes. A body without bytes may take a while to end.
    pub(crate) async fn is_empty(&mut self, service: &Service) -> Result<bool, Problem> {
        let mut is_empty = true;
        while is_empty && let Some(piece) = self.piece().await? {
            is_empty = piece.is_empty();
        }
        self.watch.end_body();
        self.check(service)?;
        Ok(is_empty)
    }

    /// Returns the number of bytes received.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received
    }

    /// Returns the time spent waiting for memory.
    pub(crate) fn memory_wait(&self) -> Duration {
        self.memory_wait_so_far
    }

    /// True if the body is incomplete.
    pub(crate) fn has_more(&self) -> bool {
        self.rest != UnreadPart::Nothing
    }

    /// Reads the body to its end if at most `SKIP_BYTES` are left. Returns false if the rest must
    /// be cut off by closing the connection. If the client expects "100 Continue", the body is not
    /// read, because hyper would send that answer when the body is first polled.
    pub(crate) async fn skip(&mut self, headers: &HeaderMap) -> bool {
        match self.rest {
            UnreadPart::Nothing => return true,
            UnreadPart::Lost => return false,
            UnreadPart::Coming => {}
        }
        if headers.contains_key(EXPECT) || self.body.size_hint().lower() > SKIP_BYTES {
            return false;
        }
        let mut skipped = 0;
        while self.has_more() {
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

    /// Returns the unread part of the body; `None` if the body is complete or broken off.
    pub(crate) fn into_unread_body(self) -> Option<Incoming> {
        (self.rest == UnreadPart::Coming).then_some(self.body)
    }

    /// Reads the next piece; `None` at the end. Trailers are ignored.
    async fn piece(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.rest == UnreadPart::Nothing {
            return Ok(None);
        }
        loop {
            let frame = poll_fn(|cx| {
                if self.watch.is_upload_aborted() {
                    return Poll::Ready(Err(UploadAborted));
                }
                let polled = Pin::new(&mut self.body).poll_frame(cx);
                if polled.is_pending() && !std::mem::replace(&mut self.waited, true) {
                    self.watch.begin_body();
                }
                polled.map(Ok)
            })
            .await;
            // The client may still be sending. The rest is discarded, as for each refused body.
            let Ok(frame) = frame else { return Err(Problem::overload(SLOWER).without_effect()) };
            match frame {
                Some(Ok(frame)) => {
                    self.rest = UnreadPart::of(&self.body);
                    if let Ok(data) = frame.into_data() {
                        self.received += data.len() as u64;
                        self.watch.record_body_piece(data.len());
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    self.rest = UnreadPart::Lost;
                    return Err(cut_off(&error.to_string()));
                }
                // A client may reset a stream in a way that hyper reports as the end of its body.
                None if self.watch.is_stream() && !self.body.is_end_stream() => {
                    self.rest = UnreadPart::Lost;
                    return Err(cut_off("the client reset the stream"));
                }
                None => {
                    self.rest = UnreadPart::Nothing;
                    return Ok(None);
                }
            }
        }
    }
}

/// Refuses an incomplete body.
fn cut_off(why: &str) -> Problem {
    let detail = format!("the body was cut off, or is malformed ({why}): nothing was stored");
    Problem::bad_request(detail).without_effect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_of_unknown_length_leave_memory_to_complete_one_of_them() {
        const MIB: usize = 1 << 20;
        for (bodies, max_value) in [(16 * MIB, MIB), (2 * MIB, MIB), (MIB, 1), (MIB, MIB / 4)] {
            let left = bodies - beginning_bytes(bodies, max_value).min(bodies);
            let rest = MAX_COPIES * max_value.saturating_sub(BEGINNING);
            assert!(left >= rest, "{bodies} and {max_value}: {left} of {rest}");
        }
    }
}
