//! A node's reports about itself, and requests for administrative work. Reports come from memory,
//! and never wait for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::handshake::{Reason, Secrets};
use protocol::layout::{Joiner, Layout, PlanChange, PlanError, Quota};
use protocol::{
    BackgroundEvent, Clock, ForgettingReason, ForgottenIdempotency, MembershipState, NodeId,
    Progress,
};
use serde_json::Value;

use crate::compact::status::Compactions;
use crate::counters::clocks::{self, wall_micros};
use crate::finalize::status::{RaiseError, StoreFormats};
use crate::joining::answers::{JoinError, NotAsking};
use crate::joining::message::{JoinAnswer, JoinRequest};
use crate::layout::status::{LayoutPlan, LayoutStatus, names};
use crate::node::{Node, task};
use crate::operations::access::{self, ChangeError};
use crate::operations::snapshot::Snapshot;
use crate::operations::status::{ForgottenKeys, ForgottenReason, Membership, Peer, Status};
use crate::operations::{metrics, usage};
use crate::quotas::status::{QuotaList, QuotaStatus};
use crate::repair::status::Repair;
use crate::sample_history::samples::PastSecond;
use crate::tokens::status::{NewToken, TokenList, TokenMade, TokenStatus};
use crate::{joining, quotas, sample_history, tokens};

/// The reports of one node.
pub(crate) struct Reports(Arc<Node>);

/// Readiness of a node for requests.
pub(crate) enum Readiness {
    /// The node is ready.
    Ready,
    /// The node is about to stop.
    Stopping,
    /// Another process has taken over the node's identity.
    Fenced,
    /// The node is no longer a member of the cluster.
    Removed,
    /// Each other member refuses this node, because its data is of another cluster.
    OtherCluster,
    /// The node accepts no writes. The text is the reason.
    Failed(String),
}

impl Reports {
    /// Creates the reports of a node.
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self(node)
    }

    /// Returns the answer of `/readyz`.
    pub(crate) fn readiness(&self) -> Readiness {
        let node = &self.0;
        if node.is_stopping() {
            return Readiness::Stopping;
        }
        if node.shared.membership.state.is_fenced() {
            return Readiness::Fenced;
        }
        if is_removed(node) {
            return Readiness::Removed;
        }
        if is_of_another_cluster(node) {
            return Readiness::OtherCluster;
        }
        match node.db.health() {
            Err(failed) => Readiness::Failed(failed.to_string()),
            Ok(()) => Readiness::Ready,
        }
    }

    /// Returns the answer of `/metrics`, in the OpenMetrics format.
    pub(crate) fn metrics(&self) -> String {
        metrics::encode(&self.0)
    }

    /// Returns the metrics in the older text format of Prometheus.
    pub(crate) fn plain_text_metrics(&self) -> String {
        metrics::to_plain_text(&self.metrics())
    }

    /// Requests a repair round that compares all records written so far. Returns its number; `None`
    /// if there are no other nodes.
    pub(crate) fn repair(&self, full: bool) -> Option<u64> {
        let Node { shared, db, .. } = &*self.0;
        let holds_all = usize::from(shared.view().topology.default_copies()) == shared.nodes();
        // Records that this node does not have may be newer than all its records.
        let newest = if holds_all { db.engine().greatest_time() } else { u64::MAX };
        let up_to = newest.min(Clock::limit(wall_micros(), 0));
        (!shared.is_alone()).then(|| shared.repair.rounds.request_round(full, up_to))
    }

    /// Returns the answer of `/admin/repair`.
    pub(crate) fn repairs(&self) -> Repair {
        Repair::of(&self.0)
    }

    /// Returns the cluster secrets, by which nodes authenticate each other.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.0.secrets
    }

    /// Answers a node that belongs to no cluster and asks to join this cluster. An error is the
    /// reason why the node can't join.
    pub(crate) fn answer_join(&self, asker: JoinRequest) -> Result<JoinAnswer, JoinError> {
        joining::answers::answer_join(&self.0, asker)
    }

    /// Returns the joining node `name`. The error lists the names of the nodes that ask to join.
    pub(crate) fn joiner(&self, name: &str) -> Result<Joiner, NotAsking> {
        let (node, name) = (&self.0, name.to_owned());
        if let Some(member) = self.known_layout().find_node(&name) {
            return Err(NotAsking::Member { name, url: node.url_of(member.id) });
        }
        node.joiners.find(&name).ok_or_else(|| {
            let asking = node.joiners.all().into_iter().map(|asker| asker.name).collect();
            NotAsking::Nobody { name, asking }
        })
    }

    /// Returns the answer of `/admin/layout`.
    pub(crate) fn layout(&self) -> LayoutStatus {
        LayoutStatus::of(&self.0)
    }

    /// Returns the latest layout of which this node knows that it was decided.
    pub(crate) fn known_layout(&self) -> Arc<Layout> {
        self.0.shared.membership.layouts.known_layout()
    }

    /// Returns the names of the nodes of the metadata quorum.
    pub(crate) fn council(&self) -> Vec<String> {
        let layout = self.known_layout();
        names(&layout, &layout.council)
    }

    /// Returns the reason why members, tokens and quotas can't be changed yet: the cluster has not
    /// begun. `None` if they can be changed.
    pub(crate) fn reason_not_begun(&self) -> Option<String> {
        access::reason_not_begun(&self.0)
    }

    /// Plans a change, and stores the plan; `None` if the node is about to stop. With many nodes,
    /// planning takes seconds.
    pub(crate) async fn plan(
        &self,
        mut change: PlanChange,
    ) -> Option<Result<LayoutPlan, PlanError>> {
        let node = Arc::clone(&self.0);
        let planned = task::off_the_loop(move || {
            let base = node.shared.membership.layouts.known_layout();
            // This node may have newer URLs of the members than the layout. A joining node learns
            // URLs only from the layout.
            let urls = base.nodes.iter().map(|known| (known.id, node.url_of(known.id)));
            change.urls = urls.filter(|(_, url)| !url.is_empty()).collect();
            let planned = base.plan_change(&change, |name| node.voter_of(name))?;
            let plan = LayoutPlan::of(&node, &base, &planned);
            node.plans.keep(Arc::new(planned));
            Ok(plan)
        });
        planned.await.ok()
    }

    /// Returns the answer of `/admin/tokens`.
    pub(crate) fn tokens(&self) -> TokenList {
        tokens::status::list(&self.0)
    }

    /// Creates a token. All nodes learn of it soon afterwards.
    pub(crate) async fn create_token(&self, wanted: NewToken) -> Result<TokenMade, ChangeError> {
        tokens::status::create(&self.0, wanted).await
    }

    /// Revokes a token, and returns it.
    pub(crate) async fn revoke_token(&self, token: &str) -> Result<TokenStatus, ChangeError> {
        tokens::status::revoke(&self.0, token).await
    }

    /// Returns the answer of `/admin/quotas`.
    pub(crate) fn quotas(&self) -> QuotaList {
        quotas::status::list(&self.0)
    }

    /// Sets a quota.
    pub(crate) async fn set_quota(&self, quota: Quota) -> Result<QuotaStatus, ChangeError> {
        quotas::status::set(&self.0, quota).await
    }

    /// Removes the quota of a prefix, and returns it.
    pub(crate) async fn remove_quota(&self, prefix: &[u8]) -> Result<QuotaStatus, ChangeError> {
        quotas::status::remove(&self.0, prefix).await
    }

    /// Returns the layout that undoes the current change; `None` if it can't be undone.
    pub(crate) fn abort_layout(&self, known: &Layout) -> Option<Layout> {
        known.plan_abort(|name| self.0.voter_of(name))
    }

    /// Returns the plan `id` of this node; `None` if this node does not have it.
    pub(crate) fn find_plan(&self, id: u128) -> Option<Arc<Layout>> {
        self.0.plans.find(id)
    }

    /// Returns the id and the progress of the last plan that this node proposed to the metadata
    /// quorum; `None` if it proposed no plan.
    pub(crate) fn change(&self) -> Option<(u128, Progress)> {
        let change = self.0.shared.membership.layouts.change()?;
        Some((change.layout.id(), change.progress))
    }

    /// Proposes a plan for decision. [`Reports::layout`] reports the progress.
    pub(crate) async fn apply(&self, plan: Arc<Layout>) {
        task::dispatch(&self.0, BackgroundEvent::Propose(plan).into()).await;
    }

    /// Requests a compaction of the whole store. Returns its number.
    pub(crate) fn compact(&self) -> u64 {
        self.0.db.request_compaction()
    }

    /// Returns the answer of `/admin/compact`.
    pub(crate) fn compactions(&self) -> Compactions {
        Compactions::of(&self.0)
    }

    /// Returns the store's format, and the formats that this program writes.
    pub(crate) fn store_formats(&self) -> StoreFormats {
        StoreFormats::of(&self.0.db)
    }

    /// Raises the store to `format`, durably, unless it has this or a later format. Returns the
    /// store's format.
    pub(crate) async fn raise_format(&self, format: u32) -> Result<u32, RaiseError> {
        let node = Arc::clone(&self.0);
        let raised = task::off_the_loop(move || {
            let before = node.db.engine().format();
            let raised = node.db.engine().raise_format(format)?;
            if raised > before {
                tracing::info!(before, format = raised, "the store's format was raised");
            }
            Ok(raised)
        });
        Ok(raised.await.unwrap_or(Err(lsm::Error::Closing))?)
    }

    /// Returns the answer of `/v0/status`.
    pub(crate) fn status(&self) -> Status {
        status(&self.0, self.0.db.stats())
    }

    /// Returns a snapshot for the dashboard.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let stats = self.0.db.stats();
        let status = status(&self.0, stats.clone());
        Snapshot::take(&self.0, &stats, status)
    }

    /// Returns the names of the values in [`Reports::past`], in the same order.
    pub(crate) fn past_fields(&self) -> Vec<String> {
        sample_history::samples::fields(&self.0)
    }

    /// Returns up to `most` stored samples from number `from` on, one per second, and the number of
    /// the sample after them.
    pub(crate) fn past(&self, from: u64, most: usize) -> (Vec<PastSecond>, u64) {
        let (samples, next) = self.0.history.from(from, most);
        (
            samples
                .into_iter()
                .map(|sample| sample_history::samples::past_second(&self.0, sample))
                .collect(),
            next,
        )
    }

    /// Returns the node's name.
    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the node's URL.
    pub(crate) fn url(&self) -> &str {
        self.0.url()
    }

    /// Returns true if the node is about to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }
}

/// Returns the node's status. `stats` is the store's part of it.
fn status(node: &Node, stats: lsm::Stats) -> Status {
    let micros_until_accepted = node.shared.clock.micros_until_accepted(clocks::now());
    Status {
        name: node.name().to_owned(),
        url: node.url().to_owned(),
        version: env!("KVORUM_VERSION").to_owned(),
        formats: StoreFormats::of(&node.db),
        epoch: node.shared.membership.views.epoch(),
        cluster_id: node.shared.membership.cluster.id().map(|id| id.to_string()),
        incarnation: format!("{:016x}", node.identity.incarnation().0),
        membership: membership(node),
        uptime_s: node.started.elapsed().as_secs(),
        keys: stats.keys,
        disk_bytes: usage::disk_bytes(node, &stats),
        memory_bytes: usage::resident_bytes(),
        settings: settings(node),
        partitions_to_repair: node.shared.transfer.missed.partitions(node.shared.own),
        forgotten_idempotency_keys: forgotten_keys(node),
        lacks_vote: access::has_lost_vote(node),
        certificate_expires_ms: node.tls.as_deref().map(|tls| tls.expires().saturating_mul(1000)),
        purgeable_bytes: stats.purgeable_bytes,
        damaged_tables: stats.damaged_tables,
        repair: (!node.shared.is_alone()).then(|| Repair::of(node)),
        timestamps_ahead_ms: micros_until_accepted.map(|micros| micros.div_ceil(1000)),
        disk_full: node.db.lacks_space(),
        failed: stats.failed,
        peers: Some(peers(node)),
    }
}

/// Returns the period in which the node may have forgotten idempotency keys, and the reason; `None`
/// if it has forgotten none.
fn forgotten_keys(node: &Node) -> Option<ForgottenKeys> {
    let ForgottenIdempotency { until_micros, why } = node.shared.forgotten_idempotency()?;
    let reason = match why {
        ForgettingReason::LostDisk => ForgottenReason::LostDisk,
        ForgettingReason::Moved => ForgottenReason::Moved,
    };
    Some(ForgottenKeys { until_ms: until_micros.div_ceil(1000), reason })
}

/// Returns the settings that affect performance, by the names of their flags. The number of
/// replicas is that of the layout in force, because a plan may have changed it.
fn settings(node: &Node) -> BTreeMap<String, Value> {
    let config = &node.config;
    let sync = match config.sync {
        lsm::SyncMode::Always => "always".to_owned(),
        lsm::SyncMode::Interval(interval) => format!("interval {interval:?}"),
        lsm::SyncMode::Never => "never".to_owned(),
    };
    let memory = &config.memory;
    let all = [
        ("sync", sync.into()),
        ("replicas", node.shared.membership.layouts.active_layout().replicas.into()),
        ("loops", config.loops.into()),
        ("read-threads", config.read_threads.into()),
        ("queue", config.queue.into()),
        ("connections", config.connections.into()),
        ("deadline", format!("{:?}", config.deadline).into()),
        ("memory", memory.budget_bytes.into()),
        ("memtable", memory.memtable_bytes.into()),
        ("cache", memory.cache_bytes.into()),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Returns the node's membership state, in the words of the JSON.
fn membership(node: &Node) -> Membership {
    let membership = &node.shared.membership.state;
    match membership.state() {
        _ if membership.is_fenced() => Membership::Fenced,
        _ if is_removed(node) => Membership::Removed,
        MembershipState::Member if !membership.is_authoritative_for_all() => Membership::Starting,
        MembershipState::Member => Membership::Member,
        MembershipState::Joining => Membership::Joining,
        MembershipState::Verifying => Membership::Verifying,
        MembershipState::Rebuilding => Membership::Rebuilding,
    }
}

/// Returns true if this node is no longer a member: it knows the layout that lacks it, or it has an
/// empty directory, and a node of its list refuses it because of that layout.
fn is_removed(node: &Node) -> bool {
    let shared = &node.shared;
    // A removed node refuses members for the same reason.
    let layout = shared.membership.layouts.known_layout();
    let is_refused_by =
        |id: NodeId| !layout.is_retired(id) && node.facts.refusal(id) == Some(Reason::Removed);
    shared.is_removed()
        || shared.membership.state.state() == MembershipState::Joining
            && node.others().into_iter().any(is_refused_by)
}

/// Returns true if this node's data is of another cluster than all nodes of its layout: each of
/// them refuses it for this reason. A single one may be a stranger at a member's address.
fn is_of_another_cluster(node: &Node) -> bool {
    let others = node.others();
    let refuses = |id: &NodeId| node.facts.refusal(*id) == Some(Reason::Cluster);
    !others.is_empty() && others.iter().all(refuses)
}

fn peers(node: &Node) -> Vec<Peer> {
    let shared = &node.shared;
    let mut others = node.others();
    others.sort_by_cached_key(|id| shared.name_of(*id));
    others
        .into_iter()
        .map(|id| {
            let (hints, hint_bytes) = shared.transfer.hints.waiting_hints(id);
            let seen = node.facts.observations(id);
            Peer {
                name: shared.name_of(id),
                url: node.url_of(id),
                incarnation: seen.incarnation().map_or(String::new(), |i| format!("{:016x}", i.0)),
                up: seen.links() > 0,
                error: node.facts.dial_error(id).filter(|_| seen.links() == 0),
                rtt_us: seen.rtt_micros(),
                clock_skew_us: node.facts.skew_micros(id),
                hints,
                hint_bytes,
                hints_ahead_of_clock: shared.transfer.hints.future_hints(id),
                hints_dropped: shared.transfer.hints.dropped_count(id),
                partitions_to_repair: shared.transfer.missed.partitions(id),
            }
        })
        .collect()
}
