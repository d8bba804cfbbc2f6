//! Answers to nodes that belong to no cluster, and ask to join this cluster.

use std::time::{Duration, Instant};

use protocol::layout::Layout;
use protocol::{Clock, ClusterId, FIRST_EPOCH, NodeId, TopologyError};

use crate::counters::clocks::wall_micros;
use crate::joining::joiners::{FORGOTTEN_AFTER, JoinOutcome, JoinRejected};
use crate::joining::message::{JoinAnswer, JoinRequest, hex};
use crate::node::Node;
use crate::settings::members::{NodeError, is_loopback, node_url};

/// Maximum time between the sending and the arrival of a join request. A sender's clock counts as
/// behind if it is behind by more than this time plus the permitted skew.
const MAX_TRANSIT_TIME: Duration = Duration::from_secs(5);

/// A failure of a join request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The request does not describe a valid node.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The request is valid, but the cluster does not admit the node.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The reason why a join request does not describe a valid node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error(transparent)]
    Member(#[from] TopologyError),
    #[error(transparent)]
    Url(#[from] NodeError),
    #[error("{0:?} is not a node URL: write http://HOST:PORT")]
    Unusual(String),
    #[error("node {0:?}: its name has a comma, which stands between names in plans")]
    Comma(String),
    #[error("{what}: {digits:?} is not 16 hexadecimal digits")]
    Number { what: &'static str, digits: String },
}

/// The reason why the cluster does not admit a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "this machine's clock is {} s ahead of that of {url}: set the one that is wrong, and start \
         this node again",
        ahead.as_secs_f64().round()
    )]
    Ahead { ahead: Duration, url: String },
    #[error(
        "node {member} is at {url}: a node that joins needs a URL of its own, --listen or \
         --advertise"
    )]
    SameUrl { member: String, url: String },
    #[error(
        "this cluster's nodes speak TLS, and would reach node {name} in clear, at {url}: start it \
         with --tls-cert and --tls-key (kvorum cert makes them) and an https:// URL (--advertise). \
         Only nodes with --insecure take one that is in clear"
    )]
    InClear { name: String, url: String },
    #[error("node {name} is a member already, at {url}: give this node another --name")]
    SameName { name: String, url: String },
    #[error(
        "node {name} is a member already, and up with another data directory: stop that process, \
         or give this node another --name"
    )]
    IsUp { name: String },
    #[error(
        "node {name} is one of those that --cluster lists, and no change of the members was made \
         yet: start it with the same --cluster as the others, and an empty directory; then it is \
         rebuilt from them. Nothing was changed here"
    )]
    IsListed { name: String },
    #[error(transparent)]
    InVain(#[from] JoinRejected),
}

/// The reason why a plan can't add a node that it only names.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAsking {
    #[error("node {name:?} is a member already, at {url}: there is nothing to add")]
    Member { name: String, url: String },
    #[error(
        "node {name:?} does not ask this node to join (those that do: {}): start it with kvorum \
         serve --join and this node's URL; if it runs, its log says why it does not count. A node \
         that was removed, or whose joining was aborted, asks again with an empty directory only",
        if asking.is_empty() { "none".to_owned() } else { asking.join(", ") }
    )]
    Nobody { name: String, asking: Vec<String> },
}

/// Answers a request to join. If the layout has the node, the answer is the layout; otherwise it
/// tells the node to wait.
pub(crate) fn answer_join(node: &Node, asker: JoinRequest) -> Result<JoinAnswer, JoinError> {
    check(&asker)?;
    let skew = node.config.max_clock_skew;
    if let Some(ahead) = clock_lead(asker.clock_ms, wall_micros(), skew) {
        let url = node.url_of(node.shared.own);
        return Err(Refused::Ahead { ahead, url }.into());
    }
    let layout = node.shared.membership.layouts.active_layout();
    // `all` includes leaving nodes. A node with the name of a leaving node waits until that node
    // has handed over its records, or the change is undone.
    if let Some(known) = layout.all().find(|node| node.member.name == asker.name) {
        let id = known.id;
        check_same_member(node, &asker, id)?;
        node.joiners.remove(&asker.name);
        let cluster = format!("{:016x}", ClusterId::number(node.identity.cluster()));
        return Ok(JoinAnswer::Placed { cluster, id: id.0, layout: hex(&layout.to_bytes()) });
    }
    let at_its_url = layout.all().find(|other| node.url_of(other.id) == asker.url);
    if let Some(other) = at_its_url {
        let member = other.member.name.clone();
        return Err(Refused::SameUrl { member, url: asker.url }.into());
    }
    if is_in_clear(node, &asker) {
        return Err(Refused::InClear { name: asker.name, url: asker.url }.into());
    }
    let issued = Clock::micros(node.shared.clock.last());
    let url = node.url_of(node.shared.own);
    if let Some(because) = clock_behind_reason(asker.clock_ms, (wall_micros(), issued), skew, &url)
    {
        let (epoch, members) = (layout.epoch, members(node, &layout));
        return Ok(JoinAnswer::Waits { epoch, members, because: Some(because) });
    }
    let (name, url) = (asker.name.clone(), asker.url.clone());
    let because = match node.joiners.keep(asker, Instant::now()).map_err(Refused::from)? {
        JoinOutcome::New => {
            tracing::info!(name, url, "a node asks to join: kvorum cluster plan --add {name}");
            None
        }
        JoinOutcome::Known => None,
        JoinOutcome::NotYet => Some(format!(
            "another data directory was used at {url} to ask to join as {name}, less than {} s \
             ago: this one counts once that one asks no more",
            FORGOTTEN_AFTER.as_secs()
        )),
    };
    Ok(JoinAnswer::Waits { epoch: layout.epoch, members: members(node, &layout), because })
}

/// Returns the reason why a node can't be added yet: its clock is behind, so it would refuse this
/// cluster's records as future records. Reads of their keys would fail, and the change would not
/// end, until it accepted the records. `None` if the clock is not behind.
fn clock_behind_reason(
    clock_ms: u64,
    (wall, issued): (u64, u64),
    skew: Duration,
    url: &str,
) -> Option<String> {
    let (theirs, most) = (Duration::from_millis(clock_ms), skew + MAX_TRANSIT_TIME);
    let behind = |micros| Duration::from_micros(micros).checked_sub(theirs).filter(|by| *by > most);
    let seconds = |by: Duration| by.as_secs_f64().round();
    if let Some(by) = behind(wall) {
        return Some(format!(
            "this machine's clock is {} s behind that of {url}: set the one that is wrong; this \
             node counts once the clocks agree",
            seconds(by)
        ));
    }
    behind(issued).map(|by| {
        format!(
            "{url} has issued timestamps up to {} s ahead, for its clock was ahead before: other \
             nodes would refuse its records. This node counts once the clocks have passed that \
             time",
            seconds(by)
        )
    })
}

/// Returns the time by which a clock is ahead of this node's, if it exceeds the permitted skew;
/// otherwise `None`. The repair fence of a joining node reaches up to the node's clock, and the
/// node makes no promises below its fence. So a node with a clock ahead makes no promises until the
/// other nodes' clocks have caught up.
fn clock_lead(clock_ms: u64, wall_micros: u64, skew: Duration) -> Option<Duration> {
    let theirs = Duration::from_millis(clock_ms);
    let ahead = theirs.checked_sub(Duration::from_micros(wall_micros))?;
    (ahead > skew).then_some(ahead)
}

/// Returns true if other nodes would reach the joining node in plaintext over a network, although
/// this node requires TLS. This node would also refuse to start with the joining node in its list.
fn is_in_clear(node: &Node, asker: &JoinRequest) -> bool {
    let requires_tls = node.tls.is_some() && !node.config.insecure;
    requires_tls && asker.url.starts_with("http://") && !is_loopback(&asker.url)
}

fn check(asker: &JoinRequest) -> Result<(), Malformed> {
    asker.member().check()?;
    if asker.name.contains(',') {
        return Err(Malformed::Comma(asker.name.clone()));
    }
    if node_url(&asker.url)? != asker.url {
        return Err(Malformed::Unusual(asker.url.clone()));
    }
    for (what, digits) in [("incarnation", &asker.incarnation), ("voter", &asker.voter)] {
        let number = u64::from_str_radix(digits, 16).ok().filter(|number| *number != 0);
        if number.is_none() || digits.len() != 16 {
            return Err(Malformed::Number { what, digits: digits.clone() });
        }
    }
    Ok(())
}

/// Returns an error unless the member `id` is the node that asks. The node may have an empty disk
/// in place of a lost disk: the other nodes know the lost disk, and rebuild the node.
fn check_same_member(node: &Node, asker: &JoinRequest, id: NodeId) -> Result<(), Refused> {
    let url = node.url_of(id);
    let name = asker.name.clone();
    if url != asker.url {
        return Err(Refused::SameName { name, url });
    }
    let seen = node.facts.incarnation(id);
    let other_disk = seen.filter(|seen| format!("{:016x}", seen.0) != asker.incarnation);
    match other_disk {
        Some(_) if node.facts.is_up(id) => Err(Refused::IsUp { name }),
        // In the first epoch the joining node must start with the same list of members as the other
        // nodes.
        _ if node.shared.membership.layouts.active_layout().epoch == FIRST_EPOCH => {
            Err(Refused::IsListed { name })
        }
        Some(_) => {
            tracing::warn!(
                name,
                url,
                "a member lost its disk, and takes its place again with an empty one"
            );
            Ok(())
        }
        None => Ok(()),
    }
}

fn members(node: &Node, layout: &Layout) -> Vec<String> {
    layout.nodes.iter().map(|member| node.url_of(member.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joining_node_with_a_clock_ahead_is_refused() {
        let (now_ms, skew) = (1_700_000_000_000, Duration::from_millis(500));
        let of = |clock_ms| clock_lead(clock_ms, now_ms * 1000, skew);
        assert_eq!(of(now_ms + 86_400_000), Some(Duration::from_secs(86_400)));
        assert_eq!(of(now_ms + 500), None);
        assert_eq!(of(now_ms - 86_400_000), None, "it counts as behind");
    }

    #[test]
    fn a_node_whose_clock_is_behind_can_not_be_added() {
        let (now_ms, skew) = (1_700_000_000_000, Duration::from_millis(500));
        let of = |clock_ms, issued_ms| {
            clock_behind_reason(clock_ms, (now_ms * 1000, issued_ms * 1000), skew, "http://a:1")
        };
        assert_eq!(of(now_ms, now_ms + 2000), None, "as far as a clock's bound");
        assert_eq!(of(now_ms - 5000, now_ms), None, "the request was on its way for 5 s");
        let late = of(now_ms - 3_600_000, now_ms).unwrap();
        assert!(late.contains("is 3600 s behind that of http://a:1"), "{late}");
        let issued = of(now_ms, now_ms + 7_200_000).unwrap();
        assert!(issued.contains("issued timestamps up to 7200 s ahead"), "{issued}");
    }
}
