//! Asking replicas, and what may come of it: an answer, a refusal, silence, a lost connection.

use super::Coordinator;
use super::slots::{Slot, State, Told, Vote, Why, Work};
use crate::event::{Answer, Denied, Effect, Now, OpId, Part, StoreError, Trouble};
use crate::message::{Body, Class, Message, NodeId, Reply, Request};
use crate::record::Record;

impl Coordinator {
    /// A vote for each of the first `from` replicas of a key.
    pub(super) fn votes_of(&mut self, key: &[u8], from: u8) -> Vec<Vote> {
        let topology = &self.shared.topology;
        topology.replicas(topology.partition_of(key), from, &mut self.replicas);
        let mut votes = self.slots.votes();
        votes.extend(self.replicas.iter().zip(0..).map(|(node, place)| Vote::new(*node, place)));
        votes
    }

    /// Asks the replica of a vote to do its part.
    pub(super) fn ask(&mut self, now: Now, id: u64, vote: usize, out: &mut Vec<Effect>) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let remaining = slot.deadline.saturating_sub(now.mono);
        let voter = &mut slot.votes[vote];
        (voter.state, voter.asked_at) = (State::Asked, now.mono);
        let node = voter.node;
        let is_read = matches!(slot.work, Work::Read(_));
        if node == own {
            if is_read {
                let (op, key, most) = (OpId::Slot(id), slot.key.clone(), u32::MAX);
                let demand = slot.demand(Class::Client);
                out.push(Effect::Read { op, key, most, demand });
            } else {
                voter.sent = true;
                self.write_here(id, out);
            }
            return;
        }
        voter.sent = self.peers.is_up(node);
        let asked = if is_read {
            let most = self.config.brief_bytes;
            Some((Class::Client, Request::Read { key: slot.key.clone(), most }))
        } else {
            Self::write_request(slot)
        };
        if let Some((class, request)) = asked {
            self.send(node, id, remaining, class, request, out);
        }
    }

    pub(super) fn send(
        &self,
        peer: NodeId,
        id: u64,
        remaining_micros: u64,
        class: Class,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        let remaining_ms = remaining_micros.div_ceil(1000).min(u64::from(u32::MAX)) as u32;
        let body = Body::Request { remaining_ms, class, request };
        out.push(Effect::Send { peer, message: Message { id, body } });
    }

    /// How many of a key's replicas are to hold a record.
    pub(super) fn copies_of(&self, record: &Record) -> u8 {
        match record.copies {
            0 => self.shared.topology.default_copies(),
            copies => copies,
        }
    }

    /// What a failure of this node's store is to a vote; its detail is kept for the client.
    pub(super) fn note_store_error(&mut self, id: u64, error: StoreError) -> Why {
        let (why, detail) = match error {
            StoreError::Busy(what) => (Why::Busy, what.to_owned()),
            StoreError::NoSpace(what) => (Why::NoSpace, what),
            StoreError::Failed { begun: true, detail } => (Why::Failed, detail),
            StoreError::Failed { begun: false, detail } => (Why::Refused, detail),
        };
        if let Some(slot) = self.slots.get_mut(id) {
            slot.detail = Some(detail);
        }
        why
    }

    /// A replica did not do its part.
    pub(super) fn fail(&mut self, now: Now, id: u64, vote: usize, why: Why, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if !slot.votes[vote].is_open() {
            return;
        }
        match slot.work {
            Work::Read(_) => {
                self.read_vote_failed(id, vote, why);
                self.advance_read(now, id, out);
            }
            Work::Write(_) => {
                slot.votes[vote].state = State::Failed(why);
                self.advance_write(id, out);
            }
            Work::Call(_) => {
                slot.votes[vote].state = State::Failed(why);
                self.end_call(id, Err(Trouble::TooFew), out);
            }
        }
    }

    /// Another node answers.
    pub(super) fn replied(
        &mut self,
        now: Now,
        peer: NodeId,
        id: u64,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        // Late: the slot is gone, or asks something else by now.
        let Some(slot) = self.slots.get(id) else { return };
        let Some(vote) = slot.vote_of(peer).filter(|vote| slot.votes[*vote].is_open()) else {
            return;
        };
        let took = now.mono.saturating_sub(slot.votes[vote].asked_at);
        if matches!(slot.work, Work::Call(_)) {
            self.end_call(id, Ok(reply), out);
            return;
        }
        let is_read = matches!(slot.work, Work::Read(_));
        match reply {
            Reply::Found { record, sure } if is_read => {
                if (self.config.codec.verify)(&slot.key, &record) {
                    self.peers.took(peer, took);
                    self.told(now, id, vote, Some(Told::Whole(record)), sure, out);
                } else {
                    self.fail(now, id, vote, Why::Failed, out);
                }
            }
            Reply::Long { outline, sure } if is_read => {
                self.peers.took(peer, took);
                self.told(now, id, vote, Some(Told::Outline(outline)), sure, out);
            }
            Reply::Absent { sure } if is_read => {
                self.peers.took(peer, took);
                self.told(now, id, vote, None, sure, out);
            }
            Reply::Stored => self.stored(now, id, vote, None, out),
            Reply::Newer { time } => self.stored(now, id, vote, Some(time), out),
            Reply::Busy => self.fail(now, id, vote, Why::Busy, out),
            Reply::NoSpace => self.fail(now, id, vote, Why::NoSpace, out),
            Reply::Ahead | Reply::WrongEpoch => self.fail(now, id, vote, Why::Declined, out),
            // What does not answer the request comes from a confused peer.
            Reply::Failed
            | Reply::Found { .. }
            | Reply::Long { .. }
            | Reply::Absent { .. }
            | Reply::Page(_)
            | Reply::Pong => {
                self.fail(now, id, vote, Why::Failed, out);
            }
        }
    }

    /// What had been sent to a node before is on its way.
    pub(super) fn up(&mut self, peer: NodeId) {
        self.peers.up(peer);
        for (id, vote) in self.open_votes(peer) {
            if let Some(slot) = self.slots.get_mut(id) {
                slot.votes[vote].sent = true;
            }
        }
    }

    /// A connection is gone, and what was not answered with it: it is asked once more.
    pub(super) fn lost(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.peers.down(peer);
        for (id, vote) in self.open_votes(peer) {
            let Some(slot) = self.slots.get_mut(id) else { continue };
            let voter = &mut slot.votes[vote];
            if voter.resent {
                self.fail(now, id, vote, Why::Silent, out);
                continue;
            }
            (voter.resent, voter.sent) = (true, true);
            let state = voter.state;
            match (&slot.work, state) {
                (Work::Read(_), State::Repairing) => self.repair(now, id, vote, out),
                (Work::Read(_), State::Fetching { .. }) => self.fetch(now, id, vote, out),
                (Work::Call(_), _) => self.call_again(now, id, out),
                (Work::Read(_) | Work::Write(_), _) => self.ask(now, id, vote, out),
            }
            if let Some(slot) = self.slots.get_mut(id) {
                // What was sent the first time may have arrived.
                (slot.votes[vote].resent, slot.votes[vote].sent) = (true, true);
            }
        }
    }

    /// There is no connection to a node, and none can be made.
    pub(super) fn unreachable(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.peers.down(peer);
        for (id, vote) in self.open_votes(peer) {
            let Some(slot) = self.slots.get(id) else { continue };
            let why = if slot.votes[vote].sent { Why::Silent } else { Why::Unreached };
            self.fail(now, id, vote, why, out);
        }
    }

    /// Too much waits for a node already.
    pub(super) fn overflow(&mut self, now: Now, peer: NodeId, id: u64, out: &mut Vec<Effect>) {
        if let Some(vote) = self.slots.get(id).and_then(|slot| slot.vote_of(peer)) {
            self.fail(now, id, vote, Why::Busy, out);
        }
    }

    fn open_votes(&self, peer: NodeId) -> Vec<(u64, usize)> {
        let open = |slot: &Slot| slot.vote_of(peer).filter(|vote| slot.votes[*vote].is_open());
        let ids = self.slots.ids(|slot| open(slot).is_some());
        let with_vote = |id| Some((id, self.slots.get(id).and_then(open)?));
        ids.into_iter().filter_map(with_vote).collect()
    }

    /// What the client of a slot is told when too few replicas did their part.
    pub(super) fn denied(&self, id: u64) -> Denied {
        let slot = self.slots.get(id).expect("only a slot under way is denied");
        let (acked, unknown) = match &slot.work {
            Work::Write(work) => {
                (slot.count(holds), work.restamped || slot.votes.iter().any(may_hold))
            }
            Work::Read(work) => (super::read::acked(slot, work), false),
            Work::Call(_) => (0, false),
        };
        let is_write = matches!(slot.work, Work::Write(_));
        let hidden = slot.count(|vote| vote.state == State::Failed(Why::Hidden));
        let (trouble, detail) = if is_write && acked + hidden >= usize::from(slot.quorum.ack) {
            (Trouble::Busy, Some(super::write::BEHIND.to_owned()))
        } else {
            (trouble(slot), slot.detail.clone())
        };
        Denied {
            trouble,
            acked: acked as u8,
            parts: slot.votes.iter().map(|vote| (vote.node, part(vote))).collect(),
            since: slot.deadline.saturating_sub(self.config.deadline_micros),
            quorum: slot.quorum,
            is_write,
            unknown,
            detail,
        }
    }

    /// Ends a read that can't be answered.
    pub(super) fn deny(&mut self, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id) else { return };
        let (client, denied) = (slot.client, self.denied(id));
        out.push(Effect::Answer { client, answer: Answer::Denied(denied) });
        self.slots.remove(id);
    }
}

/// What is told of a vote.
fn part(vote: &Vote) -> Part {
    match vote.state {
        State::Idle => Part::Unasked,
        State::Asked | State::Fetching { .. } | State::Repairing => Part::Open,
        State::Told { sure: true } | State::Holds => Part::Done,
        State::Told { sure: false } => Part::Unsure,
        State::Failed(why) => match why {
            Why::Busy => Part::Busy,
            Why::NoSpace => Part::NoSpace,
            Why::Refused | Why::Failed => Part::Failed,
            Why::Declined => Part::Declined,
            Why::Hidden => Part::Hidden,
            Why::Silent => Part::Silent,
            Why::Unreached => Part::Unreached,
        },
    }
}

/// Whether a replica told what it holds, and can vouch for it.
pub(super) fn told(vote: &Vote) -> bool {
    matches!(vote.state, State::Told { sure: true } | State::Fetching { sure: true })
}

fn holds(vote: &Vote) -> bool {
    vote.state == State::Holds
}

/// Whether a replica holds the write, or may: it did it, or was sent it and did not refuse it. One
/// that refused what it was sent the second time may have done it the first time.
pub(super) fn may_hold(vote: &Vote) -> bool {
    match vote.state {
        _ if vote.resent => true,
        State::Holds | State::Failed(Why::Silent | Why::Failed | Why::Hidden) => true,
        // What waits for a connection goes out once it stands: `is_worth_waiting` waits for that,
        // but at the deadline it may still be so.
        State::Asked | State::Fetching { .. } | State::Repairing => true,
        State::Idle | State::Told { .. } => false,
        State::Failed(Why::Busy | Why::NoSpace | Why::Refused | Why::Declined | Why::Unreached) => {
            false
        }
    }
}

/// What stands in the way, by those votes that are in.
fn trouble(slot: &Slot) -> Trouble {
    let failed = slot.votes.iter().filter_map(|vote| match vote.state {
        State::Failed(why) => Some(why),
        _ => None,
    });
    let all = |is: fn(Why) -> bool| {
        let mut failed = failed.clone().peekable();
        failed.peek().is_some() && failed.all(is)
    };
    // A read that some replicas had no room for, and others no time, met overload: it changed
    // nothing and may be tried again, whatever was read of the rest.
    let any_busy = failed.clone().any(|why| why == Why::Busy);
    let only_busy = match &slot.work {
        Work::Read(work) => {
            !work.decided && any_busy && all(|why| matches!(why, Why::Busy | Why::Silent))
        }
        Work::Write(_) | Work::Call(_) => false,
    };
    if !only_busy && slot.votes.iter().any(|vote| told(vote) || holds(vote)) {
        Trouble::TooFew
    } else if only_busy || all(|why| why == Why::Busy) {
        Trouble::Busy
    } else if all(|why| why == Why::NoSpace) {
        Trouble::NoSpace
    } else if all(|why| matches!(why, Why::Failed | Why::Refused)) {
        Trouble::Failed
    } else {
        Trouble::TooFew
    }
}

/// Whether a request that can't succeed any more is to wait for its open votes nevertheless: they
/// decide whether *all* were busy or full, and whether nobody was sent the write, so that it may
/// safely be tried anew.
pub(super) fn is_worth_waiting(slot: &Slot) -> bool {
    let gone_out = |vote: &Vote| may_hold(vote) && (!vote.is_open() || vote.sent);
    let none = match &slot.work {
        Work::Write(work) => !work.restamped && !slot.votes.iter().any(gone_out),
        Work::Read(_) | Work::Call(_) => false,
    };
    slot.votes.iter().any(Vote::is_open) && (none || trouble(slot) != Trouble::TooFew)
}
