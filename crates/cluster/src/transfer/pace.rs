//! How fast this node takes what moves to it.
//!
//! `--stream-rate` bounds the bytes a second: a page puts off the next ones for as long as it
//! should have taken. And this node makes room for clients by what it sees of their load, as LEDBAT
//! does (RFC 6817, section 2): how much longer a page takes to be written than the quickest did.
//! Then the disk, or the loop, is busy with something else, and the next pages are put off by a
//! multiple of that.

use std::cell::Cell;

use bytes::Bytes;

use crate::background::effect::NODE_TICK_MICROS;
use crate::background::task::Context;
use crate::clock::Now;
use record::Record;

/// A page that takes so many times as long to be written as the quickest of the transition did
/// met others at the disk: pages differ in length, and syncs by themselves …
const UNHINDERED: u64 = 4;

/// … unless it takes less than this, in microseconds: no client is kept waiting by that.
pub(crate) const UNHINDERED_MICROS: u64 = 5_000;

/// So many times as long as a page took beyond that nothing more is asked for …
const REST: u64 = 16;

/// … and so long at most after one page, in microseconds: it is to come to its end.
pub(crate) const LONGEST_REST_MICROS: u64 = 2_000_000;

/// The pace of one transition.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When what was taken so far would have come at the rate that is allowed, or that leaves room
    /// for clients.
    paced: Cell<u64>,
    /// The least time in which a page was written, in microseconds.
    quickest: Cell<Option<u64>>,
}

impl Pace {
    /// Whether more may be asked for: so much ahead that it need not wait for a tick after each
    /// page.
    pub(crate) fn may_ask(&self, now: Now) -> bool {
        self.paced.get() <= now.mono + NODE_TICK_MICROS
    }

    /// A page came.
    pub(crate) fn came(&self, context: &Context, items: &[(Bytes, Record)]) {
        if let Some(rate) = context.config().stream_rate {
            self.put_off(context, (bytes_of(items) as u64).saturating_mul(1_000_000) / rate);
        }
    }

    /// A page was written that was handed to the store at this time.
    pub(crate) fn written(&self, context: &Context, since: u64) {
        let took = context.now().mono.saturating_sub(since);
        let quickest = self.quickest.get().map_or(took, |quickest| quickest.min(took));
        self.quickest.set(Some(quickest));
        let hindered = took.saturating_sub((UNHINDERED * quickest).max(UNHINDERED_MICROS));
        self.put_off(context, (REST * hindered).min(LONGEST_REST_MICROS));
    }

    /// What is asked for next waits so many microseconds more.
    fn put_off(&self, context: &Context, micros: u64) {
        self.paced.set(self.paced.get().max(context.now().mono) + micros);
    }
}

/// Bytes of keys and records.
pub(crate) fn bytes_of(items: &[(Bytes, Record)]) -> usize {
    items.iter().map(|(key, record)| key.len() + record.byte_len()).sum()
}
