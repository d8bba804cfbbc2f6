//! `/v0/entities`: a range, streamed.
//!
//! ```text
//!  read pool ──▶ page ──▶ one item = one HTTP chunk ──▶ hyper's buffer ──▶ socket
//!      ▲                        │
//!      └── the next is asked ───┘ when the client took most of this one
//! ```

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::params;
use super::problem::Problem;
use super::{Answer, Body};
use crate::connection::Watch;
use crate::event_loop::EventLoop;
use crate::node::Node;
use crate::pages::{Page, PageError, Range};

/// A stream that finds no memory for its next page asks again after this long …
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// … this many times, 15 s in all: by then any reader that takes nothing has been given up, and
/// its memory is back.
const RETRIES: u32 = 300;

/// The range could not be read to its end: the connection is reset, for a chunked body that ends
/// in the middle is the only way left to say so.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the range could not be read to its end")]
pub(crate) struct Broken;

type Asked = oneshot::Receiver<Result<Page, PageError>>;

#[derive(Debug)]
enum Next {
    Range(Range),
    Asked(Asked),
    Waiting(Range, Pin<Box<Sleep>>),
    End,
}

/// The items of a range, page by page.
pub(crate) struct Stream {
    node: Arc<Node>,
    watch: Rc<Watch>,
    page: Page,
    next: Next,
    retries: u32,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("next", &self.next).finish_non_exhaustive()
    }
}

pub(super) async fn get(
    event_loop: &EventLoop,
    watch: &Rc<Watch>,
    query: &str,
) -> Result<Answer, Problem> {
    let params = params::entities(query, event_loop.replication())?;
    let node = &event_loop.node;
    event_loop.counters.ranges.add(1);
    let page = match timeout(node.config.deadline, node.reads.page(params.range)).await {
        Ok(Ok(page)) => page.map_err(|error| Problem::page(&error, params.quorum))?,
        Ok(Err(_)) | Err(_) => return Err(Problem::page_deadline(params.quorum)),
    };
    let stream = Stream::new(Arc::clone(node), Rc::clone(watch), page);
    Ok(Answer {
        content_type: Some("application/octet-stream"),
        body: Body::Stream(Box::new(stream)),
        ..Answer::empty(StatusCode::OK)
    })
}

impl Stream {
    fn new(node: Arc<Node>, watch: Rc<Watch>, mut page: Page) -> Self {
        let next = page.rest.take().map_or(Next::End, Next::Range);
        Self { node, watch, page, next, retries: 0 }
    }

    /// The next item, a chunk of its own.
    pub(super) fn poll_item(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            if let Some(item) = self.page.next() {
                if self.page.is_low() {
                    self.ask();
                }
                return Poll::Ready(Some(Ok(item)));
            }
            self.ask();
            match &mut self.next {
                Next::End => return Poll::Ready(None),
                Next::Range(_) => unreachable!("a range was asked just now"),
                Next::Waiting(range, wait) => {
                    if wait.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.next = Next::Range(std::mem::replace(range, Range::empty()));
                }
                Next::Asked(asked) => match Pin::new(asked).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(Ok(page))) => {
                        self.retries = 0;
                        self.page = page;
                        self.next = self.page.rest.take().map_or(Next::End, Next::Range);
                    }
                    Poll::Ready(Ok(Err(PageError::NoRoom(range)))) if self.retries < RETRIES => {
                        self.retries += 1;
                        self.next = Next::Waiting(range, Box::pin(sleep(RETRY_AFTER)));
                    }
                    Poll::Ready(failed) => return Poll::Ready(Some(Err(self.break_off(failed)))),
                },
            }
        }
    }

    /// Asks for the next page, unless that was done or there is none.
    fn ask(&mut self) {
        if let Next::Range(range) = &mut self.next {
            let range = std::mem::replace(range, Range::empty());
            self.next = Next::Asked(self.node.reads.page(range));
        }
    }

    fn break_off<T>(
        &self,
        failed: Result<Result<T, PageError>, oneshot::error::RecvError>,
    ) -> Broken {
        match failed {
            Ok(Err(PageError::Store(error))) => tracing::warn!(%error, "a range read broke off"),
            Ok(Err(PageError::NoRoom(_))) => {
                tracing::warn!("a range read broke off: no memory for its pages");
            }
            // The read pool is gone: the node stops.
            Ok(Ok(_)) | Err(_) => {}
        }
        self.watch.break_off();
        Broken
    }
}
