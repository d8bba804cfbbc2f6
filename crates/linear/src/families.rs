//! Unites base versions that denote the same state. A repair proof replaces a key's base version
//! and continues its steps. So two tags with the same last conditional write denote one state, even
//! if their base versions differ.
//!
//! ```text
//!  base version f: step 1 ─▶ step 2 ─▶ step 3
//!                                        ║ the same conditional write: f and g denote one state
//!  base version g:                     step 3 ─▶ step 4 ─▶ step 5
//! ```

use std::collections::BTreeMap;

use super::{Completion, Condition, History, Request, Response, Tag};

/// Origin of the base versions that repair proofs create.
pub(crate) const PROOF_ORIGIN: u32 = u32::MAX;

type Family = (u64, u32);

/// Replaces base versions that denote the same state by the smallest of them.
pub fn unite(history: &mut History) {
    let mut of_states: BTreeMap<(u32, u64), Family> = BTreeMap::new();
    let mut earlier: BTreeMap<Family, Family> = BTreeMap::new();
    for_each_tag(history, |tag| {
        let Some(last) = tag.last else { return };
        let other = *of_states.entry(last).or_insert(tag.family);
        if ![tag.family.1, other.1].contains(&PROOF_ORIGIN) {
            return;
        }
        let (one, other) = (first(&earlier, tag.family), first(&earlier, other));
        if one != other {
            earlier.insert(one.max(other), one.min(other));
        }
    });
    for_each_tag(history, |tag| tag.family = first(&earlier, tag.family));
}

fn first(earlier: &BTreeMap<Family, Family>, mut family: Family) -> Family {
    while let Some(before) = earlier.get(&family) {
        family = *before;
    }
    family
}

fn for_each_tag(history: &mut History, mut each: impl FnMut(&mut Tag)) {
    for operation in &mut history.operations {
        if let Request::Change(Condition::OneOf(tags), _) = &mut operation.asked {
            tags.iter_mut().for_each(&mut each);
        }
        match &mut operation.end {
            Completion::At(_, Response::Found(Some((_, tag)))) => each(tag),
            Completion::At(_, Response::Changed { tag, .. } | Response::Unmet(Some(tag))) => {
                each(tag)
            }
            Completion::At(..) | Completion::Before(_) | Completion::Unknown => {}
        }
    }
}
