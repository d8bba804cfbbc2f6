//! Reads that this node's store decides alone: one replica must reply, and this node is one that is
//! asked first. They have no slot and no votes, and are answered as any other read would be.
//!
//! ```text
//!  reads_alone? ──yes──▶ the store's record ──▶ answer_alone ──some──▶ the answer
//!      └─────no──────────────┴─ not at once ─────────┴─────none──────▶ Event::Get
//! ```

use super::ASK_ALL_EVERY;
use super::state::Reported;
use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::event::Answer;
use crate::quorum::AskedQuorum;
use crate::topology::partition_of;
use record::Record;

impl Coordinator {
    /// Whether a read of this key needs no other node: no partition moves, `ack` is one, and it is
    /// not the turn of all replicas to be asked.
    pub fn reads_alone(&self, key: &[u8], asked: AskedQuorum) -> bool {
        let (view, shared) = (&self.view, &self.shared);
        let quorum = asked.by(&view.topology);
        let asks_all = || quorum.from > 1 && (self.reads + 1).is_multiple_of(ASK_ALL_EVERY);
        let topology = &view.topology;
        let is_replica = || match usize::from(quorum.from) >= topology.nodes() {
            true => topology.contains(shared.own),
            false => topology.holds(shared.own, partition_of(key), quorum.from),
        };
        quorum.ack == 1
            && view.other.is_none()
            && view.epoch == shared.views.epoch()
            && !shared.membership.is_fenced()
            && !asks_all()
            && is_replica()
    }

    /// The answer to such a read, by what this node's store has of the key; `None` = that does not
    /// count: this node is not authoritative for it, or it is a future record.
    pub fn answer_alone(&mut self, now: Now, held: Option<Record>) -> Option<Answer> {
        let membership = &self.shared.membership;
        let when = held.as_ref().map(Record::when);
        let counts = membership.is_authoritative(when) && !membership.is_outdated();
        if !counts || when.is_some_and(|when| self.is_future(now, when)) {
            return None;
        }
        self.reads += 1;
        let reported =
            held.map(Reported::Whole).filter(|reported| !self.is_gone(now, reported, true));
        Some(Answer::Found(reported.and_then(Reported::into_whole)))
    }
}
