//! Quorums: the number of replicas that hold a key, and the number of those that must answer.

use std::fmt::{self, Display, Formatter};

use crate::placement::topology::Topology;

/// The largest number of copies, because a record stores the number in one byte.
const MAX_FROM: u32 = u8::MAX as u32;

/// A quorum of `ack` of `from` replicas. `1 <= ack <= from` holds, with one exception: after
/// members have left, a default `from` may be below the client's `ack`. Then no set of replies
/// satisfies the quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quorum {
    /// The number of replicas that must answer.
    pub ack: u8,
    /// The number of replicas that hold the key.
    pub from: u8,
}

/// A quorum as the client requested it. Each topology under which the request is counted supplies
/// its own default for an omitted number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AskedQuorum {
    /// The number of replicas that must answer; `None` = a majority.
    pub ack: Option<u8>,
    /// The number of replicas that hold the key; `None` = the default number of copies.
    pub from: Option<u8>,
}

impl AskedQuorum {
    /// Returns the quorum under a topology. Numbers from the client stay unchanged, even if the
    /// topology has too few nodes by now.
    pub fn resolve(self, topology: &Topology) -> Quorum {
        let from = self.from.unwrap_or_else(|| topology.default_copies());
        Quorum { ack: self.ack.unwrap_or(from / 2 + 1), from }
    }
}

/// Formats the quorum as `2/3`; an omitted number is `-`.
impl Display for AskedQuorum {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let said = |number: Option<u8>| number.map_or("-".to_owned(), |number| number.to_string());
        write!(f, "{}/{}", said(self.ack), said(self.from))
    }
}

/// Makes a quorum with both numbers given.
impl From<Quorum> for AskedQuorum {
    fn from(Quorum { ack, from }: Quorum) -> Self {
        Self { ack: Some(ack), from: Some(from) }
    }
}

/// The reason for refusing a pair of `ack` and `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuorumError {
    /// `ack` is 0: some replica must answer.
    #[error("ack is 0: at least one replica must answer")]
    NoAck,
    /// `from` is 0: some node must hold the key.
    #[error("from is 0: at least one node must hold the key")]
    NoFrom,
    /// `ack` exceeds the number of replicas.
    #[error("ack={ack} must not exceed from={from}")]
    AckOverFrom {
        /// The requested `ack`.
        ack: u32,
        /// The requested `from`, or the default.
        from: u32,
    },
    /// `from` exceeds the number of nodes.
    #[error("from={from} must not exceed the number of nodes, {nodes}")]
    FromOverNodes {
        /// The requested `from`.
        from: u32,
        /// The number of nodes of the cluster.
        nodes: u32,
    },
    /// `from` exceeds the number of copies that a record can store.
    #[error("from={from} must not exceed {MAX_FROM}")]
    FromOverByte {
        /// The requested `from`.
        from: u32,
    },
}

/// Returns the quorum, with defaults for omitted numbers: `from` = min(`nodes`, `replicas`, 255),
/// `ack` = a majority of `from`. An error tells why a quorum is impossible.
pub fn quorum(
    ack: Option<u32>,
    from: Option<u32>,
    nodes: u32,
    replicas: u32,
) -> Result<Quorum, QuorumError> {
    assert!(nodes > 0 && replicas > 0, "a cluster has a node, and a key a replica");
    let from = from.unwrap_or_else(|| nodes.min(replicas).min(MAX_FROM));
    let ack = ack.unwrap_or(from / 2 + 1);
    if from == 0 {
        return Err(QuorumError::NoFrom);
    }
    if from > MAX_FROM {
        return Err(QuorumError::FromOverByte { from });
    }
    if from > nodes {
        return Err(QuorumError::FromOverNodes { from, nodes });
    }
    if ack == 0 {
        return Err(QuorumError::NoAck);
    }
    if ack > from {
        return Err(QuorumError::AckOverFrom { ack, from });
    }
    assert!(1 <= ack && ack <= from && from <= MAX_FROM.min(nodes), "what can't be is refused");
    Ok(Quorum { ack: ack as u8, from: from as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_a_majority_of_the_replicas() {
        for (nodes, replicas, ack, from) in [
            (1, 3, 1, 1),
            (2, 3, 2, 2),
            (3, 3, 2, 3),
            (5, 3, 2, 3),
            (5, 5, 3, 5),
            (300, 300, 128, 255),
        ] {
            assert_eq!(quorum(None, None, nodes, replicas), Ok(Quorum { ack, from }));
        }
        assert_eq!(quorum(None, Some(4), 5, 3), Ok(Quorum { ack: 3, from: 4 }));
        assert_eq!(quorum(Some(1), None, 5, 3), Ok(Quorum { ack: 1, from: 3 }));
    }

    #[test]
    fn impossible_quorums_are_refused() {
        for (ack, from, nodes, refusal) in [
            (Some(0), None, 3, QuorumError::NoAck),
            (None, Some(0), 3, QuorumError::NoFrom),
            (Some(4), None, 3, QuorumError::AckOverFrom { ack: 4, from: 3 }),
            (Some(2), Some(1), 3, QuorumError::AckOverFrom { ack: 2, from: 1 }),
            (None, Some(4), 3, QuorumError::FromOverNodes { from: 4, nodes: 3 }),
            (None, Some(256), 300, QuorumError::FromOverByte { from: 256 }),
            (Some(u32::MAX), Some(u32::MAX), 3, QuorumError::FromOverByte { from: u32::MAX }),
        ] {
            assert_eq!(quorum(ack, from, nodes, 3), Err(refusal));
        }
    }
}
