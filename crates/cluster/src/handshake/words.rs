//! Why two nodes do not work together, for people.

use super::{Hello, Identity, VERSIONS};
use crate::topology::difference;

/// What one side has against the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It does not speak this protocol.
    Malformed(&'static str),
    /// There is no version that both speak.
    Version,
    /// It does not know the secret.
    Secret,
    /// It belongs to another cluster.
    Cluster,
    /// Its settings name other nodes, zones, weights or replicas.
    Topology,
    /// It is not the node that was dialed.
    Name,
    /// It has this node's name, and another disk.
    Namesake,
    /// It is this node.
    Itself,
    /// A later process with its disk is known.
    Outlived,
    /// The other side knows a later process with this node's disk.
    Fenced,
    /// It goes by what was decided after the cluster was recovered without knowing of it.
    Forked,
}

impl Reason {
    /// As one word.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Version => "version",
            Self::Secret => "secret",
            Self::Cluster => "cluster",
            Self::Topology => "topology",
            Self::Name => "name",
            Self::Namesake => "namesake",
            Self::Itself => "itself",
            Self::Outlived => "outlived",
            Self::Fenced => "fenced",
            Self::Forked => "forked",
        }
    }

    /// As a number on the wire.
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
            _ => return None,
        })
    }
}

/// A handshake that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// What it failed for.
    pub reason: Reason,
    /// The same in words, in one line.
    pub text: String,
}

/// Whether the other side is none of the nodes that this one knows.
fn is_unknown(ours: &Identity, theirs: Option<&Hello>) -> bool {
    let is_known = |theirs: &Hello| match theirs.node {
        Some(node) => ours.views.current().has_named(node, &theirs.name),
        None => ours.views.current().named(&theirs.name).is_some(),
    };
    theirs.is_some_and(|theirs| !is_known(theirs))
}

fn forked(name: &str, ours: &Identity, theirs: Option<&Hello>) -> String {
    let (own, epoch) = (ours.own_name(), ours.views.epoch());
    let theirs = theirs.map_or(0, |hello| hello.view.epoch);
    format!(
        "{name} goes by epoch {theirs} and this node, {own}, by epoch {epoch}, and neither grew \
         out of the other: the cluster was recovered (kvorum cluster recover) from a directory \
         that knew nothing of one of them. The two exchange nothing. Keep one side; start each \
         node of the other one with an empty directory and --join"
    )
}

/// `dialed` is whom this side wanted to reach, if it made the connection; `description` is the
/// other side's topology, if it said it.
pub(super) fn refused(
    reason: Reason,
    ours: &Identity,
    theirs: Option<&Hello>,
    dialed: &str,
    description: &[u8],
) -> Refused {
    let name = match theirs {
        Some(hello) => hello.name.as_str(),
        None if !dialed.is_empty() => dialed,
        None => "an unknown node",
    };
    let own = ours.own_name();
    let text = match reason {
        Reason::Malformed(what) => format!("not a kvorum-peer/1 handshake: {what}"),
        Reason::Version => {
            let (least, greatest) = VERSIONS;
            let theirs = match theirs.map(|hello| hello.versions) {
                Some((least, greatest)) => format!("versions {least} to {greatest}"),
                None => "other versions".to_owned(),
            };
            format!(
                "{name} supports {theirs} of the peer protocol, this node, {own}, {least} to \
                 {greatest}: upgrade the older one"
            )
        }
        Reason::Secret => format!(
            "{name} and this node, {own}, have different cluster secrets: \
             give all nodes the same one"
        ),
        Reason::Cluster => format!(
            "{name} belongs to cluster {:016x}, this node, {own}, to {:016x}: \
             one of them has the data directory of another cluster",
            theirs.and_then(|hello| hello.cluster).map_or(0, |cluster| cluster.0),
            ours.cluster.map_or(0, |cluster| cluster.0)
        ),
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
        // It may just have been told.
        Reason::Name if ours.layouts.known().is_gone(ours.own()) => format!(
            "{name} refuses this node, {own}, which was removed from the cluster: to add it again, \
             start it with an empty directory and --join"
        ),
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
        Reason::Fenced => format!(
            "{name} is connected to another process that runs as this node, {own}, with a copy of \
             its data directory and was started later. This process no longer serves requests: \
             stop one of them, then restart the other"
        ),
        Reason::Forked => forked(name, ours, theirs),
        Reason::Itself => format!(
            "that is this node, {own}, itself: check which URL belongs to which name in --cluster"
        ),
    };
    Refused { reason, text }
}
