//! Assignment of the cluster id to a node without one, and detection of links that lead to another
//! cluster: see `cluster_id.rs`. The founder is the node whose name comes first.
//!
//! ```text
//!   this node has no id ─▶ asks the peers ─┬─ a peer has an id ─▶ stores it, then reports it
//!                                          └─ all have none, and it is the founder ─▶ a new id
//!   this node has an id ─▶ asks the peers that had none
//!                                          └─ a peer has another id ─▶ the link to it is closed
//! ```
//!
//! A founder whose disk is replaced asks again. A peer that answers the founder has seen the new
//! disk, and from then on accepts nothing from a process with the old disk
//! ([`Logs::note_envelope`]).
//!
//! [`Logs::note_envelope`]: crate::Logs::note_envelope

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::disk_check::DiskCheck;
use crate::background::effect::BackgroundEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::event::FailureKind;
use crate::membership::cluster_id::ClusterId;
use crate::message::{Class, NodeId, Reply, Request};

/// Maximum number of peers asked in one tick, except by a founder that asks for the first time: in
/// a large cluster every node asks every other.
const ASKED_AT_ONCE: usize = 8;

/// The lowest version time of a client's record. The node's internal records have version times
/// counted from 1.
const FIRST_RECORD_TIME: u64 = 1 << 40;

/// The exchange of cluster ids with the peers.
#[derive(Debug, Default)]
pub(crate) struct Founding {
    /// The running tasks that ask for the cluster id, by peer.
    asked: BTreeMap<NodeId, TaskId>,
    /// The peer that was asked last.
    last: Option<NodeId>,
    peer_answers: Rc<RefCell<PeerAnswers>>,
}

/// Answers of peers about their cluster.
#[derive(Debug, Default)]
struct PeerAnswers {
    /// The cluster id that each peer reported last, in a handshake or when asked; `None` = the peer
    /// has none.
    clusters: BTreeMap<NodeId, Option<ClusterId>>,
    /// Peers that had no id when this founder last asked them. Handshakes do not count.
    without: BTreeSet<NodeId>,
}

/// Asks a peer for its cluster's id.
async fn ask(cx: Context, peer: NodeId, peer_answers: Rc<RefCell<PeerAnswers>>) {
    let result = cx.call(peer, Class::Client, Request::ClusterId).await;
    peer_answers.borrow_mut().handle_answer(&cx, peer, &result);
}

impl Founding {
    /// Handles a new connection with a peer, whose handshake carried its cluster id.
    pub(crate) fn on_connect(&self, cx: &Context, peer: NodeId, cluster: Option<ClusterId>) {
        cx.shared().membership.cluster.set_foreign(peer, false);
        self.peer_answers.borrow_mut().clusters.insert(peer, cluster);
        if let Some(id) = cluster {
            compare(cx, peer, id);
        }
    }

    /// Asks the peers that have reported no id for their cluster id again, because they may get an
    /// id from a peer that this node can't reach. A tick asks at most `ASKED_AT_ONCE` peers, but a
    /// founder asks all peers that have not answered it yet.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks, disk_check: &DiskCheck) {
        let cx = tasks.context().clone();
        note_shared_data(&cx);
        self.asked.retain(|_, task| tasks.is_under_way(*task));
        let founds = is_founder(&cx);
        let (first, mut again) = {
            let peer_answers = self.peer_answers.borrow();
            let is_due = |peer: &NodeId| {
                peer_answers.clusters.get(peer) == Some(&None)
                    && disk_check.has_seen(*peer)
                    && !self.asked.contains_key(peer)
            };
            let is_first = |peer: &NodeId| founds && !peer_answers.without.contains(peer);
            let due = cx.others().into_iter().filter(is_due);
            due.partition::<Vec<_>, _>(is_first)
        };
        let at = self.last.map_or(0, |last| again.partition_point(|peer| *peer <= last));
        again.rotate_left(at);
        again.truncate(ASKED_AT_ONCE);
        for peer in first.into_iter().chain(again) {
            let ask = ask(cx.clone(), peer, Rc::clone(&self.peer_answers));
            self.asked.insert(peer, tasks.spawn("cluster id", ask));
            self.last = Some(peer);
        }
    }

    /// Handles the result of storing the id: stores it again if that failed, else compares it with
    /// the peers' ids.
    pub(crate) fn on_id_stored(&self, cx: &Context, id: ClusterId, is_stored: bool) {
        if !is_stored {
            return cx.effect(BackgroundEffect::StoreClusterId(id));
        }
        for peer in cx.others() {
            if let Some(Some(theirs)) = self.peer_answers.borrow().clusters.get(&peer) {
                compare(cx, peer, *theirs);
            }
        }
    }

    /// Restarts the founding after a view change, because nodes may have joined or left.
    pub(crate) fn follow_view(&self, cx: &Context) {
        let mut peer_answers = self.peer_answers.borrow_mut();
        peer_answers.without.clear();
        peer_answers.assign_id_if_founder(cx);
    }
}

impl PeerAnswers {
    /// Handles a peer's reply, or the failure of the request.
    fn handle_answer(&mut self, cx: &Context, peer: NodeId, result: &Result<Reply, FailureKind>) {
        match result {
            Ok(Reply::ClusterId(Some(id))) => {
                self.clusters.insert(peer, Some(*id));
                self.without.remove(&peer);
                compare(cx, peer, *id);
            }
            Ok(Reply::ClusterId(None)) if is_founder(cx) => {
                self.without.insert(peer);
                self.assign_id_if_founder(cx);
            }
            _ => {}
        }
    }

    /// Gives the cluster its id if this node is the founder and all peers have answered it that
    /// they have no id.
    fn assign_id_if_founder(&self, cx: &Context) {
        let has_none = |peer: &NodeId| self.without.contains(peer);
        if is_founder(cx) && cx.others().iter().all(has_none) {
            let mut names: Vec<_> = cx.view().ids().map(|id| cx.shared().name_of(id)).collect();
            names.sort_unstable();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            store(cx, ClusterId::derive(&names, cx.shared().membership.logs.own_incarnation()));
        }
    }
}

fn compare(cx: &Context, peer: NodeId, theirs: ClusterId) {
    match cx.shared().membership.cluster.id() {
        None => store(cx, theirs),
        Some(own) => cx.shared().membership.cluster.set_foreign(peer, own != theirs),
    }
}

fn store(cx: &Context, id: ClusterId) {
    if cx.shared().membership.cluster.begin_storing(id) {
        cx.effect(BackgroundEffect::StoreClusterId(id));
    }
}

/// True if this node is the founder: it has no id, and its name comes first in the view.
fn is_founder(cx: &Context) -> bool {
    let own = cx.shared().own;
    cx.shared().membership.cluster.id().is_none()
        && cx.view().ids().min_by_key(|id| cx.shared().name_of(*id)) == Some(own)
}

/// Notes that this node's data was written together with other nodes, so that the node does not
/// join another cluster with that data.
fn note_shared_data(cx: &Context) {
    let cluster = &cx.shared().membership.cluster;
    if cluster.id().is_none()
        && cx.shared().replica.newest.time() >= FIRST_RECORD_TIME
        && cx.others().iter().any(|peer| cx.shared().membership.logs.incarnation(*peer).is_some())
    {
        cluster.mark_data_shared();
    }
}
