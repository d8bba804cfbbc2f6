//! Checks that the fences of a key's conditional writes grow: from each write to the writes that
//! began after its answer, and in the order of the steps in the writes' tags.

use std::collections::BTreeMap;

/// A conditional write whose answer had a fence. Times are in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct Fenced {
    pub(crate) number: u64,
    pub(crate) call: u64,
    pub(crate) answered: u64,
    pub(crate) fence: u64,
    /// Base version and step of the write.
    pub(crate) step: Option<((u64, u32), u32)>,
}

/// Returns the first error in the fences of a key's writes, or `None` if they grow.
pub(crate) fn check(mut fenced_writes: Vec<Fenced>) -> Option<String> {
    fenced_writes.sort_by_key(|write| write.call);
    let mut by_answer = fenced_writes.clone();
    by_answer.sort_by_key(|write| write.answered);
    let mut before = by_answer.iter().peekable();
    let mut greatest: Option<&Fenced> = None;
    for write in &fenced_writes {
        while let Some(done) = before.next_if(|done| done.answered < write.call) {
            if greatest.is_none_or(|greatest| greatest.fence < done.fence) {
                greatest = Some(done);
            }
        }
        if let Some(earlier) = greatest.filter(|earlier| earlier.fence >= write.fence) {
            return Some(comes_after(write, earlier));
        }
    }
    let of_steps: BTreeMap<_, &Fenced> =
        fenced_writes.iter().filter_map(|write| Some((write.step?, write))).collect();
    let pairs = of_steps.iter().zip(of_steps.iter().skip(1));
    let mut same = pairs.filter(|(one, other)| one.0.0 == other.0.0);
    let wrong = same.find(|(one, other)| one.1.fence >= other.1.fence);
    wrong.map(|(one, other)| comes_after(other.1, one.1))
}

fn comes_after(later: &Fenced, earlier: &Fenced) -> String {
    let show = |write: &Fenced| format!("{} has {:016x}", write.number, write.fence);
    format!("fence: {} and comes after: {}", show(later), show(earlier))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u64, [call, answered]: [u64; 2], fence: u64, step: u32) -> Fenced {
        Fenced { number, call, answered, fence, step: Some(((5, 1), step)) }
    }

    #[test]
    fn a_later_write_has_a_greater_fence() {
        let right = vec![write(1, [0, 10], 7, 1), write(2, [11, 20], 8, 2)];
        assert_eq!(check(right), None);
        for fence in [6, 7] {
            let wrong = vec![write(1, [0, 10], 7, 2), write(2, [11, 20], fence, 1)];
            assert!(check(wrong).is_some_and(|what| what.starts_with("fence: ")), "{fence}");
        }
    }

    #[test]
    fn concurrent_writes_are_ordered_by_their_steps() {
        let at_once = |steps: [u32; 2]| {
            check(vec![write(1, [0, 10], 7, steps[0]), write(2, [5, 20], 8, steps[1])])
        };
        assert_eq!(at_once([1, 2]), None);
        assert!(at_once([2, 1]).is_some());
    }
}
