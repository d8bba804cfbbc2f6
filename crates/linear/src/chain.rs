//! Checks the steps in tags. The conditional writes after a plain write have the steps 1, 2, 3 …,
//! each exactly once. If one write was answered before another began, the other has the higher
//! step.
//!
//! ```text
//!  plain write: base version ─▶ step 1 ─▶ step 2 ─▶ (3: unknown writer) ─▶ step 4
//! ```

use std::collections::BTreeMap;

use super::families::PROOF_ORIGIN;
use super::{Completion, History, Operation, Request, Response};

/// Returns the first error in the tags of a history; `None` = they are consistent.
pub fn check(history: &History) -> Option<String> {
    let mut families: BTreeMap<(u64, u32), BTreeMap<u32, &Operation>> = BTreeMap::new();
    for operation in &history.operations {
        let Completion::At(_, Response::Changed { tag, .. }) = &operation.end else { continue };
        let Some((step, _)) = tag.last else { continue };
        let family = families.entry(tag.family).or_default();
        if let Some(other) = family.insert(step, operation) {
            return Some(format!("both are step {step} of a family:\n  {other}\n  {operation}"));
        }
    }
    // The number of unanswered operations that may have made a step.
    let unknown = history.operations.iter().filter(|operation| operation.may_have_made_step());
    let mut unknown = unknown.count();
    for ((_, made_by), family) in &families {
        let mut last: Option<(u32, &Operation)> = None;
        // Of the operations with lower steps, the one with the latest call.
        let mut latest: Option<&Operation> = None;
        for (step, operation) in family {
            // The base version of a repair proof continues the steps of the base version that it
            // replaced. A client need not have seen those earlier steps.
            let begins = if *made_by == PROOF_ORIGIN { step - 1 } else { 0 };
            let between = step - 1 - last.map_or(begins, |(step, _)| step);
            let Some(left) = unknown.checked_sub(between as usize) else {
                return Some(format!("nobody did the {between} steps before this:\n  {operation}"));
            };
            unknown = left;
            if let Some(later) = latest
                && operation.end.answer_time() < Some(later.call)
            {
                return Some(format!("a later one has a lower step:\n  {operation}\n  {later}"));
            }
            if latest.is_none_or(|latest| latest.call < operation.call) {
                latest = Some(operation);
            }
            last = Some((*step, operation));
        }
    }
    None
}

impl Operation {
    /// Returns true if the operation may have made a step that no client knows.
    fn may_have_made_step(&self) -> bool {
        matches!((&self.asked, &self.end), (Request::Change(..), Completion::Unknown))
    }
}
