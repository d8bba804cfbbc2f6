//! The layout in force and the node's vote on the next layout, as stored in the node's directory.

use lsm::{Batch, Engine, PurgeRule, Space};
use protocol::layout::{Layout, Voter};
use protocol::{EncodedLayouts, Layouts, Logs, MembershipState, NodeId, Shared};

use super::{Identity, NodeSettings, OwnRecords, identity_error, unreadable};
use crate::start_error::StartError;
use crate::store::Store;

/// Key of the layouts record.
pub(super) const KEY: &[u8] = b"layouts";

impl Identity {
    /// Loads the layouts at a process start, and creates the record if there is none. Durable on
    /// return. `state` is the node's membership state at the start.
    pub(crate) fn open_layouts<S: Store>(
        &self,
        store: &S,
        named: NodeSettings<'_>,
        logs: &Logs,
        state: MembershipState,
    ) -> Result<Layouts, StartError> {
        let first = named.first_layout();
        let stored = store.engine().read(Space::Node, KEY).map_err(identity_error)?;
        let layouts = match &stored {
            Some(record) => Layouts::decode(&record.value(), first)
                .map_err(|why| unreadable("the cluster's layout", why))?,
            None => {
                // A previous incarnation of a new node may have voted, unless the other nodes deny
                // it.
                let is_first = state == MembershipState::Member;
                Layouts::first(Voter { node: self.own, id: Some(logs.voter()), is_first }, first)
            }
        };
        if !layouts.has_votes() {
            layouts.renew_voter(logs.voter());
        }
        let (record, _) = layouts.encode();
        if stored.is_none_or(|stored| stored.value() != record) {
            let mut batch = self.lock().batch(&[(KEY, &record)]);
            batch.make_durable();
            store.commit(batch).map_err(identity_error)?;
        }
        Ok(layouts)
    }

    /// Returns a batch that durably stores the layouts.
    pub(crate) fn keep_layouts(&self, shared: &Shared) -> (Batch, OwnRecords) {
        // Encoded under the lock, so that the newest batch has the latest layouts.
        let mut state = self.lock();
        let (record, kept) = shared.membership.layouts.encode();
        let mut batch = state.batch(&[(KEY, &record)]);
        batch.make_durable();
        (batch, OwnRecords::Layouts(kept))
    }
}

/// Returns the layouts record for a copied directory, without votes, because the copy lacks the
/// votes that were cast after it was made. `None` = the directory has no such record.
pub(super) fn without_votes(engine: &Engine) -> Result<Option<Vec<u8>>, StartError> {
    let stored = engine.read(Space::Node, KEY).map_err(identity_error)?;
    let without = stored.map(|record| Layouts::without_votes(&record.value())).transpose();
    without.map_err(|why| unreadable("the cluster's layout", why))
}

/// Returns the node id and layout stored in a directory, if that layout is in force.
pub(super) fn layout_in_force(engine: &Engine) -> Result<Option<(NodeId, Layout)>, StartError> {
    let stored = engine.read(Space::Node, KEY).map_err(identity_error)?;
    let Some(record) = stored else { return Ok(None) };
    let stored_layout = Layouts::overriding_layout(&record.value());
    stored_layout.map_err(|why| unreadable("the cluster's layout", why))
}

/// Returns the layouts record of a single node that the settings do not name, updated with the
/// node's settings, and the updated layout. `None` = nothing changes, or a change of the layout is
/// under way.
pub(super) fn of_single_node(
    engine: &Engine,
    named: NodeSettings<'_>,
) -> Result<Option<(Vec<u8>, Layout)>, StartError> {
    let stored = engine.read(Space::Node, KEY).map_err(identity_error)?;
    let Some(record) = stored else { return Ok(None) };
    let changed = Layouts::of_single_node(&record.value(), &named.first_layout())
        .map_err(|why| unreadable("the cluster's layout", why))?;
    Ok(changed.filter(|(changed, _)| *changed != record.value()))
}

/// Puts a later layout into force. The layout's record must be durable.
pub(super) fn enter(shared: &Shared, kept: &EncodedLayouts, purge: &PurgeRule) {
    // Purging by age ends before any node can write to the new members. A node that is alone again
    // purges by age only from its next start on.
    if kept.has_others() {
        purge.set_only_replica(false);
    }
    if shared.install_layout(kept) {
        let layout = shared.membership.layouts.active_layout();
        tracing::info!(epoch = layout.epoch, nodes = layout.nodes.len(), "cluster layout changed");
        log_if_removed(shared);
    }
}

/// Logs a warning if the node was removed from the cluster.
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

impl NodeSettings<'_> {
    /// Returns the first layout, which follows from the settings' list of nodes.
    pub(crate) fn first_layout(&self) -> Layout {
        let url = |id: NodeId| self.urls.get(usize::from(id.0)).cloned();
        Layout::first(self.topology, |id| url(id).unwrap_or_default())
    }
}
