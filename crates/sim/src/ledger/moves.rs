//! What of a floor is left when reads switch to other replicas.
//!
//! ```text
//!  write 2/3 acknowledged ──▶ 2 of A B C ──▶ reads switch to A D E ──▶ 2 of A D E at least:
//!                                            D and E have taken what A, B and C had
//! ```
//!
//! Who is new among the first `from` replicas of a key has taken what any node before held of it;
//! those that stay have what they had, or all, if they are fewer. So *h* of *f* become
//! *h + g - f* of *g*, or *g* of *g* if *g < f*. That holds for the number of copies that the key's
//! records are written with, as long as that is one number: a receiver takes a record by its
//! own number of copies. So the floors of readers end that ask fewer replicas than hold the key:
//! the first of them is another one now.
//!
//! Of a key that is written with several numbers of copies all floors end whenever keys are placed
//! otherwise, also by going back, and none begins until all have dropped what is placed elsewhere:
//! a node that holds a record of one copy in the place of an
//! earlier one of three, and is not the one any more, drops it, and holds neither.
//!
//! A read of one of several is told what was there. While keys move that may be all there is of
//! it: such reads raise no floors then, and those that they have raised end.
//!
//! While partitions move, a request is counted in both sets. So of one that began before reads
//! switched and ended afterwards, each claim is made only if it holds by the replicas of before
//! and by those of after.

use bytes::Bytes;
use cluster::{AskedQuorum, NodeId, Quorum, Topology};

use super::{Floor, Ledger, Operation};

/// What a request asks where that is the default number of copies.
pub(super) fn by_default(asked: AskedQuorum, copies: u8) -> Quorum {
    let from = asked.from.unwrap_or(copies);
    Quorum { ack: asked.ack.unwrap_or(from / 2 + 1), from }
}

/// Whether a node is among the first `copies` replicas of a key; 0 = the default number.
pub(crate) fn is_replica(topology: &Topology, key: &[u8], copies: u8, node: usize) -> bool {
    let mut order = Vec::new();
    topology.replicas(topology.partition_of(key), topology.copies_of(copies), &mut order);
    order.contains(&NodeId(node as u16))
}

impl Floor {
    /// Whether one of several was enough.
    fn is_of_one(&self) -> bool {
        self.held_by == 1 && self.from > 1
    }

    /// It is as high as the last write of its kind that was acknowledged. Returns whether there is
    /// one.
    fn is_of_writes_alone(&mut self) -> bool {
        self.version = self.order.unwrap_or(self.version);
        self.order.is_some()
    }
}

impl Ledger {
    /// How often reads have switched to other replicas.
    pub(super) fn moves(&self) -> usize {
        self.defaults.len() - 1
    }

    /// Some node places keys otherwise from now on.
    pub(crate) fn placed_otherwise(&mut self) {
        self.placements += 1;
        let mut floors = std::mem::take(&mut self.floors);
        floors.retain(|key, _| !self.is_mixed(key));
        for floors in floors.values_mut() {
            floors.retain_mut(|floor| !floor.is_of_one() || floor.is_of_writes_alone());
        }
        self.floors = floors;
    }

    /// All nodes have dropped what is placed elsewhere, or have not yet. What they dropped of mixed
    /// keys may have been held in the place of something else.
    pub(crate) fn set_quiet(&mut self, is_quiet: bool) {
        if is_quiet && !std::mem::replace(&mut self.is_quiet, is_quiet) {
            let mut floors = std::mem::take(&mut self.floors);
            floors.retain(|key, _| !self.is_mixed(key));
            self.floors = floors;
        }
        self.is_quiet = is_quiet;
    }

    /// Whether what a read was told stays: see the module.
    pub(super) fn is_kept(&self, operation: &Operation) -> bool {
        let stays = operation.is_quiet && operation.placements == self.placements;
        let quorum = by_default(operation.asked.quorum, self.defaults[operation.moves]);
        stays || quorum.ack > 1 || quorum.from == 1
    }

    /// Some node reads other replicas from now on; so many hold a key unless a request says
    /// otherwise.
    pub(crate) fn moved(&mut self, default_copies: u8) {
        let switch = self.moves();
        self.defaults.push(default_copies);
        let mut floors = std::mem::take(&mut self.floors);
        for (key, floors) in &mut floors {
            let after = |floor: &Floor| self.moved_floor(key, *floor, switch);
            *floors = floors.iter().filter_map(after).collect();
        }
        self.floors = floors;
    }

    /// Whether a key was written with several numbers of copies, by any default there was.
    pub(super) fn is_mixed(&self, key: &Bytes) -> bool {
        self.defaults.iter().any(|default| self.copies_by(key, *default).is_none())
    }

    /// Whether a node is a replica of a key whatever number of copies it was written with.
    pub(crate) fn is_replica(&self, topology: &Topology, node: usize, key: &Bytes) -> bool {
        let mut copies = self.copies.get(key).into_iter().flatten();
        let is_of = |copies: &u8| is_replica(topology, key, *copies, node);
        copies.all(is_of)
    }

    /// The number of copies that a key is written with; `None` = there are several.
    fn copies_by(&self, key: &Bytes, default: u8) -> Option<u8> {
        let copies = self.copies.get(key).into_iter().flatten();
        let mut copies = copies.map(|copies| if *copies == 0 { default } else { *copies });
        let first = copies.next().unwrap_or(default);
        copies.all(|other| other == first).then_some(first)
    }

    /// By how many of how many replicas it is held after reads have switched once what was held by
    /// so many before; `None` = that can't be said.
    fn after(&self, key: &Bytes, (held_by, from): (u8, u8), switch: usize) -> Option<(u8, u8)> {
        let of = |switch: usize| self.copies_by(key, self.defaults[switch]);
        let (before, after) = (of(switch)?, of(switch + 1)?);
        if from != before || self.is_mixed(key) {
            return None;
        }
        let lacking = if after < before { 0 } else { before - held_by };
        Some((after - lacking, after))
    }

    fn moved_floor(&self, key: &Bytes, floor: Floor, switch: usize) -> Option<Floor> {
        let (held_by, from) = self.after(key, (floor.held_by, floor.from), switch)?;
        Some(Floor { held_by, from, ..floor })
    }

    /// The floors of a key that an operation must not be below.
    pub(super) fn binding_floors<'a>(
        &'a self,
        operation: &'a Operation,
        key: &Bytes,
    ) -> impl Iterator<Item = Floor> + use<'a> {
        let floors = operation.floors.get_key_value(key);
        let floors =
            floors.into_iter().flat_map(|(key, floors)| floors.iter().map(move |f| (key, *f)));
        floors.filter_map(|(key, floor)| self.if_binding(operation, key, floor))
    }

    fn if_binding(&self, operation: &Operation, key: &Bytes, mut floor: Floor) -> Option<Floor> {
        if !operation.is_quiet && self.is_mixed(key) {
            return None;
        }
        let has_moved = operation.placements != self.placements;
        if has_moved && (self.is_mixed(key) || floor.is_of_one() && !floor.is_of_writes_alone()) {
            return None;
        }
        for switch in operation.moves..=self.moves() {
            if switch > operation.moves {
                floor = self.moved_floor(key, floor, switch - 1)?;
            }
            let quorum = by_default(operation.asked.quorum, self.defaults[switch]);
            if !floor.overlaps(quorum) {
                return None;
            }
        }
        Some(floor)
    }

    /// By how many of how many replicas a record of so many copies is held, once an operation has
    /// stored or returned it; `None` = that can't be said.
    pub(super) fn holders(
        &self,
        operation: &Operation,
        key: &Bytes,
        copies: u8,
    ) -> Option<(u8, u8)> {
        let stays = operation.is_quiet && operation.placements == self.placements;
        if (!stays || operation.is_in_damage) && self.is_mixed(key) {
            return None;
        }
        let by = |switch: usize| {
            let default = self.defaults[switch];
            let quorum = by_default(operation.asked.quorum, default);
            let copies = if copies == 0 { default } else { copies };
            (quorum.ack.min(copies), quorum.from.min(copies))
        };
        let mut held = by(operation.moves);
        for switch in operation.moves..self.moves() {
            let (moved, new) = (self.after(key, held, switch)?, by(switch + 1));
            if moved.1 != new.1 {
                return None;
            }
            held = (moved.0.min(new.0), new.1);
        }
        // One of those that hold it may be the one that gave it up.
        held.0 -= u8::from(operation.is_in_damage);
        Some(held).filter(|(held_by, _)| *held_by > 0)
    }
}
