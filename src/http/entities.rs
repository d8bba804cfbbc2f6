//! `/v0/entities`: a range, streamed.
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
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use cluster::{Class, NodeId, Quorum, Reply, Request, Scan, Step, Trouble};
use hyper::StatusCode;
use tokio::time::{sleep, timeout};

use super::body::Item;
use super::params;
use super::problem::Problem;
use super::{Answer, Body, NOSNIFF};
use crate::http::connection::{Open, Watch};
use crate::node::budget::Held;
use crate::node::clock::wall_micros;
use crate::node::records;
use crate::node::store::is_live;
use crate::runtime::event_loop::EventLoop;

/// A node that is busy is asked for its page again after this long …
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// … this many times without any page in between, 15 s in all: by then any reader that takes
/// nothing has been given up, and its memory is back.
const RETRIES: u32 = 300;

/// … and every so many times the pages of all nodes are given back before, and asked for again: two
/// ranges that hold each a page of a large item, and wait for the other's, would wait for ever.
const HOLDING_RETRIES: u32 = 4;

/// The range could not be read to its end: the connection is reset, for a chunked body that ends
/// in the middle is the only way left to say so.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the range could not be read to its end")]
pub(crate) struct Broken;

/// What came of asking a node.
enum Asked {
    Page(cluster::Page),
    Busy,
    Failed,
}

struct Asking {
    node: NodeId,
    answer: Pin<Box<dyn Future<Output = Asked>>>,
}

/// The items of a range.
pub(crate) struct Stream {
    event_loop: Rc<EventLoop>,
    watch: Rc<Watch>,
    scan: Scan,
    asking: Vec<Asking>,
    /// The first item, which was waited for before the head was sent.
    first: Option<Item>,
    retries: u32,
    /// Whether the last node that failed had trouble with its store.
    store_failed: bool,
    /// Memory for pages of other nodes.
    _held: Option<Held>,
    _open: Open,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("scan", &self.scan).finish_non_exhaustive()
    }
}

pub(super) async fn get(
    event_loop: &Rc<EventLoop>,
    watch: &Rc<Watch>,
    query: &str,
) -> Result<Answer, Problem> {
    let params = params::entities(query, event_loop.replication())?;
    let (node, quorum) = (&event_loop.node, params.quorum);
    event_loop.counters.ranges.add(1);
    let shared = &node.shared;
    let (start, end) = (Bytes::from(params.start), params.end.map(Bytes::from));
    let (scan, others) = if params.local {
        (Scan::local(shared, start, end), 0)
    } else {
        let others = node.shared.nodes() - 1;
        (Scan::new(shared, quorum, start, end), others)
    };
    let pages = others * cluster::PAGE_BYTES as usize;
    let held = match pages {
        0 => None,
        pages => Some(node.pages.take(pages).ok_or_else(|| too_many().votes(quorum))?),
    };
    let mut stream = Box::new(Stream {
        event_loop: Rc::clone(event_loop),
        watch: Rc::clone(watch),
        scan,
        asking: Vec::new(),
        first: None,
        retries: 0,
        store_failed: false,
        _held: held,
        _open: watch.open(),
    });
    let first = std::future::poll_fn(|cx| stream.poll_scan(cx));
    match timeout(node.config.deadline, first).await {
        Ok(Some(Ok(item))) => {
            stream.first = Some(item);
            stream.retries = 0;
        }
        Ok(None) => {}
        Ok(Some(Err(Broken))) => return Err(stream.refusal(quorum)),
        // It is a long way over tombstones to the first item, and enough nodes are on it.
        Err(_) if stream.scan.is_served() => {}
        Err(_) if stream.retries > 0 => return Err(too_many().votes(quorum)),
        Err(_) => return Err(Problem::too_few_for_range(quorum)),
    }
    let (content_type, body) = (Some("application/octet-stream"), Body::Stream(stream));
    Ok(Answer { content_type, headers: NOSNIFF, body, ..Answer::empty(StatusCode::OK) })
}

fn too_many() -> Problem {
    Problem::overload("too many range reads at once")
}

async fn ask(event_loop: Rc<EventLoop>, node: NodeId, request: cluster::PageRequest) -> Asked {
    match event_loop.call(node, Class::Client, Request::Page(request)).await {
        Ok(Reply::Page(page)) => {
            let verify = records::CODEC.verify;
            // This node's own were verified by the engine just now.
            let own = node == event_loop.node.shared.own;
            if own || page.items.iter().all(|(key, record)| verify(key, record)) {
                Asked::Page(page)
            } else {
                Asked::Failed
            }
        }
        Ok(Reply::Busy) | Err(Trouble::Busy) => {
            sleep(RETRY_AFTER).await;
            Asked::Busy
        }
        Ok(_) | Err(_) => Asked::Failed,
    }
}

impl Stream {
    /// The next item, a chunk of its own.
    pub(super) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, Broken>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let polled = self.poll_scan(cx);
        if let Poll::Ready(Some(Err(Broken))) = polled {
            tracing::warn!("a range read broke off: too few replicas are left to read it from");
            self.watch.break_off();
        }
        polled
    }

    fn poll_scan(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Item, Broken>>> {
        loop {
            match self.scan.step() {
                Step::Item(key, record) => {
                    if let Some(item) = item_of(&key, &record) {
                        return Poll::Ready(Some(Ok(item)));
                    }
                }
                Step::Ask(node, request) => {
                    let answer = Box::pin(ask(Rc::clone(&self.event_loop), node, request));
                    self.asking.push(Asking { node, answer });
                }
                Step::End => return Poll::Ready(None),
                Step::OutOfReach => return Poll::Ready(Some(Err(Broken))),
                Step::Wait => {
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
            match asked {
                Asked::Page(page) => {
                    self.retries = 0;
                    self.scan.page(node, page);
                }
                Asked::Busy if self.retries < RETRIES => {
                    self.retries += 1;
                    if self.retries.is_multiple_of(HOLDING_RETRIES) {
                        self.scan.anew();
                    } else {
                        self.scan.retry(node);
                    }
                }
                Asked::Busy | Asked::Failed => {
                    self.store_failed = node == self.event_loop.node.shared.own;
                    self.scan.failed(node);
                }
            }
            if self.scan.begins_anew() {
                self.asking.clear();
            }
            return true;
        }
        false
    }

    /// Why there is not even a first item.
    fn refusal(&self, quorum: Quorum) -> Problem {
        let alone = self.event_loop.node.shared.nodes() == 1;
        if alone && self.store_failed {
            return Problem::storage("the range can't be read; the log says more").votes(quorum);
        }
        Problem::too_few_for_range(quorum)
    }
}

/// A live record as it is sent.
fn item_of(key: &[u8], record: &cluster::Record) -> Option<Item> {
    let record = records::to_store(record);
    let view = record.view();
    let now_ms = if view.expiry_ms() == 0 { 0 } else { wall_micros() / 1000 };
    if !is_live(&view, now_ms) {
        return None;
    }
    let mut line = BytesMut::with_capacity(key.len() + 1);
    line.put_slice(key);
    line.put_u8(b'\n');
    Some(line.freeze().chain(record.value()))
}
