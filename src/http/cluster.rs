//! `GET /v0/cluster`: this node collects the self-reported state of every node. `kvorum status`
//! shows the result. A user who can reach only one node (through a tunnel, or from outside the
//! containers) does not need the addresses that the nodes use among themselves.
//!
//! ```text
//!  client ─▶ this node ─┬─ its own status
//!                       └─▶ /v0/status of each other node, 16 at once ─▶ its status, or an error
//! ```

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use hyper::StatusCode;
use protocol::NodeId;

use super::others::{FetchError, NodeRequest, ask_each, fetch_json};
use super::problem::Problem;
use super::{Answer, Service};
use crate::node::requests::Requests;
use crate::operations::status::{ClockDiffers, Cluster, Peer, Row, Status, Unreached};

/// Maximum number of concurrent collections. Each of them connects to every other node.
pub(crate) const MAX_CONCURRENT_STATUS: usize = 4;

/// Time limit of a request to one node, including the connection. A node answers from memory.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length of a status, in bytes: enough for a node with some thousand peers.
const MAX_STATUS: u64 = 512 * 1024;

const TARGET: &str = "/v0/status";

pub(super) async fn get(service: &Service) -> Result<Answer, Problem> {
    Ok(Answer::json(StatusCode::OK, &collect(service).await?))
}

/// Collects the status of all nodes.
pub(crate) async fn collect(service: &Service) -> Result<Cluster, Problem> {
    let requests = &service.requests;
    let _held = service.limits().status_collections.take(1).ok_or_else(|| {
        Problem::overload(&format!(
            "all {MAX_CONCURRENT_STATUS} concurrent requests for the cluster's status \
            are in use"
        ))
    })?;
    let own = requests.own();
    let status = service.reports.status();
    let cluster_id = status.cluster_id.clone();
    let clocks = Clocks::compare(&status, requests.max_clock_skew());
    let mut rows = Rows { cluster_id, clocks, ..Rows::default() };
    rows.add(requests, own, Ok(status));
    let mut others = requests.others();
    if requests.is_removed() {
        others.drain(..).for_each(|other| rows.not_asked(requests, other));
    }
    let ask = |other| {
        let this = Rc::clone(requests);
        async move { ask(&this, other).await }
    };
    ask_each(others, ask, |other, answer| rows.add(requests, other, answer)).await;
    let council = service.reports.council();
    Ok(Cluster { asked: requests.name(own), council, nodes: rows.finish() })
}

/// Requests another node's status.
async fn ask(requests: &Requests, node: NodeId) -> Result<Status, FetchError> {
    fetch_json(requests, node, NodeRequest::Get(TARGET), (STATUS_TIMEOUT, MAX_STATUS)).await
}

/// The answers collected so far.
#[derive(Default)]
struct Rows {
    /// Id of the asking node's cluster, once it has one.
    cluster_id: Option<String>,
    rows: Vec<Row>,
    /// Observations of each node, from the statuses of the nodes that answered. The key is the
    /// observed node's name.
    seen: HashMap<String, ObservedNode>,
    clocks: Clocks,
}

/// Observations of one node by the other nodes.
#[derive(Default)]
struct ObservedNode {
    hints: u64,
    reached_by: usize,
    /// Of the nodes that have no connection to the observed node, the first by name.
    unreached_by: Option<Unreached>,
    /// The best measurement: true if the measuring node's clock is wrong, the round trip, and the
    /// clock skew, in microseconds. Measurements by correct clocks are better than others; among
    /// equals the shorter round trip is better.
    best_measurement: Option<(bool, u64, i64)>,
}

/// The clocks that the asking node has measured, compared with each other.
#[derive(Debug, Default)]
struct Clocks {
    /// Names of the nodes whose clocks differ from the others by more than the permitted skew.
    differing: HashSet<String>,
    /// True if more than half of the clocks agree. Then all clocks in `differing` are wrong.
    is_majority: bool,
    /// Name of the asking node.
    own: String,
    /// Microseconds by which the asking node's clock is ahead of the median; `None` if no other
    /// clock was measured.
    own_skew_us: Option<i64>,
}

impl Clocks {
    /// Compares the clock of the asking node, whose status is `own`, and the clocks of its peers
    /// with their median. A clock differs if its distance from the median exceeds `max_skew` and
    /// the uncertainty of the measurements.
    fn compare(own: &Status, max_skew: Duration) -> Self {
        let peers = own.peers.iter().flatten().filter(|peer| peer.up && peer.rtt_us > 0);
        let peers = peers.map(|peer| (&peer.name, peer.clock_skew_us, peer.rtt_us));
        let mut clocks: Vec<_> = peers.chain([(&own.name, 0, 0)]).collect();
        clocks.sort_unstable_by_key(|(_, skew, _)| *skew);
        let (_, median, rtt_of_median) = clocks[clocks.len() / 2];
        let permitted = |rtt: u64| max_skew.as_micros() as u64 + rtt / 2 + rtt_of_median / 2;
        let differs = |skew: i64, rtt: u64| skew.abs_diff(median) > permitted(rtt);
        let far = clocks.iter().filter(|(_, skew, rtt)| differs(*skew, *rtt));
        let mut differing: HashSet<String> = far.map(|(name, ..)| (*name).clone()).collect();
        let is_majority = differing.len() * 2 < clocks.len();
        if !is_majority {
            differing = clocks.iter().map(|(name, ..)| (*name).clone()).collect();
        }
        let own_skew_us = (clocks.len() > 1).then_some(-median);
        Self { differing, is_majority, own: own.name.clone(), own_skew_us }
    }

    /// Returns whether the clock of node `name` differs from most clocks or from some; `None` if it
    /// does not differ.
    fn of(&self, name: &str) -> Option<ClockDiffers> {
        let which = if self.is_majority { ClockDiffers::FromMost } else { ClockDiffers::FromSome };
        self.differing.contains(name).then_some(which)
    }

    /// True if the clock of node `name` is known to be wrong, and so are the node's measurements.
    fn is_wrong(&self, name: &str) -> bool {
        self.of(name) == Some(ClockDiffers::FromMost)
    }
}

impl Rows {
    fn add(&mut self, requests: &Requests, node: NodeId, answer: Result<Status, FetchError>) {
        let name = requests.name(node);
        let url = requests.url(node);
        let mut row = Row { name, url, ..Row::default() };
        match answer {
            Ok(status) if status.name == row.name && self.is_of_another_cluster(&status) => {
                let own = self.cluster_id.as_deref().unwrap_or_default();
                row.other_cluster_id = status.cluster_id;
                row.error = Some(other_cluster(row.other_cluster_id.as_deref(), own));
            }
            Ok(mut status) if status.name == row.name => {
                // Every status lists all peers. If the lists were kept, their memory would grow
                // with the square of the number of nodes.
                let peers = status.peers.take().into_iter().flatten();
                peers.for_each(|peer| self.add_observation(&row.name, peer));
                row.up = true;
                row.status = Some(status);
            }
            Ok(stranger) => {
                row.error = Some(format!("another node answers at this URL: {}", stranger.name));
            }
            Err(error) => {
                row.refuses_proof = error.refuses_proof();
                row.error = Some(error.to_string());
            }
        }
        self.rows.push(row);
    }

    /// Adds a row for a node that was not asked. A removed node asks no other node, because the
    /// others refuse it.
    fn not_asked(&mut self, requests: &Requests, node: NodeId) {
        let (name, url) = (requests.name(node), requests.url(node));
        let own = requests.name(requests.own());
        let error = Some(format!("not asked: node {own}, which answers, was removed"));
        self.rows.push(Row { name, url, error, not_asked: true, ..Row::default() });
    }

    /// True if the status is from another cluster. False while one of the clusters has no id yet.
    fn is_of_another_cluster(&self, status: &Status) -> bool {
        let ids = self.cluster_id.as_ref().zip(status.cluster_id.as_ref());
        ids.is_some_and(|(own, theirs)| own != theirs)
    }

    fn add_observation(&mut self, node: &str, peer: Peer) {
        let is_wrong = self.clocks.is_wrong(node);
        let seen = self.seen.entry(peer.name).or_default();
        seen.hints += peer.hints;
        seen.reached_by += usize::from(peer.up);
        if !peer.up && seen.unreached_by.as_ref().is_none_or(|first| *node < *first.node) {
            let Peer { url, error, .. } = peer;
            seen.unreached_by = Some(Unreached { node: node.to_owned(), url, error });
        }
        let measured = (is_wrong, peer.rtt_us, peer.clock_skew_us);
        let measured = Some(measured).filter(|(_, rtt, _)| *rtt > 0);
        seen.best_measurement = [seen.best_measurement, measured].into_iter().flatten().min();
    }

    fn finish(mut self) -> Vec<Row> {
        self.rows.sort_by(|one, other| one.name.cmp(&other.name));
        for row in &mut self.rows {
            row.clock_differs = self.clocks.of(&row.name).filter(|_| row.up || row.refuses_proof);
            // Other nodes refuse the proof of an asking node whose clock is far off, so they report
            // no measurement of it. Then only its own comparison exists.
            row.clock_skew_us = self.clocks.own_skew_us.filter(|_| row.name == self.clocks.own);
            let Some(seen) = self.seen.remove(&row.name) else { continue };
            row.hints = seen.hints;
            row.reached_by = seen.reached_by;
            row.unreached_by = seen.unreached_by;
            row.clock_skew_us = seen.best_measurement.map(|(.., skew)| skew).or(row.clock_skew_us);
        }
        self.rows
    }
}

/// Describes a node of another cluster that answers at the URL of a node of this cluster.
fn other_cluster(theirs: Option<&str>, own: &str) -> String {
    format!(
        "other cluster ID {}, where this cluster has {own}: a node of another cluster, with the \
         same name, answers there. The two exchange nothing, and each keeps its data. Either one \
         listens at an address that the other cluster lists (--listen, --advertise, --cluster), or \
         one has the data directory of the other",
        theirs.unwrap_or_default()
    )
}
