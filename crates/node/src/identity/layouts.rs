//! Which layout the node goes by, and its vote about the next one, as its directory has them.

use cluster::layout::{Layout, Voter};
use cluster::{Layouts, LayoutsKept, Logs, MembershipState, NodeId, Shared};
use lsm::{Batch, Engine, PurgeRule, Space};

use super::{Identity, Keeps, Named, in_store, unreadable};
use crate::start_error::StartError;
use crate::store::Store;

/// Where it is stored.
pub(super) const KEY: &[u8] = b"layouts";

impl Identity {
    /// As a life of the directory finds it, and made if there is none; durable when it returns.
    /// `state` is the node's at the start.
    pub(crate) fn open_layouts<S: Store>(
        &self,
        store: &S,
        named: Named<'_>,
        logs: &Logs,
        state: MembershipState,
    ) -> Result<Layouts, StartError> {
        let first = named.first_layout();
        let stored = store.engine().read(Space::Node, KEY).map_err(in_store)?;
        let layouts = match &stored {
            Some(record) => Layouts::decode(&record.value(), first)
                .map_err(|why| unreadable("the cluster's layout", why))?,
            None => {
                // Whoever is new may have had a former life that voted, until others deny that.
                let is_first = state == MembershipState::Member;
                Layouts::first(Voter { node: self.own, id: Some(logs.voter()), is_first }, first)
            }
        };
        if !layouts.has_votes() {
            layouts.loses_votes(logs.voter());
        }
        let (record, _) = layouts.encode();
        if stored.is_none_or(|stored| stored.value() != record) {
            let mut batch = self.lock().batch(&[(KEY, &record)]);
            batch.make_durable();
            store.commit(batch).map_err(in_store)?;
        }
        Ok(layouts)
    }

    /// A batch that stores it durably.
    pub(crate) fn keep_layouts(&self, shared: &Shared) -> (Batch, Keeps) {
        // Under the lock, so that what is newest is what was known last.
        let mut state = self.lock();
        let (record, kept) = shared.membership.layouts.encode();
        let mut batch = state.batch(&[(KEY, &record)]);
        batch.make_durable();
        (batch, Keeps::Layouts(kept))
    }
}

/// The record of a directory that is a copy: what it voted after it was made is not in it.
pub(super) fn without_votes(engine: &Engine) -> Result<Option<Vec<u8>>, StartError> {
    let stored = engine.read(Space::Node, KEY).map_err(in_store)?;
    let without = stored.map(|record| Layouts::without_votes(&record.value())).transpose();
    without.map_err(|why| unreadable("the cluster's layout", why))
}

/// Which node a directory's layout says that it is, and that layout, if it rules.
pub(super) fn rules(engine: &Engine) -> Result<Option<(NodeId, Layout)>, StartError> {
    let stored = engine.read(Space::Node, KEY).map_err(in_store)?;
    let Some(record) = stored else { return Ok(None) };
    let rules = Layouts::rules(&record.value());
    rules.map_err(|why| unreadable("the cluster's layout", why))
}

/// What is known of layouts is durable: a later one is in force.
pub(super) fn enter(shared: &Shared, kept: &LayoutsKept, purge: &PurgeRule) {
    // Before anybody can write to them. A node that is alone again goes by age from its next start.
    if kept.has_others() {
        purge.holds_only_replica(false);
    }
    if shared.enters(kept) {
        let layout = shared.membership.layouts.entered();
        tracing::info!(epoch = layout.epoch, nodes = layout.nodes.len(), "cluster layout changed");
        log_if_removed(shared);
    }
}

/// Logs that the node is no member of the cluster any more, if that is so.
pub(crate) fn log_if_removed(shared: &Shared) {
    if shared.is_removed() {
        tracing::warn!(
            name = shared.name_of(shared.own),
            epoch = shared.membership.views.epoch(),
            "this node was removed from the cluster: it serves no requests for data and speaks \
             with no other node. Stop it; its directory is of no use any more. To add it again, \
             start it with an empty directory and --join"
        );
    }
}

impl Named<'_> {
    /// The layout of a list of nodes that never changed.
    pub(crate) fn first_layout(&self) -> Layout {
        let url = |id: NodeId| self.urls.get(usize::from(id.0)).cloned();
        Layout::first(self.topology, |id| url(id).unwrap_or_default())
    }
}
