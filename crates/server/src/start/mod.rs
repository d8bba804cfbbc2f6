//! The start of a node on a recovered store.
//!
//! ```text
//!  store recovered ─▶ StartingNode::open: opens the identity, a clock above all issued versions
//!                  ─▶ the driver waits until peers accept the clock's lead over the wall clock
//!                  ─▶ StartingNode::begin: records a new process start (boot)
//! ```

use std::sync::Arc;

use protocol::{
    Clock, Incarnation, Logs, Membership, MembershipState, NodeId, Proofs, Shared, View,
};

use crate::clock::BoundedClock;
use crate::hints;
use crate::identity::{
    Directory, Identity, NewIdentity, NodeSettings, RecoveredStore, log_if_removed,
};
use crate::start_error::StartError;
use crate::store::Store;

/// A node between the recovery of its store and its first request.
#[derive(Debug)]
pub struct StartingNode {
    identity: Identity,
    clock: BoundedClock,
    recovered: RecoveredStore,
    max_skew: u64,
    nodes: usize,
}

/// A node after its start, ready to run.
#[derive(Debug)]
pub struct StartedNode {
    /// The state that the protocol state machines of all loops share.
    pub shared: Arc<Shared>,
    /// The node's persistent identity.
    pub identity: Arc<Identity>,
    /// The node's clock and its bound.
    pub clock: BoundedClock,
}

impl StartingNode {
    /// Opens the node of the store's directory. Nothing may have been written to the store since it
    /// was opened. A directory without an identity gets this `incarnation` and membership `state`.
    /// `wall` and `max_skew` are in microseconds, here and below.
    pub fn open<S: Store>(
        store: &S,
        named: NodeSettings<'_>,
        incarnation: Incarnation,
        state: MembershipState,
        wall: u64,
        max_skew: u64,
    ) -> Result<Self, StartError> {
        let recovered = RecoveredStore::of(store.engine());
        // A previous incarnation of this node may have acknowledged versions that were ahead of its
        // clock by the allowed skew.
        let new = NewIdentity { incarnation, state, lost_before: Clock::limit(wall, max_skew) };
        let identity = Identity::open(store, named, new)?;
        let nodes = identity
            .layout_in_force()
            .map_or(named.topology.nodes(), |layout| layout.all().count());
        let clock = BoundedClock::open(store, identity.name(), nodes, wall, max_skew)?;
        Ok(Self { identity, clock, recovered, max_skew, nodes })
    }

    /// Returns the number of nodes in the cluster.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the microseconds to wait before `StartingNode::begin`: see
    /// [`BoundedClock::wait_for_wall`].
    pub fn wait_for_wall(&self, wall: u64) -> u64 {
        self.clock.wait_for_wall(self.nodes, wall, self.max_skew)
    }

    /// Returns the node's persistent identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Records this process start as a new boot of the directory, and loads the state that earlier
    /// starts stored. `number` is the random number for the boot's marker file ([`Directory`]).
    pub fn begin<S: Store, D: Directory>(
        self,
        store: &S,
        directory: &D,
        named: NodeSettings<'_>,
        wall: u64,
        number: u64,
    ) -> Result<StartedNode, StartError> {
        let Self { identity, clock, recovered, max_skew, .. } = self;
        let boot_history = identity.record_boot(store, directory, recovered, wall, number)?;
        let members = match identity.layout_in_force() {
            Some(layout) => layout.all().map(|node| (node.id, node.member.name.clone())).collect(),
            None => named.members(),
        };
        let claim = |(node, name): &(NodeId, String)| Some((*node, identity.known_claim(name)?));
        let claims: Vec<_> = members.iter().filter_map(claim).collect();
        let logs = Logs::new(identity.incarnation(), boot_history, &claims);
        let logs = Arc::new(logs.with_former_disks(identity.former_disks().clone()));
        for (node, _) in members.iter().filter(|(_, name)| identity.has_only_incarnation(name)) {
            logs.mark_only_disk(*node);
        }
        let own = (identity.own(), identity.name().to_owned());
        let alone = matches!(&members[..], [(node, _)] if *node == own.0);
        // A single node has no peers that could know a previous incarnation.
        let state = if alone { MembershipState::Member } else { identity.state() };
        // Until the peers have answered, this node may lack any write from before this start.
        let lost_before = identity.lost_before().max(Clock::limit(wall, max_skew));
        let membership = Membership::new(state, lost_before, alone);
        let membership =
            membership.with_idempotency_recovered_until(identity.idempotency_recovered_until());
        // In an outdated copy of the directory, the stored promises are older than the peers'
        // records.
        let membership = match state {
            MembershipState::Verifying => membership,
            _ => membership.with_promised_before(if alone { 0 } else { identity.lost_before() }),
        };
        let newest = store.engine().greatest_time();
        let layouts = identity.open_layouts(store, named, &logs, state)?;
        let first = View::first(named.topology.clone());
        let view = layouts.view_after(&named.first_layout(), &first);
        let clock_of = Arc::clone(clock.clock());
        let mut shared = Shared::of(own, (view, layouts), clock_of, membership, newest, logs);
        shared.repair.proofs = Arc::new(Proofs::new(identity.proof()));
        shared.membership.cluster = Arc::new(identity.own_cluster());
        store.engine().purge_rule().raise_watermark(identity.proof().proven.time);
        identity.set_purge_by_age(alone);
        identity.load_missed(store.engine(), &shared)?;
        hints::convert_old_marks(store, &identity, &shared)?;
        hints::remove_hints_of_leavers(store, &shared);
        hints::count(store.engine(), &shared)?;
        log_if_removed(&shared);
        Ok(StartedNode { shared: Arc::new(shared), identity: Arc::new(identity), clock })
    }
}

#[cfg(test)]
mod tests;
