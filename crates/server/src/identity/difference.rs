//! Differences between the settings of a start and the node to which the data directory belongs.

use protocol::difference;
use protocol::layout::Layout;

use super::NodeSettings;
use super::format::StoredIdentity;

/// Returns the reason why the node can't use this directory; `None` = the node can use it.
pub(super) fn identity_difference(
    kept: &StoredIdentity,
    named: NodeSettings<'_>,
) -> Option<String> {
    const WHOSE: &str = "the data directory's";
    let (own, theirs) = (named.name(), &kept.name);
    let alone = named.topology.nodes() == 1 && kept.is_alone();
    if alone {
        let other = kept.named && named.named && own != theirs;
        return other
            .then(|| format!("this is node {own}, but the directory belongs to node {theirs}"));
    }
    let topology = difference(&named.topology.describe(), &kept.description, WHOSE);
    topology.or_else(|| {
        let other = own != theirs;
        other.then(|| format!("this is node {own}, but the directory belongs to node {theirs}"))
    })
}

/// Returns the reason why the node can't use a directory whose stored layout is in force: the
/// settings name another node. `None` = the node can use it.
pub(super) fn other_node_difference(
    kept: &StoredIdentity,
    named: NodeSettings<'_>,
) -> Option<String> {
    let (own, theirs) = (named.name(), &kept.name);
    (named.named && own != theirs)
        .then(|| format!("this is node {own}, but the directory belongs to node {theirs}"))
}

/// Logs the differences between the settings' list and the layout in force.
pub(super) fn log_difference(named: NodeSettings<'_>, layout: &Layout) {
    if !named.named {
        return;
    }
    let listed: Vec<_> = named.topology.ids().map(|id| named.topology.member(id)).collect();
    let is_listed = |name: &str| listed.iter().any(|member| member.name == name);
    let mut differs: Vec<String> = Vec::new();
    for member in &listed {
        match layout.find_node(&member.name) {
            None => differs.push(format!("node {} is not a member", member.name)),
            Some(node) if node.member != **member => {
                differs.push(format!("node {} has another zone or weight", member.name));
            }
            Some(_) => {}
        }
    }
    let names = layout.nodes.iter().map(|node| &node.member.name);
    let missing = names.filter(|name| !is_listed(name));
    // A node that started alone lists no other node, also after its cluster has grown.
    if listed.len() > 1 {
        differs.extend(missing.map(|name| format!("node {name} is missing")));
    }
    if let Some(first) = differs.first() {
        let epoch = layout.epoch;
        tracing::warn!(
            epoch,
            differences = differs.len(),
            "--cluster differs from the cluster's current members, which the data directory holds: \
             {first}. The stored members are used; remove --cluster, or list what `kvorum cluster \
             status` shows"
        );
    }
}
