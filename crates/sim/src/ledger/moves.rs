//! Adjusts the floors of the ledger when reads switch to other replicas.
//!
//! ```text
//!  write 2/3 acknowledged ──▶ 2 of A B C ──▶ reads switch to A D E ──▶ 2 of A D E at least:
//!                                            D and E have copied what A, B and C had
//! ```
//!
//! Let *h* of *f* replicas hold the record of a floor before the switch, and let the key have *g*
//! replicas after it. At most *f - h* replicas lack the record. The switch adds none: a new replica
//! copies the records of all previous holders, and a remaining replica keeps its own. So
//! *g - (f - h)* of *g* replicas hold the floor. If *g < f*, remaining replicas copy the records
//! too, and all *g* replicas hold the floor.
//!
//! The rule requires that all records of the key have one number of copies, and that *f* is this
//! number, because a receiver copies a record according to the record's own number. If a read asked
//! fewer replicas than *f*, its floor ends: after the switch, its first replicas may be other
//! nodes.
//!
//! If a key is *mixed*, that is, written with different numbers of copies, all its floors end
//! whenever the placement changes, also when a change is reverted, and no floor begins until all
//! nodes have dropped their orphaned records. Otherwise a node could hold a one-copy record in
//! place of an earlier three-copy record, stop being the single replica, drop the one-copy record,
//! and then hold neither record.
//!
//! A read from one of several replicas returns the records of that replica. While keys move, that
//! replica may have the only copy of a record. Then such reads raise no floors, and the floors that
//! such reads raised earlier end.
//!
//! While partitions move, a request's quorum is counted in both replica sets. A request may begin
//! before reads switch, and end afterwards. The ledger then makes a claim only if the claim holds
//! for the replicas before the switch and for those after it.

use bytes::Bytes;
use protocol::{AskedQuorum, NodeId, Quorum, Topology};

use super::{Floor, Ledger, Operation};

/// Returns the quorum of a request if `copies` is the default number of copies.
pub(super) fn quorum_under_default(asked: AskedQuorum, copies: u8) -> Quorum {
    let from = asked.from.unwrap_or(copies);
    Quorum { ack: asked.ack.unwrap_or(from / 2 + 1), from }
}

/// Returns true if a node is among the first `copies` replicas of a key. 0 stands for the default
/// number.
pub(crate) fn is_replica(topology: &Topology, key: &[u8], copies: u8, node: usize) -> bool {
    let mut order = Vec::new();
    topology.replicas(topology.partition_of(key), topology.copies_of(copies), &mut order);
    order.contains(&NodeId(node as u16))
}

impl Floor {
    /// Returns true if one of several replicas was enough to raise the floor.
    fn is_held_by_one(&self) -> bool {
        self.held_by == 1 && self.from > 1
    }

    /// Lowers the floor to its greatest acknowledged version. Returns false if no write was
    /// acknowledged.
    fn lower_to_acknowledged(&mut self) -> bool {
        self.version = self.order.unwrap_or(self.version);
        self.order.is_some()
    }
}

impl Ledger {
    /// Returns the number of switches of reads to other replicas.
    pub(super) fn moves(&self) -> usize {
        self.defaults.len() - 1
    }

    /// Notes that some node has changed its placement of keys.
    pub(crate) fn record_placement_change(&mut self) {
        self.placements += 1;
        let mut floors = std::mem::take(&mut self.floors);
        floors.retain(|key, _| !self.is_mixed(key));
        for floors in floors.values_mut() {
            floors.retain_mut(|floor| !floor.is_held_by_one() || floor.lower_to_acknowledged());
        }
        self.floors = floors;
    }

    /// Records whether all nodes have dropped their orphaned records. Then the floors of mixed keys
    /// end, because a dropped record may have stood in place of another record.
    pub(crate) fn set_quiet(&mut self, is_quiet: bool) {
        if is_quiet && !std::mem::replace(&mut self.is_quiet, is_quiet) {
            let mut floors = std::mem::take(&mut self.floors);
            floors.retain(|key, _| !self.is_mixed(key));
            self.floors = floors;
        }
        self.is_quiet = is_quiet;
    }

    /// Returns true if the replicas that a read asked keep the record that the read returned: see
    /// the module.
    pub(super) fn is_kept(&self, operation: &Operation) -> bool {
        let stays = operation.is_quiet && operation.placements == self.placements;
        let quorum = quorum_under_default(operation.asked.quorum, self.defaults[operation.moves]);
        stays || quorum.ack > 1 || quorum.from == 1
    }

    /// Notes that some node now reads from other replicas, with this default number of copies.
    pub(crate) fn record_switch(&mut self, default_copies: u8) {
        let switch = self.moves();
        self.defaults.push(default_copies);
        let mut floors = std::mem::take(&mut self.floors);
        for (key, floors) in &mut floors {
            let after = |floor: &Floor| self.moved_floor(key, *floor, switch);
            *floors = floors.iter().filter_map(after).collect();
        }
        self.floors = floors;
    }

    /// Returns true if a key was written with different numbers of copies, under any default number
    /// so far.
    pub(super) fn is_mixed(&self, key: &Bytes) -> bool {
        self.defaults.iter().any(|default| self.copies_under(key, *default).is_none())
    }

    /// Returns true if a node is a replica of a key under every number of copies that the key was
    /// written with.
    pub(crate) fn is_replica(&self, topology: &Topology, node: usize, key: &Bytes) -> bool {
        let mut copies = self.copies.get(key).into_iter().flatten();
        let is_of = |copies: &u8| is_replica(topology, key, *copies, node);
        copies.all(is_of)
    }

    /// Returns the number of copies that a key was written with. Returns `None` if the key was
    /// written with several numbers.
    fn copies_under(&self, key: &Bytes, default: u8) -> Option<u8> {
        let copies = self.copies.get(key).into_iter().flatten();
        let mut copies = copies.map(|copies| if *copies == 0 { default } else { *copies });
        let first = copies.next().unwrap_or(default);
        copies.all(|other| other == first).then_some(first)
    }

    /// Converts the holders of a record, `held_by` of `from`, across one switch of reads. Returns
    /// `None` if the new holders are unknown.
    fn move_holders(
        &self,
        key: &Bytes,
        (held_by, from): (u8, u8),
        switch: usize,
    ) -> Option<(u8, u8)> {
        let of = |switch: usize| self.copies_under(key, self.defaults[switch]);
        let (before, after) = (of(switch)?, of(switch + 1)?);
        if from != before || self.is_mixed(key) {
            return None;
        }
        let lacking = if after < before { 0 } else { before - held_by };
        Some((after - lacking, after))
    }

    fn moved_floor(&self, key: &Bytes, floor: Floor, switch: usize) -> Option<Floor> {
        let (held_by, from) = self.move_holders(key, (floor.held_by, floor.from), switch)?;
        Some(Floor { held_by, from, ..floor })
    }

    /// Returns the floors of a key that an operation must not be below.
    pub(super) fn binding_floors<'a>(
        &'a self,
        operation: &'a Operation,
        key: &Bytes,
    ) -> impl Iterator<Item = Floor> + use<'a> {
        let floors = operation.floors.get_key_value(key);
        let floors =
            floors.into_iter().flat_map(|(key, floors)| floors.iter().map(move |f| (key, *f)));
        floors.filter_map(|(key, floor)| self.binding_floor(operation, key, floor))
    }

    fn binding_floor(&self, operation: &Operation, key: &Bytes, mut floor: Floor) -> Option<Floor> {
        if !operation.is_quiet && self.is_mixed(key) {
            return None;
        }
        let has_moved = operation.placements != self.placements;
        if has_moved
            && (self.is_mixed(key) || floor.is_held_by_one() && !floor.lower_to_acknowledged())
        {
            return None;
        }
        for switch in operation.moves..=self.moves() {
            if switch > operation.moves {
                floor = self.moved_floor(key, floor, switch - 1)?;
            }
            let quorum = quorum_under_default(operation.asked.quorum, self.defaults[switch]);
            if !floor.overlaps(quorum) {
                return None;
            }
        }
        Some(floor)
    }

    /// Returns the holders, `held_by` of `from`, of a record with this number of copies after an
    /// operation has stored or returned the record. Returns `None` if the holders are unknown.
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
            let quorum = quorum_under_default(operation.asked.quorum, default);
            let copies = if copies == 0 { default } else { copies };
            (quorum.ack.min(copies), quorum.from.min(copies))
        };
        let mut held = by(operation.moves);
        for switch in operation.moves..self.moves() {
            let (moved, new) = (self.move_holders(key, held, switch)?, by(switch + 1));
            if moved.1 != new.1 {
                return None;
            }
            held = (moved.0.min(new.0), new.1);
        }
        // One of the holders may be the node that discarded the block with the record.
        held.0 -= u8::from(operation.is_in_damage);
        Some(held).filter(|(held_by, _)| *held_by > 0)
    }
}
