//! Requests under way, in a slab: a slot's place is reused, its id is not.
//!
//! An id that comes from outside may be *stale*: its slot has ended, or was renewed. It is looked
//! up by [`Slots::find`]. An id that was found is known to be under way, and to be a read, a write
//! or a call: [`Slots::read`] and the others assert that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use bytes::Bytes;

use super::conditional::state::ChangeWork;
use super::part::Errand;
use super::read::state::{Read, ReadVote};
use super::sets::{PerSet, Quorums, copies_of};
use super::write::state::{Write, WriteVote};
use crate::event::{CallId, Demand, SlotId};
use crate::message::{Class, NodeId, Request};
use crate::view::View;
use record::Record;

/// What a slot is for.
#[derive(Debug)]
pub(super) enum Work {
    Read(Read),
    Write(Write),
    Change(Box<ChangeWork>),
    Call(Call),
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) call: CallId,
    pub(super) node: NodeId,
    pub(super) class: Class,
    pub(super) request: Request,
    pub(super) errand: Errand,
}

/// One request under way.
#[derive(Debug)]
pub(super) struct Slot {
    /// The view that it is counted by: the one in force, until whoever asked is answered.
    pub(super) view: Rc<View>,
    pub(super) deadline: u64,
    pub(super) key: Bytes,
    pub(super) quorums: Quorums,
    pub(super) work: Work,
    /// Details for the client if the request fails.
    pub(super) detail: Option<String>,
}

impl Slot {
    /// The demand on this node's store that this request makes.
    pub(super) fn demand(&self, class: Class) -> Demand {
        Demand { class, until: self.deadline }
    }

    /// How many replicas must do their part.
    pub(super) fn ack(&self) -> PerSet {
        self.quorums.ack()
    }

    /// How many of the key's replicas are to hold a record.
    pub(super) fn copies_of(&self, record: &Record) -> PerSet {
        copies_of(record, &self.view)
    }

    /// Whether the one who asked has been answered.
    pub(super) fn is_answered(&self) -> bool {
        match &self.work {
            Work::Read(read) => read.is_answered(),
            Work::Write(write) => write.is_answered(),
            Work::Change(change) => change.is_answered(),
            Work::Call(_) => false,
        }
    }

    /// What a node was asked and has not replied to.
    pub(super) fn errand_of(&mut self, node: NodeId) -> Option<&mut Errand> {
        match &mut self.work {
            Work::Read(read) => {
                read.votes.iter_mut().find(|vote| vote.node == node)?.state.errand_mut()
            }
            Work::Write(write) => {
                write.votes.iter_mut().find(|vote| vote.node == node)?.state.errand_mut()
            }
            Work::Change(change) => change.errand_of(node),
            Work::Call(call) => Some(&mut call.errand).filter(|_| call.node == node),
        }
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
    spare_reads: Vec<Vec<ReadVote>>,
    spare_writes: Vec<Vec<WriteVote>>,
    hedges: BinaryHeap<Reverse<(u64, SlotId)>>,
}

fn id_of(place: u32, generation: u32) -> SlotId {
    SlotId(u64::from(generation) << 32 | u64::from(place))
}

fn place_of(id: SlotId) -> usize {
    id.0 as u32 as usize
}

fn generation_of(id: SlotId) -> u32 {
    (id.0 >> 32) as u32
}

impl Slots {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// An empty list with room for the votes of a read.
    pub(super) fn read_votes(&mut self) -> Vec<ReadVote> {
        self.spare_reads.pop().unwrap_or_default()
    }

    /// The same for a write.
    pub(super) fn write_votes(&mut self) -> Vec<WriteVote> {
        self.spare_writes.pop().unwrap_or_default()
    }

    /// Adds a request; its id is never used again.
    pub(super) fn add(&mut self, slot: Slot) -> SlotId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let held = &mut self.places[place as usize];
        assert!(held.slot.is_none(), "a free place has no slot");
        held.slot = Some(slot);
        id_of(place, held.generation)
    }

    /// The slot of an id from outside; `None` = the id is stale.
    pub(super) fn find(&self, id: SlotId) -> Option<&Slot> {
        let place = self.places.get(place_of(id))?;
        place.slot.as_ref().filter(|_| place.generation == generation_of(id))
    }

    /// The same, to be changed.
    pub(super) fn find_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        let place = self.places.get_mut(place_of(id))?;
        place.slot.as_mut().filter(|_| place.generation == generation_of(id))
    }

    /// A slot that is known to be under way.
    pub(super) fn get(&self, id: SlotId) -> &Slot {
        self.find(id).expect("a slot that is worked on is under way")
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, id: SlotId) -> &mut Slot {
        self.find_mut(id).expect("a slot that is worked on is under way")
    }

    /// A slot that is known to be a read.
    pub(super) fn read(&mut self, id: SlotId) -> &mut Read {
        match &mut self.get_mut(id).work {
            Work::Read(read) => read,
            other => unreachable!("{id:?} is no read: {other:?}"),
        }
    }

    /// A slot that is known to be a write.
    pub(super) fn write(&mut self, id: SlotId) -> &mut Write {
        match &mut self.get_mut(id).work {
            Work::Write(write) => write,
            other => unreachable!("{id:?} is no write: {other:?}"),
        }
    }

    /// A slot that is known to be a conditional write.
    pub(super) fn change(&mut self, id: SlotId) -> &mut ChangeWork {
        match &mut self.get_mut(id).work {
            Work::Change(change) => change,
            other => unreachable!("{id:?} is no conditional write: {other:?}"),
        }
    }

    /// Gives the slot another id, so that what was asked under the old one is not taken for an
    /// answer to what is asked now.
    pub(super) fn renew(&mut self, id: SlotId) -> SlotId {
        assert!(self.find(id).is_some(), "only what is under way has its id renewed");
        let place = &mut self.places[place_of(id)];
        place.generation = place.generation.wrapping_add(1);
        id_of(id.0 as u32, place.generation)
    }

    /// Ends a request.
    pub(super) fn remove(&mut self, id: SlotId) {
        self.renew(id);
        let place = &mut self.places[place_of(id)];
        match &mut place.slot.as_mut().expect("it was under way just now").work {
            Work::Read(read) => {
                read.votes.clear();
                self.spare_reads.push(std::mem::take(&mut read.votes));
            }
            Work::Write(write) => {
                write.votes.clear();
                self.spare_writes.push(std::mem::take(&mut write.votes));
            }
            Work::Change(_) | Work::Call(_) => {}
        }
        place.slot = None;
        self.free.push(id.0 as u32);
    }

    /// Ids of the slots for which `wanted` holds.
    pub(super) fn ids(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<SlotId> {
        let wanted = |(n, place): (usize, &Place)| {
            let slot = place.slot.as_ref()?;
            wanted(slot).then(|| id_of(n as u32, place.generation))
        };
        self.places.iter().enumerate().filter_map(wanted).collect()
    }

    /// Ids of the slots in which a node was asked something that it has not replied to.
    pub(super) fn awaiting(&mut self, node: NodeId) -> Vec<SlotId> {
        let awaits = |(n, place): (usize, &mut Place)| {
            let awaits = place.slot.as_mut()?.errand_of(node).is_some();
            awaits.then(|| id_of(n as u32, place.generation))
        };
        self.places.iter_mut().enumerate().filter_map(awaits).collect()
    }

    /// Has [`Slots::pop_hedge`] return the id at that time.
    pub(super) fn hedge_at(&mut self, at: u64, id: SlotId) {
        self.hedges.push(Reverse((at, id)));
    }

    pub(super) fn pop_hedge(&mut self, now: u64) -> Option<SlotId> {
        let Reverse((at, _)) = self.hedges.peek()?;
        if *at > now {
            return None;
        }
        self.hedges.pop().map(|Reverse((_, id))| id)
    }

    /// When the next hedge is due. Those whose slot is answered or gone are dropped.
    pub(super) fn next_hedge(&mut self) -> Option<u64> {
        while let Some(Reverse((at, id))) = self.hedges.peek().copied() {
            if self.find(id).is_some_and(|slot| !slot.is_answered()) {
                return Some(at);
            }
            self.hedges.pop();
        }
        None
    }
}
