//! The counters of an event loop. Only its loop writes a counter, so counting is a plain load and
//! store. `/metrics` reads the counters of all loops from any thread.

pub(crate) mod clocks;
pub(crate) mod latency;
pub(crate) mod memory_budget;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hyper::StatusCode;

use crate::counters::latency::Latency;

/// A number that one thread writes and other threads read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds to the value. Only one thread may call it, because it is no atomic read-modify-write.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    /// Replaces the value. Only one thread may call it, as for [`Count::add`].
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Kinds of requests with separate counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum RequestKind {
    /// `GET` (and `HEAD`) of one value.
    Get,
    /// `PUT` of one value.
    Put,
    /// `DELETE` of one value.
    Delete,
    /// `POST`: an addition to a number.
    Add,
    /// `GET` of a range.
    Range,
    /// A read of the node's state: `/healthz`, `/readyz`, `/metrics`, `/v0/status`.
    Admin,
    /// A command of an administrator: `POST` of `/admin/…`.
    AdminPost,
    /// Any other request.
    Other,
}

impl RequestKind {
    /// True if the request writes.
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::Delete | Self::Add)
    }

    /// True if the request reads or writes data.
    pub(crate) fn is_data_request(self) -> bool {
        self.is_write() || matches!(self, Self::Get | Self::Range)
    }

    /// All kinds, each with the route and method that label its metrics.
    pub(crate) const ALL: [(Self, &'static str, &'static str); 8] = [
        (Self::Get, "/v0/entity", "GET"),
        (Self::Put, "/v0/entity", "PUT"),
        (Self::Delete, "/v0/entity", "DELETE"),
        (Self::Add, "/v0/entity", "POST"),
        (Self::Range, "/v0/entities", "GET"),
        (Self::Admin, "admin", "GET"),
        (Self::AdminPost, "admin", "POST"),
        (Self::Other, "other", "other"),
    ];
}

/// Statuses with their own counters. The last entry stands for all other statuses.
pub(crate) const STATUSES: [u16; 26] = [
    200, 201, 202, 304, 400, 401, 403, 404, 405, 409, 412, 413, 415, 421, 422, 426, 429, 431, 500,
    501, 503, 504, 507, 204, 307, 0,
];

/// Reasons for refusing access, as labels of metrics, for 401, 403 and 429.
pub(crate) const REFUSED: [&str; 3] = ["no-token", "scope", "rate"];

/// A loop's counters of its connections to and from other nodes.
#[derive(Debug, Default)]
pub(crate) struct PeerCounts {
    /// Envelopes completed for sending.
    pub(crate) envelopes_sent: Count,
    /// Envelopes received completely.
    pub(crate) envelopes_received: Count,
    /// Messages queued for sending.
    pub(crate) messages_sent: Count,
    /// Messages received from other nodes.
    pub(crate) messages_received: Count,
    /// Bytes written to sockets.
    pub(crate) bytes_sent: Count,
    /// Bytes read from sockets.
    pub(crate) bytes_received: Count,
    /// Calls of `write`.
    pub(crate) writes: Count,
    /// Connections closed because of malformed input.
    pub(crate) malformed: Count,
    /// Refused handshakes with other nodes.
    pub(crate) refused: Count,
    /// Handshakes of incoming connections without a verdict: the other end closed the connection or
    /// took too long, or too many handshakes ran at once.
    pub(crate) unfinished: Count,
    /// Connections established with other nodes.
    pub(crate) connected: Count,
}

/// The counters of one loop.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests by kind and status.
    pub(crate) requests: [[Count; STATUSES.len()]; RequestKind::ALL.len()],
    /// Time from a request's head to its answer, by kind.
    pub(crate) latency: [Latency; RequestKind::ALL.len()],
    /// Connections closed because of input that was not HTTP.
    pub(crate) malformed: Count,
    /// Open HTTP/2 connections of clients.
    pub(crate) http2: Count,
    /// Completed TLS handshakes.
    pub(crate) tls_handshakes: Count,
    /// Failed TLS handshakes.
    pub(crate) tls_failed: Count,
    /// Connections given up as too slow.
    pub(crate) timed_out: Count,
    /// Idle connections closed to admit others.
    pub(crate) evicted: Count,
    /// Uploads and long answers aborted in favor of requests that waited for their memory.
    pub(crate) transfers_aborted: Count,
    /// Batches passed to the store.
    pub(crate) batches: Count,
    /// Writes in the batches passed to the store.
    pub(crate) batched_writes: Count,
    /// Nanoseconds for which batches were delayed because of the store's backlog.
    pub(crate) slowdown_nanos: Count,
    /// Bytes of writes that wait for the store.
    pub(crate) waiting_bytes: Count,
    /// Range reads begun.
    pub(crate) ranges: Count,
    /// Refused requests: without a known token, with a token that does not permit the request, and
    /// above a token's rate.
    pub(crate) refused: [Count; REFUSED.len()],
    /// Counters of connections with other nodes.
    pub(crate) peers: PeerCounts,
    /// Sweeps over all connections, one in each tick. A loop whose count does not grow is stuck.
    pub(crate) sweeps: Count,
    /// Open connections, including those on their way to the loop. The acceptor adds, the loop
    /// subtracts.
    pub(crate) connections: AtomicUsize,
    /// Ticks for which the longest-idle client had been idle at the last check.
    pub(crate) idle_ticks: AtomicU32,
}

impl Counters {
    /// Counts an answered request. `nanos` is its latency.
    #[inline]
    pub(crate) fn count_answer(&self, kind: RequestKind, status: StatusCode, nanos: u64) {
        let status = status.as_u16();
        let place = STATUSES.iter().position(|known| *known == status);
        self.requests[kind as usize][place.unwrap_or(STATUSES.len() - 1)].add(1);
        self.latency[kind as usize].record(nanos);
    }
}

/// Counters of the whole process, for rare events that need no counter per loop.
#[derive(Debug, Default)]
pub(crate) struct Accepting {
    /// Connections accepted since the start.
    pub(crate) accepted: AtomicU64,
    /// Failed accepts, mostly for lack of file descriptors.
    pub(crate) failed: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_index_their_own_row() {
        for (place, (kind, _, _)) in RequestKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
    }

    #[test]
    fn an_unlisted_status_is_counted_too() {
        let counters = Counters::default();
        counters.count_answer(RequestKind::Put, StatusCode::IM_A_TEAPOT, 0);
        assert_eq!(counters.requests[RequestKind::Put as usize][STATUSES.len() - 1].get(), 1);
    }
}
