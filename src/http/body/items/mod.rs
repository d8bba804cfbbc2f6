//! The items of a range, as a response body. The body requests pages from this node and from others
//! as needed, and merges them.
//!
//! ```text
//!  this node's read pool ─▶ pages ─┐
//!  other nodes ───────────▶ pages ─┴▶ protocol::Scan ─▶ Encoder ─▶ item ─▶ socket
//!                            ▲                            │
//!                            └── requests next pages ─────┘ once most items of a page are taken
//! ```

mod encode;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use protocol::{NodeId, PAGE_BYTES, Tag};
use server::{PageResult, RETRY_MICROS, Range, RangeStep};
use tokio::time::sleep;

use super::Item;
use crate::counters::clocks::{mono_nanos, wall_micros};
use crate::http::connection::{ConnectionState, Open};
use crate::http::entities::form::Form;
use crate::node::requests::Requests;
use crate::tokens::lookup::CachedToken;
use encode::{Encoder, RangeItem};

/// An interrupted range read. The head of the answer is already sent, so only an incomplete body
/// can report the interruption. The connection is reset.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the range was interrupted")]
pub(crate) struct RangeInterrupted;

struct PendingPage {
    node: NodeId,
    answer: Pin<Box<dyn Future<Output = PageResult>>>,
}

/// Bytes counted for a gathered item in addition to its key and value.
const ITEM_OVERHEAD: usize = 64;

/// Items gathered before the head is sent: at most `limit` items and [`PAGE_BYTES`] bytes. A page
/// of one item may be larger.
#[derive(Debug)]
pub(in crate::http) struct Page {
    items: VecDeque<RangeItem>,
    bytes: usize,
    limit: usize,
    /// True if the range has an item after the last item of the page.
    has_next: bool,
}

impl Page {
    pub(in crate::http) fn new(limit: usize) -> Self {
        Self { items: VecDeque::new(), bytes: 0, limit, has_next: false }
    }

    pub(in crate::http) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the smallest possible key of the next page; `None` if there is no next page.
    pub(in crate::http) fn next(&self) -> Option<Bytes> {
        let last = self.items.back().filter(|_| self.has_next)?;
        Some([&last.key[..], &[0]].concat().into())
    }

    /// Adds an item. Returns false, and drops the item, if the page is full.
    fn take(&mut self, found: RangeItem, with_value: bool) -> bool {
        let RangeItem { key, mut value, tag, expiry_ms } = found;
        if !with_value {
            value = Bytes::new();
        }
        let bytes = key.len() + value.len() + ITEM_OVERHEAD;
        let is_over = self.bytes + bytes > PAGE_BYTES as usize;
        if self.items.len() == self.limit || is_over && !self.items.is_empty() {
            self.has_next = true;
            return false;
        }
        self.bytes += bytes;
        // A copy, because a slice of a few bytes would keep the whole message in memory. A value
        // larger than a page arrived in its own message, whose memory is accounted for.
        if value.len() < PAGE_BYTES as usize {
            value = Bytes::copy_from_slice(&value);
        }
        let key = Bytes::copy_from_slice(&key);
        self.items.push_back(RangeItem { key, value, tag, expiry_ms });
        true
    }
}

/// The items of a range, as a response body.
pub(crate) struct Items {
    requests: Rc<Requests>,
    watch: Rc<ConnectionState>,
    range: Range,
    pending_pages: Vec<PendingPage>,
    /// Items read before the head was sent: the first item, or a page.
    ready: VecDeque<RangeItem>,
    encoder: Encoder,
    /// Cursor that the body ends with.
    next: Option<String>,
    has_ended: bool,
    /// Token by which the range is read, checked before each item; `None` if the request needed no
    /// token of the layout.
    token: Option<Rc<CachedToken>>,
    _open: Open,
}

impl std::fmt::Debug for Items {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Items").field("range", &self.range).finish_non_exhaustive()
    }
}

async fn ask(requests: Rc<Requests>, node: NodeId, request: protocol::PageRequest) -> PageResult {
    let asked = requests.page(node, request).await;
    if matches!(asked, PageResult::Busy) {
        sleep(Duration::from_micros(RETRY_MICROS)).await;
    }
    asked
}

impl Items {
    /// Creates a body in this form, with or without values.
    pub(in crate::http) fn new(
        requests: &Rc<Requests>,
        watch: &Rc<ConnectionState>,
        range: Range,
        (form, values): (Form, bool),
    ) -> Self {
        Self {
            requests: Rc::clone(requests),
            watch: Rc::clone(watch),
            range,
            pending_pages: Vec::new(),
            ready: VecDeque::new(),
            encoder: Encoder::new(form, values),
            next: None,
            has_ended: false,
            token: None,
            _open: watch.open(),
        }
    }

    /// Waits for the first item, or for the end of an empty range. The body sends this item first.
    pub(in crate::http) async fn wait_for_first(&mut self) -> Result<(), RangeInterrupted> {
        let first = std::future::poll_fn(|cx| self.poll_range(cx)).await.transpose()?;
        self.ready.extend(first);
        self.range.reset_retries();
        Ok(())
    }

    /// Reads items into a page until the page is full or the range ends. If the future is dropped,
    /// the items read so far stay in the page.
    pub(in crate::http) async fn gather(
        &mut self,
        page: &mut Page,
    ) -> Result<(), RangeInterrupted> {
        while let Some(found) = std::future::poll_fn(|cx| self.poll_range(cx)).await.transpose()? {
            if !page.take(found, self.encoder.sends_values()) {
                break;
            }
            self.range.reset_retries();
        }
        Ok(())
    }

    /// Makes the body send this page, and end after it.
    pub(in crate::http) fn send_page(&mut self, page: Page) {
        self.pending_pages.clear();
        self.range.stop();
        self.ready = page.items;
    }

    /// Makes the body end with a cursor.
    pub(in crate::http) fn set_next_cursor(&mut self, cursor: String) {
        self.next = Some(cursor);
    }

    /// Returns the range and its progress.
    pub(in crate::http) fn range(&self) -> &Range {
        &self.range
    }

    /// Binds the body to a token. The body stops once the token is invalid, and counts its bytes
    /// against the token's rate.
    pub(in crate::http) fn bind_token(&mut self, token: Rc<CachedToken>) {
        self.token = Some(token);
    }

    fn is_token_valid(&self) -> bool {
        self.token.as_ref().is_none_or(|token| self.requests.is_token_valid(token))
    }

    /// Polls for the next chunk: an item, or a piece of a long item.
    pub(super) fn poll_item(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Item, RangeInterrupted>>> {
        let polled = self.poll_next(cx);
        let metered = self.token.as_ref().filter(|token| token.known.counts_bytes());
        if let (Poll::Ready(Some(Ok(item))), Some(token)) = (&polled, metered) {
            let now = mono_nanos();
            token.known.charge(now, item.remaining() as u64);
        }
        polled
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, RangeInterrupted>>> {
        if let Some(piece) = self.encoder.more() {
            return Poll::Ready(Some(Ok(piece)));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        let polled = if !self.is_token_valid() {
            Poll::Ready(Some(Err(RangeInterrupted)))
        } else if let Some(found) = self.ready.pop_front() {
            Poll::Ready(Some(Ok(found)))
        } else {
            self.poll_range(cx)
        };
        polled.map(|found| match found {
            Some(Ok(found)) => Some(Ok(self.encoder.item(found))),
            Some(Err(RangeInterrupted)) => {
                let why =
                    if self.is_token_valid() { "too few replicas left" } else { "its token ended" };
                tracing::warn!("range read aborted: {why}");
                self.watch.mark_incomplete();
                Some(Err(RangeInterrupted))
            }
            None => {
                self.has_ended = true;
                self.encoder.end(self.next.as_deref()).map(Ok)
            }
        })
    }

    fn poll_range(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<RangeItem, RangeInterrupted>>> {
        loop {
            match self.range.step(wall_micros) {
                RangeStep::Item(key, record) => {
                    let tag = Tag::of(&record);
                    let (value, expiry_ms) = (record.value(), record.view().expiry_ms());
                    return Poll::Ready(Some(Ok(RangeItem { key, value, tag, expiry_ms })));
                }
                RangeStep::Ask(node, request) => {
                    let answer = Box::pin(ask(Rc::clone(&self.requests), node, request));
                    self.pending_pages.push(PendingPage { node, answer });
                }
                RangeStep::End => return Poll::Ready(None),
                RangeStep::OutOfReach => return Poll::Ready(Some(Err(RangeInterrupted))),
                RangeStep::Wait => {
                    if !self.poll_pending_pages(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Passes an arrived page to the range. Returns false if no page has arrived.
    fn poll_pending_pages(&mut self, cx: &mut Context<'_>) -> bool {
        for place in 0..self.pending_pages.len() {
            let Poll::Ready(asked) = self.pending_pages[place].answer.as_mut().poll(cx) else {
                continue;
            };
            let node = self.pending_pages.swap_remove(place).node;
            if self.range.take(node, asked) {
                self.pending_pages.clear();
            }
            return true;
        }
        false
    }
}
