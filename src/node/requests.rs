//! The interface of an event loop to the node. HTTP reaches the store and other nodes only through
//! [`Requests`], whose methods `get`, `get_alone`, `write` and `call` are in `coordinate.rs`.
//!
//! ```text
//!  http ─▶ get · write · scan · call · version ─▶ Requests ─┬─▶ coordinate: the loop's protocol
//!                                                           │   instance (server::Loop)
//!                              runtime: start, stop ──────▶ ├─▶ writes: the iteration's batch
//!                                                           └─▶ peers: other nodes
//! ```

use std::cell::Cell;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lsm::{Fields, Kind, SyncMode};
use protocol::handshake::Channel;
use protocol::{
    Acks, AskedQuorum, BackgroundEvent, Class, NodeId, PageRequest, Record, Request, Shared,
    Topology, Version, View,
};
use server::{Loop, NoVersion, PageResult, Range, WritePurpose};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::counters::Counters;
use crate::counters::clocks::{now, wall_micros};
use crate::node::Node;
use crate::node::coordinate::Coordination;
use crate::node::limits::Limits;
use crate::node::write_window::{WritePermit, WriteWindow};
use crate::node::writes::Writes;
use crate::peers::proof::PageProof;
use crate::peers::{self, DialError, PeerConnections, PeerInput};
use crate::quotas::counts::Quotas;
use crate::settings::memory::LONG_RECORD;
use crate::settings::units::Ttl;
use crate::tokens::lookup::{self, Access, CachedToken, TokenLookup};
use crate::transport::Stream;

/// A write may wait for the clock's bound for 1/`CLOCK_SHARE` of `--deadline`. The replicas then
/// have the whole deadline.
const CLOCK_SHARE: u32 = 2;

/// Time after the goodbye in which requests arrive that other nodes sent before they received it.
const CROSSING_TIME: Duration = Duration::from_millis(50);

/// Longest time for which a stopping node completes the writes that other nodes have forwarded. The
/// default `--deadline` has the same length, after which the other nodes no longer wait.
const FORWARDED_TIME: Duration = Duration::from_secs(1);

/// Interval at which a stopping loop counts its unanswered writes.
const FORWARDED_POLL: Duration = Duration::from_millis(5);

/// One loop's interface to the node.
pub(crate) struct Requests {
    pub(super) node: Arc<Node>,
    pub(super) writes: Writes<WritePurpose>,
    /// Congestion window for long writes.
    limiter: WriteWindow,
    pub(super) coordination: Coordination,
    pub(super) peers: PeerConnections,
    /// Cached facts of the view, which save each request a lock of the view.
    known: Cell<KnownView>,
}

/// The facts of one epoch's view that every request needs.
#[derive(Debug, Clone, Copy, Default)]
struct KnownView {
    /// The view's epoch. The default, 0, is not the epoch of any view.
    epoch: u64,
    /// Number of a key's possible replicas, and default number of copies: the result of
    /// [`Requests::replication`].
    replication: (usize, u8),
    /// True if this node is not a member.
    is_removed: bool,
}

/// Returns the sink for input from other nodes. Protocol events go to the loop, all other input to
/// the node's task.
fn receive(requests: Weak<Requests>) -> peers::EventSink {
    Rc::new(move |received| {
        let Some(this) = requests.upgrade() else { return };
        let event = match received {
            PeerInput::Event(event) => return this.dispatch(event),
            PeerInput::PeerSeen { peer, incarnation, knows_us, knew_only_this_disk, cluster } => {
                BackgroundEvent::PeerSeen {
                    peer,
                    incarnation,
                    knows_us,
                    knew_only_this_disk,
                    cluster,
                }
            }
            PeerInput::Later => BackgroundEvent::Behind,
            PeerInput::Fenced => BackgroundEvent::Fenced,
        };
        // While the node ends, the task's receiver is already dropped.
        spawn_local(async move { this.node.task.send(event.into()).await.ok() });
    })
}

/// Lifecycle, for the runtime.
impl Requests {
    /// Creates a loop's interface to `node`.
    pub(crate) fn new(node: Arc<Node>, counters: &Arc<Counters>) -> Rc<Self> {
        let config = node.config.clone();
        let share = config.memory.waiting_bytes as usize / config.loops;
        let bodies = config.memory.body_bytes as usize / config.loops;
        let protocol = protocol::Config {
            deadline_micros: config.deadline.as_micros() as u64,
            max_skew_micros: config.max_clock_skew.as_micros() as u64,
            brief_bytes: LONG_RECORD as u32,
        };
        let (shared, identity) = (Arc::clone(&node.shared), Arc::clone(&node.identity));
        let part = Loop::new(shared, identity, protocol, share);
        Rc::new_cyclic(|this: &Weak<Self>| {
            let own = Weak::clone(this);
            let sink = Box::new(move |purpose, outcome: &_| {
                if let Some(this) = own.upgrade() {
                    this.on_write_result(purpose, outcome);
                }
            });
            let facts = Arc::clone(&node.facts);
            let peers = PeerConnections::new(facts, Arc::clone(counters), receive(this.clone()));
            let db = Arc::clone(&node.db);
            let writes = Writes::new(db, Arc::clone(counters), config.sync, share, sink);
            let limiter = WriteWindow::new(config.max_value, bodies, config.deadline);
            let (coordination, known) = (Coordination::new(part), Cell::default());
            Self { writes, limiter, coordination, peers, node, known }
        })
    }

    /// Starts the loop's background work.
    pub(crate) fn start(self: &Rc<Self>) {
        let this = Rc::clone(self);
        spawn_local(async move { this.writes.commit_batches().await });
        let this = Rc::clone(self);
        spawn_local(async move { this.writes.take_outcomes().await });
        let this = Rc::clone(self);
        spawn_local(async move { this.tick().await });
        let this = Rc::clone(self);
        spawn_local(async move { this.peers.run().await });
    }

    /// Starts the work that one loop does for the whole node: it keeps a connection to each peer,
    /// and compares clocks with the peers.
    pub(crate) fn keep_peer_connections(self: &Rc<Self>) {
        self.peers.keep_all_connected();
        let this = Rc::clone(self);
        spawn_local(async move {
            let others = this.others();
            let ask = |peer| {
                let this = Rc::clone(&this);
                spawn_local(async move { this.call(peer, Class::Client, Request::Ping).await })
            };
            let asked: Vec<_> = others.into_iter().map(ask).collect();
            let all = async {
                for answer in asked {
                    // Any answer includes a clock for the comparison; an error has none.
                    let _ = answer.await;
                }
            };
            this.node.comparison.end_after(all).await;
        });
    }

    /// Takes over a connection whose client requested the upgrade to the peer protocol. `read` is
    /// the input received after the request.
    pub(crate) fn upgrade(&self, stream: Stream, read: Bytes) {
        self.peers.upgrade(stream, read);
    }

    /// Announces to the other nodes that this node is about to stop.
    pub(crate) fn goodbye(&self) {
        self.peers.goodbye();
    }

    /// Waits, after the goodbye, for the conditional writes that other nodes have forwarded to this
    /// loop: the other nodes would not know the outcome of an unanswered one. Returns after
    /// [`FORWARDED_TIME`] at the latest.
    pub(crate) async fn finish_forwarded(&self) {
        let begun = Instant::now();
        while self.peers.is_connected() && begun.elapsed() < FORWARDED_TIME {
            let is_idle = self.coordination.unanswered_changes() == 0;
            if is_idle && begun.elapsed() >= CROSSING_TIME {
                return;
            }
            sleep(FORWARDED_POLL).await;
        }
    }

    /// Closes all connections to the other nodes.
    pub(crate) async fn close(&self) {
        self.peers.close().await;
    }
}

/// Operations for HTTP besides [`Requests::get`], [`Requests::write`] and [`Requests::call`].
impl Requests {
    /// Issues a version for a write, after this node's clock was compared with the others' clocks.
    pub(crate) async fn version(&self) -> Result<Version, NoVersion> {
        let node = &self.node;
        node.comparison.wait().await;
        let max_wait = node.config.deadline / CLOCK_SHARE;
        let lsm::Version { time, origin } = node.clock.issue_within(max_wait).await?;
        Ok(Version { time, origin })
    }

    /// Returns the expiry of a value written now, in milliseconds since 1970; 0 = never.
    ///
    /// The base is [`protocol::Clock::ttl_base_time`], which equals the wall clock, except if
    /// another node's clock is slightly ahead.
    pub(crate) fn expiry_ms(&self, ttl: Option<Ttl>) -> u64 {
        let base = || self.node.shared.clock.ttl_base_time(now());
        ttl.map_or(0, |ttl| base().div_ceil(1000) + ttl.millis())
    }

    /// Builds the record of a value and its expiry, or of a deletion if `value` is `None`.
    pub(crate) fn record(
        key: &[u8],
        version: Version,
        copies: u8,
        value: Option<(&[u8], u64)>,
    ) -> Record {
        let kind = if value.is_some() { Kind::Value } else { Kind::Tombstone };
        let (value, expiry_ms) = value.unwrap_or_default();
        let fields = Fields { copies, expiry_ms, ..Fields::new(kind, version) };
        Record::new(key, &fields, value)
    }

    /// Returns the expiry of a record's value in milliseconds since 1970, 0 = never; `None` if the
    /// record has no value, or if the value has expired.
    pub(crate) fn expiry_of_value(record: &Record) -> Option<u64> {
        let view = record.view();
        view.is_live(wall_micros).then(|| view.expiry_ms())
    }

    /// Returns the length of a record's value in bytes, also for a tombstone.
    pub(crate) fn value_bytes(record: &Record) -> usize {
        record.value().len()
    }

    /// True if the record is intact and belongs to `key`.
    pub(crate) fn is_intact_for_key(key: &[u8], record: &Record) -> bool {
        record.is_intact(key)
    }

    /// Starts a range read over the cluster; `None` if too many range reads are running.
    pub(crate) fn scan(
        &self,
        asked: AskedQuorum,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Option<Range> {
        Range::new(Arc::clone(&self.node.shared), &self.node.pages, asked, start, end)
    }

    /// Starts a range read over this node's records; `None` if too many range reads are running.
    pub(crate) fn scan_local(&self, start: Bytes, end: Option<Bytes>) -> Option<Range> {
        Range::local(Arc::clone(&self.node.shared), &self.node.pages, start, end)
    }

    /// Reserves memory for a page that the reader of `range` gathers; false if none is free.
    pub(crate) fn reserve_gathering(&self, range: &mut Range) -> bool {
        range.reserve_gathering(&self.node.pages)
    }

    /// Asks a node for a page of a range.
    pub(crate) async fn page(self: &Rc<Self>, node: NodeId, request: PageRequest) -> PageResult {
        let result = self.call(node, Class::Client, Request::Page(request)).await;
        Range::page_result(self.shared(), node, result)
    }

    /// Waits for a permit to write a long value; `None` if none is granted within `max_wait`.
    pub(crate) async fn admit_write(
        &self,
        bytes: usize,
        max_wait: Duration,
    ) -> Option<WritePermit<'_>> {
        self.limiter.enter(bytes, max_wait).await
    }

    /// Connects to a node for something other than protocol messages. The node is not
    /// authenticated.
    pub(crate) async fn connect_to(&self, peer: NodeId) -> Result<Stream, DialError> {
        self.peers.connect_to(peer).await
    }

    /// Returns the proof that this node sends when it requests the page `target` from `asked`;
    /// `None` if the cluster has no secret.
    pub(crate) fn page_proof(
        &self,
        asked: NodeId,
        target: &str,
        channel: Option<Channel>,
    ) -> io::Result<Option<PageProof>> {
        let (now_ms, secret) = (wall_micros() / 1000, self.node.secrets.own());
        let asks = |secret| PageProof::new(secret, channel, (&self.name(asked), target), now_ms);
        secret.map(asks).transpose()
    }

    /// Returns the time by which another node's clock is ahead of this node's, in microseconds;
    /// `None` if it was not measured.
    pub(crate) fn skew_micros(&self, node: NodeId) -> Option<i64> {
        let facts = &self.node.facts;
        (facts.observations(node).rtt_micros() > 0).then(|| facts.skew_micros(node))
    }

    /// Returns a node's address as `HOST:PORT`.
    pub(crate) fn authority(&self, node: NodeId) -> String {
        self.node.facts.authority(node)
    }

    /// Returns a node's URL, `http://HOST:PORT` or `https://HOST:PORT`.
    pub(crate) fn url(&self, node: NodeId) -> String {
        self.node.url_of(node)
    }

    /// Returns the reason why this node's store refuses writes; `None` if it accepts writes.
    pub(crate) fn store_failure(&self) -> Option<String> {
        self.node.db.health().err().map(|error| error.to_string())
    }

    /// Returns a node's name.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.node.shared.name_of(node)
    }

    /// Returns the names of the replicas that acknowledged a write, in the key's order; `None` if
    /// the membership has changed since the write.
    pub(crate) fn acknowledging_replicas(
        &self,
        key: &[u8],
        from: u8,
        acks: Acks,
    ) -> Option<Vec<String>> {
        let view = self.view();
        let mut replicas = Vec::new();
        view.topology.replicas(view.topology.partition_of(key), from, &mut replicas);
        let named = replicas.iter().enumerate().filter(|(place, _)| acks.by.has(*place));
        (view.epoch == acks.epoch).then(|| named.map(|(_, node)| self.name(*node)).collect())
    }

    /// Returns this node's sync mode, as in `--sync`. The mode decides when a plain write is
    /// acknowledged.
    pub(crate) fn sync(&self) -> &'static str {
        match self.node.config.sync {
            SyncMode::Always => "always",
            SyncMode::Interval(_) => "interval",
            SyncMode::Never => "never",
        }
    }

    /// Returns this node's id.
    pub(crate) fn own(&self) -> NodeId {
        self.node.shared.own
    }

    /// Returns the current view: the cluster's nodes and the placement.
    pub(crate) fn view(&self) -> Arc<View> {
        self.node.shared.view()
    }

    /// Returns the clock skew that this node permits.
    pub(crate) fn max_clock_skew(&self) -> Duration {
        self.node.config.max_clock_skew
    }

    /// Returns all other nodes of the cluster, including those that are joining or leaving.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        self.node.others()
    }

    /// Returns the number of possible replicas of a key, and the default number of copies. While
    /// partitions move, each is the smaller number of the two placements.
    pub(crate) fn replication(&self) -> (usize, u8) {
        self.known_view().replication
    }

    /// Returns the cached facts of the view in force.
    fn known_view(&self) -> KnownView {
        let shared = &self.node.shared;
        let known = self.known.get();
        if known.epoch == shared.membership.views.epoch() {
            return known;
        }
        let known = shared.membership.views.with(|view| {
            let topologies = || [&view.topology].into_iter().chain(&view.other);
            let nodes = topologies().map(Topology::nodes).min().expect("there is one");
            let copies = topologies().map(Topology::default_copies).min().expect("there is one");
            let is_removed = !view.has(shared.own);
            KnownView { epoch: view.epoch, replication: (nodes, copies), is_removed }
        });
        self.known.set(known);
        known
    }

    /// True if another process has taken over this node's identity, so this node serves no data.
    pub(crate) fn is_fenced(&self) -> bool {
        self.node.shared.membership.state.is_fenced()
    }

    /// True if this node is no longer a member of the cluster, so it serves no data.
    pub(crate) fn is_removed(&self) -> bool {
        self.known_view().is_removed
    }

    /// Returns the epoch of the view in force.
    pub(crate) fn epoch(&self) -> u64 {
        self.node.shared.membership.views.epoch()
    }

    /// Returns the limits on client requests.
    pub(crate) fn limits(&self) -> &Limits {
        &self.node.limits
    }

    /// Returns the tokens and the access policy.
    pub(crate) fn access(&self) -> &Access {
        &self.node.access
    }

    /// Looks up the token with the text `given`; `None` if it is unknown. `before` is the token
    /// that the connection cached.
    pub(crate) fn token(&self, given: &[u8], before: Option<&CachedToken>) -> Option<TokenLookup> {
        self.node.access.find(&self.node.shared, given, before)
    }

    /// True if the token of an admitted request is still valid: neither revoked nor expired.
    pub(crate) fn is_token_valid(&self, token: &CachedToken) -> bool {
        self.node.access.holds(&self.node.shared, token) && !self.has_expired(token)
    }

    /// True if the token has expired.
    pub(crate) fn has_expired(&self, token: &CachedToken) -> bool {
        lookup::has_expired(&self.node, &token.known.token)
    }

    /// Returns the storage quotas.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.node.quotas
    }

    fn shared(&self) -> &Shared {
        &self.node.shared
    }
}
