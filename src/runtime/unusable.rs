//! The error for a data directory on which a node can't start: the cause, and the remedy.
//!
//! ```text
//!  a file is damaged ─┬─ with other nodes: start with an empty directory and stream their records
//!                     └─ without other nodes: start on a backup
//!  a file can't be read or written ─▶ the operating system's error, and its remedy
//! ```

use std::fmt;
use std::path::PathBuf;

use server::StartError;

use rustix::io::Errno;

use crate::node::advice::{self, Advice};

/// The error for an unusable data directory.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Unusable {
    pub(super) data: PathBuf,
    /// True if the settings name other nodes.
    pub(super) has_others: bool,
    #[source]
    pub(super) cause: StartError,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, has_others, cause } = self;
        // The store's message about a full disk is for a running node, which resumes automatically.
        if let Some((what, is_limit)) = cause.no_room() {
            let errno = if is_limit { Errno::FBIG } else { Errno::NOSPC };
            let (data, advice) = (data.display(), advice::advice(errno));
            return write!(
                f,
                "data directory {data}: {what}. The node did not start. Nothing was deleted. \
                 {advice}, then start again"
            );
        }
        let cause_text = cause.to_string();
        // The text of some causes names the directory already.
        if !cause_text.starts_with("data directory ") {
            write!(f, "data directory {}: ", data.display())?;
        }
        write!(f, "{cause_text}{}", Advice::of(cause, data))?;
        let way_out = match cause.is_damage() {
            false => return Ok(()),
            true if *has_others => {
                "Nothing was changed, and the other nodes serve what they hold. If kvorum status \
                 at one of them shows all others up: move the directory away and start the node \
                 with an empty one, and what the others hold is streamed to it. What no other node \
                 holds (written with from=1, or ack=1 and not passed on yet) is in the old \
                 directory only"
            }
            true => {
                "Nothing was changed. A single node has no replicas to take it from: move the \
                 directory away and start on a backup"
            }
        };
        write!(f, ". {way_out}: see \"A file is damaged\" in docs/operate/repair-and-backup.md")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corrupt() -> lsm::Error {
        let (file, what) = ("0000000007.sst".to_owned(), "its check does not match".to_owned());
        lsm::Error::Corrupt { file, offset: 4096, what }
    }

    fn describe_cause(cause: StartError, has_others: bool) -> String {
        Unusable { data: PathBuf::from("/d"), has_others, cause }.to_string()
    }

    #[test]
    fn the_advice_is_replicas_if_there_are_any_else_a_backup() {
        let found = StartError::Store { what: "the node's identity", source: corrupt() };
        let said = describe_cause(found, true);
        let begins = "data directory /d: the node's identity: 0000000007.sst is damaged at byte \
            4096: its check does not match. Nothing was changed";
        assert!(said.starts_with(begins) && said.contains("is streamed to it"), "{said}");
        let said = describe_cause(StartError::Open(corrupt()), false);
        assert!(said.contains("a backup") && !said.contains("streamed"), "{said}");
    }

    #[test]
    fn a_full_disk_at_the_start_is_one_message() {
        let full = StartError::Open(lsm::Error::NoSpace { what: "the log" });
        let expected = "data directory /d: no space left on disk for the log. The node did not \
            start. Nothing was deleted. Free some space (df, df -i, quota), then start again";
        assert_eq!(describe_cause(full, false), expected);
        let source = lsm::Error::OverFileLimit { what: "the log" };
        let expected = "data directory /d: the node's identity: the log would exceed this \
            process's limit of file sizes. The node did not start. Nothing was deleted. Raise the \
            limit of file sizes (ulimit -f, LimitFSIZE=), then start again";
        let what = "the node's identity";
        assert_eq!(describe_cause(StartError::Store { what, source }, true), expected);
    }

    #[test]
    fn an_error_without_a_remedy_on_disk_has_no_advice() {
        let locked = lsm::Error::Locked { directory: "/d".to_owned() };
        let said = "data directory /d is in use by another process: stop it, or name another";
        assert_eq!(describe_cause(StartError::Open(locked), true), said);
        // Advice to use another directory would lose the records of a later release.
        let later = || StartError::LaterFormat { what: "the node's identity".into(), format: 9 };
        let said = describe_cause(later(), true);
        assert_eq!(said, format!("data directory /d: {}", later()));
        assert!(said.contains("start the release that ran here last"), "{said}");
        let another = StartError::Another("the name".to_owned());
        let expected = format!("data directory /d: {another}");
        assert_eq!(describe_cause(another, true), expected);
    }
}
