//! Reasons why two nodes refuse each other, and their texts for operators.

use super::{Claim, HandshakeIdentity, Hello};
use crate::placement::topology::difference;
use crate::placement::view::View;

/// A side's reason to refuse the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The other side does not speak this protocol.
    Malformed(&'static str),
    /// The two sides have no version in common.
    Version,
    /// The other side does not know the secret.
    Secret,
    /// The other side belongs to another cluster.
    Cluster,
    /// The other side's settings name other nodes, zones, weights or replicas.
    Topology,
    /// The other side is not the node that was dialed.
    Name,
    /// The other side or this node has left the cluster, as at least one of the two knows. A side
    /// that refuses a removed node sends the code of this reason; otherwise the code is that of
    /// `Name`.
    Removed,
    /// The other side has this node's name but another disk.
    Namesake,
    /// The other side is this node.
    Itself,
    /// This node knows a later process with the other side's disk.
    Outlived,
    /// The other side knows a later process with this node's disk.
    Fenced,
    /// This node is connected to a process that has another disk and runs as the other side's node.
    Taken,
    /// The other side is connected to a process that has another disk and runs as this node.
    Replaced,
    /// The two sides are on a fork: the cluster was recovered from a directory that did not know
    /// the layout of one side.
    Forked,
}

impl Reason {
    /// Returns the reason as one word.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Version => "version",
            Self::Secret => "secret",
            Self::Cluster => "cluster",
            Self::Topology => "topology",
            Self::Name => "name",
            Self::Removed => "removed",
            Self::Namesake => "namesake",
            Self::Itself => "itself",
            Self::Outlived => "outlived",
            Self::Fenced => "fenced",
            Self::Taken => "taken",
            Self::Replaced => "replaced",
            Self::Forked => "forked",
        }
    }

    /// Returns the reason as a number on the wire.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Malformed(_) => 1,
            Self::Version => 2,
            Self::Secret => 3,
            Self::Cluster => 4,
            Self::Topology => 5,
            Self::Name => 6,
            Self::Namesake => 7,
            Self::Itself => 8,
            Self::Outlived | Self::Fenced => 9,
            Self::Forked => 10,
            Self::Taken | Self::Replaced => 11,
            Self::Removed => 12,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            2 => Self::Version,
            3 => Self::Secret,
            4 => Self::Cluster,
            5 => Self::Topology,
            6 => Self::Name,
            7 => Self::Namesake,
            8 => Self::Itself,
            9 => Self::Fenced,
            10 => Self::Forked,
            11 => Self::Replaced,
            12 => Self::Removed,
            _ => return None,
        })
    }
}

/// The error of a failed handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HandshakeRefused {
    /// The reason for the failure.
    pub reason: Reason,
    /// The reason in words, on one line.
    pub text: String,
}

/// True if this node's view has no node with the other side's id and name.
fn is_unknown(ours: &HandshakeIdentity, theirs: Option<&Hello>) -> bool {
    theirs.is_some_and(|theirs| !ours.views.current().has_node_named(theirs.node, &theirs.name))
}

fn fork_text(name: &str, ours: &HandshakeIdentity, theirs: Option<&Hello>) -> String {
    let (own, epoch) = (ours.own_name(), ours.views.epoch());
    let theirs = theirs.map_or(0, |hello| hello.view.epoch);
    format!(
        "{name} goes by epoch {theirs} and this node, {own}, by epoch {epoch}, and neither grew \
         out of the other: the cluster was recovered (kvorum cluster recover) from a directory \
         that knew nothing of one of them. The two exchange nothing. Keep one side; start each \
         node of the other one with an empty directory and --join"
    )
}

/// Returns a range of versions in words.
fn version_range_text((least, greatest): (u16, u16)) -> String {
    if least == greatest {
        format!("version {least}")
    } else {
        format!("versions {least} to {greatest}")
    }
}

/// Returns the text for two nodes of different clusters.
fn other_cluster_text(name: &str, ours: &HandshakeIdentity, theirs: Option<&Hello>) -> String {
    let (own, layout) = (ours.own_name(), ours.layouts.active_layout());
    let at = |name: &str| {
        let url =
            layout.find_node(name).map(|node| node.url.as_str()).filter(|url| !url.is_empty());
        url.map_or(String::new(), |url| format!(" at {url}"))
    };
    let (at_own, at_theirs) = (at(own), at(name));
    let ids = theirs.and_then(|hello| hello.cluster).zip(ours.cluster.id());
    let what = match ids.filter(|(theirs, own)| theirs != own) {
        Some((theirs, id)) => format!(
            "{name}{at_theirs} belongs to cluster {theirs}, this node, {own}{at_own}, to cluster \
             {id}"
        ),
        None => format!(
            "{name}{at_theirs} and this node, {own}{at_own}, are of two clusters with the same \
             names: each knows, or has taken data with, other nodes than those of the other one"
        ),
    };
    format!(
        "{what}. They exchange nothing, and each keeps its data. Either one of the two listens at \
         an address that the other cluster lists: correct --listen, --advertise or --cluster, and \
         give each cluster a secret of its own. Or one has the data directory of another cluster: \
         put its own one back, or start it with an empty one{}",
        early_disk_text(ours, theirs)
    )
}

/// Returns a third possible cause, and its remedy, for two nodes of which at least one has no
/// cluster id: the disk of one node was replaced before all nodes of the list had run at once, and
/// the other node knows the former disk. Empty if the known disks exclude this cause.
fn early_disk_text(ours: &HandshakeIdentity, theirs: Option<&Hello>) -> String {
    let Some(theirs) = theirs.filter(|hello| hello.cluster.zip(ours.cluster.id()).is_none()) else {
        return String::new();
    };
    let knows_former = |claim: Option<Claim>, disk| claim.is_some_and(|it| it.incarnation != disk);
    let is_own = knows_former(theirs.knows_you, ours.logs.own_incarnation());
    let is_theirs = knows_former(ours.logs.claim(theirs.node), theirs.incarnation);
    let (replaced, other) = match (is_own, is_theirs) {
        (true, false) => (ours.own_name(), theirs.name.as_str()),
        (false, true) => (theirs.name.as_str(), ours.own_name()),
        _ => return String::new(),
    };
    format!(
        ". Or the disk of {replaced} was replaced before all nodes of the new cluster had run at \
         once: then start {replaced} with an empty directory once more, but keep the directory of \
         {other}, which may have the only copy of a write"
    )
}

/// Returns the text for a single node that a node of another cluster dials as its member.
fn lone_node_text(ours: &HandshakeIdentity, theirs: &Hello) -> String {
    let (own, name, to) = (ours.own_name(), &theirs.name, &theirs.to);
    let cluster = theirs.cluster.map_or(String::new(), |id| format!(" {id}"));
    format!(
        "{name} of another cluster{cluster} looks here for its member {to}, and this node, {own}, \
         is a store of its own, which it serves at that member's URL: it was started without \
         --cluster and --join. The two exchange nothing: what clients write here is here only, and \
         what that cluster holds is not found here. If this is to be {to}: stop it, keep its \
         directory if anything was written here, and start it as {to}, with an empty directory \
         and the cluster's --cluster (or --join), --replicas and secret. If not: correct its \
         --listen, or the URL of {to} in that cluster"
    )
}

/// True if the other side has left the cluster, as far as this node knows.
fn has_peer_left(ours: &HandshakeIdentity, theirs: Option<&Hello>) -> bool {
    theirs.is_some_and(|theirs| ours.layouts.known_layout().is_retired(theirs.node))
}

/// Returns the reason to send in place of `reason`, this side's reason to refuse the other side. A
/// removed node learns of its removal: it may have lost, with its disk, the layout that states the
/// removal, and must not treat this node as away.
pub(super) fn reason_to_send(
    reason: Reason,
    ours: &HandshakeIdentity,
    theirs: Option<&Hello>,
) -> Reason {
    let is_removed = reason == Reason::Name && has_peer_left(ours, theirs);
    if is_removed { Reason::Removed } else { reason }
}

/// Turns a name mismatch into a removal if one of the two nodes has left.
fn as_removal(reason: Reason, ours: &HandshakeIdentity, theirs: Option<&Hello>) -> Reason {
    let has_left = reason == Reason::Name && ours.layouts.known_layout().is_retired(ours.own());
    if has_left { Reason::Removed } else { reason_to_send(reason, ours, theirs) }
}

/// Returns the text for a process whose disk a second process uses. By the wall clock, the second
/// process started later.
fn fenced_text(name: &str, own: &str) -> String {
    format!(
        "{name} knows another process that runs as this node, {own}, with a copy of its data \
         directory and was started later. This process no longer serves requests: stop one of \
         them, then restart the other. If no other process runs, an older copy of the \
         directory was put back, and the clock was ahead when the later process started, or is \
         behind now: restart this one once the clock has passed that time, or start it with an \
         empty directory"
    )
}

fn replaced_text(name: &str, own: &str) -> String {
    format!(
        "{name} is connected to another process that runs as this node, {own}, with another data \
         directory: this process is refused as long as that one runs, and no longer serves \
         requests if it was a member. Stop the one that is not to stay, remove its directory, then \
         restart the other"
    )
}

fn removed_text(name: &str, ours: &HandshakeIdentity, theirs: Option<&Hello>) -> String {
    let own = ours.own_name();
    // This node may have learned of its own removal in this handshake, or may have lost that
    // knowledge.
    let is_peer =
        has_peer_left(ours, theirs) && !ours.layouts.known_layout().is_retired(ours.own());
    let who = match is_peer {
        true => name.to_owned(),
        false => format!("{name} refuses this node, {own}, which"),
    };
    format!(
        "{who} was removed from the cluster: to add it again, start it with an empty directory and \
         --join"
    )
}

/// Makes the error of a refusal. `dialed` is the node that this side wanted to reach, if this side
/// made the connection; `description` is the other side's topology, if it was sent.
pub(super) fn refusal_error(
    reason: Reason,
    ours: &HandshakeIdentity,
    theirs: Option<&Hello>,
    dialed: &str,
    description: &[u8],
) -> HandshakeRefused {
    let name = match theirs {
        Some(hello) => hello.name.as_str(),
        None if !dialed.is_empty() => dialed,
        None => "an unknown node",
    };
    let own = ours.own_name();
    let reason = as_removal(reason, ours, theirs);
    let differs = matches!(reason, Reason::Secret | Reason::Cluster | Reason::Topology);
    if let Some(theirs) = theirs.filter(|_| differs && ours.views.with(View::is_alone)) {
        return HandshakeRefused { reason, text: lone_node_text(ours, theirs) };
    }
    let text = match reason {
        Reason::Malformed(what) => format!("not a kvorum-peer/1 handshake: {what}"),
        Reason::Version => {
            let theirs =
                theirs.map_or("other versions".to_owned(), |it| version_range_text(it.versions));
            format!(
                "{name} supports {theirs} of the peer protocol, this node, {own}, {}: upgrade the \
                 older one",
                version_range_text(ours.versions)
            )
        }
        Reason::Secret => format!(
            "{name} and this node, {own}, have different cluster secrets: \
             give all nodes the same one"
        ),
        Reason::Cluster => other_cluster_text(name, ours, theirs),
        Reason::Topology => {
            let theirs = String::from_utf8_lossy(description);
            let whose = format!("{name}'s");
            let what = difference(&ours.views.current().topology.describe(), &theirs, &whose);
            format!(
                "{name} and this node, {own}, have different topologies: {}; \
                 start all nodes with the same --cluster and --replicas",
                what.unwrap_or_default()
            )
        }
        Reason::Removed => removed_text(name, ours, theirs),
        Reason::Name if is_unknown(ours, theirs) => format!(
            "{name} is not a member of the cluster that this node, {own}, knows: if it was \
             removed, start it with an empty directory and --join to add it again; if it is a \
             member by now, this node learns that from the other nodes"
        ),
        Reason::Name => format!(
            "{name} or this node, {own}, is not the node expected at its URL: check which URL \
             belongs to which name in --cluster"
        ),
        Reason::Namesake => format!(
            "another node with another data directory uses the name {own} too: stop one of them"
        ),
        Reason::Outlived => format!(
            "two processes run as {name} with copies of one data directory: {name}'s older process \
             is refused; stop that one"
        ),
        Reason::Fenced => fenced_text(name, own),
        Reason::Taken => format!(
            "another process runs as {name} with another data directory, and this node, {own}, is \
             connected to it: the one that came later is refused while the first one runs. Stop \
             the one that is not to stay, and remove its directory"
        ),
        Reason::Replaced => replaced_text(name, own),
        Reason::Forked => fork_text(name, ours, theirs),
        Reason::Itself => format!(
            "that is this node, {own}, itself: check which URL belongs to which name in --cluster"
        ),
    };
    HandshakeRefused { reason, text }
}
