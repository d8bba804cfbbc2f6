//! How a node has who may ask for what, or store how much, changed: by the council.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::layout::{self, AccessError};
use cluster::{NodeEvent, Progress};
use tokio::time::sleep;

use crate::node::{Node, task};

/// How long a change looks for a majority of the council: less than commands wait for an answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// How often it is looked whether it is decided …
const LOOK: Duration = Duration::from_millis(2);

/// … and after how many looks without an answer it is proposed again: the node may have had another
/// change decided, which goes first.
const LOOKS: u32 = 50;

/// Why all is as it was, or may be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("no random bytes: {0}")]
    Random(#[from] io::Error),
    #[error(
        "no majority of the council answered within {} s; the change may be decided all the same \
         once one does: look at `kvorum cluster status`, then list them again. \
         The secret of a token that was being created was not printed: if the token is listed, \
         revoke it, and create another one",
        PATIENCE.as_secs()
    )]
    Undecided,
}

/// Has another access decided: what `next` makes of the one that is known; `None` = it is that
/// already. If another change is decided meanwhile, it is made anew on that one.
pub(super) async fn change(
    node: &Node,
    mut next: impl FnMut(&layout::Access) -> Result<Option<layout::Access>, AccessError>,
) -> Result<(), ChangeError> {
    let until = Instant::now() + PATIENCE;
    let _alone = node.access.changing.lock().await;
    let layouts = &node.shared.membership.layouts;
    while Instant::now() < until {
        let known = layouts.known();
        let Some(access) = next(&known.access)? else {
            if layouts.entered().epoch >= known.epoch {
                return Ok(());
            }
            // It is decided, and not in force here yet.
            sleep(LOOK).await;
            continue;
        };
        let wanted = Arc::new(known.with_access(access));
        layouts.proposes_access(wanted.id());
        task::dispatch(node, NodeEvent::Propose(wanted).into()).await;
        let mut looks = 0;
        while Instant::now() < until {
            sleep(LOOK).await;
            looks += 1;
            match layouts.access_change() {
                Some(Progress::Asking) => {}
                None if looks < LOOKS => {}
                // Another one was decided, or is under way here; or this one, which is seen above.
                None | Some(_) => break,
            }
        }
    }
    Err(ChangeError::Undecided)
}
