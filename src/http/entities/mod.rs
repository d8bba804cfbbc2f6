//! `/v0/entities`: streams a range, see [`super::body::Items`]. With `limit` it sends one page. The
//! page is read before the head is sent, because the head links to the next page.

pub(super) mod cursor;
pub(super) mod form;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, LINK, VARY, X_CONTENT_TYPE_OPTIONS};
use protocol::Quorum;
use server::Range;
use tokio::time::timeout;

use super::admission::admitted::Admitted;
use super::body::{Items, Page, RangeInterrupted};
use super::params::RangeParams;
use super::problem::Problem;
use super::{Answer, Body, caching};
use crate::http::Service;
use crate::http::connection::ConnectionState;

/// Headers of a range. `Vary` names `Accept`, which determines the form.
static HEADERS: [(HeaderName, HeaderValue); 3] = [
    (CACHE_CONTROL, caching::NO_STORE),
    (X_CONTENT_TYPE_OPTIONS, caching::NOSNIFF),
    (VARY, HeaderValue::from_static("accept")),
];

pub(super) async fn get(
    service: &Service,
    watch: &Rc<ConnectionState>,
    request: Admitted<RangeParams>,
) -> Result<Answer, Problem> {
    let params = request.into_params();
    let form = params.form;
    let (requests, quorum) = (&service.requests, params.quorum);
    service.counters.ranges.add(1);
    let (start, end) = params.rest();
    let (start, end) = (Bytes::copy_from_slice(start), end.map(Bytes::copy_from_slice));
    let range = if params.local {
        requests.scan_local(start.clone(), end)
    } else {
        requests.scan(params.asked, start.clone(), end)
    };
    let mut range = range.ok_or_else(|| too_many().votes(quorum))?;
    if params.limit.is_some() && !requests.reserve_gathering(&mut range) {
        return Err(too_many().votes(quorum));
    }
    let mut items = Box::new(Items::new(requests, watch, range, (form, params.values)));
    let deadline = service.limits().deadline;
    let extra_header = match params.limit {
        None => {
            begin(&mut items, quorum, deadline).await?;
            None
        }
        Some(limit) => {
            let next = read_page(&mut items, &start, limit, quorum, deadline).await?;
            next.map(|next| link(&params, &mut items, &next))
        }
    };
    let (content_type, body) = (Some(form.content_type()), Body::Items(items));
    Ok(Answer {
        content_type,
        headers: &HEADERS,
        extra_header,
        body,
        ..Answer::empty(StatusCode::OK)
    })
}

/// Waits for the first item of a streamed range. At the deadline it suffices that enough nodes are
/// reading.
async fn begin(items: &mut Items, quorum: Quorum, deadline: Duration) -> Result<(), Problem> {
    let first = timeout(deadline, items.wait_for_first()).await;
    let range = items.range();
    match first {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(refusal(range, quorum)),
        // A long run of tombstones may precede the first item. Enough nodes are reading, so the
        // answer can begin.
        Err(_) if range.is_served() => Ok(()),
        Err(_) => Err(deadline_problem(range, quorum)),
    }
}

/// Reads a page. Returns the start of the next page; `None` if the range ends. At the deadline the
/// page ends at its current position, so a page without items may have a next page.
async fn read_page(
    items: &mut Items,
    start: &Bytes,
    limit: usize,
    quorum: Quorum,
    deadline: Duration,
) -> Result<Option<Bytes>, Problem> {
    let mut page = Page::new(limit);
    let read = timeout(deadline, items.gather(&mut page)).await;
    let next = match read {
        Ok(Ok(())) => page.next(),
        Ok(Err(RangeInterrupted)) => return Err(refusal(items.range(), quorum)),
        Err(_) => {
            let position = items.range().position();
            if page.is_empty() && position.as_ref() == Some(start) {
                return Err(deadline_problem(items.range(), quorum));
            }
            position
        }
    };
    items.send_page(page);
    Ok(next)
}

/// Makes a page end with the cursor of the next page. Returns the header that links to the next
/// page.
fn link(params: &RangeParams, items: &mut Items, next: &[u8]) -> Box<(HeaderName, HeaderValue)> {
    let cursor = params.cursor(next);
    let link = HeaderValue::try_from(params.link(&cursor)).expect("a link is visible ASCII");
    items.set_next_cursor(cursor);
    Box::new((LINK, link))
}

fn too_many() -> Problem {
    Problem::overload(
        "too many concurrent range reads: their memory is a part of --memory, and a range that its \
         client reads slowly keeps its part",
    )
}

/// Returns the reason why no item was read by the deadline.
fn deadline_problem(range: &Range, quorum: Quorum) -> Problem {
    if range.is_retrying() {
        return too_many().votes(quorum);
    }
    Problem::too_few_for_range(quorum)
}

/// Returns the reason why the first item can't be read.
fn refusal(range: &Range, quorum: Quorum) -> Problem {
    if range.has_store_failed() {
        return Problem::storage("the range cannot be read; see the node's log").votes(quorum);
    }
    Problem::too_few_for_range(quorum)
}
