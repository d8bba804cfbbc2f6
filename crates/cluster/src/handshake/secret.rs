//! What proves that a node belongs to the cluster, and what does so besides while one secret
//! replaces another on one node after the other.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{Channel, Role};

/// What proves that a node belongs to the cluster. Empty if none is configured.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of any bytes.
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

    /// What one side of a handshake proves itself with, on a connection of this channel.
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

/// The secrets of a node: the one it proves itself with, and another one that it also accepts.
#[derive(Debug, Default)]
pub struct Secrets {
    held: ArcSwap<HeldSecrets>,
    replaced: AtomicU64,
}

/// Those of a moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct HeldSecrets {
    own: Secret,
    also: Option<Secret>,
}

impl Secrets {
    /// A node with these.
    pub fn new(own: Secret, also: Option<Secret>) -> Self {
        Self { held: ArcSwap::from_pointee(HeldSecrets { own, also }), replaced: AtomicU64::new(0) }
    }

    /// From now on others. Connections that are there stay; returns whether anything is different.
    pub fn replace(&self, own: Secret, also: Option<Secret>) -> bool {
        let held = HeldSecrets { own, also };
        let differs = **self.held.load() != held;
        if differs {
            self.held.store(Arc::new(held));
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
        differs
    }

    /// How often they were replaced by others.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// The one that it proves itself with; `None` = it has none.
    pub fn own(&self) -> Option<Secret> {
        Some(self.held.load().own.clone()).filter(|own| *own != Secret::default())
    }

    /// The first one that `fits`, of those that are accepted.
    pub fn find(&self, fits: impl Fn(&Secret) -> bool) -> Option<Secret> {
        self.held().find(fits).cloned()
    }

    pub(super) fn held(&self) -> Arc<HeldSecrets> {
        self.held.load_full()
    }
}

impl HeldSecrets {
    pub(super) fn own(&self) -> &Secret {
        &self.own
    }

    pub(super) fn find(&self, fits: impl Fn(&Secret) -> bool) -> Option<&Secret> {
        [Some(&self.own), self.also.as_ref()].into_iter().flatten().find(|secret| fits(secret))
    }
}
