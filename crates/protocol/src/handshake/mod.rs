//! The handshake by which two nodes authenticate each other, on a connection that any process may
//! have opened.
//!
//! ```text
//!   dialer                                  acceptor
//!     │ HELLO  versions, names, nonce … ──────▶ │
//!     │ ◀────── HELLO  versions, names, nonce … │   ≤ HELLO_MAX bytes each
//!     │ PROOF  HMAC(secret, role, HELLOs) ────▶ │   if wrong: refusing VERDICT, then close
//!     │ ◀────── PROOF, VERDICT                  │   the acceptor proves itself
//!     │ VERDICT ──────────────────────────────▶ │   both sides know both verdicts
//!     │ envelopes …                             │
//! ```
//!
//! The secret never crosses the wire. A proof covers the other side's nonce, so that no proof is
//! valid twice, and the prover's role, so that a proof can't be sent back to its maker. The
//! acceptor proves nothing to a dialer that has not proved itself. A topology is described only
//! after both proofs, and only if the two topologies differ, so that both sides can log the
//! difference. The side with the later layout sends that layout with its verdict, whatever the
//! verdict is; if the layout belongs to a fork, the nodes refuse each other.
//!
//! Over TLS a proof also covers the connection's exporter. A man in the middle has two connections
//! with two exporters, and can relay no proof. So nodes need not check the owner of each other's
//! certificate. Without TLS the handshake keeps out processes that do not know the secret, but not
//! an attacker who can change packets in transit.

mod hello;
mod own_identity;
mod reasons;
mod secret;

use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

pub use hello::{ConnectionKind, Hello, Role};
pub use own_identity::HandshakeIdentity;
pub use reasons::{HandshakeRefused, Reason};
pub use secret::{Secret, Secrets};

use self::secret::SecretsSnapshot;
use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_ids::{BootId, Incarnation};
use crate::membership::layout::{Layout, VoterId};
use crate::membership::logs::Claim;
use crate::message::NodeId;
use crate::placement::view::{FIRST_EPOCH, View};
use crate::repair::watermark::RoundId;

/// The least and the greatest version of the protocol that this node speaks. Two nodes speak the
/// greatest version that both know. A release that changes the protocol raises only the greatest
/// version, so that a cluster is upgraded, or downgraded, one node at a time.
pub const VERSIONS: (u16, u16) = (1, 1);

/// The longest frame before the other side has proved itself, in bytes: a HELLO with two names.
pub const HELLO_MAX: usize = 1024;

/// The longest name of a node, in bytes.
pub const NAME_MAX: usize = 255;

/// The longest frame after the proof, in bytes: the description of a topology of thousands of
/// nodes.
pub const VERDICT_MAX: usize = 512 << 10;

/// The length of a proof, in bytes.
const PROOF_LEN: usize = 32;

/// The random bytes that each side contributes.
pub type Nonce = [u8; 32];

/// The TLS exporter of a connection (RFC 8446, section 7.5). The exporter differs between all
/// connections, and only the two ends know it.
pub type Channel = [u8; 32];

/// The bytes before a frame's body: its length and type.
const FRAME_HEAD: usize = 5;

mod frame {
    pub(super) const HELLO: u8 = 1;
    pub(super) const PROOF: u8 = 2;
    pub(super) const VERDICT: u8 = 3;
}

/// A peer that has proved its membership in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSeen {
    /// The peer's id.
    pub node: NodeId,
    /// The peer's incarnation: the id of its disk.
    pub incarnation: Incarnation,
    /// The peer's boot id: the process on that disk.
    pub life: BootId,
    /// The peer's knowledge of this node's disk; `None` = the peer never knew any disk of this
    /// node.
    pub knows_us: Option<Claim>,
    /// True if the disk that the peer knows is the only disk of this node that the peer ever knew.
    pub knew_only_this_disk: bool,
    /// The last proven round that the peer knows.
    pub proven: RoundId,
    /// The peer's id as a voter on layouts.
    pub voter: Option<VoterId>,
    /// The peer's cluster; `None` = the peer has none yet.
    pub cluster: Option<ClusterId>,
    /// The purpose of the connection.
    pub connection: ConnectionKind,
    /// The greatest version of the protocol that both nodes speak. Additions of a later version are
    /// not sent to the peer.
    pub version: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeStage {
    /// Waits for the other side's HELLO.
    Hello,
    /// Waits for the other side's PROOF.
    Proof,
    /// Waits for the other side's VERDICT.
    Verdict,
    /// The handshake has ended.
    Over,
}

/// One side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    identity: Arc<HandshakeIdentity>,
    /// The view when the handshake began.
    view: Arc<View>,
    role: Role,
    stage: HandshakeStage,
    nonce: Nonce,
    /// The secrets accepted when the handshake began, and the secret of this side's proof. An
    /// acceptor uses the same secret as the dialer.
    secrets: Arc<SecretsSnapshot>,
    secret: Secret,
    /// The channel of the connection, if it uses TLS.
    channel: Option<Channel>,
    connection: ConnectionKind,
    /// The node that this side wanted to reach, if it made the connection.
    to: Option<NodeId>,
    /// Both HELLOs as they were sent: the dialer's, then the acceptor's.
    hellos: [Vec<u8>; 2],
    theirs: Option<Hello>,
    /// The content of this side's HELLO: the id of its cluster, and its knowledge of the other
    /// side's disk.
    own_claims: (Option<ClusterId>, Option<Claim>),
    /// This side's reason to refuse the other, if any.
    own_reason: Option<Reason>,
    input: Vec<u8>,
}

impl Handshake {
    /// Begins the dialer's side, to reach the node `to`. `nonce` must be fresh and random. This
    /// method and [`Handshake::receive`] append the bytes to send to `out`.
    pub fn dial(
        identity: Arc<HandshakeIdentity>,
        to: NodeId,
        connection: ConnectionKind,
        nonce: Nonce,
        out: &mut Vec<u8>,
    ) -> Self {
        let mut this = Self::new(identity, Role::Dialer, connection, nonce);
        this.to = Some(to);
        let known = this.identity.logs.claim(to);
        let name = this.identity.views.name_of(to);
        this.own_claims.1 = known;
        let hello = this.hello(name, Some(to));
        this.hellos[0] = hello.encode();
        put_frame(out, frame::HELLO, &this.hellos[0]);
        this
    }

    /// Begins the acceptor's side.
    pub fn accept(identity: Arc<HandshakeIdentity>, nonce: Nonce) -> Self {
        Self::new(identity, Role::Acceptor, ConnectionKind::Small, nonce)
    }

    fn new(
        identity: Arc<HandshakeIdentity>,
        role: Role,
        connection: ConnectionKind,
        nonce: Nonce,
    ) -> Self {
        let view = identity.views.current();
        let own_claims = (identity.cluster.id(), None);
        let secrets = identity.secrets.snapshot();
        Self {
            secret: secrets.own().clone(),
            secrets,
            channel: None,
            identity,
            view,
            role,
            stage: HandshakeStage::Hello,
            nonce,
            connection,
            to: None,
            hellos: [Vec::new(), Vec::new()],
            theirs: None,
            own_claims,
            own_reason: None,
            input: Vec::new(),
        }
    }

    /// Binds the handshake to a TLS connection, so that its proofs are valid between these two ends
    /// only.
    pub fn bind_to_channel(self, channel: Option<Channel>) -> Self {
        Self { channel, ..self }
    }

    /// Handles bytes from the other side. With `Ok(Some)` the handshake is done, and
    /// [`Handshake::remaining_bytes`] returns the bytes that follow it. With `Err`, the caller
    /// sends `out` before closing the connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<PeerSeen>, HandshakeRefused> {
        self.input.extend_from_slice(input);
        while self.stage != HandshakeStage::Over {
            let Some((kind, body)) = self.next_frame()? else { return Ok(None) };
            let peer =
                self.frame(kind, &body, out).inspect_err(|_| self.stage = HandshakeStage::Over)?;
            if peer.is_some() {
                return Ok(peer);
            }
        }
        Ok(None)
    }

    /// Returns the bytes that were received after the end of the handshake.
    pub fn remaining_bytes(self) -> Vec<u8> {
        self.input
    }

    /// Returns the name that the other side claims but has not proved.
    pub fn claimed_name(&self) -> Option<&str> {
        self.theirs.as_ref().map(|hello| hello.name.as_str())
    }

    fn next_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, HandshakeRefused> {
        let Some(head) = self.input.get(..FRAME_HEAD) else { return Ok(None) };
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let most = if self.stage == HandshakeStage::Verdict { VERDICT_MAX } else { HELLO_MAX };
        if length > most {
            return Err(self.refuse(Reason::Malformed("a frame that is too long")));
        }
        let kind = head[4];
        if self.input.len() < FRAME_HEAD + length {
            return Ok(None);
        }
        let body = self.input[FRAME_HEAD..FRAME_HEAD + length].to_vec();
        self.input.drain(..FRAME_HEAD + length);
        Ok(Some((kind, body)))
    }

    fn frame(
        &mut self,
        kind: u8,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<PeerSeen>, HandshakeRefused> {
        match (self.stage, kind) {
            (HandshakeStage::Hello, frame::HELLO) => self.receive_hello(body, out)?,
            (HandshakeStage::Proof, frame::PROOF) => self.receive_proof(body, out)?,
            (HandshakeStage::Verdict, frame::VERDICT) => return self.receive_verdict(body, out),
            // These two verdicts may come before any proof, and are not trusted.
            (_, frame::VERDICT) => {
                return Err(self.refuse(match body.first().copied().and_then(Reason::of_code) {
                    Some(reason @ (Reason::Version | Reason::Secret)) => reason,
                    _ => Reason::Malformed("a verdict before a proof"),
                }));
            }
            _ => return Err(self.refuse(Reason::Malformed("a frame out of order"))),
        }
        Ok(None)
    }

    /// Handles a HELLO.
    fn receive_hello(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeRefused> {
        let hello = Hello::decode(body).map_err(|what| self.refuse(Reason::Malformed(what)))?;
        let (role, versions, connection) = (hello.role, hello.versions, hello.connection);
        let (name, node) = (hello.name.clone(), self.node_of(&hello));
        self.theirs = Some(hello);
        if role == self.role {
            return Err(self.refuse(Reason::Malformed("both sides have one role")));
        }
        let own = self.identity.versions;
        let has_version = versions.0.max(own.0) <= versions.1.min(own.1);
        if self.role == Role::Acceptor {
            self.connection = connection;
            self.hellos[0] = body.to_vec();
            self.own_claims.1 = node.and_then(|node| self.identity.logs.claim(node));
            self.hellos[1] = self.hello(name, node).encode();
            // The HELLO goes out even before a refusal, so that the dialer can log which versions
            // this side speaks.
            put_frame(out, frame::HELLO, &self.hellos[1]);
        }
        if !has_version {
            return Err(self.refuse_unproven(Reason::Version, out));
        }
        if self.role == Role::Dialer {
            if connection != self.connection {
                return Err(self.refuse(Reason::Malformed("another connection than was asked for")));
            }
            self.hellos[1] = body.to_vec();
            self.send_proof(out);
        }
        self.stage = HandshakeStage::Proof;
        Ok(())
    }

    /// Handles a PROOF.
    fn receive_proof(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeRefused> {
        if body.len() != PROOF_LEN {
            return Err(self.refuse(Reason::Malformed("a proof of another length")));
        }
        // The comparison takes constant time, wherever the first difference is.
        let proves =
            |secret: &Secret| self.mac(secret, self.role.other()).verify_slice(body).is_ok();
        let Some(secret) = self.secrets.find(proves).cloned() else {
            return Err(self.refuse_unproven(Reason::Secret, out));
        };
        self.secret = secret;
        self.own_reason = self.classify();
        if self.role == Role::Acceptor {
            self.send_proof(out);
            self.send_verdict(out);
        }
        self.stage = HandshakeStage::Verdict;
        Ok(())
    }

    /// Handles a VERDICT.
    fn receive_verdict(
        &mut self,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<PeerSeen>, HandshakeRefused> {
        let Some((code, description)) = body.split_first() else {
            return Err(self.refuse(Reason::Malformed("a verdict without a word")));
        };
        let learns_of_fork = code != &Reason::Topology.code()
            && !self.learn(description)
            && self.own_reason.is_none();
        if learns_of_fork {
            self.own_reason = Some(Reason::Forked);
        }
        if self.role == Role::Dialer {
            self.send_verdict(out);
        }
        self.stage = HandshakeStage::Over;
        let theirs = match code {
            0 => None,
            code => Some(Reason::of_code(*code).unwrap_or(Reason::Malformed("it refuses"))),
        };
        let hello = self.theirs.as_ref();
        let node = hello.and_then(|hello| self.node_of(hello));
        match (self.own_reason.or(theirs), hello, node) {
            (None, Some(hello), Some(node)) => Ok(Some(PeerSeen {
                node,
                incarnation: hello.incarnation,
                life: hello.life,
                knows_us: hello.knows_you,
                knew_only_this_disk: hello.knows_you.is_some() && !hello.knew_another,
                proven: hello.proven,
                voter: hello.voter,
                cluster: hello.cluster,
                connection: self.connection,
                version: hello.versions.1.min(self.identity.versions.1),
            })),
            (reason, ..) => {
                let reason = reason.unwrap_or(Reason::Name);
                Err(self.refusal(reason, description))
            }
        }
    }

    /// Returns this side's reason to refuse a node that has proved itself, if any.
    fn classify(&self) -> Option<Reason> {
        let (ours, theirs) = (&self.identity, self.theirs.as_ref()?);
        if theirs.name == ours.own_name() {
            let itself = theirs.incarnation == ours.logs.own_incarnation();
            return Some(if itself { Reason::Itself } else { Reason::Namesake });
        }
        // Of two nodes with different views, the node with the earlier view learns the later view.
        let is_of_another_time = theirs.view.epoch != self.view.epoch;
        if !is_of_another_time && !self.view.agrees_with(theirs.view) {
            // Decided layouts agree unless there is a fork.
            let is_first = self.view.epoch == FIRST_EPOCH;
            return Some(if is_first { Reason::Topology } else { Reason::Forked });
        }
        if self.is_of_another_cluster(theirs) {
            return Some(Reason::Cluster);
        }
        if ours.layouts.active_layout().forks_from(theirs.view.epoch) {
            return Some(Reason::Forked);
        }
        let (asked, reached) = match self.role {
            Role::Dialer => (self.dialed_name(), theirs.name.as_str()),
            Role::Acceptor => (theirs.to.clone(), ours.own_name()),
        };
        let is_reached = |node: &NodeId| asked == reached && self.to.is_none_or(|to| to == *node);
        let Some(node) = self.node_of(theirs).filter(is_reached) else {
            return Some(Reason::Name);
        };
        if ours.logs.has_later_boot(node, theirs.incarnation, theirs.life) {
            return Some(Reason::Outlived);
        }
        ours.logs.is_connected_elsewhere(node, theirs.incarnation).then_some(Reason::Taken)
    }

    /// Returns the other side's node in this side's view: the node with the id in the HELLO.
    /// Returns `None` if there is no such node, or if its name differs from the name in the HELLO.
    fn node_of(&self, hello: &Hello) -> Option<NodeId> {
        self.view.has_node_named(hello.node, &hello.name).then_some(hello.node)
    }

    /// Learns the layout that the other side sent with its verdict. A node whose handshakes fail,
    /// because the node was removed or because new members joined while it was away, has no other
    /// way to learn the layout. Returns `false` if the layout belongs to a fork, so that the nodes
    /// must refuse each other.
    fn learn(&self, layout: &[u8]) -> bool {
        let Some(layout) = Layout::from_bytes(layout).ok().filter(|layout| self.may_learn(layout))
        else {
            return true;
        };
        let layouts = &self.identity.layouts;
        layouts.learn(&Arc::new(layout.clone()))
            || layouts.known_layout().shares_lineage_with(&layout)
    }

    /// True if the other side belongs to another cluster. The two cluster ids decide; if a side has
    /// no id, the disks that the two sides know decide. Within one cluster, at most one side knows
    /// a former disk of the other side instead of the present one. The reason: a node that was seen
    /// with its present disk has met the other node's present disk or an earlier one. A node
    /// without an id that holds data and knows other nodes still has its first disk.
    fn is_of_another_cluster(&self, theirs: &Hello) -> bool {
        let (cluster, known) = self.own_claims;
        let ours = &self.identity;
        if let Some((theirs, own)) = theirs.cluster.zip(cluster) {
            return theirs != own;
        }
        let own_disk = ours.logs.own_incarnation();
        let knows_another = known.is_some_and(|known| known.incarnation != theirs.incarnation);
        let is_another = theirs.knows_you.is_some_and(|known| known.incarnation != own_disk);
        let is_data_shared = cluster.is_none() && ours.cluster.is_data_shared();
        is_another && (knows_another || is_data_shared)
    }

    /// Compares the two clusters' ids; `None` = at least one side has no id.
    fn have_same_id(&self) -> Option<bool> {
        let (theirs, own) = self.theirs.as_ref()?.cluster.zip(self.own_claims.0)?;
        Some(theirs == own)
    }

    /// True if this node may adopt a layout that the other side sends: if both sides have the same
    /// cluster id; or if a side has no id, and this node has met the other side's disk before or
    /// has a place in the layout.
    fn may_learn(&self, layout: &Layout) -> bool {
        let (ours, Some(theirs)) = (&self.identity, &self.theirs) else { return false };
        let (own, own_name) = (ours.own(), ours.own_name());
        let has_place = || layout.all().any(|node| node.id == own && node.member.name == own_name);
        let was_met = || ours.logs.has_seen_disk(theirs.node, theirs.incarnation);
        let are_two = self.own_reason == Some(Reason::Cluster);
        self.have_same_id().unwrap_or_else(|| !are_two && (has_place() || was_met()))
    }

    /// Returns the name of the node that this side, the dialer, wanted to reach.
    fn dialed_name(&self) -> String {
        Hello::decode(&self.hellos[0]).map(|hello| hello.to).unwrap_or_default()
    }

    fn hello(&self, to: String, node: Option<NodeId>) -> Hello {
        let (cluster, knows_you) = self.own_claims;
        let had_another_disk = node.is_some_and(|node| self.identity.logs.had_another_disk(node));
        Hello {
            versions: self.identity.versions,
            features: 0,
            role: self.role,
            connection: self.connection,
            cluster,
            incarnation: self.identity.logs.own_incarnation(),
            life: self.identity.logs.life(),
            knows_you,
            knew_another: had_another_disk,
            proven: self.identity.proofs.known_proof().proven,
            view: self.view.id(),
            voter: self.identity.layouts.voter().id,
            node: self.identity.own(),
            nonce: self.nonce,
            name: self.identity.own_name().to_owned(),
            to,
        }
    }

    fn send_proof(&self, out: &mut Vec<u8>) {
        let mac = self.mac(&self.secret, self.role);
        put_frame(out, frame::PROOF, &mac.finalize().into_bytes());
    }

    fn mac(&self, secret: &Secret, role: Role) -> Hmac<Sha256> {
        let [dialer, acceptor] = &self.hellos;
        secret.mac(role, [dialer, acceptor], self.channel.as_ref())
    }

    fn send_verdict(&self, out: &mut Vec<u8>) {
        let sent = |reason| reasons::reason_to_send(reason, &self.identity, self.theirs.as_ref());
        let mut body = vec![self.own_reason.map(sent).map_or(0, Reason::code)];
        if self.own_reason == Some(Reason::Topology) {
            let description = self.view.topology.describe();
            let most = VERDICT_MAX - body.len();
            body.extend_from_slice(&description.as_bytes()[..description.len().min(most)]);
        } else {
            let layout = self.identity.layouts.active_layout();
            let is_later = self.theirs.as_ref().is_some_and(|them| them.view.epoch < layout.epoch);
            let are_two = self.own_reason == Some(Reason::Cluster);
            if is_later && self.have_same_id().unwrap_or(!are_two) {
                let layout = layout.to_bytes();
                body.extend_from_slice(if layout.len() < VERDICT_MAX { &layout } else { &[] });
            }
        }
        put_frame(out, frame::VERDICT, &body);
    }

    /// Refuses the other side, which has not proved itself, and sends it the reason.
    fn refuse_unproven(&self, reason: Reason, out: &mut Vec<u8>) -> HandshakeRefused {
        put_frame(out, frame::VERDICT, &[reason.code()]);
        self.refuse(reason)
    }

    fn refuse(&self, reason: Reason) -> HandshakeRefused {
        self.refusal(reason, b"")
    }

    /// Makes the error of a refusal. `description` is the other side's topology, if it was sent.
    fn refusal(&self, reason: Reason, description: &[u8]) -> HandshakeRefused {
        let dialed = if self.role == Role::Dialer { self.dialed_name() } else { String::new() };
        reasons::refusal_error(reason, &self.identity, self.theirs.as_ref(), &dialed, description)
    }
}

fn put_frame(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod two_clusters;
