//! Rate limiting of the records that this node pulls in a rebalance, and of the pull of
//! history after it. A rebuild has no rate limit: until it ends, the node's copies are missing.
//!
//! `--stream-rate` limits the bytes per second: each page delays the next page by the time that its
//! bytes take at that rate. The node also yields to clients by the load that it observes, as LEDBAT
//! does (RFC 6817, section 2). If a page's write takes much longer than the quickest write of the
//! transition, the disk or the event loop is busy with other work. The next page is then delayed by
//! a multiple of the excess.

use std::cell::Cell;

use bytes::Bytes;

use crate::background::effect::NODE_TICK_MICROS;
use crate::background::task::Context;
use crate::clock::Now;
use record::Record;

/// A page's write counts as unhindered up to this multiple of the transition's quickest write. Page
/// lengths and sync times vary even without other load; a longer write indicates other load on the
/// disk.
const UNHINDERED: u64 = 4;

/// Write time in microseconds up to which a page always counts as unhindered: so short a write
/// delays no client.
pub(crate) const UNHINDERED_MICROS: u64 = 5_000;

/// The pause after a hindered write, as a multiple of the excess write time.
const REST: u64 = 16;

/// Maximum pause after one page, in microseconds, so that the transition ends.
pub(crate) const LONGEST_REST_MICROS: u64 = 2_000_000;

/// The rate limiter of one transition.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time when the records pulled so far would have arrived at the permitted rate, in
    /// microseconds of the monotonic clock.
    paced: Cell<u64>,
    /// The shortest write time of a page, in microseconds; `None` = no page was written.
    quickest: Cell<Option<u64>>,
}

impl Pace {
    /// True if more may be requested. Requests may run up to a tick ahead of the rate, so that not
    /// every page waits for a tick.
    pub(crate) fn may_ask(&self, now: Now) -> bool {
        self.paced.get() <= now.mono + NODE_TICK_MICROS
    }

    /// Notes the arrival of a page.
    pub(crate) fn note_page(&self, context: &Context, items: &[(Bytes, Record)]) {
        if let Some(rate) = context.config().stream_rate {
            self.delay_next_request(
                context,
                (bytes_of(items) as u64).saturating_mul(1_000_000) / rate,
            );
        }
    }

    /// Notes the end of a page's write; the page was handed to the store at the monotonic time
    /// `since`.
    pub(crate) fn note_written(&self, context: &Context, since: u64) {
        let took = context.now().mono.saturating_sub(since);
        let quickest = self.quickest.get().map_or(took, |quickest| quickest.min(took));
        self.quickest.set(Some(quickest));
        let hindered = took.saturating_sub((UNHINDERED * quickest).max(UNHINDERED_MICROS));
        self.delay_next_request(context, (REST * hindered).min(LONGEST_REST_MICROS));
    }

    /// Delays the next request by this many microseconds more.
    fn delay_next_request(&self, context: &Context, micros: u64) {
        self.paced.set(self.paced.get().max(context.now().mono) + micros);
    }
}

/// Returns the length of keys and records in bytes.
pub(crate) fn bytes_of(items: &[(Bytes, Record)]) -> usize {
    items.iter().map(|(key, record)| key.len() + record.byte_len()).sum()
}
