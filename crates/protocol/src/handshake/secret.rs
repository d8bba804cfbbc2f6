//! The secret that proves a node's membership in the cluster, and a second secret, which the node
//! also accepts while operators rotate the secret node by node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{Channel, Role};

/// The secret that proves a node's membership in the cluster. Empty if none is configured.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Makes a secret of any bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns a proof that this node has the secret: a MAC of these parts under this label.
    pub fn prove(&self, label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        self.mac_of(label, parts).finalize().into_bytes().into()
    }

    /// True if `proof` is the proof of these parts under this label. The comparison takes constant
    /// time, wherever the first difference is.
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

    /// Returns the MAC by which a side of a handshake proves itself. `channel` is the connection's
    /// TLS exporter; `None` = no TLS.
    pub(super) fn mac(
        &self,
        role: Role,
        [dialer, acceptor]: [&[u8]; 2],
        channel: Option<&Channel>,
    ) -> Hmac<Sha256> {
        let label: &[u8] = match role {
            Role::Dialer => b"kvorum-peer/1 dialer",
            Role::Acceptor => b"kvorum-peer/1 acceptor",
        };
        match channel {
            None => self.mac_of(label, &[dialer, acceptor]),
            Some(channel) => self.mac_of(label, &[dialer, acceptor, channel]),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The secrets of a node: the secret that the node proves itself with, and a second secret that it
/// also accepts.
#[derive(Debug, Default)]
pub struct Secrets {
    held: ArcSwap<SecretsSnapshot>,
    replaced: AtomicU64,
}

/// A snapshot of a node's secrets.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SecretsSnapshot {
    own: Secret,
    also: Option<Secret>,
}

impl Secrets {
    /// Makes the secrets of a node.
    pub fn new(own: Secret, also: Option<Secret>) -> Self {
        Self {
            held: ArcSwap::from_pointee(SecretsSnapshot { own, also }),
            replaced: AtomicU64::new(0),
        }
    }

    /// Replaces the secrets. Existing connections stay; returns true if the new secrets differ.
    pub fn replace(&self, own: Secret, also: Option<Secret>) -> bool {
        let held = SecretsSnapshot { own, also };
        let differs = **self.held.load() != held;
        if differs {
            self.held.store(Arc::new(held));
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
        differs
    }

    /// Returns the number of times that the secrets were replaced by different secrets.
    pub fn replacements(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Returns the secret that the node proves itself with; `None` = the node has none.
    pub fn own(&self) -> Option<Secret> {
        Some(self.held.load().own.clone()).filter(|own| *own != Secret::default())
    }

    /// Returns the first accepted secret for which `fits` is true; `None` if there is none.
    pub fn find(&self, fits: impl Fn(&Secret) -> bool) -> Option<Secret> {
        self.snapshot().find(fits).cloned()
    }

    pub(super) fn snapshot(&self) -> Arc<SecretsSnapshot> {
        self.held.load_full()
    }
}

impl SecretsSnapshot {
    pub(super) fn own(&self) -> &Secret {
        &self.own
    }

    pub(super) fn find(&self, fits: impl Fn(&Secret) -> bool) -> Option<&Secret> {
        [Some(&self.own), self.also.as_ref()].into_iter().flatten().find(|secret| fits(secret))
    }
}
