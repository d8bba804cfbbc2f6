//! Who a node is, whom it expects, and what proves that it belongs there.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Role;
use crate::layouts::Layouts;
use crate::logs::Logs;
use crate::message::NodeId;
use crate::proof::Proofs;
use crate::view::Views;

/// What proves that a node belongs to the cluster. Empty if none is configured.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Any bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// What shows that one has it, for these parts under this label.
    pub fn prove(&self, label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        self.mac_of(label, parts).finalize().into_bytes().into()
    }

    /// Whether somebody else has shown that. It takes the same time wherever the first difference
    /// is.
    pub fn is_proven(&self, label: &[u8], parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac_of(label, parts).verify_slice(proof).is_ok()
    }

    fn mac_of(&self, label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("keys have any length");
        mac.update(label);
        for part in parts {
            mac.update(&(part.len() as u32).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    pub(super) fn mac(&self, role: Role, dialer: &[u8], acceptor: &[u8]) -> Hmac<Sha256> {
        let label: &[u8] = match role {
            Role::Dialer => b"kvorum-peer/1 dialer",
            Role::Acceptor => b"kvorum-peer/1 acceptor",
        };
        self.mac_of(label, &[dialer, acceptor])
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
    pub(super) views: Arc<Views>,
    own: NodeId,
    own_name: String,
    pub(super) cluster: u64,
    pub(super) secret: Secret,
    /// What is known of the nodes' disks, this one's included.
    pub(super) logs: Arc<Logs>,
    /// What this node knows of proofs.
    pub(super) proofs: Arc<Proofs>,
    /// Which voter it is.
    pub(super) layouts: Arc<Layouts>,
}

impl Identity {
    /// Node `own` of the cluster. `cluster` is 0 if it belongs to none yet.
    pub fn new(
        views: Arc<Views>,
        own: NodeId,
        cluster: u64,
        secret: Secret,
        (logs, proofs, layouts): (Arc<Logs>, Arc<Proofs>, Arc<Layouts>),
    ) -> Self {
        let own_name = views.name_of(own);
        Self { views, own, own_name, cluster, secret, logs, proofs, layouts }
    }

    /// This node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    pub(super) fn own_name(&self) -> &str {
        &self.own_name
    }
}
