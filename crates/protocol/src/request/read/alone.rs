//! Reads that this node's store decides alone: one replica must reply, and this node is a replica.
//! Such a read has no slot and no votes, and gets the same answer as an ordinary read.
//!
//! ```text
//!  reads_alone ──true──▶ read the store ──at once──▶ answer_alone ──Some──▶ the answer
//!      │ false                  │ needs the disk          │ None
//!      └────────────────────────┴─────────────────────────┴──▶ Event::Get: an ordinary read
//! ```

use super::{ASK_ALL_EVERY, Reads};
use crate::clock::Now;
use crate::dispatch::core::Core;
use crate::event::Answer;
use crate::request::quorum::AskedQuorum;
use crate::request::reported::ReportedRecord;
use record::Record;

impl Reads {
    /// True if a read of this key needs no other node: no partition moves, `ack` is one, and the
    /// read is not due to ask all replicas.
    pub(crate) fn reads_alone(&self, core: &Core, key: &[u8], asked: AskedQuorum) -> bool {
        let quorum = asked.resolve(&core.view.topology);
        let asks_all = || quorum.from > 1 && (self.begun + 1).is_multiple_of(ASK_ALL_EVERY);
        quorum.ack == 1 && !asks_all() && core.may_decide_alone(key, quorum.from)
    }

    /// Returns the answer to a read that needs no other node, from this node's record of the key.
    /// `None` = the record does not count, because this node is not authoritative for it or because
    /// it is a future record.
    pub(crate) fn answer_alone(
        &mut self,
        core: &Core,
        now: Now,
        held: Option<Record>,
    ) -> Option<Answer> {
        let membership = &core.shared.membership.state;
        let when = held.as_ref().map(Record::write_time);
        let counts = membership.is_authoritative(when) && !membership.is_outdated();
        if !counts || when.is_some_and(|when| core.is_future(now, when)) {
            return None;
        }
        self.begun += 1;
        let reported = held
            .map(ReportedRecord::Whole)
            .filter(|reported| !core.counts_as_purged(now, reported, true));
        Some(Answer::Found(reported.and_then(ReportedRecord::into_whole)))
    }
}
