//! Rebuilding: a node with a new disk under a known name has all others stream to it what it is to
//! hold. Only when each of them has come to its end does the node's word count again for what it
//! does not hold. A restart in between begins anew.

use bytes::Bytes;

use super::{Caller, Node, NodeEffect};
use crate::clock::Clock;
use crate::event::{Now, Trouble};
use crate::message::{Class, Filter, NodeId, Page, PageRequest, Reply, Request};
use crate::standing::Standing;

/// Bytes of one page; one is under way from each node.
const PAGE_BYTES: u32 = 256 * 1024;

/// How long after a failure a node is asked again, in microseconds.
const RETRY_MICROS: u64 = 500_000;

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// A page is under way.
    Asked,
    /// A page is being written here; where it goes on.
    Writing(Option<Bytes>),
    Done,
}

/// One node that streams.
#[derive(Debug, Default)]
pub(super) struct Source {
    state: State,
    /// Where its next page begins.
    start: Bytes,
    not_before: u64,
}

impl Source {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }
}

impl Node {
    pub(super) fn rebuild_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        if self.shared.vouching.standing() == Standing::Member {
            return;
        }
        for peer in self.others() {
            let source = &self.sources[usize::from(peer.0)];
            if matches!(source.state, State::Idle) && source.not_before <= now.mono {
                self.ask_for_page(peer, out);
            }
        }
    }

    fn ask_for_page(&mut self, peer: NodeId, out: &mut Vec<NodeEffect>) {
        let filter = Filter::HeldBy(self.shared.own);
        let source = &mut self.sources[usize::from(peer.0)];
        source.state = State::Asked;
        let start = source.start.clone();
        let page = PageRequest { start, end: None, filter, max_bytes: PAGE_BYTES };
        self.call(Caller::Rebuild(peer), peer, Class::Stream, Request::Page(page), out);
    }

    pub(super) fn streamed(
        &mut self,
        now: Now,
        peer: NodeId,
        result: Result<Reply, Trouble>,
        out: &mut Vec<NodeEffect>,
    ) {
        let own = self.shared.own;
        let source = &mut self.sources[usize::from(peer.0)];
        match (std::mem::take(&mut source.state), result) {
            (State::Asked, Ok(Reply::Page(Page { mut items, next, .. }))) => {
                // Of the future: it stays with its holder, as for every replica.
                let limit = Clock::limit(now.wall, self.max_skew_micros);
                items.retain(|(_, record)| record.rank.stamp.time <= limit);
                if items.is_empty() {
                    self.go_on(peer, next, out);
                    return;
                }
                source.state = State::Writing(next);
                let request = Request::Writes { items };
                self.call(Caller::Rebuild(peer), own, Class::Repair, request, out);
            }
            (State::Writing(next), Ok(Reply::Stored | Reply::Newer { .. })) => {
                self.go_on(peer, next, out)
            }
            // Not reachable, busy, or the write failed: the same page again.
            _ => source.not_before = now.mono + RETRY_MICROS,
        }
    }

    fn go_on(&mut self, peer: NodeId, next: Option<Bytes>, out: &mut Vec<NodeEffect>) {
        let source = &mut self.sources[usize::from(peer.0)];
        if let Some(next) = next {
            source.start = next;
            self.ask_for_page(peer, out);
            return;
        }
        source.state = State::Done;
        let (done, all) = self.rebuilt();
        if done == all && self.shared.vouching.standing() != Standing::Member {
            self.stand(Standing::Member, out);
        }
    }
}
