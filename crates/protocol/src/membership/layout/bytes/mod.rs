//! Encoding of layouts, as stored, sent, and hashed to a layout id.
//!
//! Each field is followed by its length in bytes. `count k, × (…)` is a count of k bytes and then
//! that many elements; `1 + n` is a text of n bytes after its length.
//!
//! ```text
//!   form 1 │ epoch 8 │ base 16 │ stage 1 │ began 8 │ next id 4
//!   forced layouts (`Decree`): count 1, × (base 8, epoch 8, number 8)
//!   metadata quorum (`Council`): count 1, × (id 2, voter 8)
//!   replicas 1 │ nodes: count 2, × node
//!   only while partitions move: old replicas 1 │ old nodes: count 2, × node
//!   sections: count 1, × (kind 1 │ length 4 │ content), without the empty ones, in this order:
//!     kind 1, tokens: count 2, × token (`access/mod.rs`)
//!     kind 2, quotas: count 1, × quota (`quota.rs`)
//!
//!   node: id 2 │ weight 2 │ hash weight 4 │ first disk 8 │ lost 1
//!         name 1 + n │ zone 1 + n │ URL 1 + n
//! ```
//!
//! The value of `form` is 1. All numbers are little-endian. A node takes about 70 bytes.

use std::sync::Arc;

use bytes::Buf;

use super::{Access, Decree, Layout, MAX_COUNCIL, Node, PreviousMembers, Seat, Stage, VoterId};
use crate::membership::disk_ids::Incarnation;
use crate::node_id::NodeId;
use crate::placement::topology::{HashWeight, Member, check_members};

/// Version of the encoding. Decoding refuses any other.
const FORMAT_VERSION: u8 = 1;

/// Kinds of sections.
const TOKENS: u8 = 1;
const QUOTAS: u8 = 2;

/// Maximum length of an encoded layout in bytes: two lists of 16,384 nodes with names, zones and
/// URLs of usual length. A message has room for a layout of this length.
pub const MAX_BYTES: usize = 4 << 20;

impl Layout {
    /// Encodes the layout.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![FORMAT_VERSION];
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.base.to_le_bytes());
        out.push(match self.stage {
            Stage::Settled => 0,
            Stage::ReadOld => 1,
            Stage::ReadNew => 2,
            Stage::Prepare => 3,
        });
        out.extend(self.placement_epoch.to_le_bytes());
        out.extend(self.next_id.to_le_bytes());
        out.push(self.decrees.len() as u8);
        for Decree { base, epoch, number } in &self.decrees {
            [base, epoch, number].iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
        out.push(self.council.len() as u8);
        for Seat { node, voter } in &self.council {
            out.extend(node.0.to_le_bytes());
            out.extend(voter.map_or(0, |voter| voter.0).to_le_bytes());
        }
        put_nodes(&mut out, self.replicas, &self.nodes);
        if let Some(before) = &self.before {
            put_nodes(&mut out, before.replicas, &before.nodes);
        }
        put_sections(&mut out, &self.access);
        out
    }

    /// Decodes bytes made by [`Layout::to_bytes`]. Errors: the reason why the bytes are not a
    /// layout.
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > MAX_BYTES {
            return Err("it has more than 4 MiB");
        }
        let layout = read(&mut bytes).ok_or("it ends early, or is of a later release")?;
        if !bytes.is_empty() {
            return Err("it goes on behind its end");
        }
        layout.check()?;
        Ok(layout)
    }

    /// Checks that the decoded parts are consistent. Errors: the reason why they are not.
    fn check(&self) -> Result<(), &'static str> {
        let size = self.council.len();
        let before = self.before.as_ref();
        if (self.stage == Stage::Settled) != before.is_none() {
            return Err("its stage and its previous nodes don't fit together");
        }
        if !(1..=MAX_COUNCIL).contains(&size) {
            return Err("its council is empty, or too large");
        }
        if !self.has_consistent_decrees() {
            return Err("its decrees don't follow on each other");
        }
        self.access.check()?;
        if self.placement_epoch > self.epoch {
            return Err("it began after itself");
        }
        let before = before.map(|before| (&before.nodes, &before.replicas));
        for (nodes, replicas) in std::iter::once((&self.nodes, &self.replicas)).chain(before) {
            let mut ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
            ids.sort_unstable();
            let in_order = |pair: &[Node]| pair[0].member.name < pair[1].member.name;
            if ids.windows(2).any(|pair| pair[0] == pair[1]) || !nodes.windows(2).all(in_order) {
                return Err("its nodes are not in the order of their names, or two are the same");
            }
            let members: Vec<Member> = nodes.iter().map(|node| node.member.clone()).collect();
            if check_members(&members, *replicas).is_err() {
                return Err("its nodes make no cluster");
            }
            if ids.last().is_none_or(|last| u32::from(last.0) >= self.next_id) {
                return Err("it has no nodes, or an id that was not given yet");
            }
        }
        let mut seats: Vec<NodeId> = self.council.iter().map(|seat| seat.node).collect();
        seats.sort_unstable();
        if seats.windows(2).any(|pair| pair[0] == pair[1])
            || seats.iter().any(|seat| self.node(*seat).is_none())
        {
            return Err("a councillor is not a node of it, or has two seats");
        }
        Ok(())
    }
}

fn put_sections(out: &mut Vec<u8>, access: &Access) {
    let (mut tokens, mut quotas) = (Vec::new(), Vec::new());
    if !access.tokens.is_empty() {
        access.put_tokens(&mut tokens);
    }
    if !access.quotas.is_empty() {
        access.put_quotas(&mut quotas);
    }
    let sections = [(TOKENS, tokens), (QUOTAS, quotas)];
    let sections = sections.iter().filter(|(_, section)| !section.is_empty());
    out.push(sections.clone().count() as u8);
    for (kind, section) in sections {
        out.push(*kind);
        out.extend((section.len() as u32).to_le_bytes());
        out.extend(section);
    }
}

fn put_nodes(out: &mut Vec<u8>, replicas: u8, nodes: &[Node]) {
    out.push(replicas);
    out.extend((nodes.len() as u16).to_le_bytes());
    for Node { id, member, hash_weight, url, first_disk, is_lost } in nodes {
        out.extend(id.0.to_le_bytes());
        out.extend((member.weight as u16).to_le_bytes());
        out.extend(hash_weight.get().to_le_bytes());
        out.extend(first_disk.map_or(0, |disk| disk.0).to_le_bytes());
        out.push(u8::from(*is_lost));
        for text in [&member.name, &member.zone, url] {
            out.push(u8::try_from(text.len()).expect("a plan refuses longer ones"));
            out.extend(text.as_bytes());
        }
    }
}

fn read(bytes: &mut &[u8]) -> Option<Layout> {
    let _form = bytes.try_get_u8().ok().filter(|form| *form == FORMAT_VERSION)?;
    let epoch = bytes.try_get_u64_le().ok()?;
    let base = bytes.try_get_u128_le().ok()?;
    let stage = match bytes.try_get_u8().ok()? {
        0 => Stage::Settled,
        1 => Stage::ReadOld,
        2 => Stage::ReadNew,
        3 => Stage::Prepare,
        _ => return None,
    };
    let began = bytes.try_get_u64_le().ok()?;
    let next_id = bytes.try_get_u32_le().ok()?;
    let decrees = read_decrees(bytes)?;
    let mut council = Vec::new();
    for _ in 0..bytes.try_get_u8().ok()? {
        let node = NodeId(bytes.try_get_u16_le().ok()?);
        let voter = VoterId::of_number(bytes.try_get_u64_le().ok()?);
        council.push(Seat { node, voter });
    }
    let (replicas, nodes) = read_nodes(bytes)?;
    let before = match stage {
        Stage::Settled => None,
        Stage::Prepare | Stage::ReadOld | Stage::ReadNew => {
            let (replicas, nodes) = read_nodes(bytes)?;
            Some(PreviousMembers { nodes, replicas })
        }
    };
    let access = Arc::new(read_sections(bytes)?);
    Some(Layout {
        epoch,
        replicas,
        stage,
        placement_epoch: began,
        nodes,
        before,
        council,
        next_id,
        base,
        decrees,
        access,
    })
}

/// Decodes the sections. The encoding is canonical: each section occurs at most once, in order, and
/// none is empty.
fn read_sections(bytes: &mut &[u8]) -> Option<Access> {
    let (mut access, mut last) = (Access::default(), 0);
    for _ in 0..bytes.try_get_u8().ok()? {
        let kind = bytes.try_get_u8().ok().filter(|kind| *kind > last)?;
        let length = bytes.try_get_u32_le().ok()? as usize;
        let (mut section, rest) = bytes.split_at_checked(length)?;
        (*bytes, last) = (rest, kind);
        match kind {
            TOKENS => access.tokens = Access::read_tokens(&mut section)?,
            QUOTAS => access.quotas = Access::read_quotas(&mut section)?,
            _ => return None,
        }
        if !section.is_empty() {
            return None;
        }
    }
    Some(access)
}

fn read_decrees(bytes: &mut &[u8]) -> Option<Vec<Decree>> {
    let count = bytes.try_get_u8().ok()?;
    let mut number = || bytes.try_get_u64_le().ok();
    (0..count)
        .map(|_| Some(Decree { base: number()?, epoch: number()?, number: number()? }))
        .collect()
}

fn read_nodes(bytes: &mut &[u8]) -> Option<(u8, Vec<Node>)> {
    let replicas = bytes.try_get_u8().ok()?;
    let count = bytes.try_get_u16_le().ok()?;
    let node = |_| {
        let id = NodeId(bytes.try_get_u16_le().ok()?);
        let weight = u32::from(bytes.try_get_u16_le().ok()?);
        let hash_weight = HashWeight::new(bytes.try_get_u32_le().ok()?)?;
        let first_disk = Incarnation::of_number(bytes.try_get_u64_le().ok()?);
        let is_lost = match bytes.try_get_u8().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let [name, zone, url] = [text(bytes)?, text(bytes)?, text(bytes)?];
        let member = Member { name, zone, weight };
        Some(Node { id, member, hash_weight, url, first_disk, is_lost })
    };
    Some((replicas, (0..count).map(node).collect::<Option<_>>()?))
}

fn text(bytes: &mut &[u8]) -> Option<String> {
    let count = usize::from(bytes.try_get_u8().ok()?);
    let (text, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(std::str::from_utf8(text).ok()?.to_owned())
}

#[cfg(test)]
mod tests;
