//! The items of a range, as a response body: pages of other nodes and of this one are requested as
//! needed, and merged.
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

/// An interrupted range read. The connection is reset, because a chunked body that ends in the
/// middle is the only way left to report it.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the range was interrupted")]
pub(crate) struct RangeInterrupted;

struct PendingPage {
    node: NodeId,
    answer: Pin<Box<dyn Future<Output = PageResult>>>,
}

/// Bytes of a gathered item besides its key and value.
const ITEM_OVERHEAD: usize = 64;

/// Items gathered before the head is sent: up to a limit, or [`PAGE_BYTES`]. A single item may be
/// larger.
#[derive(Debug)]
pub(in crate::http) struct Page {
    items: VecDeque<RangeItem>,
    bytes: usize,
    limit: usize,
    /// True if the range continues after the last item.
    has_next: bool,
}

impl Page {
    pub(in crate::http) fn new(limit: usize) -> Self {
        Self { items: VecDeque::new(), bytes: 0, limit, has_next: false }
    }

    pub(in crate::http) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the first key that the next page may have, if there is a next page.
    pub(in crate::http) fn next(&self) -> Option<Bytes> {
        let last = self.items.back().filter(|_| self.has_next)?;
        Some([&last.key[..], &[0]].concat().into())
    }

    /// Adds an item; false if the page is full.
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
        // Copied, because a few bytes would keep everything alive that arrived with them. A value
        // larger than a page arrived alone, in memory that is accounted for as long as it is held.
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
    asking: Vec<PendingPage>,
    /// Items read before the head was sent: the first one, or a page.
    ready: VecDeque<RangeItem>,
    encoder: Encoder,
    /// Cursor that the body ends with.
    next: Option<String>,
    has_ended: bool,
    /// Token by which the range is read, checked before each item; `None` = admitted without a
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
            asking: Vec::new(),
            ready: VecDeque::new(),
            encoder: Encoder::new(form, values),
            next: None,
            has_ended: false,
            token: None,
            _open: watch.open(),
        }
    }

    /// Waits for the first item, which is then sent first, or for the end of a range without items.
    pub(in crate::http) async fn wait_for_first(&mut self) -> Result<(), RangeInterrupted> {
        let first = std::future::poll_fn(|cx| self.poll_range(cx)).await.transpose()?;
        self.ready.extend(first);
        self.range.reset_retries();
        Ok(())
    }

    /// Reads items into a page until the page is full or the range ends. The page's contents stay
    /// valid if the future is dropped.
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

    /// Sends this page, and nothing more of the range.
    pub(in crate::http) fn send_page(&mut self, page: Page) {
        self.asking.clear();
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

    /// Binds the body to a token, whose validity is checked and whose bytes are counted.
    pub(in crate::http) fn bind_token(&mut self, token: Rc<CachedToken>) {
        self.token = Some(token);
    }

    fn is_token_valid(&self) -> bool {
        self.token.as_ref().is_none_or(|token| self.requests.is_token_valid(token))
    }

    /// Polls for the next item, as a chunk of its own, or for a piece of one.
    pub(super) fn poll_item(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Item, RangeInterrupted>>> {
        let polled = self.poll_next(cx);
        let metered = self.token.as_ref().filter(|token| token.known.counts_bytes());
        if let (Poll::Ready(Some(Ok(item))), Some(token)) = (&polled, metered) {
            let now = mono_nanos();
            token.known.used(now, item.remaining() as u64);
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
                    self.asking.push(PendingPage { node, answer });
                }
                RangeStep::End => return Poll::Ready(None),
                RangeStep::OutOfReach => return Poll::Ready(Some(Err(RangeInterrupted))),
                RangeStep::Wait => {
                    if !self.poll_asking(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Passes arrived pages to the range; returns true if any arrived.
    fn poll_asking(&mut self, cx: &mut Context<'_>) -> bool {
        for place in 0..self.asking.len() {
            let Poll::Ready(asked) = self.asking[place].answer.as_mut().poll(cx) else { continue };
            let node = self.asking.swap_remove(place).node;
            if self.range.take(node, asked) {
                self.asking.clear();
            }
            return true;
        }
        false
    }
}
