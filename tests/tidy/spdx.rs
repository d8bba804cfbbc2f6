//! License expressions as crates write them: `(MIT OR Apache-2.0) AND Unicode-3.0`, and in the old
//! notation `MIT/Apache-2.0`.
//!
//! <https://spdx.github.io/spdx-spec/v3.0.1/annexes/spdx-license-expressions/>

/// Returns true if the licenses in `allowed` satisfy `expression`, and `None` if the expression's
/// syntax is not valid.
pub(crate) fn is_satisfied(expression: &str, allowed: &[String]) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = Words { words: spaced.split_whitespace().collect(), at: 0, allowed };
    let result = words.parse_any()?;
    (words.at == words.words.len()).then_some(result)
}

struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
    allowed: &'a [String],
}

impl<'a> Words<'a> {
    fn accept(&mut self, word: &str) -> bool {
        let there = self.words.get(self.at) == Some(&word);
        self.at += usize::from(there);
        there
    }

    fn next(&mut self) -> Option<&'a str> {
        self.at += 1;
        self.words.get(self.at - 1).copied()
    }

    /// Evaluates `all OR all …`.
    fn parse_any(&mut self) -> Option<bool> {
        let mut result = self.all()?;
        while self.accept("OR") {
            result |= self.all()?;
        }
        Some(result)
    }

    /// Evaluates `one AND one …`.
    fn all(&mut self) -> Option<bool> {
        let mut result = self.one()?;
        while self.accept("AND") {
            result &= self.one()?;
        }
        Some(result)
    }

    fn one(&mut self) -> Option<bool> {
        if self.accept("(") {
            let result = self.parse_any()?;
            return self.accept(")").then_some(result);
        }
        let mut licence = self.next()?.to_owned();
        if ["OR", "AND", "WITH", ")"].contains(&licence.as_str()) {
            return None;
        }
        if self.accept("WITH") {
            licence = format!("{licence} WITH {}", self.next()?);
        }
        Some(self.allowed.contains(&licence))
    }
}

#[test]
fn alternatives_need_one_licence_and_conjunctions_all() {
    let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for (expression, result) in [
        ("MIT", Some(true)),
        ("GPL-3.0-only", Some(false)),
        ("GPL-2.0-only OR MIT", Some(true)),
        ("GPL-2.0-only/MIT", Some(true)),
        ("MIT AND GPL-2.0-only", Some(false)),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true)),
        ("(GPL-3.0-only OR Apache-2.0) AND Unicode-3.0", Some(false)),
        ("GPL-3.0-only OR MIT AND Unicode-3.0", Some(true)),
        ("MIT AND GPL-3.0-only OR Zlib", Some(false)),
        ("Apache-2.0", Some(false)),
        ("Apache-2.0 WITH LLVM-exception", Some(true)),
        ("", None),
        ("MIT OR", None),
        ("(MIT", None),
        ("MIT MIT", None),
        ("OR MIT", None),
    ] {
        assert_eq!(is_satisfied(expression, &allowed), result, "{expression}");
    }
}
