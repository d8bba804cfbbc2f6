//! Changes of the access policy (tokens and quotas). The metadata quorum (the council) decides
//! them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::layout::{self, AccessError};
use protocol::{BackgroundEvent, MembershipState, Progress};
use tokio::time::sleep;

use crate::node::{Node, task};

/// Time limit for a decision of the metadata quorum, shorter than the time that commands wait for
/// an answer.
const DECISION_TIMEOUT: Duration = Duration::from_secs(8);

/// Interval between two checks for a decision.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Number of checks without a decision after which the change is proposed again. The node may have
/// been busy with another proposal, which has precedence.
const MAX_POLLS: u32 = 50;

/// The reason why a change was not made, or why its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{0}")]
    NotBegun(String),
    #[error("no random bytes: {0}")]
    Random(#[from] io::Error),
    #[error(
        "no majority of the council answered within {} s; the change may be decided all the same \
         once one does: `kvorum cluster status` shows which councillors are down or have lost \
         their votes; then list them again",
        DECISION_TIMEOUT.as_secs()
    )]
    Undecided,
    #[error(
        "{}. The secret of the token was not printed: if the token is listed, revoke it, and \
         create another one",
        Self::Undecided
    )]
    UndecidedToken,
}

/// Returns false while the node waits for the first start of the other listed nodes. Until then the
/// council has no votes, and no disk counts as lost.
pub(crate) fn has_begun(node: &Node) -> bool {
    let membership = &node.shared.membership;
    membership.cluster.id().is_some() || membership.state.state() != MembershipState::Joining
}

/// Returns true if the node is in the council and has lost its vote.
pub(super) fn has_lost_vote(node: &Node) -> bool {
    has_begun(node) && node.shared.membership.layouts.lacks_vote()
}

/// Returns the reason why no change can be decided yet; `None` if changes can be decided.
pub(super) fn reason_not_begun(node: &Node) -> Option<String> {
    if has_begun(node) {
        return None;
    }
    let layout = node.shared.membership.layouts.known_layout();
    let is_away = |id| id != node.shared.own && !node.facts.is_up(id);
    let away = layout.nodes.iter().filter(|other| is_away(other.id));
    let away: Vec<&str> = away.map(|other| other.member.name.as_str()).collect();
    let others = match away.is_empty() {
        true => "it begins in a moment: try again".to_owned(),
        false => format!("start the other nodes of the list, once each ({})", away.join(", ")),
    };
    Some(format!(
        "this node belongs to no cluster yet, and members, tokens and quotas can't be changed \
         before: the cluster of this list has not begun, or this node's disk was replaced and it \
         has reached no other node since; {others}. Nothing was changed"
    ))
}

/// Proposes a changed access policy. `next` returns the policy that replaces its argument, or
/// `None` if the change is already in place. If another change is decided first, `next` is called
/// again with the policy of that change.
pub(crate) async fn change(
    node: &Node,
    mut next: impl FnMut(&layout::Access) -> Result<Option<layout::Access>, AccessError>,
) -> Result<(), ChangeError> {
    if let Some(why) = reason_not_begun(node) {
        return Err(ChangeError::NotBegun(why));
    }
    let until = Instant::now() + DECISION_TIMEOUT;
    let _alone = node.access.changing.lock().await;
    let layouts = &node.shared.membership.layouts;
    while Instant::now() < until {
        let known = layouts.known_layout();
        let Some(access) = next(&known.access)? else {
            if layouts.active_layout().epoch >= known.epoch {
                return Ok(());
            }
            // The change is decided, but not yet in force on this node.
            sleep(POLL_INTERVAL).await;
            continue;
        };
        let wanted = Arc::new(known.with_access(access));
        layouts.note_access_proposal(wanted.id());
        task::dispatch(node, BackgroundEvent::Propose(wanted).into()).await;
        let mut polls = 0;
        while Instant::now() < until {
            sleep(POLL_INTERVAL).await;
            polls += 1;
            match layouts.access_change() {
                Some(Progress::Asking) => {}
                None if polls < MAX_POLLS => {}
                // The change was decided, which the outer loop detects. Or another change was
                // decided or is running at this node, and the outer loop tries again.
                None | Some(_) => break,
            }
        }
    }
    Err(ChangeError::Undecided)
}
