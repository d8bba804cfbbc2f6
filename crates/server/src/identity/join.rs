//! A directory that waits to join a cluster: the random incarnation and voter id that it sends to
//! the cluster, and the node id and layout that it accepts.
//!
//! ```text
//!   empty directory ─▶ candidate: its random numbers are made durable, then sent to the cluster
//!     ─▶ a layout contains the node ─▶ identity and layout are made durable
//! ```
//!
//! The numbers must be durable before the cluster learns them, because the metadata quorum may
//! admit the voter while this process restarts.

use lsm::{Batch, Engine, Space, Version};
use protocol::layout::{Layout, Voter, VoterId};
use protocol::{
    Clock, ClusterId, Incarnation, Layouts, MembershipState, NodeId, Proof, Unreadable,
};

use super::format::{self, StoredIdentity};
use super::{KEY, PROOF, data_without_identity, identity_error, layouts, newest, read, unreadable};
use crate::start_error::StartError;
use crate::store::Store;

/// Key of the candidate's numbers.
const CANDIDATE: &[u8] = b"candidate";

/// `lost_before` of a node that joins with its first disk: a time before all versions. 0 would mean
/// that the node is as old as the cluster, and needs no repair fence (seal).
const NOTHING_LOST: u64 = 1;

/// A directory that asks to join a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The directory's incarnation.
    pub incarnation: Incarnation,
    /// The directory's voter id.
    pub voter: VoterId,
}

/// The membership that a candidate is given.
#[derive(Debug, Clone)]
pub struct GrantedMembership {
    /// The cluster's id; `None` = the cluster has none yet.
    pub cluster: Option<ClusterId>,
    /// The id assigned to the node.
    pub own: NodeId,
    /// A decided layout that contains the node, possibly as a leaving node.
    pub layout: Layout,
}

impl Candidate {
    /// Returns the candidate stored in the directory, or stores `new` as the candidate. `None` =
    /// the directory already belongs to a member. Fails if the directory belongs to a node of
    /// another cluster, or has data.
    pub fn of<S: Store>(store: &S, new: Self) -> Result<Option<Self>, StartError> {
        let engine = store.engine();
        if layouts::layout_in_force(engine)?.is_some() {
            return Ok(None);
        }
        if let Some((kept, _)) = read(engine)? {
            let name = kept.name;
            return Err(StartError::Another(format!(
                "it is that of node {name}, and no layout of another cluster has that; --join \
                 takes an empty one"
            )));
        }
        if let Some(why) = data_without_identity(engine)? {
            return Err(StartError::Another(format!("{why}, and --join takes an empty one")));
        }
        if let Some(known) = read_candidate(engine)? {
            return Ok(Some(known));
        }
        let incarnation = new.incarnation.max(Incarnation(1));
        let new = Self { incarnation, voter: new.voter.max(VoterId(1)) };
        let bytes = [new.incarnation.0, new.voter.0].map(u64::to_le_bytes);
        let version = Version { time: newest(engine)? + 1, origin: 0 };
        let mut batch = Batch::new();
        batch.put(Space::Node, CANDIDATE, version, bytes.as_flattened()).map_err(identity_error)?;
        batch.make_durable();
        store.commit(batch).map_err(identity_error)?;
        Ok(Some(new))
    }

    /// Makes the candidate a member. The change is durable on return: the next start is that of a
    /// member. `wall` and `max_skew` are in microseconds.
    pub fn become_member<S: Store>(
        self,
        store: &S,
        placed: GrantedMembership,
        wall: u64,
        max_skew: u64,
    ) -> Result<(), StartError> {
        let GrantedMembership { cluster, own, layout } = placed;
        let node = layout.node(own).expect("who gave it the place looked");
        let name = node.member.name.clone();
        let topology = layout.topology().expect("a layout is checked when it arrives");
        // A previous incarnation of this name may have acknowledged versions that were ahead of its
        // clock by the allowed skew.
        let sealed_up_to = Clock::limit(wall, max_skew);
        // A node with its first disk has every write that it ever acknowledged, so it needs no
        // confirmation from other nodes. The repair fence stays up, because writes from before the
        // join may have been deleted and purged.
        let is_first = node.first_disk == Some(self.incarnation);
        let kept = StoredIdentity {
            state: if is_first { MembershipState::Member } else { MembershipState::Joining },
            named: true,
            cluster,
            incarnation: self.incarnation,
            lost_before: if is_first { NOTHING_LOST } else { sealed_up_to },
            digest: topology.digest(),
            name,
            description: topology.describe(),
        };
        let voter = Voter { node: own, id: Some(self.voter), is_first: false };
        let (record, _) = Layouts::first(voter, layout).encode();
        let proof = format::encode_proof(&Proof::of_new(own, sealed_up_to));
        let origin = protocol::origin_of(&kept.name);
        let version = Version { time: newest(store.engine())? + 1, origin };
        let mut batch = Batch::new();
        for (key, value) in [(KEY, &kept.encode()), (PROOF, &proof), (layouts::KEY, &record)] {
            batch.put(Space::Node, key, version, value).map_err(identity_error)?;
        }
        batch.make_durable();
        store.commit(batch).map_err(identity_error)
    }
}

/// Returns true if the directory waits to join a cluster.
pub(super) fn is_candidate(engine: &Engine) -> Result<bool, StartError> {
    Ok(read_candidate(engine)?.is_some())
}

fn read_candidate(engine: &Engine) -> Result<Option<Candidate>, StartError> {
    let Some(record) = engine.read(Space::Node, CANDIDATE).map_err(identity_error)? else {
        return Ok(None);
    };
    let value = record.value();
    let (numbers, rest) = value.as_chunks::<8>();
    match (numbers, rest) {
        ([incarnation, voter], []) => Ok(Some(Candidate {
            incarnation: Incarnation(u64::from_le_bytes(*incarnation)),
            voter: VoterId(u64::from_le_bytes(*voter)),
        })),
        _ => {
            let why = Unreadable::Damaged(format!("{} bytes: damaged", value.len()));
            Err(unreadable("who asks to join", why))
        }
    }
}
