//! `/v0/entities`: a range, streamed: see [`super::body::Items`].

use std::rc::Rc;

use bytes::Bytes;
use cluster::Quorum;
use hyper::StatusCode;
use node::Range;
use tokio::time::timeout;

use super::body::Items;
use super::params;
use super::problem::Problem;
use super::{Answer, Body, NOSNIFF};
use crate::http::Service;
use crate::http::connection::Watch;

pub(super) async fn get(
    service: &Service,
    watch: &Rc<Watch>,
    query: &str,
) -> Result<Answer, Problem> {
    let params = params::entities(query, service.replication())?;
    let (requests, quorum) = (&service.requests, params.quorum);
    service.counters.ranges.add(1);
    let (start, end) = (Bytes::from(params.start), params.end.map(Bytes::from));
    let range = if params.local {
        requests.scan_local(start, end)
    } else {
        requests.scan(params.asked, start, end)
    };
    let range = range.ok_or_else(|| too_many().votes(quorum))?;
    let mut items = Box::new(Items::new(requests, watch, range));
    let first = timeout(service.limits().deadline, items.wait_for_first()).await;
    let range = items.range();
    match first {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return Err(refusal(range, quorum)),
        // It is a long way over tombstones to the first item, and enough nodes are on it.
        Err(_) if range.is_served() => {}
        Err(_) if range.is_retrying() => return Err(too_many().votes(quorum)),
        Err(_) => return Err(Problem::too_few_for_range(quorum)),
    }
    let (content_type, body) = (Some("application/octet-stream"), Body::Items(items));
    Ok(Answer { content_type, headers: NOSNIFF, body, ..Answer::empty(StatusCode::OK) })
}

fn too_many() -> Problem {
    Problem::overload("too many concurrent range reads")
}

/// Why there is not even a first item.
fn refusal(range: &Range, quorum: Quorum) -> Problem {
    if range.is_stores_fault() {
        return Problem::storage("the range cannot be read; see the node's log").votes(quorum);
    }
    Problem::too_few_for_range(quorum)
}
