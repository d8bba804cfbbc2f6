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

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::identity::Identity;
use crate::background::effect::NodeEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::event::FailureKind;
use crate::membership::cluster_id::ClusterId;
use crate::message::{Class, NodeId, Reply, Request};

/// Peers that a node asks in one tick, unless it is the founder: in a large cluster all nodes ask
/// all others once.
const ASKED_AT_ONCE: usize = 8;

/// Times of versions above this one are those of records: what a node keeps of itself is numbered
/// from 1 on.
const FIRST_RECORD: u64 = 1 << 40;

/// What is under way about the cluster's id.
#[derive(Debug, Default)]
pub(crate) struct Founding {
    /// Tasks that ask peers.
    asked: BTreeMap<NodeId, TaskId>,
    /// The peer that was asked last.
    last: Option<NodeId>,
    told: Rc<RefCell<Told>>,
}

/// What peers have told of their clusters.
#[derive(Debug, Default)]
struct Told {
    /// The cluster that each peer which was met said last that it belongs to; `None` = none.
    clusters: BTreeMap<NodeId, Option<ClusterId>>,
    /// Peers that told this founder that they have no id.
    without: BTreeSet<NodeId>,
}

/// Asks a peer for its cluster's id.
async fn ask(cx: Context, peer: NodeId, told: Rc<RefCell<Told>>) {
    let result = cx.call(peer, Class::Client, Request::ClusterId).await;
    told.borrow_mut().told(&cx, peer, &result);
}

impl Founding {
    /// A connection with a peer was made, which said that it is of this cluster.
    pub(crate) fn seen(&self, cx: &Context, peer: NodeId, cluster: Option<ClusterId>) {
        cx.shared().membership.cluster.notes_foreign(peer, false);
        self.told.borrow_mut().clusters.insert(peer, cluster);
        if let Some(id) = cluster {
            compare(cx, peer, id);
        }
    }

    /// Asks peers for their cluster's id: all that have not said one, a few at a time.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks, identity: &Identity) {
        let cx = tasks.context().clone();
        note_company(&cx);
        self.asked.retain(|_, task| tasks.is_under_way(*task));
        let founds = founds(&cx);
        let mut peers = {
            let told = self.told.borrow();
            let is_due = |peer: &NodeId| {
                told.clusters.get(peer) == Some(&None)
                    && identity.has_seen(*peer)
                    && !self.asked.contains_key(peer)
                    && !(founds && told.without.contains(peer))
            };
            cx.others().into_iter().filter(is_due).collect::<Vec<_>>()
        };
        if !founds {
            let at = self.last.map_or(0, |last| peers.partition_point(|peer| *peer <= last));
            peers.rotate_left(at);
            peers.truncate(ASKED_AT_ONCE);
        }
        for peer in peers {
            let ask = ask(cx.clone(), peer, Rc::clone(&self.told));
            self.asked.insert(peer, tasks.spawn("cluster id", ask));
            self.last = Some(peer);
        }
    }

    /// The id was stored, or could not be: then that is tried again.
    pub(crate) fn stored(&self, cx: &Context, id: ClusterId, is_stored: bool) {
        if !is_stored {
            return cx.effect(NodeEffect::KeepClusterId(id));
        }
        for peer in cx.others() {
            if let Some(Some(theirs)) = self.told.borrow().clusters.get(&peer) {
                compare(cx, peer, *theirs);
            }
        }
    }

    /// Nodes may have come or gone.
    pub(crate) fn follow_view(&self, cx: &Context) {
        let mut told = self.told.borrow_mut();
        told.without.clear();
        told.found(cx);
    }
}

impl Told {
    /// A peer said its cluster's id, or could not be asked.
    fn told(&mut self, cx: &Context, peer: NodeId, result: &Result<Reply, FailureKind>) {
        match result {
            Ok(Reply::ClusterId(Some(id))) => {
                self.clusters.insert(peer, Some(*id));
                compare(cx, peer, *id);
            }
            Ok(Reply::ClusterId(None)) if founds(cx) => {
                self.without.insert(peer);
                self.found(cx);
            }
            _ => {}
        }
    }

    /// Gives the cluster its id if this node is the founder and all others have none.
    fn found(&self, cx: &Context) {
        let has_none = |peer: &NodeId| self.without.contains(peer);
        if founds(cx) && cx.others().iter().all(has_none) {
            let mut names: Vec<_> = cx.view().ids().map(|id| cx.shared().name_of(id)).collect();
            names.sort_unstable();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            store(cx, ClusterId::born(&names, cx.shared().membership.logs.own_incarnation()));
        }
    }
}

fn compare(cx: &Context, peer: NodeId, theirs: ClusterId) {
    match cx.shared().membership.cluster.id() {
        None => store(cx, theirs),
        Some(own) => cx.shared().membership.cluster.notes_foreign(peer, own != theirs),
    }
}

fn store(cx: &Context, id: ClusterId) {
    if cx.shared().membership.cluster.begins_to_store(id) {
        cx.effect(NodeEffect::KeepClusterId(id));
    }
}

/// Returns whether this node gives the cluster its id, if no other node has one.
fn founds(cx: &Context) -> bool {
    let own = cx.shared().own;
    cx.shared().membership.cluster.id().is_none()
        && cx.view().ids().min_by_key(|id| cx.shared().name_of(*id)) == Some(own)
}

/// Data that was taken together with others is not to get into another cluster.
fn note_company(cx: &Context) {
    let cluster = &cx.shared().membership.cluster;
    if cluster.id().is_none()
        && cx.shared().replica.newest.time() >= FIRST_RECORD
        && cx.others().iter().any(|peer| cx.shared().membership.logs.incarnation(*peer).is_some())
    {
        cluster.notes_company();
    }
}
