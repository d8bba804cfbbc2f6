//! Who a node is, whom it expects, and what proves that it belongs there.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Role;
use crate::logs::Logs;
use crate::message::NodeId;
use crate::topology::Topology;

/// What proves that a node belongs to the cluster. Empty if none is configured.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Any bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(super) fn mac(&self, role: Role, dialer: &[u8], acceptor: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("keys have any length");
        mac.update(match role {
            Role::Dialer => b"kvorum-peer/1 dialer",
            Role::Acceptor => b"kvorum-peer/1 acceptor",
        });
        for hello in [dialer, acceptor] {
            mac.update(&(hello.len() as u32).to_le_bytes());
            mac.update(hello);
        }
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Who this node is, and whom it expects: shared by all its handshakes.
#[derive(Debug)]
pub struct Identity {
    pub(super) topology: Topology,
    pub(super) own: NodeId,
    pub(super) cluster: u64,
    pub(super) secret: Secret,
    /// What is known of the nodes' disks, this one's included.
    pub(super) logs: Arc<Logs>,
}

impl Identity {
    /// Node `own` of `topology`. `cluster` is 0 if it belongs to none yet.
    pub fn new(
        topology: Topology,
        own: NodeId,
        cluster: u64,
        secret: Secret,
        logs: Arc<Logs>,
    ) -> Self {
        Self { topology, own, cluster, secret, logs }
    }

    /// The cluster's nodes.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// This node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    /// A node's name.
    pub fn name(&self, node: NodeId) -> &str {
        &self.topology.member(node).name
    }

    pub(super) fn own_name(&self) -> &str {
        self.name(self.own)
    }
}
