//! Reasons why data stored by an earlier run of a node can't be read.

/// The reason why stored data can't be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A later release wrote the data in the format with this number. The data itself is intact.
    LaterFormat(u8),
    /// The data is damaged; the text says how.
    Damaged(String),
}

impl From<&'static str> for Unreadable {
    fn from(what: &'static str) -> Self {
        Self::Damaged(what.to_owned())
    }
}
