//! How a node without a cluster id gets one, and how it is known which links lead to another
//! cluster: `cluster_id.rs`.
//!
//! ```text
//!   no id ── ClusterId? ─▶ peers ─┬─ one ──▶ stored, then told
//!                                 └─ none, say all others to the founder ─▶ the id is born
//!   an id ── ClusterId? ─▶ peers that had none ── another one ─▶ the links to them are closed
//! ```
//!
//! A founder whose disk is replaced asks anew. A peer that answers it has seen the new disk, and
//! takes nothing any more from a process with the old one ([`Logs::received`]).
//!
//! [`Logs::received`]: crate::Logs::received

use std::collections::BTreeSet;

use super::{Caller, Check, Node, NodeEffect};
use crate::cluster_id::ClusterId;
use crate::event::FailureKind;
use crate::message::{Class, NodeId, Reply, Request};

/// Peers that a node asks in one tick, unless it is the founder: in a large cluster all nodes ask
/// all others once.
const ASKED_AT_ONCE: usize = 8;

/// Times of versions above this one are those of records: what a node keeps of itself is numbered
/// from 1 on.
const FIRST_RECORD: u64 = 1 << 40;

/// What is under way about the cluster's id.
#[derive(Debug, Default)]
pub(super) struct Founding {
    /// Peers that were asked and have not answered.
    asked: BTreeSet<NodeId>,
    /// Peers that told this founder that they have no id.
    without: BTreeSet<NodeId>,
    /// The peer that was asked last.
    last: Option<NodeId>,
}

impl Founding {
    /// Other nodes belong to the cluster now.
    pub(super) fn begin_anew(&mut self) {
        self.without.clear();
    }
}

impl Node {
    /// A connection with a peer was made, which said that it is of this cluster.
    pub(super) fn seen_of_cluster(
        &mut self,
        peer: NodeId,
        cluster: Option<ClusterId>,
        out: &mut Vec<NodeEffect>,
    ) {
        self.shared.cluster.notes_foreign(peer, false);
        let met = self.peers.of(peer);
        (met.is_met, met.cluster) = (true, cluster);
        if let Some(id) = cluster {
            self.compare_cluster(peer, id, out);
        }
    }

    /// Asks peers for their cluster's id: all that have not said one, a few at a time.
    pub(super) fn cluster_due(&mut self, out: &mut Vec<NodeEffect>) {
        self.note_company();
        let founds = self.founds();
        let founding = &self.founding;
        let is_asked = |peer: &NodeId| {
            let is_silent = |peer: &super::Peer| {
                peer.is_met && peer.check == Check::Seen && peer.cluster.is_none()
            };
            self.peers.get(*peer).is_some_and(is_silent)
                && !founding.asked.contains(peer)
                && !(founds && founding.without.contains(peer))
        };
        let mut peers: Vec<NodeId> = self.others().filter(is_asked).collect();
        if !founds {
            let last = founding.last;
            let at = last.map_or(0, |last| peers.partition_point(|peer| *peer <= last));
            peers.rotate_left(at);
            peers.truncate(ASKED_AT_ONCE);
        }
        for peer in peers {
            self.founding.asked.insert(peer);
            self.founding.last = Some(peer);
            self.call(Caller::ClusterId(peer), peer, Class::Client, Request::ClusterId, out);
        }
    }

    /// A peer said its cluster's id, or could not be asked.
    pub(super) fn told_cluster(
        &mut self,
        peer: NodeId,
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        self.founding.asked.remove(&peer);
        match result {
            Ok(Reply::ClusterId(Some(id))) => {
                self.peers.of(peer).cluster = Some(*id);
                self.compare_cluster(peer, *id, out);
            }
            Ok(Reply::ClusterId(None)) if self.founds() => {
                self.founding.without.insert(peer);
                self.found_if_none_has_one(out);
            }
            _ => {}
        }
    }

    /// The id was stored, or could not be: then that is tried again.
    pub(super) fn cluster_kept(&self, id: ClusterId, kept: bool, out: &mut Vec<NodeEffect>) {
        if !kept {
            return out.push(NodeEffect::KeepClusterId(id));
        }
        for peer in self.others() {
            if let Some(theirs) = self.peers.get(peer).and_then(|peer| peer.cluster) {
                self.compare_cluster(peer, theirs, out);
            }
        }
    }

    /// Gives the cluster its id if this node is the founder and all others have none.
    pub(super) fn found_if_none_has_one(&self, out: &mut Vec<NodeEffect>) {
        let has_none = |peer| self.founding.without.contains(&peer);
        if self.founds() && self.others().all(has_none) {
            let mut names: Vec<_> = self.view.ids().map(|id| self.shared.name_of(id)).collect();
            names.sort_unstable();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.store_cluster(ClusterId::born(&names, self.shared.logs.own_incarnation()), out);
        }
    }

    fn compare_cluster(&self, peer: NodeId, theirs: ClusterId, out: &mut Vec<NodeEffect>) {
        match self.shared.cluster.id() {
            None => self.store_cluster(theirs, out),
            Some(own) => self.shared.cluster.notes_foreign(peer, own != theirs),
        }
    }

    fn store_cluster(&self, id: ClusterId, out: &mut Vec<NodeEffect>) {
        if self.shared.cluster.begins_to_store(id) {
            out.push(NodeEffect::KeepClusterId(id));
        }
    }

    /// Whether this node gives the cluster its id, if no other node has one.
    fn founds(&self) -> bool {
        let own = self.shared.own;
        self.shared.cluster.id().is_none()
            && self.view.ids().min_by_key(|id| self.shared.name_of(*id)) == Some(own)
    }

    /// Data that was taken together with others is not to get into another cluster.
    fn note_company(&self) {
        let cluster = &self.shared.cluster;
        if cluster.id().is_none()
            && self.shared.newest.time() >= FIRST_RECORD
            && self.others().any(|peer| self.shared.logs.incarnation(peer).is_some())
        {
            cluster.notes_company();
        }
    }
}
