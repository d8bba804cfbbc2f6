//! Collapsed stacks, the format of most flame graph tools: one line for each distinct stack,
//! `root;frame;frame WEIGHT`. The root is the thread.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Distinct stacks with their weights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folded {
    stacks: BTreeMap<String, u64>,
}

/// The error of a line that is not a collapsed stack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a collapsed stack: {text:?} should be `frame;frame WEIGHT`")]
pub struct NotFolded {
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Beginning of the line's text.
    pub text: String,
}

impl Folded {
    /// Adds `weight` to a stack. `frames` begins with the root.
    pub fn add<'a>(&mut self, frames: impl IntoIterator<Item = &'a str>, weight: u64) {
        let mut stack = String::new();
        for frame in frames {
            if !stack.is_empty() {
                stack.push(';');
            }
            // In a frame, separators of frames and lines are replaced.
            stack.extend(frame.chars().map(|c| match c {
                ';' => ',',
                c if c.is_control() => ' ',
                c => c,
            }));
        }
        *self.stacks.entry(stack).or_default() += weight;
    }

    /// Parses collapsed stacks, and skips empty lines.
    pub fn parse(text: &str) -> Result<Self, NotFolded> {
        let mut folded = Self::default();
        for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
            let parts = line.rsplit_once(' ');
            let parsed = parts.and_then(|(stack, weight)| Some((stack, weight.parse().ok()?)));
            let Some((stack, weight)) = parsed.filter(|(stack, _): &(&str, u64)| !stack.is_empty())
            else {
                let text = line.chars().take(80).collect();
                return Err(NotFolded { line: number, text });
            };
            *folded.stacks.entry(stack.to_owned()).or_default() += weight;
        }
        Ok(folded)
    }

    /// Returns the stacks, each beginning with the root, with their weights, sorted by name.
    pub fn stacks(&self) -> impl Iterator<Item = (&str, u64)> {
        self.stacks.iter().map(|(stack, weight)| (stack.as_str(), *weight))
    }

    /// Returns the sum of all weights.
    pub fn total(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// Returns true if there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Returns the weight of all stacks with a frame that satisfies `of`, as a share of the total,
    /// 0–1. Returns 0 without such stacks.
    pub fn share(&self, mut of: impl FnMut(&str) -> bool) -> f64 {
        let holds = self.stacks().filter(|(stack, _)| stack.split(';').any(&mut of));
        let sum: u64 = holds.map(|(_, weight)| weight).sum();
        if sum == 0 { 0.0 } else { sum as f64 / self.total() as f64 }
    }
}

impl std::fmt::Display for Folded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (stack, weight) in self.stacks() {
            f.write_str(stack)?;
            f.write_char(' ')?;
            writeln!(f, "{weight}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_stacks_are_read_back_unchanged() {
        let mut folded = Folded::default();
        folded.add(["loop-0", "a b", "c"], 2);
        folded.add(["loop-0", "a b", "c"], 3);
        folded.add(["loop-0", "x;y\nz"], 1);
        assert_eq!(folded.to_string(), "loop-0;a b;c 5\nloop-0;x,y z 1\n");
        assert_eq!(Folded::parse(&folded.to_string()), Ok(folded.clone()));
        assert_eq!((folded.total(), folded.share(|frame| frame == "c")), (6, 5.0 / 6.0));
        assert_eq!(Folded::parse("\n\n").unwrap().total(), 0);
    }

    #[test]
    fn malformed_stack_lines_are_named() {
        for bad in ["a", "a b", "a -1", " 5"] {
            let error = Folded::parse(&format!("a;b 1\n{bad}\n")).unwrap_err();
            assert_eq!((error.line, error.text.as_str()), (2, bad));
        }
    }
}
