//! The HELLO: a node's claims about itself before it trusts the other side.
//!
//! Fields in order, each with its length in bytes; `1 + n` is a text of n bytes after its length.
//! [`Hello`] explains the fields. The four `knows_you` fields are one [`Claim`].
//!
//! ```text
//!  magic 8 │ least version 2 │ greatest version 2 │ features 8 │ role 1 │ connection 1
//!  cluster 8 │ incarnation 8 │ knows_you.incarnation 8 │ placement 8 │ nonce 32
//!  name 1 + n │ to 1 + n
//!  life 8 │ knows_you.life 8 │ knows_you.position 8 │ knows_you.late 8 │ epoch 8
//!  proven.time 8 │ proven.node 2 │ voter 8 │ node 2 │ knew_another 1
//!  fields of later versions, which are ignored
//! ```

use super::{NAME_MAX, Nonce};
use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_ids::{BootId, Incarnation, LogPosition};
use crate::membership::layout::VoterId;
use crate::membership::logs::{Claim, Reported};
use crate::message::NodeId;
use crate::placement::view::ViewId;
use crate::repair::watermark::RoundId;

const MAGIC: &[u8; 8] = b"kvorum\0\x01";

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that made the connection.
    Dialer,
    /// The side that accepted the connection.
    Acceptor,
}

impl Role {
    /// Returns the role of the other side.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// The purpose of a connection. The dialer sends requests on the connection and receives their
/// replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionKind {
    /// Short requests, for whose replies the sender waits.
    Small,
    /// Long requests: pages and hints.
    Bulk,
}

/// The first message of both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The least and the greatest version of the protocol that the sender speaks.
    pub versions: (u16, u16),
    /// The optional parts of the protocol that the sender speaks; the parts that both sides speak
    /// are in use. No optional part exists yet.
    pub features: u64,
    /// The sender's side of the connection.
    pub role: Role,
    /// The purpose of the connection.
    pub connection: ConnectionKind,
    /// The sender's cluster; `None` = the sender has none yet.
    pub cluster: Option<ClusterId>,
    /// The sender's incarnation: the random id of its disk.
    pub incarnation: Incarnation,
    /// The sender's boot id, which is greater than those of earlier processes on its disk.
    pub life: BootId,
    /// The sender's knowledge of the other side's disk; `None` = no knowledge, which the wire
    /// encodes as an incarnation of 0.
    pub knows_you: Option<Claim>,
    /// True if the sender knew, or may have known, another disk of the other side before.
    pub knew_another: bool,
    /// The last proven round that the sender knows.
    pub proven: RoundId,
    /// The sender's view.
    pub view: ViewId,
    /// The sender's id as a voter ([`Voter`](crate::membership::layout::Voter)); `None` = not
    /// stated.
    pub voter: Option<VoterId>,
    /// The sender's id, which distinguishes the sender from an earlier node of the same name.
    pub node: NodeId,
    /// Fresh random bytes.
    pub nonce: Nonce,
    /// The sender's name.
    pub name: String,
    /// The name by which the sender knows the other side.
    pub to: String,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.name.len() + self.to.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.versions.0.to_le_bytes());
        out.extend_from_slice(&self.versions.1.to_le_bytes());
        out.extend_from_slice(&self.features.to_le_bytes());
        out.push(if self.role == Role::Dialer { 0 } else { 1 });
        out.push(if self.connection == ConnectionKind::Small { 0 } else { 1 });
        let known = self.knows_you.map_or(0, |claim| claim.incarnation.0);
        let cluster = self.cluster.map_or(0, |cluster| cluster.0);
        for number in [cluster, self.incarnation.0, known, self.view.placement] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.nonce);
        for name in [&self.name, &self.to] {
            assert!(name.len() <= NAME_MAX, "a name of {} bytes", name.len());
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
        }
        let reported = self.knows_you.map_or(Reported::default(), |claim| claim.reported);
        let by = reported.life.map_or(0, |life| life.0);
        let (position, late) = (reported.position.0, reported.late.0);
        for number in [self.life.0, by, position, late, self.view.epoch] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.proven.time.to_le_bytes());
        out.extend_from_slice(&self.proven.node.0.to_le_bytes());
        out.extend_from_slice(&self.voter.map_or(0, |voter| voter.0).to_le_bytes());
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.push(u8::from(self.knew_another));
        out
    }

    /// Decodes a HELLO. Bytes after the last field belong to a later version and are ignored.
    /// Errors: the reason why the bytes are not a HELLO.
    pub(super) fn decode(input: &[u8]) -> Result<Self, &'static str> {
        let mut input = Input(input);
        if input.array()? != *MAGIC {
            return Err("an unknown protocol");
        }
        let versions = (input.u16()?, input.u16()?);
        let features = input.u64()?;
        let role = match input.u8()? {
            0 => Role::Dialer,
            1 => Role::Acceptor,
            _ => return Err("an unknown role"),
        };
        let connection = match input.u8()? {
            0 => ConnectionKind::Small,
            1 => ConnectionKind::Bulk,
            _ => return Err("an unknown connection"),
        };
        let cluster = ClusterId::of_number(input.u64()?);
        let incarnation = Incarnation::of_number(input.u64()?).ok_or("no incarnation")?;
        let known = Incarnation::of_number(input.u64()?);
        let (placement, nonce, name, to) =
            (input.u64()?, input.array()?, input.name()?, input.name()?);
        let (life, by) = (BootId(input.u64()?), BootId::of_number(input.u64()?));
        let (position, late) = (LogPosition(input.u64()?), LogPosition(input.u64()?));
        let reported = Reported { life: by, position, late };
        let epoch = input.u64()?;
        let proven = RoundId { time: input.u64()?, node: NodeId(input.u16()?) };
        let voter = VoterId::of_number(input.u64()?);
        let node = NodeId(input.u16()?);
        let knew_another = input.u8()? != 0;
        let knows_you = known.map(|incarnation| Claim { incarnation, reported });
        Ok(Self {
            versions,
            features,
            role,
            connection,
            cluster,
            incarnation,
            life,
            knows_you,
            knew_another,
            proven,
            view: ViewId { epoch, placement },
            voter,
            node,
            nonce,
            name,
            to,
        })
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (array, rest) = self.0.split_first_chunk().ok_or("a hello that ends too early")?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<String, &'static str> {
        let length = usize::from(self.u8()?);
        let (name, rest) = self.0.split_at_checked(length).ok_or("a hello that ends too early")?;
        self.0 = rest;
        let name = std::str::from_utf8(name).map_err(|_| "a name that is not UTF-8")?;
        // Names are written to the log, so they must not contain control characters.
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err("a name with unprintable characters");
        }
        Ok(name.to_owned())
    }
}
