//! Encoding of the identity records. Any change to an encoding needs a new [`FORMAT`]: see
//! `docs/formats/files.md`.

use protocol::{
    Boot, BootHistory, BootId, Claim, ClusterId, FormerDisks, Incarnation, LogPosition,
    MembershipState, NodeId, Proof, Reported, RoundId, Unreadable,
};

use super::marker::Marker;

/// Format of an identity record: its first byte.
const FORMAT: u8 = 1;

/// Format of a peer record.
const PEER_FORMAT: u8 = 1;

/// Format of the record of process starts.
const LIVES_FORMAT: u8 = 1;

/// Format of the repair proofs record.
const PROOF_FORMAT: u8 = 1;

/// Format of the record of former disks.
const FORMER_FORMAT: u8 = 1;

/// Format of a version time record.
const VERSION_TIME_FORMAT: u8 = 1;

const NAMED: u8 = 1;

/// Bytes of an identity before the name.
const FIXED_LEN: usize = 38;

/// A decoded identity record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredIdentity {
    pub(super) state: MembershipState,
    /// True if settings have ever named the node; false if the name is only the address on which
    /// the node listened.
    pub(super) named: bool,
    /// `None` = the cluster has no id yet.
    pub(super) cluster: Option<ClusterId>,
    pub(super) incarnation: Incarnation,
    pub(super) lost_before: u64,
    pub(super) digest: u64,
    pub(super) name: String,
    pub(super) description: String,
}

impl StoredIdentity {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_LEN + self.name.len() + self.description.len());
        let named = if self.named { NAMED } else { 0 };
        bytes.extend_from_slice(&[FORMAT, self.state as u8, named, 0]);
        let cluster = ClusterId::number(self.cluster);
        for number in [cluster, self.incarnation.0, self.lost_before, self.digest] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(self.description.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        check_format(bytes, FORMAT)?;
        let damaged = || {
            Unreadable::Damaged(format!("damaged: {} bytes, too short or malformed", bytes.len()))
        };
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_LEN>().ok_or_else(damaged)?;
        let number =
            |at: usize| fixed[at..at + 8].iter().rfold(0, |n, byte| n << 8 | u64::from(*byte));
        let name_len = usize::from(u16::from_le_bytes([fixed[36], fixed[37]]));
        let (name, description) = rest.split_at_checked(name_len).ok_or_else(damaged)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| damaged());
        Ok(Self {
            state: MembershipState::of_code(fixed[1]).ok_or_else(damaged)?,
            named: fixed[2] & NAMED != 0,
            cluster: ClusterId::of_number(number(4)),
            incarnation: Incarnation(number(12)),
            lost_before: number(20),
            digest: number(28),
            name: text(name)?,
            description: text(description)?,
        })
    }

    /// Returns true if the cluster has one node.
    pub(super) fn is_alone(&self) -> bool {
        self.description.lines().filter(|line| line.starts_with("node ")).count() == 1
    }

    /// Returns true if keys have one replica unless a request asks for more.
    pub(super) fn has_one_copy(&self) -> bool {
        self.description.lines().any(|line| line == "replicas 1")
    }
}

pub(super) fn encode_peer(claim: &Claim) -> Vec<u8> {
    let Claim { incarnation, reported: Reported { life, position, late } } = *claim;
    let numbers = [incarnation.0, life.map_or(0, |life| life.0), position.0, late.0];
    let bytes = numbers.into_iter().flat_map(u64::to_le_bytes);
    std::iter::once(PEER_FORMAT).chain(bytes).collect()
}

pub(super) fn decode_peer(bytes: &[u8]) -> Result<Claim, Unreadable> {
    check_format(bytes, PEER_FORMAT)?;
    let ([incarnation, life, position, late], []) = bytes[1..].as_chunks::<8>() else {
        return Err(Unreadable::Damaged(format!("{} bytes: damaged", bytes.len())));
    };
    let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let (position, late) = (LogPosition(number(position)), LogPosition(number(late)));
    let reported = Reported { life: BootId::of_number(number(life)), position, late };
    Ok(Claim { incarnation: Incarnation(number(incarnation)), reported })
}

pub(super) fn encode_lives(marker: &Marker, boot_history: &BootHistory) -> Vec<u8> {
    let mut bytes = vec![LIVES_FORMAT];
    bytes.extend_from_slice(&marker.encode());
    bytes.extend_from_slice(&boot_history.encode());
    bytes
}

pub(super) fn decode_lives(bytes: &[u8]) -> Result<(Marker, Vec<Boot>), Unreadable> {
    check_format(bytes, LIVES_FORMAT)?;
    let damaged = || Unreadable::Damaged(format!("{} bytes: damaged", bytes.len()));
    let (marker, lives) = bytes[1..].split_first_chunk().ok_or_else(damaged)?;
    Ok((Marker::decode(*marker), BootHistory::decode(lives).ok_or_else(damaged)?))
}

pub(super) fn encode_former(former: &FormerDisks) -> Vec<u8> {
    std::iter::once(FORMER_FORMAT).chain(former.encode()).collect()
}

pub(super) fn decode_former(bytes: &[u8]) -> Result<FormerDisks, Unreadable> {
    check_format(bytes, FORMER_FORMAT)?;
    let damaged = || Unreadable::Damaged(format!("{} bytes: damaged", bytes.len()));
    FormerDisks::decode(&bytes[1..]).ok_or_else(damaged)
}

pub(super) fn encode_time(time: u64) -> Vec<u8> {
    std::iter::once(VERSION_TIME_FORMAT).chain(time.to_le_bytes()).collect()
}

pub(super) fn decode_time(bytes: &[u8]) -> Result<u64, Unreadable> {
    check_format(bytes, VERSION_TIME_FORMAT)?;
    let damaged = || Unreadable::Damaged(format!("{} bytes: damaged", bytes.len()));
    bytes[1..].try_into().map(u64::from_le_bytes).map_err(|_| damaged())
}

pub(super) fn encode_proof(proof: &Proof) -> Vec<u8> {
    let Proof { seal, ready, proven, floor, is_uniform, made } = *proof;
    let mut bytes = vec![PROOF_FORMAT, u8::from(is_uniform)];
    for round in [seal, ready, proven] {
        bytes.extend_from_slice(&round.time.to_le_bytes());
        bytes.extend_from_slice(&round.node.0.to_le_bytes());
    }
    [floor, made].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes
}

pub(super) fn decode_proof(bytes: &[u8]) -> Result<Proof, Unreadable> {
    check_format(bytes, PROOF_FORMAT)?;
    let damaged = || Unreadable::Damaged(format!("{} bytes: damaged", bytes.len()));
    let (is_uniform, bytes) = bytes[1..].split_first().ok_or_else(damaged)?;
    let (rounds, numbers) = bytes.split_at_checked(30).ok_or_else(damaged)?;
    let [seal, ready, proven] = rounds.as_chunks::<10>().0 else { return Err(damaged()) };
    let ([floor, made], []) = numbers.as_chunks::<8>() else { return Err(damaged()) };
    let round = |bytes: &[u8; 10]| {
        let (time, node) = bytes.split_first_chunk::<8>().expect("there are ten");
        let node = NodeId(u16::from_le_bytes([node[0], node[1]]));
        RoundId { time: u64::from_le_bytes(*time), node }
    };
    let (seal, ready, proven) = (round(seal), round(ready), round(proven));
    let [floor, made] = [floor, made].map(|bytes| u64::from_le_bytes(*bytes));
    Ok(Proof { seal, ready, proven, floor, is_uniform: *is_uniform == 1, made })
}

fn check_format(bytes: &[u8], known: u8) -> Result<(), Unreadable> {
    match bytes.first() {
        Some(format) if *format == known => Ok(()),
        Some(later) => Err(Unreadable::LaterFormat(*later)),
        None => Err("no bytes: damaged".into()),
    }
}
