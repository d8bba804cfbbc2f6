//! This node's identity in handshakes: its name, the nodes that it expects, and the secret that
//! proves its membership.

use std::sync::Arc;

use super::{Secrets, VERSIONS};
use crate::membership::adopted_layout::Layouts;
use crate::membership::cluster_id::OwnCluster;
use crate::membership::logs::Logs;
use crate::message::NodeId;
use crate::placement::view::Views;
use crate::repair::watermark::Proofs;

/// This node's identity and the nodes that it expects, shared by all its handshakes.
#[derive(Debug)]
pub struct HandshakeIdentity {
    /// [`VERSIONS`], except in tests of an upgrade.
    pub(super) versions: (u16, u16),
    pub(super) views: Arc<Views>,
    own: NodeId,
    own_name: String,
    /// The cluster that this node belongs to.
    pub(super) cluster: Arc<OwnCluster>,
    pub(super) secrets: Arc<Secrets>,
    /// The known disks of all nodes, including this node.
    pub(super) logs: Arc<Logs>,
    /// This node's proof state.
    pub(super) proofs: Arc<Proofs>,
    /// The layouts that this node knows, and its own id as a voter.
    pub(super) layouts: Arc<Layouts>,
}

impl HandshakeIdentity {
    /// Makes the identity of node `own` of the cluster.
    pub fn new(
        views: Arc<Views>,
        own: NodeId,
        cluster: Arc<OwnCluster>,
        secrets: Arc<Secrets>,
        (logs, proofs, layouts): (Arc<Logs>, Arc<Proofs>, Arc<Layouts>),
    ) -> Self {
        let own_name = views.name_of(own);
        let versions = VERSIONS;
        Self { versions, views, own, own_name, cluster, secrets, logs, proofs, layouts }
    }

    /// Returns the id of this node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    pub(super) fn own_name(&self) -> &str {
        &self.own_name
    }
}
