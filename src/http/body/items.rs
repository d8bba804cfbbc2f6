//! The items of a range as a response's body: pages of other nodes and of this one are asked for as
//! they are needed, and merged.
//!
//! ```text
//!  this node's read pool ─▶ pages ─┐
//!  other nodes ───────────▶ pages ─┴▶ cluster::Scan ─▶ one item = one HTTP chunk ─▶ socket
//!                            ▲                            │
//!                            └── the next are asked ──────┘ when most of these were taken
//! ```

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use cluster::NodeId;
use node::{PageAsked, RETRY_MICROS, Range, RangeStep};
use tokio::time::sleep;

use super::Item;
use crate::counters::clocks::wall_micros;
use crate::http::connection::{Open, Watch};
use crate::node::access::Remembered;
use crate::node::requests::Requests;

/// The range could not be read to its end: the connection is reset, for a chunked body that ends
/// in the middle is the only way left to say so.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the range was interrupted")]
pub(crate) struct Broken;

struct Asking {
    node: NodeId,
    answer: Pin<Box<dyn Future<Output = PageAsked>>>,
}

/// The items of a range.
pub(crate) struct Items {
    requests: Rc<Requests>,
    watch: Rc<Watch>,
    range: Range,
    asking: Vec<Asking>,
    /// The first item, which was waited for before the head was sent.
    first: Option<Item>,
    /// By which it is read: no further once it is revoked or has expired.
    token: Option<Rc<Remembered>>,
    _open: Open,
}

impl std::fmt::Debug for Items {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Items").field("range", &self.range).finish_non_exhaustive()
    }
}

async fn ask(requests: Rc<Requests>, node: NodeId, request: cluster::PageRequest) -> PageAsked {
    let asked = requests.page(node, request).await;
    if matches!(asked, PageAsked::Busy) {
        sleep(Duration::from_micros(RETRY_MICROS)).await;
    }
    asked
}

impl Items {
    pub(in crate::http) fn new(requests: &Rc<Requests>, watch: &Rc<Watch>, range: Range) -> Self {
        Self {
            requests: Rc::clone(requests),
            watch: Rc::clone(watch),
            range,
            asking: Vec::new(),
            first: None,
            token: None,
            _open: watch.open(),
        }
    }

    /// Waits for the first item, which is then sent first, or for the end of a range without any.
    pub(in crate::http) async fn wait_for_first(&mut self) -> Result<(), Broken> {
        self.first = std::future::poll_fn(|cx| self.poll_range(cx)).await.transpose()?;
        self.range.forgive();
        Ok(())
    }

    /// How far the range has come.
    pub(in crate::http) fn range(&self) -> &Range {
        &self.range
    }

    /// It is read by this token from now on, and its bytes are counted.
    pub(in crate::http) fn read_by(&mut self, token: Rc<Remembered>) {
        self.token = Some(token);
    }

    fn may_go_on(&self) -> bool {
        let token = self.token.as_ref().map(|token| &token.known.token);
        token.is_none_or(|token| self.requests.still_holds(token))
    }

    /// The next item, a chunk of its own.
    pub(super) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, Broken>>> {
        let polled = self.poll_next(cx);
        let metered = self.token.as_ref().filter(|token| token.known.counts_bytes());
        if let (Poll::Ready(Some(Ok(item))), Some(token)) = (&polled, metered) {
            let now = self.requests.nanos(Instant::now());
            token.known.used(now, item.remaining() as u64);
        }
        polled
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, Broken>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let polled = self.poll_range(cx);
        if let Poll::Ready(Some(Err(Broken))) = polled {
            let why = if self.may_go_on() { "too few replicas left" } else { "its token ended" };
            tracing::warn!("range read aborted: {why}");
            self.watch.break_off();
        }
        polled
    }

    fn poll_range(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, Broken>>> {
        loop {
            match self.range.step(wall_micros) {
                RangeStep::Item(key, record) => {
                    return Poll::Ready(Some(Ok(item_of(&key, record.value()))));
                }
                RangeStep::Ask(..) if !self.may_go_on() => return Poll::Ready(Some(Err(Broken))),
                RangeStep::Ask(node, request) => {
                    let answer = Box::pin(ask(Rc::clone(&self.requests), node, request));
                    self.asking.push(Asking { node, answer });
                }
                RangeStep::End => return Poll::Ready(None),
                RangeStep::OutOfReach => return Poll::Ready(Some(Err(Broken))),
                RangeStep::Wait => {
                    if !self.poll_asking(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Hands in what has come; whether anything has.
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

/// A key and its value as they are sent.
fn item_of(key: &[u8], value: Bytes) -> Item {
    let mut line = BytesMut::with_capacity(key.len() + 1);
    line.put_slice(key);
    line.put_u8(b'\n');
    line.freeze().chain(value)
}
