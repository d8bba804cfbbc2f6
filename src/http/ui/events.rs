//! `/ui/events`: server-sent events, for as long as somebody looks.
//!
//! ```text
//!  event: own ¶ data: {"node":NAME}                         who answers, once
//!  data: {"node":NAME,"snapshot":{…}}                        once a second from each node
//!  event: lost ¶ data: {"node":NAME,"why":…,"since_ms":…}   while one can't be reached
//!  event: left ¶ data: {"node":NAME}                        one is no member any more
//! ```
//!
//! With `local=true` it is this node's snapshots alone, as `data: {…}`: what [`super::relay`]
//! reads. A browser that is slow misses snapshots, which costs nothing, for the next one has the
//! same counters; one that is gone is noticed by the watch over its connection. A stream that
//! was asked for by a token ends when that is revoked or expires.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::{FRESH, relay};
use crate::counters::clocks::wall_micros;
use crate::http::Service;
use crate::http::access::Right;
use crate::http::body::Events;
use crate::http::connection::Watch;
use crate::http::params;
use crate::http::problem::Problem;
use crate::http::{Answer, Body};

/// Streams of a node at once, those for other nodes' dashboards included: at some 0.1 ms of work a
/// second each, well below 1 % of a core.
pub(crate) const MAX_STREAMS: usize = 64;

/// Events that may wait for one browser, for each node of the cluster; what comes then is left out.
const WAITING: usize = 2;

const PERIOD_MS: u64 = 1000;

/// All nodes speak at half past each second of their clocks, which are closer than that: what they
/// say then belongs to the same second.
const PHASE_MS: u64 = 500;

pub(in crate::http) fn get(
    service: &Rc<Service>,
    watch: &Rc<Watch>,
    query: &str,
    right: &Right,
) -> Result<Answer, Problem> {
    let local = params::events(query)?;
    let requests = &service.requests;
    let held = service.limits().streams.take(1).ok_or_else(|| {
        Problem::overload(&format!("all {MAX_STREAMS} dashboard streams of this node are in use"))
    })?;
    let nodes = requests.others().len() + 1;
    let (send, events) = mpsc::channel(WAITING * if local { 1 } else { nodes });
    if !local {
        spawn_local(relay::follow_all(Rc::clone(requests), send.clone()));
    }
    let name = (!local).then(|| json(service.reports.name()));
    spawn_local(send_snapshots(Rc::clone(service), send, name));
    let token = right.token().cloned();
    let (requests, stopping) = (Rc::clone(requests), Rc::clone(&service.stopping));
    let kept = (held, watch.open());
    let body = Body::Events(Box::new(Events::new(requests, stopping, events, token, kept)));
    let content_type = Some("text/event-stream");
    Ok(Answer { content_type, headers: FRESH, body, ..Answer::empty(StatusCode::OK) })
}

/// The event that carries a node's snapshot; both are JSON.
pub(super) fn of_node(name: &str, snapshot: &str) -> String {
    format!("data: {{\"node\":{name},\"snapshot\":{snapshot}}}\n\n")
}

/// Sends this node's snapshots until nobody listens, with its name if there is one.
async fn send_snapshots(service: Rc<Service>, to: mpsc::Sender<Bytes>, name: Option<String>) {
    if let Some(name) = &name {
        let own = format!("event: own\ndata: {{\"node\":{name}}}\n\n");
        // The channel is new: there is room.
        let _ = to.try_send(Bytes::from(own));
    }
    loop {
        let snapshot = json(&service.reports.snapshot());
        let event = match &name {
            Some(name) => of_node(name, &snapshot),
            None => format!("data: {snapshot}\n\n"),
        };
        // If there is no room, the next one will do.
        let _ = to.try_send(Bytes::from(event));
        tokio::select! {
            () = to.closed() => return,
            () = sleep(until_next(wall_micros() / 1000)) => {}
        }
    }
}

/// As JSON, on one line.
pub(super) fn json(what: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(what).expect("strings and numbers always serialize")
}

/// How long after `now_ms` the nodes speak again.
fn until_next(now_ms: u64) -> Duration {
    Duration::from_millis(PERIOD_MS - (now_ms + PERIOD_MS - PHASE_MS) % PERIOD_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_speak_at_half_past_a_second() {
        for (now, wait) in [(0, 500), (499, 1), (500, 1000), (501, 999), (999, 501), (7_100, 400)] {
            assert_eq!(until_next(now), Duration::from_millis(wait), "at {now} ms");
        }
    }
}
