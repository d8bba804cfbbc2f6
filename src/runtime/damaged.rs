//! A data directory on which a node can't start because a file in it is damaged: what is still
//! true, and the way out.

use std::path::Path;

use node::StartError;

/// What keeps a node from its data directory.
#[derive(Debug)]
pub(crate) struct Unusable {
    why: String,
    is_damaged: bool,
}

impl From<StartError> for Unusable {
    fn from(error: StartError) -> Self {
        Self { is_damaged: error.is_damage(), why: error.to_string() }
    }
}

impl From<lsm::Error> for Unusable {
    fn from(error: lsm::Error) -> Self {
        Self { is_damaged: matches!(error, lsm::Error::Corrupt { .. }), why: error.to_string() }
    }
}

impl Unusable {
    /// All of it on one line, for a node in a cluster of so many.
    pub(crate) fn said(&self, data: &Path, nodes: usize) -> String {
        let (shown, why) = (data.display(), &self.why);
        if !self.is_damaged {
            return format!("data directory {shown}: {why}");
        }
        let way_out = if nodes > 1 {
            "Nothing was changed, and the other nodes serve what they hold. If kvorum status at \
             one of them shows all others up: move the directory away and start the node with an \
             empty one, and what the others hold is streamed to it. What no other node holds \
             (written with from=1, or ack=1 and not passed on yet) is in the old directory only"
        } else {
            "Nothing was changed. A single node has no replicas to take it from: move the \
             directory away and start on a backup"
        };
        format!("data directory {shown}: {why}. {way_out}: see \"A damaged file\" in operation.md")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corrupt() -> lsm::Error {
        let (file, what) = ("0000000007.sst".to_owned(), "its check does not match".to_owned());
        lsm::Error::Corrupt { file, offset: 4096, what }
    }

    #[test]
    fn who_has_replicas_is_sent_to_them_and_who_has_none_to_a_backup() {
        let found = StartError::Store { what: "the node's identity", source: corrupt() };
        let said = Unusable::from(found).said(Path::new("/d"), 3);
        let begins = "data directory /d: the node's identity: 0000000007.sst is damaged at byte \
            4096: its check does not match. Nothing was changed";
        assert!(said.starts_with(begins) && said.contains("is streamed to it"), "{said}");
        let said = Unusable::from(corrupt()).said(Path::new("/d"), 1);
        assert!(said.contains("a backup") && !said.contains("streamed"), "{said}");
    }

    #[test]
    fn nothing_is_said_of_a_way_out_that_is_none() {
        let locked = lsm::Error::Locked { directory: "/d".to_owned() };
        let said = Unusable::from(locked.clone()).said(Path::new("/d"), 3);
        assert_eq!(said, format!("data directory /d: {locked}"));
        // To send somebody away from what a later release wrote would lose it.
        let later = || StartError::LaterFormat { what: "the node's identity".into(), format: 9 };
        let said = Unusable::from(later()).said(Path::new("/d"), 3);
        assert_eq!(said, format!("data directory /d: {}", later()));
        assert!(said.contains("start the release that ran here last"), "{said}");
        let another = StartError::Another("the name".to_owned());
        let expected = format!("data directory /d: {another}");
        assert_eq!(Unusable::from(another).said(Path::new("/d"), 3), expected);
    }
}
