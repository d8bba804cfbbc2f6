//! State that all parts of one event loop's protocol use, and the context that lends this state to
//! the methods that handle an event.

use std::rc::Rc;
use std::sync::Arc;

use crate::clock::{Clock, Now};
use crate::event::{Config, Demand, Effect, OpId, SlotId};
use crate::message::{Body, Class, Message, NodeId, Reply, Request};
use crate::placement::topology::partition_of;
use crate::placement::view::View;
use crate::repair::watermark::RoundState;
use crate::request::outstanding::{Delivery, Outstanding};
use crate::request::peers::PeerLatencies;
use crate::request::quorum::AskedQuorum;
use crate::request::reported::ReportedRecord;
use crate::request::sets::{PerSet, Quorums, Replicas};
use crate::shared::Shared;
use record::{Kind, Record};

/// The time limit of work without a waiting client, in request deadlines. Such work is, for
/// example, the transfer of a long record over a slow link. It is repeated until it succeeds; work
/// that always exceeds the limit never succeeds. A lost connection ends the work earlier.
const BACKGROUND_DEADLINES: u64 = 10;

/// State that reads, writes, changes, calls and the replica of one event loop use.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    /// The view by which requests are counted until they are answered. The `Rc` belongs to this
    /// loop alone, so that loops share no reference count.
    pub(crate) view: Rc<View>,
    pub(crate) config: Config,
    pub(crate) peers: PeerLatencies,
    /// The replicas of the key that was looked up last.
    pub(crate) replicas: Replicas,
    /// Replies of the node's own replica to slots of this loop, handled before the event ends.
    pub(crate) own_replies: Vec<(SlotId, Reply)>,
}

/// Context of the replica's methods: the time, the loop's state, and the effects of one event.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) now: Now,
    pub(crate) core: &'a mut Core,
    pub(crate) out: &'a mut Vec<Effect>,
}

impl Cx<'_> {
    /// Sends a request to another node. The reply carries the slot's id.
    pub(crate) fn send(
        &mut self,
        peer: NodeId,
        id: SlotId,
        remaining_micros: u64,
        class: Class,
        request: Request,
    ) {
        assert_ne!(peer, self.core.shared.own, "a node does not write to itself");
        let remaining_ms = remaining_micros.div_ceil(1000).min(u64::from(u32::MAX)) as u32;
        let body = Body::Request { remaining_ms, class, request };
        self.out.push(Effect::Send { peer, message: Message { id: id.0, body } });
    }

    /// Replies to a request that the replica has carried out. If the asker sent the request under a
    /// view of another placement, the reply is [`Reply::Superseded`], because that view must not
    /// count the result.
    pub(crate) fn reply_as_replica(&mut self, op: OpId, reply: Reply) {
        let own = self.core.view.id();
        let is_of_earlier_view = match op {
            OpId::Peer { placement, .. } => placement != 0 && placement != own.placement,
            OpId::Slot(_) => false,
        };
        let reply = if is_of_earlier_view { Reply::Superseded { epoch: own.epoch } } else { reply };
        self.reply_unchecked(op, reply);
    }

    /// Replies without a check of the placement, to a request that this node has coordinated, whose
    /// answers it has counted under its own view, or with a refusal.
    pub(crate) fn reply_unchecked(&mut self, op: OpId, reply: Reply) {
        match op {
            OpId::Slot(id) => self.core.own_replies.push((id, reply)),
            OpId::Peer { connection, id, .. } => {
                self.out.push(Effect::Respond { connection, id, reply });
            }
        }
    }
}

impl Core {
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        node == self.shared.own || self.peers.is_up(node)
    }

    /// Makes the state of an outstanding request that is sent to a node now.
    pub(crate) fn new_outstanding(&self, now: Now, node: NodeId) -> Outstanding {
        let delivery = if self.is_up(node) { Delivery::Sent } else { Delivery::Waits };
        Outstanding { since: now.mono, delivery }
    }

    /// Returns the time that a call or another node's request of this class may take, in
    /// microseconds.
    pub(crate) fn time_limit(&self, class: Class) -> u64 {
        let deadline = self.config.deadline_micros;
        match class {
            Class::Client => deadline,
            Class::Hint | Class::Repair | Class::Stream => deadline * BACKGROUND_DEADLINES,
        }
    }

    /// Returns the demand of another node's request: it lasts as long as that node waits, but no
    /// longer than a request of its class may take here.
    pub(crate) fn demand_of(&self, now: Now, class: Class, remaining_ms: u32) -> Demand {
        let remaining = (u64::from(remaining_ms) * 1000).min(self.time_limit(class));
        Demand { class, until: now.mono + remaining }
    }

    /// Looks up the first `from` replicas of a key in each set, by the view in force. It finds
    /// fewer if the cluster has lost members since the request was checked.
    pub(crate) fn look_up_replicas(&mut self, key: &[u8], from: PerSet) {
        self.replicas.look_up(&self.view, key, from);
    }

    /// Returns a key's replicas under the view in force, without those in `holders`.
    pub(crate) fn missing_replicas(
        &mut self,
        key: &[u8],
        asked: AskedQuorum,
        holders: &[NodeId],
    ) -> Vec<NodeId> {
        let from = Quorums::of(asked, &self.view).from();
        self.look_up_replicas(key, from);
        let replicas = self.replicas.all().into_iter().map(|(node, _)| node);
        replicas.filter(|node| !holders.contains(node)).collect()
    }

    /// True if a record is a future record.
    pub(crate) fn is_ahead(&self, now: Now, record: &Record) -> bool {
        self.is_future(now, record.write_time())
    }

    /// True if a record with the write time `when` is a future record.
    pub(crate) fn is_future(&self, now: Now, when: u64) -> bool {
        when > self.greatest_accepted_time(now)
    }

    /// True if this time is too far ahead for this node's clock to merge.
    pub(crate) fn is_beyond_clock(&self, now: Now, time: u64) -> bool {
        self.shared.clock.is_ahead(time, now, self.config.max_skew_micros)
    }

    /// Returns the greatest time of a record that is not a future one.
    pub(crate) fn greatest_accepted_time(&self, now: Now) -> u64 {
        self.shared.clock.greatest_accepted_time(now, self.config.max_skew_micros)
    }

    /// Returns the time by which this node judges expiry, in microseconds since 1970.
    pub(crate) fn expiry_check_time(&self, now: Now) -> u64 {
        self.shared.clock.expiry_check_time(now, self.config.max_skew_micros)
    }

    /// True if this node is among the first `from` replicas of a key by the view in force, serves
    /// requests, and no partition moves. The node's store may then decide a request alone.
    pub(crate) fn may_decide_alone(&self, key: &[u8], from: u8) -> bool {
        let (view, membership) = (&self.view, &self.shared.membership);
        let topology = &view.topology;
        let is_replica = || match usize::from(from) >= topology.nodes() {
            true => topology.contains(self.shared.own),
            false => topology.holds(self.shared.own, partition_of(key), from),
        };
        view.other.is_none()
            && view.epoch == membership.views.epoch()
            && !membership.state.is_fenced()
            && is_replica()
    }

    /// Notes the version of a record that is about to be written. Returns true if this node's store
    /// may hold a newer record. A node alone in its cluster calls this method too, because a node
    /// that joins later may write an older version.
    pub(crate) fn note_and_check(&self, record: &Record) -> bool {
        let (newest, origin) = (&self.shared.replica.newest, self.shared.clock.origin());
        newest.note_and_check(record.version(), origin, self.view.is_alone())
    }

    /// Returns this node's state of repair rounds, as reported to other nodes.
    pub(crate) fn round_state(&self, now: Now) -> RoundState {
        let shared = &self.shared;
        RoundState {
            life: shared.membership.logs.life(),
            proof: shared.repair.proofs.known_proof(),
            promised: shared.paxos.promises.greatest(),
            is_active: shared.repair.rounds.is_active(now),
        }
    }

    /// Notes the proof of a node whose watermark differs from this node's, because one of the two
    /// nodes lags behind.
    pub(crate) fn note_other_watermark(&self, node: NodeId, state: &RoundState) {
        self.shared.note_proof(node, state.proof);
    }

    /// True if a record that a replica reported counts as absent, because other replicas may have
    /// purged it and must not receive it again. If the replica (which may be this node) is not
    /// authoritative, its directory may be an older copy: records that it wrote up to the greatest
    /// known watermark count as absent.
    ///
    /// A watermark is a time of versions, and may be ahead of all wall clocks: the watermark alone
    /// expires no value.
    pub(crate) fn counts_as_purged(
        &self,
        now: Now,
        reported: &ReportedRecord,
        authoritative: bool,
    ) -> bool {
        let greatest = self.shared.repair.proofs.reported_watermark();
        if greatest == 0 {
            return false;
        }
        let watermark = self.shared.repair.proofs.watermark();
        let rank = reported.rank();
        let has_expired = || {
            // The expiry of a long record is known once the record is fetched.
            let Some(record) = reported.whole() else { return false };
            let expiry_ms = record.expiry_ms();
            let latest = rank.version.time.max(rank.ballot);
            expiry_ms != 0
                && latest <= watermark
                && record::has_expired(expiry_ms, self.expiry_check_time(now))
                && Clock::time_of(expiry_ms.saturating_mul(1000).min(Clock::micros(u64::MAX)))
                    < watermark
        };
        !authoritative && rank.write_time() <= greatest
            || self.shared.repair.proofs.counts_as_purged(rank)
            || rank.kind == Kind::Value && has_expired()
    }
}
