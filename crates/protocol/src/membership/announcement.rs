//! Announcement of this node's disk: while this node is not a member, it asks the other nodes to
//! store the id of its disk (`known_disk.rs`).

use std::collections::BTreeMap;

use crate::background::task::{Context, TaskId, Tasks};
use crate::message::{Class, NodeId, Reply, Request};

/// Delay in microseconds before a node that has not confirmed the disk is asked again.
const RETRY_MICROS: u64 = 100_000;

/// The running `announce` tasks, by the node that each of them asks.
#[derive(Debug, Default)]
pub(crate) struct Announcement(BTreeMap<NodeId, TaskId>);

impl Announcement {
    /// While this node is not a member, asks each other node whether it has stored the id of this
    /// node's disk, until it confirms that it has.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        let context = tasks.context().clone();
        let (shared, others) = (context.shared(), context.others());
        let is_member = shared.membership.state.is_undoubted_member();
        self.0.retain(|node, task| {
            let is_asked = !is_member && others.contains(node) && tasks.is_under_way(*task);
            if !is_asked {
                tasks.stop(*task);
            }
            is_asked
        });
        for node in others.iter().filter(|_| !is_member) {
            if !self.0.contains_key(node) && !shared.membership.known_disk.is_known_by(*node) {
                self.0.insert(*node, tasks.spawn("announce", announce(context.clone(), *node)));
            }
        }
        shared.membership.known_disk.update_waiting(is_member, &others);
    }
}

/// Asks a node until it confirms this node's disk.
async fn announce(context: Context, node: NodeId) {
    let shared = context.shared();
    let request = Request::KnowsDisk {
        node: shared.own,
        incarnation: shared.membership.logs.own_incarnation(),
    };
    loop {
        let losses = shared.membership.known_disk.losses(node);
        match context.call(node, Class::Client, request.clone()).await {
            Ok(Reply::Pong) => return shared.membership.known_disk.mark_known(node, losses),
            Ok(_) => {}
            Err(_) => shared.membership.known_disk.mark_away(node, losses),
        }
        context.pause(RETRY_MICROS).await;
    }
}
