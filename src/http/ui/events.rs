//! `/ui/events`: server-sent events, for as long as the client is connected.
//!
//! ```text
//!  ¶ is a line break
//!  event: own ¶ data: {"node":NAME}                         the answering node, once
//!  event: past ¶ data: {"node":NAME,"past":{…}}             a node's samples, in pieces, once
//!  data: {"node":NAME,"snapshot":{…}}                        once a second from each node
//!  event: lost ¶ data: {"node":NAME,"why":…,"since_ms":…}   while a node can't be reached
//!  event: left ¶ data: {"node":NAME}                        a node is no longer a member
//! ```
//!
//! With `local=true` the stream has only this node's samples and snapshots, as `past: {…}` and
//! `data: {…}`. [`super::relay`] reads this form. A slow browser may miss snapshots without harm,
//! because the next snapshot has the same counters. The connection's state detects a disconnected
//! browser. A stream requested with a token ends when the token is revoked or expires.

use std::rc::Rc;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::relay;
use crate::counters::clocks::wall_micros;
use crate::http::Service;
use crate::http::access::Principal;
use crate::http::admission::admitted::Admitted;
use crate::http::body::Events;
use crate::http::connection::ConnectionState;
use crate::http::params;
use crate::http::problem::Problem;
use crate::http::{Answer, Body, caching};
use crate::sample_history::samples::{PastSecond, until_next};

/// Maximum number of a node's concurrent streams, including streams for other nodes' dashboards. A
/// stream takes some 0.1 ms of CPU time a second, so all take well below 1 % of a core.
pub(crate) const MAX_STREAMS: usize = 64;

/// Maximum number of events that wait for one browser, for each node of the cluster. Further events
/// are dropped.
const EVENTS_PER_NODE: usize = 2;

/// Number of samples in one event, one per second: some 20 KB of text on a busy node. After each
/// event the loop serves other requests. An event is always shorter than the limit of a line
/// between nodes.
const SAMPLES_PER_EVENT: usize = 20;

/// Prefix of a line with samples in the stream between nodes.
pub(super) const PAST: &str = "past: ";

pub(in crate::http) fn get(
    service: &Rc<Service>,
    watch: &Rc<ConnectionState>,
    query: Admitted<&str>,
    right: &Principal,
) -> Result<Answer, Problem> {
    let local = params::events(query.into_params())?;
    let requests = &service.requests;
    let held = service.limits().streams.take(1).ok_or_else(|| {
        Problem::overload(&format!("all {MAX_STREAMS} dashboard streams of this node are in use"))
    })?;
    let nodes = requests.others().len() + 1;
    let (send, events) = mpsc::channel(EVENTS_PER_NODE * if local { 1 } else { nodes });
    let name = (!local).then(|| json(service.reports.name()));
    if let Some(name) = &name {
        let own = format!("event: own\ndata: {{\"node\":{name}}}\n\n");
        // A new channel has room for one event.
        let _ = send.try_send(Bytes::from(own));
    }
    if !local {
        spawn_local(relay::follow_all(Rc::clone(requests), send.clone()));
    }
    spawn_local(send_snapshots(Rc::clone(service), send.clone(), name.clone()));
    spawn_local(send_past(Rc::clone(service), send, name));
    let token = right.token().cloned();
    let (requests, stopping) = (Rc::clone(requests), Rc::clone(&service.stopping));
    let kept = (held, watch.open());
    let body = Body::Events(Box::new(Events::new(requests, stopping, events, token, kept)));
    let content_type = Some("text/event-stream");
    Ok(Answer { content_type, headers: &caching::FRESH, body, ..Answer::empty(StatusCode::OK) })
}

/// Formats the event with a node's snapshot. Both arguments are JSON.
pub(super) fn snapshot_event(name: &str, snapshot: &str) -> String {
    format!("data: {{\"node\":{name},\"snapshot\":{snapshot}}}\n\n")
}

/// Formats the event with a piece of a node's samples. Both arguments are JSON.
pub(super) fn history_event(name: &str, past: &str) -> Bytes {
    Bytes::from(format!("event: past\ndata: {{\"node\":{name},\"past\":{past}}}\n\n"))
}

/// A piece of a node's samples: first the names of the values, then the values.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum HistoryPiece {
    /// The names of the values.
    Fields(Vec<String>),
    /// The values of up to [`SAMPLES_PER_EVENT`] seconds.
    Seconds(Vec<PastSecond>),
}

/// Sends this node's stored samples in pieces. Each piece waits for room in the channel.
async fn send_past(service: Rc<Service>, to: mpsc::Sender<Bytes>, name: Option<String>) {
    let event = |past: &HistoryPiece| match &name {
        Some(name) => history_event(name, &json(past)),
        None => Bytes::from(format!("{PAST}{}\n\n", json(past))),
    };
    let mut piece = HistoryPiece::Fields(service.reports.past_fields());
    let mut from = 0;
    while to.send(event(&piece)).await.is_ok() {
        let (seconds, next) = service.reports.past(from, SAMPLES_PER_EVENT);
        if seconds.is_empty() {
            return;
        }
        from = next;
        piece = HistoryPiece::Seconds(seconds);
    }
}

/// Sends this node's snapshots until the receiver is dropped, each with `name` if it is given.
async fn send_snapshots(service: Rc<Service>, to: mpsc::Sender<Bytes>, name: Option<String>) {
    loop {
        let snapshot = json(&service.reports.snapshot());
        let event = match &name {
            Some(name) => snapshot_event(name, &snapshot),
            None => format!("data: {snapshot}\n\n"),
        };
        // If the channel is full, the browser gets the next snapshot instead.
        let _ = to.try_send(Bytes::from(event));
        tokio::select! {
            () = to.closed() => return,
            () = sleep(until_next(wall_micros() / 1000)) => {}
        }
    }
}

/// Formats a value as JSON, on one line.
pub(super) fn json(what: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(what).expect("strings and numbers always serialize")
}
