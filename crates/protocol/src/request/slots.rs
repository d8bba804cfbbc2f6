//! A slab of unfinished requests of one kind. A slot's index is reused; its id is not.
//!
//! ```text
//!  SlotId:  generation (32 bits) │ index (30 bits) │ kind (2 bits)
//! ```
//!
//! An id from outside may be *stale*: its slot has ended or was renewed. [`Slots::find`] looks up
//! such an id. The other methods, such as [`Slots::get`], take only ids that were found, and panic
//! otherwise. The kind in the id names the slab that holds the slot.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use bytes::Bytes;

use super::outstanding::{Outstanding, ReplicaError};
use super::sets::{PerSet, Quorums, copies_of};
use crate::event::{Demand, SlotId, StoreError};
use crate::message::{Class, NodeId};
use crate::placement::view::View;
use record::Record;

/// The kinds of requests, as coded in slot ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotKind {
    Read = 0,
    Write = 1,
    Change = 2,
    Call = 3,
}

/// The number of bits of a slot's id that hold the kind.
const KIND_BITS: u32 = 2;

impl SlotKind {
    /// Returns the kind of the request with this id, of any generation.
    pub(crate) fn of(id: SlotId) -> Self {
        match id.0 & ((1 << KIND_BITS) - 1) {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Change,
            _ => Self::Call,
        }
    }
}

/// A kind of request that has slots.
pub(crate) trait Work {
    const KIND: SlotKind;

    /// True if the client or node that made the request has been answered.
    fn is_answered(&self) -> bool;

    /// Returns the outstanding request to a node; `None` = the node was not asked, or has replied.
    fn outstanding_at(&mut self, node: NodeId) -> Option<&mut Outstanding>;
}

/// An unfinished request.
#[derive(Debug)]
pub(crate) struct Slot<W> {
    /// The view under which the request is counted: the view in force, until the request is
    /// answered.
    pub(crate) view: Rc<View>,
    /// The deadline of the request, in microseconds of the monotonic clock.
    pub(crate) deadline: u64,
    pub(crate) key: Bytes,
    pub(crate) quorums: Quorums,
    pub(crate) work: W,
    /// Details for the client if the request fails.
    pub(crate) detail: Option<String>,
}

impl<W> Slot<W> {
    /// Returns the demand that this request makes on this node's store.
    pub(crate) fn demand(&self, class: Class) -> Demand {
        Demand { class, until: self.deadline }
    }

    /// Returns the number of replicas that must do their part.
    pub(crate) fn ack(&self) -> PerSet {
        self.quorums.ack()
    }

    /// Returns the number of replicas, in each set, that should hold a record.
    pub(crate) fn copies_of(&self, record: &Record) -> PerSet {
        copies_of(record, &self.view)
    }

    /// Returns the error for this node's vote after an error of its store, and keeps the store's
    /// details for the client.
    pub(crate) fn note_store_error(&mut self, error: StoreError) -> ReplicaError {
        let (replica_error, detail) = match error {
            StoreError::Busy(what) => (ReplicaError::Busy, what.to_owned()),
            StoreError::NoSpace(what) => (ReplicaError::NoSpace, what),
            StoreError::Sealed(_) => return ReplicaError::HigherBallot,
            StoreError::Failed { begun: true, detail } => (ReplicaError::Failed, detail),
            StoreError::Failed { begun: false, detail } => (ReplicaError::Refused, detail),
        };
        self.detail = Some(detail);
        replica_error
    }
}

#[derive(Debug)]
struct SlotEntry<W> {
    generation: u32,
    slot: Option<Slot<W>>,
}

/// The unfinished requests of one kind.
#[derive(Debug)]
pub(crate) struct Slots<W> {
    places: Vec<SlotEntry<W>>,
    free: Vec<u32>,
}

impl<W> Default for Slots<W> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

fn place_of(id: SlotId) -> usize {
    (id.0 as u32 >> KIND_BITS) as usize
}

fn generation_of(id: SlotId) -> u32 {
    (id.0 >> 32) as u32
}

impl<W: Work> Slots<W> {
    fn id_of(place: u32, generation: u32) -> SlotId {
        SlotId(u64::from(generation) << 32 | u64::from(place << KIND_BITS) | W::KIND as u64)
    }

    /// True if an id is of this kind. Slots of two kinds may have equal indexes and generations.
    fn is_of(id: SlotId) -> bool {
        SlotKind::of(id) == W::KIND
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns the number of requests whose client or node has not been answered.
    pub(crate) fn count_unanswered(&self) -> usize {
        let slots = self.places.iter().filter_map(|place| place.slot.as_ref());
        slots.filter(|slot| !slot.work.is_answered()).count()
    }

    /// Adds a request, under an id that no earlier request had.
    pub(crate) fn add(&mut self, slot: Slot<W>) -> SlotId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(SlotEntry { generation: 0, slot: None });
            self.places.len() as u32 - 1
        });
        let held = &mut self.places[place as usize];
        assert!(held.slot.is_none(), "a free place has no slot");
        held.slot = Some(slot);
        Self::id_of(place, held.generation)
    }

    /// Returns the slot with an id from outside; `None` = the id is stale.
    pub(crate) fn find(&self, id: SlotId) -> Option<&Slot<W>> {
        let place = self.places.get(place_of(id))?;
        place.slot.as_ref().filter(|_| place.generation == generation_of(id) && Self::is_of(id))
    }

    /// Returns the mutable slot with an id from outside; `None` = the id is stale.
    pub(crate) fn find_mut(&mut self, id: SlotId) -> Option<&mut Slot<W>> {
        let place = self.places.get_mut(place_of(id))?;
        place.slot.as_mut().filter(|_| place.generation == generation_of(id) && Self::is_of(id))
    }

    /// Returns the slot of an unfinished request.
    pub(crate) fn get(&self, id: SlotId) -> &Slot<W> {
        self.find(id).expect("a slot that is worked on is under way")
    }

    /// Returns the mutable slot of an unfinished request.
    pub(crate) fn get_mut(&mut self, id: SlotId) -> &mut Slot<W> {
        self.find_mut(id).expect("a slot that is worked on is under way")
    }

    /// Returns the state of an unfinished request.
    pub(crate) fn work(&mut self, id: SlotId) -> &mut W {
        &mut self.get_mut(id).work
    }

    /// Returns the outstanding request to a node that is known to have been asked in this slot and
    /// not to have replied.
    pub(crate) fn outstanding(&mut self, id: SlotId, node: NodeId) -> &mut Outstanding {
        self.work(id).outstanding_at(node).expect("it was asked, and has not replied")
    }

    /// Gives a slot a new id, so that a reply to an earlier message is not taken for a reply to a
    /// later message.
    pub(crate) fn renew(&mut self, id: SlotId) -> SlotId {
        assert!(self.find(id).is_some(), "only what is under way has its id renewed");
        let place = &mut self.places[place_of(id)];
        place.generation = place.generation.wrapping_add(1);
        Self::id_of(place_of(id) as u32, place.generation)
    }

    /// Ends a request, and returns its slot.
    pub(crate) fn remove(&mut self, id: SlotId) -> Slot<W> {
        self.renew(id);
        let place = &mut self.places[place_of(id)];
        self.free.push(place_of(id) as u32);
        place.slot.take().expect("it was under way just now")
    }

    /// Returns the ids of the slots for which `wanted` holds.
    pub(crate) fn ids(&self, wanted: impl Fn(&Slot<W>) -> bool) -> Vec<SlotId> {
        let wanted = |(n, place): (usize, &SlotEntry<W>)| {
            let slot = place.slot.as_ref()?;
            wanted(slot).then(|| Self::id_of(n as u32, place.generation))
        };
        self.places.iter().enumerate().filter_map(wanted).collect()
    }

    /// Returns the ids of the slots whose deadline is over.
    pub(crate) fn overdue(&self, now: u64) -> Vec<SlotId> {
        self.ids(|slot| slot.deadline <= now)
    }

    /// Returns the ids of the slots in which a node was asked and has not replied.
    pub(crate) fn slots_awaiting(&mut self, node: NodeId) -> Vec<SlotId> {
        let awaits = |(n, place): (usize, &mut SlotEntry<W>)| {
            let awaits = place.slot.as_mut()?.work.outstanding_at(node).is_some();
            awaits.then(|| Self::id_of(n as u32, place.generation))
        };
        self.places.iter_mut().enumerate().filter_map(awaits).collect()
    }

    /// Counts all unanswered requests under this view from now on, and returns their ids.
    pub(crate) fn set_view(&mut self, view: &Rc<View>) -> Vec<SlotId> {
        let ids = self.ids(|slot| !slot.work.is_answered());
        for id in &ids {
            self.get_mut(*id).view = Rc::clone(view);
        }
        ids
    }
}

/// The timers of requests. A timer expires when a replica is late or a pause is over.
#[derive(Debug, Default)]
pub(crate) struct Hedges {
    due: BinaryHeap<Reverse<(u64, SlotId)>>,
}

impl Hedges {
    /// Sets a timer: from the time `at` on, [`Hedges::pop`] returns the id.
    pub(crate) fn at(&mut self, at: u64, id: SlotId) {
        self.due.push(Reverse((at, id)));
    }

    /// Returns an id whose timer has expired; `None` = no timer has. The slot may have ended or be
    /// answered.
    pub(crate) fn pop(&mut self, now: u64) -> Option<SlotId> {
        let Reverse((at, _)) = self.due.peek()?;
        if *at > now {
            return None;
        }
        self.due.pop().map(|Reverse((_, id))| id)
    }

    /// Returns the time of the next timer; `None` = there is none. Timers of answered or ended
    /// slots are dropped.
    pub(crate) fn next<W: Work>(&mut self, slots: &Slots<W>) -> Option<u64> {
        while let Some(Reverse((at, id))) = self.due.peek().copied() {
            if slots.find(id).is_some_and(|slot| !slot.work.is_answered()) {
                return Some(at);
            }
            self.due.pop();
        }
        None
    }
}
