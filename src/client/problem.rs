//! A node's refusal, in words.

use serde::Deserialize;

use super::{Ask, Unable, fail};

/// An answer's body that is `application/problem+json`, as far as people are told of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Problem {
    title: String,
    detail: String,
    acked: Option<u32>,
    required: Option<u32>,
    from: Option<u32>,
    outcome: Option<String>,
}

impl Problem {
    /// Tells people, or programs.
    pub(super) fn tell(status: u16, body: &[u8], ask: &Ask) -> Unable {
        let parsed = serde_json::from_slice::<Self>(body);
        match parsed {
            Ok(_) if ask.json => {
                eprintln!("{}", String::from_utf8_lossy(body).trim_end());
                Unable::Failed
            }
            _ => Self::tell_of(status, body, &ask.url),
        }
    }

    /// Tells people what the node at `url` said.
    pub(super) fn tell_of(status: u16, body: &[u8], url: &str) -> Unable {
        match serde_json::from_slice::<Self>(body) {
            Ok(problem) => fail(format!("{url} answers {status}: {}", problem.words())),
            Err(_) => fail(format!("{url} answers {status}, and no kvorum would say so")),
        }
    }

    fn words(&self) -> String {
        let mut words = self.title.clone();
        if !self.detail.is_empty() {
            words += ": ";
            words += &self.detail;
        }
        if let (Some(acked), Some(required), Some(from)) = (self.acked, self.required, self.from) {
            words += &format!(" ({acked} of the {required} replicas asked for, out of {from})");
        }
        words += match self.outcome.as_deref() {
            Some("none") => ". Nothing was written",
            Some(_) => ". It may have been written, or be so later",
            None => "",
        };
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_all_it_knows() {
        let words = |json: &str| serde_json::from_str::<Problem>(json).unwrap().words();
        assert_eq!(words(r#"{"title":"T","status":400,"detail":"d"}"#), "T: d");
        assert_eq!(
            words(r#"{"title":"T","acked":1,"required":2,"from":3,"outcome":"unknown","x":1}"#),
            "T (1 of the 2 replicas asked for, out of 3). It may have been written, or be so later"
        );
        assert_eq!(words(r#"{"title":"T","outcome":"none"}"#), "T. Nothing was written");
    }
}
