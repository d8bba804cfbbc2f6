//! Warnings to consider before a plan is applied.

use protocol::Topology;
use protocol::layout::{Layout, Seat, Stage};

use crate::layout::status::names;
use crate::node::Node;

/// Maximum number of node names in a warning. A longer list would be hard to read.
const MAX_NAMED: usize = 3;

/// Returns the warnings for the plan `planned`, which changes the layout `base`, based on this
/// node's knowledge of the other nodes.
pub(crate) fn of(node: &Node, base: &Layout, planned: &Layout, after: &Topology) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(no_majority(node, base));
    warnings.extend(waits_for_unreachable(node, planned));
    warnings.extend(url_changes(base, planned));
    warnings.extend(mixed_tls(planned));
    let (nodes, replicas) = (planned.nodes.len(), planned.replicas);
    if nodes < usize::from(replicas) {
        warnings.push(format!("{nodes} nodes hold {nodes} copies of a key, not {replicas}"));
    }
    if planned.replicas < base.replicas {
        let (is, was) = (planned.replicas, base.replicas);
        warnings.push(format!(
            "values that were written without from= have {is} copies from then on, not {was}: a \
             read that names a larger from= may not find them"
        ));
    }
    let unused = planned.council.iter().filter(|seat| !after.contains(seat.node)).count();
    if unused > 0 {
        warnings.push(format!("{unused} members of the council leave the cluster"));
    }
    let is_only_copy = planned.replicas == 1;
    warnings.extend(tolerates_less(base.council.len(), planned.council.len(), is_only_copy));
    warnings.extend(lost_node_is_up(node, planned));
    warnings.extend(not_asked_to_join(base, planned));
    let lost = text(before(planned).filter(|node| node.is_lost));
    if !lost.is_empty() {
        warnings.push(format!("what only {lost} held is lost, above all writes with ack=1"));
    }
    warnings
}

/// Warns that the new metadata quorum tolerates fewer failures. `is_only_copy` is true if each key
/// has one copy, so a failure also makes keys unavailable.
fn tolerates_less(was: usize, is: usize, is_only_copy: bool) -> Option<String> {
    let may_fail = |nodes: usize| nodes - (nodes / 2 + 1);
    (is < was).then(|| {
        let fail = match (is, may_fail(is)) {
            (1, _) => "if that node fails".to_owned(),
            (_, 0) => "if one of them fails".to_owned(),
            (_, some) => format!("if more than {some} of them fail"),
        };
        let keys = if is_only_copy { "" } else { " (keys are read and written as before)" };
        format!(
            "the council shrinks from {was} nodes to {is}: {fail}, members, tokens and quotas \
             can't be changed until enough of them are back{keys}"
        )
    })
}

fn before(planned: &Layout) -> impl Iterator<Item = &protocol::layout::Node> {
    planned.before.iter().flat_map(|before| &before.nodes)
}

fn text<'a>(nodes: impl Iterator<Item = &'a protocol::layout::Node>) -> String {
    nodes.map(|node| node.member.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Returns true if the node of a seat can vote, as far as this node knows.
fn can_vote(node: &Node, seat: &Seat) -> bool {
    if seat.node == node.shared.own {
        return node.shared.membership.layouts.has_seat();
    }
    let has_its_disk = match seat.voter {
        // In the first layout, a seat belongs to its node's first disk.
        None => !node.shared.membership.logs.had_another_disk(seat.node),
        voter => node.facts.observations(seat.node).voter() == voter,
    };
    node.facts.is_up(seat.node) && has_its_disk
}

/// Warns that the metadata quorum has no majority that can decide the plan.
fn no_majority(node: &Node, base: &Layout) -> Option<String> {
    let away: Vec<Seat> =
        base.council.iter().filter(|seat| !can_vote(node, seat)).copied().collect();
    let can = base.council.len() - away.len();
    (can < base.council.len() / 2 + 1).then(|| {
        format!(
            "no majority of the council ({}) can vote: not {}. The plan can't be decided until \
             more of them are up with the disks on which they voted. A node whose disk was \
             replaced, or whose directory was copied, has lost its vote for good: if no majority \
             is left, run `kvorum cluster recover` (--lost for nodes that are gone, --without-vote \
             for those that came back with another disk or a copy) on the directory of one node",
            names(base, &base.council).join(", "),
            names(base, &away).join(", ")
        )
    })
}

/// Warns that a node which the plan declares lost is up.
fn lost_node_is_up(node: &Node, planned: &Layout) -> Option<String> {
    let alive = text(before(planned).filter(|lost| lost.is_lost && node.facts.is_up(lost.id)));
    (!alive.is_empty()).then(|| {
        format!(
            "{alive} is up: --remove-dead gives up what only it holds. With --remove it hands over \
             its keys first, and nothing is lost"
        )
    })
}

/// Warns that a planned node has not asked to join, so the plan can't be applied.
fn not_asked_to_join(base: &Layout, planned: &Layout) -> Option<String> {
    let is_new = |node: &&protocol::layout::Node| base.node(node.id).is_none();
    let new = planned.nodes.iter().filter(is_new);
    let unasked = text(new.filter(|node| node.first_disk.is_none()));
    (!unasked.is_empty()).then(|| {
        format!(
            "{unasked} has not asked to join, so this plan can't be applied, only looked at. Start \
             it with --join, then plan to add it by its name alone"
        )
    })
}

/// Warns about nodes whose URL in the layout changes.
fn url_changes(base: &Layout, planned: &Layout) -> Vec<String> {
    let text = |node: &protocol::layout::Node| {
        let was = base.node(node.id).filter(|was| was.url != node.url)?;
        Some(format!(
            "{} is at {}, as far as this node knows: the plan changes its URL in the layout, \
             which is {}",
            node.member.name, node.url, was.url
        ))
    };
    planned.nodes.iter().filter_map(text).collect()
}

/// Warns that other nodes reach some nodes in plaintext, and the rest over TLS.
fn mixed_tls(planned: &Layout) -> Option<String> {
    let is_in_clear = |node: &&protocol::layout::Node| node.url.starts_with("http://");
    let (clear, secured): (Vec<_>, Vec<_>) = planned.nodes.iter().partition(is_in_clear);
    if clear.is_empty() || secured.is_empty() {
        return None;
    }
    let at = |node: &&protocol::layout::Node| format!("{} at {}", node.member.name, node.url);
    let mut named: Vec<String> = clear.iter().take(MAX_NAMED).map(at).collect();
    if clear.len() > MAX_NAMED {
        named.push(format!("{} more", clear.len() - MAX_NAMED));
    }
    Some(format!(
        "some nodes are at https:// URLs, and others are reached in clear: {}. What is sent to \
         those can be read on the network. Start them with --tls-cert, --tls-key and an https:// \
         URL (--advertise, --cluster), and plan again",
        named.join(", ")
    ))
}

/// Warns that the change ends only after an unreachable node is back.
fn waits_for_unreachable(node: &Node, planned: &Layout) -> Option<String> {
    if planned.stage == Stage::Settled {
        return None;
    }
    let is_before = |id| before(planned).any(|node| node.id == id && !node.is_lost);
    let is_awaited = |id| is_before(id) && !node.facts.is_up(id);
    let away = text(planned.all().filter(|node| is_awaited(node.id)));
    (!away.is_empty()).then(|| {
        format!(
            "{away} can't be reached from this node: the change waits for it before it ends. If \
             it is lost with its disk, remove it with --remove-dead in this plan"
        )
    })
}
