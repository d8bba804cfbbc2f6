//! What a node says about itself before it trusts the other.
//!
//! ```text
//!  magic 8 │ least 2 │ greatest version 2 │ features 8 │ role 1 │ lane 1 │ cluster 8
//!  incarnation 8 │ knows you as 8 │ epoch 8 │ nonce 32 │ name 1 + n │ to 1 + n │ later versions' …
//! ```

use super::{NAME_MAX, Nonce};

const MAGIC: &[u8; 8] = b"kvorum\0\x01";

/// Who made the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This side.
    Dialer,
    /// The other one.
    Acceptor,
}

impl Role {
    /// The other side's.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// What a connection is for. The dialer's requests go out on it and their replies come back on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneKind {
    /// Short requests, which somebody waits for.
    Small,
    /// Long ones, pages and hints.
    Bulk,
}

/// What both sides say first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The least and the greatest version of the protocol that it speaks.
    pub versions: (u16, u16),
    /// Optional parts of the protocol that it speaks; those of both are in use. There are none yet.
    pub features: u64,
    /// Its side.
    pub role: Role,
    /// What the connection is for.
    pub lane: LaneKind,
    /// Its cluster; 0 = it has none yet.
    pub cluster: u64,
    /// Since when it has its disk: a random number, not 0.
    pub incarnation: u64,
    /// The incarnation under which it knows the other side; on the wire 0 = none.
    pub knows_you_as: Option<u64>,
    /// Digest of its topology.
    pub epoch: u64,
    /// Fresh random bytes.
    pub nonce: Nonce,
    /// Its name.
    pub name: String,
    /// The other side's name, as it believes.
    pub to: String,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(88 + self.name.len() + self.to.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.versions.0.to_le_bytes());
        out.extend_from_slice(&self.versions.1.to_le_bytes());
        out.extend_from_slice(&self.features.to_le_bytes());
        out.push(if self.role == Role::Dialer { 0 } else { 1 });
        out.push(if self.lane == LaneKind::Small { 0 } else { 1 });
        let known = self.knows_you_as.unwrap_or(0);
        for number in [self.cluster, self.incarnation, known, self.epoch] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.nonce);
        for name in [&self.name, &self.to] {
            assert!(name.len() <= NAME_MAX, "a name of {} bytes", name.len());
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
        }
        out
    }

    /// Bytes behind the last field are those of a later version, and are left alone.
    pub(super) fn decode(input: &[u8]) -> Result<Self, &'static str> {
        let mut input = Input(input);
        if input.array()? != *MAGIC {
            return Err("a stranger's first words");
        }
        Ok(Self {
            versions: (input.u16()?, input.u16()?),
            features: input.u64()?,
            role: match input.u8()? {
                0 => Role::Dialer,
                1 => Role::Acceptor,
                _ => return Err("an unknown role"),
            },
            lane: match input.u8()? {
                0 => LaneKind::Small,
                1 => LaneKind::Bulk,
                _ => return Err("an unknown lane"),
            },
            cluster: input.u64()?,
            incarnation: match input.u64()? {
                0 => return Err("no incarnation"),
                incarnation => incarnation,
            },
            knows_you_as: Some(input.u64()?).filter(|known| *known != 0),
            epoch: input.u64()?,
            nonce: input.array()?,
            name: input.name()?,
            to: input.name()?,
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
        let name = std::str::from_utf8(name).map_err(|_| "a name that is no text")?;
        // It will be in log lines.
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err("a name that can't be shown");
        }
        Ok(name.to_owned())
    }
}
