//! Requests under way, in a slab: a slot's place is reused, its id is not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;

use crate::event::{CallId, ClientId, Demand};
use crate::message::{Class, NodeId, Request};
use crate::quorum::Quorum;
use crate::record::{Outline, Rank, Record};

/// What one replica said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It was not asked yet.
    Idle,
    /// It was asked.
    Asked,
    /// It told what it holds; see [`Vote::told`].
    Told {
        /// Whether it can vouch for that.
        sure: bool,
    },
    /// It told that it holds a long record, and was asked to send it.
    Fetching {
        /// As above.
        sure: bool,
    },
    /// It was told to hold what is newest.
    Repairing,
    /// It holds what was written.
    Holds,
    /// It did not do its part.
    Failed(Why),
}

/// Why a replica did not do its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Refused, nothing was changed.
    Busy,
    /// Refused, nothing was changed.
    NoSpace,
    /// Its store refused, nothing was changed.
    Refused,
    /// It does not want it, nothing was changed: the stamp is too far ahead for it, or it has
    /// another topology in mind.
    Declined,
    /// It wrote it, but holds a record of the future, which hides this one from every read.
    Hidden,
    /// Its store failed; a write may have been done.
    Failed,
    /// No answer; a write may have been done.
    Silent,
    /// Nothing was sent.
    Unreached,
}

/// What a replica told of its record.
#[derive(Debug, Clone)]
pub(super) enum Told {
    /// All of it.
    Whole(Record),
    /// It is long, and was not sent, or is not needed any more.
    Outline(Outline),
}

impl Told {
    pub(super) fn rank(&self) -> Rank {
        match self {
            Self::Whole(record) => record.rank,
            Self::Outline(outline) => outline.rank,
        }
    }

    pub(super) fn whole(&self) -> Option<&Record> {
        match self {
            Self::Whole(record) => Some(record),
            Self::Outline(_) => None,
        }
    }

    /// Forgets the content.
    pub(super) fn shed(&mut self) {
        if let Self::Whole(record) = self {
            *self = Self::Outline(record.outline());
        }
    }
}

/// One replica's part in a request.
#[derive(Debug, Clone)]
pub(super) struct Vote {
    pub(super) node: NodeId,
    /// Its place among the key's replicas, from 0.
    pub(super) place: u8,
    pub(super) state: State,
    /// When it was asked.
    pub(super) asked_at: u64,
    /// Whether the connection stood when it was asked: the request may have arrived.
    pub(super) sent: bool,
    /// Whether it was asked anew after its connection was lost.
    pub(super) resent: bool,
    /// Of a read: what it holds.
    pub(super) told: Option<Told>,
}

impl Vote {
    pub(super) fn new(node: NodeId, place: u8) -> Self {
        let state = State::Idle;
        Self { node, place, state, asked_at: 0, sent: false, resent: false, told: None }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Asked | State::Fetching { .. } | State::Repairing)
    }
}

/// What a slot is for.
#[derive(Debug)]
pub(super) enum Work {
    Read(ReadWork),
    Write(WriteWork),
    Call(CallWork),
}

#[derive(Debug)]
pub(super) struct ReadWork {
    /// The newest record, once enough replicas have told theirs.
    pub(super) newest: Option<Record>,
    /// Whether it is decided.
    pub(super) decided: bool,
    /// How often those that could not vouch for what they told were asked again.
    pub(super) asked_again: u32,
    /// Whether they are about to be.
    pub(super) asks_again: bool,
}

#[derive(Debug)]
pub(super) struct WriteWork {
    pub(super) record: Record,
    /// The time of a newer record's stamp, if a replica that holds this one holds such a one too.
    pub(super) overtaken: Option<u64>,
    /// Whether the record has been stamped anew.
    pub(super) restamped: bool,
}

#[derive(Debug)]
pub(super) struct CallWork {
    pub(super) call: CallId,
    pub(super) class: Class,
    pub(super) request: Request,
}

/// One request under way.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) client: ClientId,
    /// Whether the one who asked has been answered.
    pub(super) answered: bool,
    pub(super) deadline: u64,
    pub(super) key: Bytes,
    pub(super) quorum: Quorum,
    pub(super) votes: Vec<Vote>,
    pub(super) work: Work,
    /// What was wrong with this node's own part.
    pub(super) detail: Option<String>,
}

impl Slot {
    pub(super) fn count(&self, wanted: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| wanted(vote)).count()
    }

    /// For whom this node's store works for it.
    pub(super) fn demand(&self, class: Class) -> Demand {
        Demand { class, until: self.deadline }
    }

    pub(super) fn vote_of(&self, node: NodeId) -> Option<usize> {
        self.votes.iter().position(|vote| vote.node == node)
    }
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    slot: Option<Slot>,
}

/// All requests under way.
#[derive(Debug, Default)]
pub(super) struct Slots {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Emptied lists of votes, to be used again.
    spare: Vec<Vec<Vote>>,
    hedges: BinaryHeap<Reverse<(u64, u64)>>,
}

fn id_of(place: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(place)
}

impl Slots {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// An empty list with room for some votes.
    pub(super) fn votes(&mut self) -> Vec<Vote> {
        self.spare.pop().unwrap_or_default()
    }

    /// Puts a request in; its id is never used again.
    pub(super) fn add(&mut self, slot: Slot) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let held = &mut self.places[place as usize];
        held.slot = Some(slot);
        id_of(place, held.generation)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Slot> {
        let place = self.places.get(id as u32 as usize)?;
        place.slot.as_ref().filter(|_| place.generation == (id >> 32) as u32)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Slot> {
        let place = self.places.get_mut(id as u32 as usize)?;
        place.slot.as_mut().filter(|_| place.generation == (id >> 32) as u32)
    }

    /// Gives the slot another id, so that what was asked under the old one is not taken for an
    /// answer to what is asked now.
    pub(super) fn renew(&mut self, id: u64) -> u64 {
        let place = &mut self.places[id as u32 as usize];
        place.generation = place.generation.wrapping_add(1);
        id_of(id as u32, place.generation)
    }

    /// Ends a request.
    pub(super) fn remove(&mut self, id: u64) {
        if self.get(id).is_none() {
            return;
        }
        self.renew(id);
        if let Some(mut slot) = self.places[id as u32 as usize].slot.take() {
            self.free.push(id as u32);
            slot.votes.clear();
            self.spare.push(slot.votes);
        }
    }

    /// Ids of those for whom `wanted` holds.
    pub(super) fn ids(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<u64> {
        let wanted = |(n, place): (usize, &Place)| {
            let slot = place.slot.as_ref()?;
            wanted(slot).then(|| id_of(n as u32, place.generation))
        };
        self.places.iter().enumerate().filter_map(wanted).collect()
    }

    /// Has [`Slots::pop_hedge`] return the id at that time.
    pub(super) fn hedge_at(&mut self, at: u64, id: u64) {
        self.hedges.push(Reverse((at, id)));
    }

    pub(super) fn pop_hedge(&mut self, now: u64) -> Option<u64> {
        let Reverse((at, _)) = self.hedges.peek()?;
        if *at > now {
            return None;
        }
        self.hedges.pop().map(|Reverse((_, id))| id)
    }

    /// When the next hedge is due. Those whose slot has ended are forgotten.
    pub(super) fn next_hedge(&mut self) -> Option<u64> {
        while let Some(Reverse((at, id))) = self.hedges.peek().copied() {
            if self.get(id).is_some_and(|slot| !slot.answered) {
                return Some(at);
            }
            self.hedges.pop();
        }
        None
    }
}
