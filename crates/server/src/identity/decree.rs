//! A forced layout (decree), decided on the directory of a stopped node without the metadata
//! quorum.
//!
//! ```text
//!   directory ─▶ SurvivingDirectory::read ─▶ the operator confirms
//!                    │                     ─▶ store_decree: the forced layout is stored
//!                    │                     ─▶ the next start uses it, and sends it to other nodes
//!                    └─ refuses a copied directory whose node has not started since the copy
//! ```

use lsm::{Batch, Engine, Space, Version};
use protocol::LayoutsRecord;
use protocol::layout::{DecreeError, Layout, VoterId};
use protocol::{ClusterId, MembershipState, NodeId};

use super::marker::Directory;
use super::{LIVES, format, identity_error, layouts, newest, read, unreadable};
use crate::start_error::StartError;
use crate::store::Store;

/// The surviving directory of a stopped node.
#[derive(Debug)]
pub struct SurvivingDirectory {
    name: String,
    state: MembershipState,
    cluster: Option<ClusterId>,
    record: LayoutsRecord,
}

impl SurvivingDirectory {
    /// Reads the node's identity and layouts from its directory. Fails if the directory belongs to
    /// no node, or is a copy whose node has not started since.
    pub fn read<D: Directory>(engine: &Engine, directory: &D) -> Result<Self, StartError> {
        let another = |what: &str| StartError::Another(what.to_owned());
        let Some((kept, _)) = read(engine)? else {
            return Err(another("it belongs to no node of a cluster yet"));
        };
        let stored = engine.read(Space::Node, layouts::KEY).map_err(identity_error)?;
        let Some(stored) = stored else {
            return Err(another("it is of a release before layouts: start the node once"));
        };
        let record = LayoutsRecord::decode(&stored.value());
        let record = record.map_err(|why| unreadable("the cluster's layout", why))?;
        let lives = engine.read(Space::Node, LIVES).map_err(identity_error)?;
        let lives = lives.map(|lives| format::decode_lives(&lives.value())).transpose();
        let marker = lives
            .map_err(|why| unreadable("the record of the node's earlier starts (lives)", why))?;
        let holds = marker.map(|(marker, _)| directory.holds(&marker)).transpose();
        if holds.map_err(StartError::Unreadable)? == Some(false) {
            return Err(another(
                "it is a copy, or was moved from another file system, and its node does not know \
                 that yet, which would lose its vote: start the node once, stop it, and run this \
                 again",
            ));
        }
        Ok(Self { name: kept.name, state: kept.state, cluster: kept.cluster, record })
    }

    /// Returns the node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the node's id.
    pub fn node(&self) -> NodeId {
        self.record.node()
    }

    /// Returns the id of the node's cluster, if the cluster has one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Returns the node's membership state.
    pub fn state(&self) -> MembershipState {
        self.state
    }

    /// Returns the last layout that the node knows to be decided.
    pub fn layout(&self) -> &Layout {
        self.record.known_layout()
    }

    /// Returns the epoch of an accepted layout that may have been decided; `None` = there is none.
    pub fn accepted_epoch(&self) -> Option<u64> {
        self.record.accepted_epoch()
    }

    /// Returns true if the node has a vote.
    pub fn has_vote(&self) -> bool {
        self.record.has_vote()
    }

    /// Returns the layout that the node would force, with `voter` as the node's new voter id.
    /// `lost`: the nodes whose disks are lost.
    pub fn plan_forced_layout(
        &self,
        voter: VoterId,
        lost: &[NodeId],
    ) -> Result<Layout, DecreeError> {
        self.record.plan_forced_layout(voter, lost)
    }

    /// Stores the forced layout and the new voter id; the next start uses them. Durable on return.
    pub fn store_decree<S: Store>(
        &self,
        store: &S,
        layout: Layout,
        voter: VoterId,
    ) -> Result<(), StartError> {
        let record = self.record.with_adopted_layout(layout, voter);
        let origin = protocol::origin_of(&self.name);
        let version = Version { time: newest(store.engine())? + 1, origin };
        let mut batch = Batch::new();
        batch.put(Space::Node, layouts::KEY, version, &record).map_err(identity_error)?;
        batch.make_durable();
        store.commit(batch).map_err(identity_error)
    }
}
