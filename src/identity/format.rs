//! What the identity is in bytes. A change of them is a change of [`FORMAT`]: see
//! `docs/file-format.md`.

use cluster::Standing;

/// Format of both kinds of values here, their first byte.
const FORMAT: u8 = 1;

const NAMED: u8 = 1;

/// Bytes of an identity before the name.
const FIXED: usize = 38;

/// What a data directory knows of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) standing: Standing,
    /// Whether the name was ever said by settings, or is only where the node listened.
    pub(super) named: bool,
    pub(super) cluster: u64,
    pub(super) incarnation: u64,
    pub(super) born: u64,
    pub(super) digest: u64,
    pub(super) name: String,
    pub(super) description: String,
}

impl Kept {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.name.len() + self.description.len());
        let named = if self.named { NAMED } else { 0 };
        bytes.extend_from_slice(&[FORMAT, self.standing as u8, named, 0]);
        for number in [self.cluster, self.incarnation, self.born, self.digest] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(self.description.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        check_format(bytes)?;
        let damaged = || format!("{} bytes that make none: damaged", bytes.len());
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>().ok_or_else(damaged)?;
        let number =
            |at: usize| fixed[at..at + 8].iter().rfold(0, |n, byte| n << 8 | u64::from(*byte));
        let name_len = usize::from(u16::from_le_bytes([fixed[36], fixed[37]]));
        let (name, description) = rest.split_at_checked(name_len).ok_or_else(damaged)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| damaged());
        Ok(Self {
            standing: match fixed[1] {
                0 => Standing::New,
                1 => Standing::Member,
                2 => Standing::Amnesiac,
                _ => return Err(damaged()),
            },
            named: fixed[2] & NAMED != 0,
            cluster: number(4),
            incarnation: number(12),
            born: number(20),
            digest: number(28),
            name: text(name)?,
            description: text(description)?,
        })
    }

    /// Whether it is of a cluster of one node.
    pub(super) fn is_alone(&self) -> bool {
        self.description.lines().filter(|line| line.starts_with("node ")).count() == 1
    }
}

pub(super) fn encode_peer(incarnation: u64) -> [u8; 9] {
    let mut bytes = [FORMAT; 9];
    bytes[1..].copy_from_slice(&incarnation.to_le_bytes());
    bytes
}

pub(super) fn decode_peer(bytes: &[u8]) -> Result<u64, String> {
    check_format(bytes)?;
    let number = bytes[1..].try_into().map_err(|_| format!("{} bytes: damaged", bytes.len()))?;
    Ok(u64::from_le_bytes(number))
}

fn check_format(bytes: &[u8]) -> Result<(), String> {
    match bytes.first() {
        Some(&FORMAT) => Ok(()),
        Some(newer) => Err(format!(
            "format {newer}, and this release reads {FORMAT}: upgrade; nothing was changed"
        )),
        None => Err("no bytes: damaged".to_owned()),
    }
}
